"""Train an encoder-decoder pair from scratch: a tokenizer, a T5 target, and drafters distilled from it.

Run `python -m experiments.make_pair`; conf/make_pair.yaml sets the source, which may be any with references. Killed
runs resume from their last checkpoint in `workdir`.
"""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("make_pair")
    raise SystemExit

import json
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf
from tokenizers import processors
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from experiments.config.builders import build
from experiments.config.cli_errors import one_line_errors
from experiments.config.command import command
from experiments.quality.references import quality
from experiments.trainer.growth import SIZES, differing_size, grow_into
from experiments.trainer.pairs import Pairs, read_pairs, tokenised
from experiments.trainer.precision import autocast
from experiments.trainer.pretraining import byte_level_bpe, fit, ship
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.stopping import Stopping
from framework.models.pretrained import load_target
from framework.prompts.prompt_source import Text
from framework.prompts.truncation import leading_tokens
from framework.training.trainable import FILLER, model_inputs, texts_of

PAD, END = "<pad>", "</s>"  # ids 0 and 1, as in T5; pad is also the decoder's start token
SENTENCES_PER_BATCH = 64  # for decoding the scored translations


def train_tokenizer(pairs: list[Text], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on both sides; it appends the end-of-text token to every text."""
    sides = (side for pair in pairs for side in (pair.text, str(pair.reference)))
    tokenizer = byte_level_bpe(sides, vocabulary, [PAD, END])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )


class PairTraining:
    """Trainable of a T5 model, trained on the references or, given a teacher, by distillation."""

    def __init__(self, model: T5ForConditionalGeneration, teacher: T5ForConditionalGeneration | None):
        self.module: nn.Module = model
        self.model, self.teacher = model, teacher

    def loss(self, tokens: Tensor) -> Tensor:
        with autocast(tokens.device):
            return self._losses(tokens)["nats"]

    @torch.no_grad()
    def evaluate(self, tokens: Tensor) -> dict[str, float]:
        self.model.eval()
        found = {name: value.item() for name, value in self._losses(tokens).items()}
        self.model.train()
        return found

    def _losses(self, tokens: Tensor) -> dict[str, Tensor]:
        """Loss in nats per token and, with a teacher, the overlap alpha with its distribution."""
        next_tokens = texts_of(tokens)[:, 1:]
        known = (next_tokens != FILLER).float()
        log_q = _logits(self.model, tokens).log_softmax(-1)
        if self.teacher is None:
            nats = -log_q.gather(-1, next_tokens.clamp(min=0).unsqueeze(-1)).squeeze(-1)
            return {"nats": (nats * known).sum() / known.sum()}
        with torch.no_grad():
            p = _logits(self.teacher, tokens).softmax(-1)
        shared = torch.minimum(p, log_q.exp()).sum(-1)
        nats = -(p * log_q).sum(-1)
        return {"nats": (nats * known).sum() / known.sum(), "alpha": (shared * known).sum() / known.sum()}

    def save(self, folder: Path, held_out: Tensor) -> None:
        self.model.save_pretrained(folder)


def _logits(model: T5ForConditionalGeneration, pairs: Tensor) -> Tensor:
    """[B, T - 1, V] float32 logits after every token of the texts except the last."""
    return model(**model_inputs(pairs), use_cache=False).logits[:, :-1].float()


def make_model(config: DictConfig, tokenizer: PreTrainedTokenizerFast, seed: int) -> T5ForConditionalGeneration:
    torch.manual_seed(seed)
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=len(tokenizer),
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            decoder_start_token_id=tokenizer.pad_token_id,
            **{str(key): value for key, value in config.items()},
        )
    )


def first_model(recipe: DictConfig, tokenizer: PreTrainedTokenizerFast, seed: int) -> T5ForConditionalGeneration:
    """The model before its training: random weights, or the model of the folder `start`, grown to the config's sizes.

    Raises:
        ValueError: the model in `start` has another tokenizer, or cannot be grown to these sizes.
    """
    model = make_model(recipe.config, tokenizer, seed)
    if recipe.start is None:
        return model
    key = recipe._get_full_key(None)
    if PreTrainedTokenizerFast.from_pretrained(recipe.start).get_vocab() != tokenizer.get_vocab():
        allowed = f"null, or tokenizer={recipe.start}"
        raise ValueError(f"{key}.start is {recipe.start}, which has another tokenizer; allowed: {allowed}")
    small = T5ForConditionalGeneration.from_pretrained(recipe.start, dtype=torch.float32)
    if (size := differing_size(small, model)) is not None:
        given, begun = getattr(model.config, size), getattr(small.config, size)
        allowed = f"{begun}, that of {recipe.start}" + (", or more" if size in SIZES else "")
        allowed += ", in multiples of it" if size == "d_model" else ""
        raise ValueError(f"{key}.config.{size} is {given}; allowed: {allowed}")
    grow_into(small, model)
    return model


def score(folder: Path, pairs: list[Text], cfg: DictConfig, *, longest_source: int | None) -> dict[str, float]:
    """Quality of a trained model's greedy outputs for sources cut to `longest_source` tokens."""
    target = load_target(path=str(folder), dtype="float32", device=cfg.device, attention="auto", context=None)
    plain = Autoregressive(target=target, sampling=Sampling(temperature=0))
    stopping = Stopping(max_new_tokens=int(cfg.data.longest), eos_ids=(target.tokenizer.eos_token_id,))
    texts: list[str] = []
    for start in range(0, len(pairs), SENTENCES_PER_BATCH):
        some = [pair.text for pair in pairs[start : start + SENTENCES_PER_BATCH]]
        sources = leading_tokens(target.tokenizer, some, longest_source)
        found = plain.generate(sources, stopping=stopping, seeds=list(range(len(sources)))).tokens
        texts += [target.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in found]
    return quality(texts, [pair.reference for pair in pairs])


def make_pair(cfg: DictConfig) -> None:
    """Train the models, resuming from checkpoints, and write them with their provenance."""
    device = torch.device(cfg.device if cfg.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(cfg.threads)
    folder, workdir = Path(cfg.folder), Path(cfg.workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    print("reading the pairs", flush=True)
    training, held_out = (read_pairs(build(cfg[part].source), text=f"{part}.source") for part in ("train", "held_out"))
    if not (workdir / "tokenizer").exists():
        tokenizer = (
            PreTrainedTokenizerFast.from_pretrained(cfg.tokenizer)
            if cfg.tokenizer
            else train_tokenizer(training[: cfg.data.tokenizer_pairs], cfg.vocabulary)
        )
        tokenizer.save_pretrained(workdir / "tokenizer")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(workdir / "tokenizer")
    longest_source = cfg.data.longest if cfg.data.cut_sources else None
    data, unseen = (
        Pairs(
            tokenised(texts, tokenizer, start=[tokenizer.pad_token_id], longest_source=longest_source),
            longest=cfg.data.longest,
            length="data.longest",
        )
        for texts in (training, held_out)
    )
    sample = unseen.sample_evenly(len(unseen)).to(device)

    facts: dict = {"command": "python -m experiments.make_pair", "config": OmegaConf.to_container(cfg, resolve=True)}
    facts |= {"torch": torch.__version__, "pairs": len(data), "held_out_pairs": len(unseen)}
    teacher = None
    recipes = {name: recipe for name, recipe in {"target": cfg.target, **cfg.drafters}.items() if recipe}
    for name, recipe in recipes.items():
        model = first_model(recipe, tokenizer, cfg.seed).to(device)
        trainer = fit(
            name, PairTraining(model, teacher), recipe, cfg, window=cfg.data.longest, held_out=sample,
            batch=lambda step, size: data.drawn(size, seed=cfg.seed, step=step),
            made_of={"pairs": len(data)} | ({"start": recipe.start} if recipe.start else {}),
        )  # fmt: skip
        shipped = ship(model, tokenizer, folder / name)
        facts[name] = {
            "steps": trainer.step,
            "seconds": round(trainer.seconds),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            **trainer.history[-1],
            **score(folder / name, held_out[: cfg.data.scored_pairs], cfg, longest_source=longest_source),
        }
        print(name, json.dumps(facts[name]), flush=True)
        if teacher is None:
            teacher = shipped
    (folder / "provenance.json").write_text(json.dumps(facts, indent=2) + "\n")


@command("make_pair")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="the same command resumes from the last checkpoint"):
        make_pair(cfg)
