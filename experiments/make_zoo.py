"""Train the embedded models: a byte-level BPE tokenizer, a Llama target, and a drafter distilled from it.

Run `python -m experiments.make_zoo`. Killed runs resume from their last checkpoint in `workdir`.
"""

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import hydra
import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from rich.progress import Progress
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from experiments.python_corpus import Corpus, read_python_corpus
from framework.prompts.standard_library import StandardLibrary

END_OF_TEXT = "<|endoftext|>"
MAX_POSITIONS = 2048


def train_tokenizer(texts: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE without normalisation: every string can be written, and decoding gives it back."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> np.ndarray:
    """All texts as one uint16 stream, each followed by the end-of-text token."""
    stream: list[int] = []
    for start in range(0, len(texts), 256):
        for ids in tokenizer(texts[start : start + 256], verbose=False)["input_ids"]:
            stream.extend(ids)
            stream.append(tokenizer.eos_token_id)
    return np.asarray(stream, dtype=np.uint16)


class Windows:
    """Training windows drawn at random from the two streams; step i always draws the same ones."""

    def __init__(self, streams: list[np.ndarray], shares: list[float], window: int, seed: int):
        self.streams, self.shares, self.window, self.seed = streams, shares, window, seed

    def batch(self, step: int, size: int) -> Tensor:
        """[size, window + 1] int64."""
        random = np.random.default_rng((self.seed, step))
        rows = []
        for _ in range(size):
            stream = self.streams[random.choice(len(self.streams), p=self.shares)]
            start = random.integers(0, len(stream) - self.window - 1)
            rows.append(stream[start : start + self.window + 1].astype(np.int64))
        return torch.from_numpy(np.stack(rows))


def make_model(config: DictConfig, tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            max_position_embeddings=MAX_POSITIONS,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            **{str(key): value for key, value in config.items()},
        )
    )


def make_optimizers(model: nn.Module, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the weight matrices (it needs about half of AdamW's steps here), AdamW for embeddings and norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        torch.optim.Muon(matrices, lr=learning_rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=learning_rate, weight_decay=0.0, betas=(0.9, 0.95)),
    ]


def rate_at(step: int, recipe: DictConfig) -> float:
    """Share of the full learning rate: linear warm-up, constant, linear decay to zero."""
    remaining = (recipe.steps - step) / (recipe.decay * recipe.steps)
    return min(1.0, (step + 1) / recipe.warmup, remaining)


def fit(
    name: str,
    model: LlamaForCausalLM,
    loss: Callable[[Tensor], Tensor],
    windows: Windows,
    recipe: DictConfig,
    cfg: DictConfig,
    evaluate: Callable[[], dict[str, float]],
) -> dict[str, float]:
    """Take `recipe.steps` optimiser steps on `loss`, resuming from the checkpoint if there is one.

    Returns:
        what went in: steps, tokens, seconds of training.
    """
    device = next(model.parameters()).device
    checkpoint = Path(cfg.workdir) / f"{name}.checkpoint.pt"
    optimizers = make_optimizers(model, recipe.learning_rate)
    # Steps may be added to a training; what it was made of may not change under it.
    made_of = [OmegaConf.to_container(recipe.config), recipe.batch, OmegaConf.to_container(cfg.data), cfg.seed]
    step, seconds = 0, 0.0
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device)
        if saved["made_of"] != made_of:
            raise ValueError(
                f"{checkpoint} was begun with {saved['made_of']}, not with {made_of}; set workdir to another folder, "
                "or delete it to begin anew"
            )
        model.load_state_dict(saved["model"])
        for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        step, seconds = saved["step"], saved["seconds"]

    def save() -> None:
        fresh = checkpoint.with_suffix(".new")
        torch.save(
            {
                "model": model.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in optimizers],
                "made_of": made_of,
                "step": step,
                "seconds": seconds,
            },
            fresh,
        )
        fresh.replace(checkpoint)  # a kill leaves the old checkpoint or the new one, never half of one

    with Progress(disable=not sys.stdout.isatty()) as progress:
        bar = progress.add_task(name, total=recipe.steps, completed=step)
        while step < recipe.steps:
            start = time.perf_counter()
            batch = windows.batch(step, recipe.batch).to(device)
            with torch.autocast(device.type, torch.bfloat16):
                value = loss(batch)
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = recipe.learning_rate * rate_at(step, recipe)
                optimizer.step()
                optimizer.zero_grad()
            seconds += time.perf_counter() - start
            step += 1
            progress.update(bar, advance=1)
            if step % cfg.checkpoint_every == 0 or step == recipe.steps:
                save()
                rate = step * recipe.batch * windows.window / seconds
                print(
                    f"{name} step {step} loss {value.item():.3f} {rate:.0f} tokens/s {seconds / 60:.1f} min", flush=True
                )
            if step % cfg.evaluate_every == 0 or step == recipe.steps:
                print(f"{name} step {step} held out {evaluate()}", flush=True)
    return {"steps": step, "tokens": step * recipe.batch * windows.window, "seconds": round(seconds)}


@torch.no_grad()
def held_out_nats(model: LlamaForCausalLM, batches: Tensor) -> float:
    """Mean cross-entropy in nats per token over [n, window + 1] held-out windows."""
    model.eval()
    total = sum(cross_entropy(model, batch[None].to(model.device)).item() for batch in batches)
    model.train()
    return total / len(batches)


@torch.no_grad()
def held_out_alpha(target: LlamaForCausalLM, drafter: LlamaForCausalLM, batches: Tensor) -> float:
    """Mean overlap of the two laws at temperature 1 over held-out windows (all positions, teacher-forced)."""
    overlaps = []
    for batch in batches:
        inputs = batch[None, :-1].to(target.device)
        p, q = (model(input_ids=inputs, use_cache=False).logits.float().softmax(-1) for model in (target, drafter))
        overlaps.append(torch.minimum(p, q).sum(-1).mean().item())
    return float(np.mean(overlaps))


def cross_entropy(model: LlamaForCausalLM, batch: Tensor) -> Tensor:
    logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def distillation(drafter: LlamaForCausalLM, target: LlamaForCausalLM, batch: Tensor) -> Tensor:
    """Cross-entropy of the drafter against the target's whole law: forward KL up to a constant."""
    inputs = batch[:, :-1]
    with torch.no_grad():
        p = target(input_ids=inputs, use_cache=False).logits.float().softmax(-1)
    log_q = drafter(input_ids=inputs, use_cache=False).logits.float().log_softmax(-1)
    return -(p * log_q).sum(-1).mean()


def prepare_data(cfg: DictConfig) -> tuple[PreTrainedTokenizerFast, Windows, Tensor, float, dict]:
    """Tokenizer, training windows, held-out windows [n, window + 1], bytes per held-out token, and provenance."""
    workdir = Path(cfg.workdir)
    prepared = workdir / "data.json"
    if not prepared.exists():
        print("reading and tokenising the corpus: a minute or two", flush=True)
        corpus: Corpus = read_python_corpus()
        sample = corpus.standard_library + corpus.packages[::8]
        train_tokenizer(sample, cfg.vocabulary).save_pretrained(workdir / "tokenizer")
        tokenizer = PreTrainedTokenizerFast.from_pretrained(workdir / "tokenizer")
        held_out = [text.text for text in StandardLibrary(split="held_out").texts()]
        parts = {"standard_library": corpus.standard_library, "packages": corpus.packages, "held_out": held_out}
        streams = {name: encode(tokenizer, texts) for name, texts in parts.items()}
        for name, stream in streams.items():
            np.save(workdir / f"{name}.npy", stream)
        held_out_bytes = sum(len(text.encode()) for text in held_out)
        facts = {
            "fingerprint": corpus.fingerprint(),
            "licences": corpus.licences,
            "files": {name: len(texts) for name, texts in parts.items()},
            "tokens": {name: len(stream) for name, stream in streams.items()},
            "copies_of_held_out_text_dropped": corpus.num_copies_dropped,
            "bytes_per_held_out_token": held_out_bytes / len(streams["held_out"]),
            "python": sys.version.split()[0],
        }
        prepared.write_text(json.dumps(facts, indent=2))
    facts = json.loads(prepared.read_text())
    tokenizer = PreTrainedTokenizerFast.from_pretrained(workdir / "tokenizer")
    share = cfg.data.standard_library_share
    training = [np.load(workdir / f"{name}.npy") for name in ("standard_library", "packages")]
    windows = Windows(training, [share, 1 - share], cfg.data.window, cfg.seed)
    held_out = np.load(workdir / "held_out.npy").astype(np.int64)
    count = min(64, (len(held_out) - 1) // cfg.data.window)
    starts = np.linspace(0, len(held_out) - cfg.data.window - 1, count).astype(int)
    held_out_windows = torch.from_numpy(np.stack([held_out[s : s + cfg.data.window + 1] for s in starts]))
    return tokenizer, windows, held_out_windows, facts["bytes_per_held_out_token"], facts


def train_zoo(cfg: DictConfig) -> None:
    """Train what is not trained yet, and write the finished models with their provenance."""
    device = torch.device(cfg.device if cfg.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(cfg.threads)
    Path(cfg.workdir).mkdir(parents=True, exist_ok=True)
    tokenizer, windows, held_out, bytes_per_token, data_facts = prepare_data(cfg)
    print(f"data: {data_facts['tokens']}, {bytes_per_token:.2f} bytes per held-out token", flush=True)

    target = make_model(cfg.target.config, tokenizer, cfg.seed).to(device)
    drafter = make_model(cfg.drafter.config, tokenizer, cfg.seed).to(device)
    target_loss = torch.compile(cross_entropy) if cfg.compile else cross_entropy
    drafter_loss = torch.compile(distillation) if cfg.compile else distillation
    target_facts = fit(
        "target", target, lambda batch: target_loss(target, batch), windows, cfg.target, cfg,
        lambda: {"nats": round(held_out_nats(target, held_out[::4]), 4)},
    )  # fmt: skip
    target.eval().requires_grad_(False)
    drafter_facts = fit(
        "drafter", drafter, lambda batch: drafter_loss(drafter, target, batch), windows, cfg.drafter, cfg,
        lambda: {
            "nats": round(held_out_nats(drafter, held_out[::4]), 4),
            "alpha": round(held_out_alpha(target, drafter, held_out[::4]), 4),
        },
    )  # fmt: skip
    drafter.eval()

    folder = Path(cfg.folder)
    facts: dict = {"command": "python -m experiments.make_zoo", "torch": torch.__version__, "corpus": data_facts}
    facts["config"] = OmegaConf.to_container(cfg)
    for name, model, trained in (("target", target, target_facts), ("drafter", drafter, drafter_facts)):
        model.to(torch.bfloat16).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        shipped = LlamaForCausalLM.from_pretrained(folder / name, dtype=torch.float32).eval()  # as users will load it
        nats = held_out_nats(shipped, held_out)
        facts[name] = trained | {
            "parameters": sum(p.numel() for p in model.parameters()),
            "held_out_nats_per_token": round(nats, 4),
            "held_out_bits_per_byte": round(nats / math.log(2) / bytes_per_token, 4),
        }
        if name == "drafter":
            teacher = LlamaForCausalLM.from_pretrained(folder / "target", dtype=torch.float32).eval()
            facts["held_out_alpha"] = round(held_out_alpha(teacher, shipped, held_out), 4)
    (folder / "provenance.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(json.dumps({name: facts[name] for name in ("target", "drafter", "held_out_alpha")}, indent=2))


@hydra.main(version_base="1.3", config_path="../conf", config_name="zoo")
def main(cfg: DictConfig) -> None:
    train_zoo(cfg)


if __name__ == "__main__":
    main()
