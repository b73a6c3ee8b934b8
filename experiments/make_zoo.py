"""Train the embedded models: a byte-level BPE tokenizer, a Llama target, and a drafter distilled from it.

Run `python -m experiments.make_zoo`. Killed runs resume from their last checkpoint in `workdir`.
"""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import hydra
import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from experiments.fitting import Fitting, Recipe
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


class Pretraining:
    """A Trainable: a model fitted in bfloat16 to text, or to a teacher's law of it."""

    def __init__(self, model: LlamaForCausalLM, teacher: LlamaForCausalLM | None, *, compiled: bool):
        self.module: nn.Module = model
        self.model, self.teacher = model, teacher
        self._models = (model,) if teacher is None else (model, teacher)
        loss: Callable[..., Tensor] = cross_entropy if teacher is None else distillation
        self._loss = torch.compile(loss) if compiled else loss

    def loss(self, tokens: Tensor) -> Tensor:
        with torch.autocast(tokens.device.type, torch.bfloat16):
            return self._loss(*self._models, tokens)

    def evaluate(self, tokens: Tensor) -> dict[str, float]:
        measures = {"nats": held_out_nats(self.model, tokens)}
        if self.teacher is not None:
            measures["alpha"] = held_out_alpha(self.teacher, self.model, tokens)
        return measures

    def save(self, folder: Path, held_out: Tensor) -> None:
        self.model.save_pretrained(folder)


def fit(name: str, trainable: Pretraining, windows: Windows, held_out: Tensor, cfg: DictConfig) -> dict[str, float]:
    """Take the steps that are left of the training of cfg's target or drafter.

    Returns:
        what went in: steps, tokens, seconds of training.
    """
    own = {str(key): value for key, value in cfg[name].items() if key != "config"}
    recipe = Recipe(**own, window=cfg.data.window, optimizer="muon",
                    checkpoint_every=cfg.checkpoint_every, evaluate_every=cfg.evaluate_every)  # fmt: skip
    made_of = {"config": OmegaConf.to_container(cfg[name].config), "data": OmegaConf.to_container(cfg.data)}
    file = Path(cfg.workdir) / f"{name}.checkpoint.pt"
    fitting = Fitting(trainable, recipe, file=file, made_of=made_of | {"seed": cfg.seed})
    print(f"{name}: from step {fitting.step} to {recipe.steps}", flush=True)
    fitting.run(lambda step: windows.batch(step, recipe.batch).to(held_out.device), held_out)
    tokens = fitting.step * recipe.batch * recipe.window
    return {"steps": fitting.step, "tokens": tokens, "seconds": round(fitting.seconds)}


@torch.no_grad()
def held_out_nats(model: LlamaForCausalLM, batches: Tensor) -> float:
    """Mean cross-entropy in nats per token over [n, window + 1] held-out windows."""
    return sum(cross_entropy(model, batch[None].to(model.device)).item() for batch in batches) / len(batches)


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
    sparse = held_out[::4].to(device)
    target_facts = fit("target", Pretraining(target, None, compiled=cfg.compile), windows, sparse, cfg)
    target.eval().requires_grad_(False)
    drafter_facts = fit("drafter", Pretraining(drafter, target, compiled=cfg.compile), windows, sparse, cfg)
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
