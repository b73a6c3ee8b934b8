"""Train an encoder-decoder pair from scratch: a tokenizer, a T5 target, and drafters distilled from it.

Run `python -m experiments.make_pair`; any source of texts with references will do (conf/pair.yaml). Killed runs resume
from their last checkpoint in `workdir`.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import hydra
import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from experiments.assemble import build
from experiments.fitting import Fitting, Recipe
from experiments.quality import quality
from framework.autoregressive import Autoregressive
from framework.pretrained import load_target
from framework.prompts.prompt_source import PromptSource, Text
from framework.sampling import Sampling
from framework.stopping import Stopping

PAD, END = "<pad>", "</s>"  # the first two ids, as in T5; pad also begins a text
SENTENCES_PER_BATCH = 64  # decoded at once, to be scored


def read_pairs(source: PromptSource) -> list[Text]:
    """
    Raises:
        ValueError: a text has no reference to be trained on.
    """
    texts = list(source.texts())
    for text in texts:
        if text.reference is None:
            raise ValueError(f"{text.name} has no reference; train.source and held_out.source must give pairs of texts")
    return texts


def train_tokenizer(pairs: list[Text], vocabulary: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE of both languages; a text is followed by the end-of-text token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((side for pair in pairs for side in (pair.text, pair.reference)), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )


@dataclass(frozen=True)
class TokenPairs:
    """Tokenised pairs, those of like length beside each other.

    Attributes:
        sources: [n, S] uint16, filled up with pads.
        texts: [n, T] uint16.
    """

    sources: np.ndarray
    texts: np.ndarray

    @classmethod
    def of(cls, pairs: list[Text], tokenizer: PreTrainedTokenizerFast, longest: int) -> "TokenPairs":
        """Those whose sides have at most `longest` tokens each.

        Raises:
            ValueError: there is none.
        """
        sides = [tokenizer([getattr(pair, side) for pair in pairs])["input_ids"] for side in ("text", "reference")]
        kept = [pair for pair in zip(*sides, strict=True) if max(map(len, pair)) <= longest]
        if not kept:
            raise ValueError(f"no pair has at most {longest} tokens a side; raise data.longest")
        kept.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
        return cls(*(_padded([pair[side] for pair in kept]) for side in (0, 1)))

    def batch(self, start: int, size: int) -> Tensor:
        """[size, 2, L] int64: pairs from `start` on, both sides as wide as the longest of them."""
        rows = slice(start, start + size)
        sides = [side[rows] for side in (self.sources, self.texts)]
        width = max(int((side != 0).sum(1).max()) for side in sides)
        width = -(-width // 8) * 8
        padded = [np.pad(side, ((0, 0), (0, max(0, width - side.shape[1]))))[:, :width] for side in sides]
        return torch.from_numpy(np.stack(padded, 1).astype(np.int64))

    def random_batch(self, step: int, size: int, seed: int) -> Tensor:
        """The same from anywhere; a step always gives the same one."""
        last = max(1, len(self.sources) - size + 1)
        return self.batch(int(np.random.default_rng((seed, step)).integers(last)), size)


def _padded(rows: list[list[int]]) -> np.ndarray:
    padded = np.zeros((len(rows), max(map(len, rows))), dtype=np.uint16)
    for row, tokens in enumerate(rows):
        padded[row, : len(tokens)] = tokens
    return padded


class PairTraining:
    """A Trainable: a T5 fitted to the texts that answer sources, or to a teacher's law of them."""

    def __init__(self, model: T5ForConditionalGeneration, teacher: T5ForConditionalGeneration | None):
        self.module: nn.Module = model
        self.model, self.teacher = model, teacher

    def loss(self, tokens: Tensor) -> Tensor:
        with torch.autocast(tokens.device.type, torch.bfloat16):
            return self._losses(tokens)["nats"]

    @torch.no_grad()
    def evaluate(self, tokens: Tensor) -> dict[str, float]:
        self.model.eval()
        found = {name: value.item() for name, value in self._losses(tokens).items()}
        self.model.train()
        return found

    def _losses(self, tokens: Tensor) -> dict[str, Tensor]:
        """nats per token, of the text or of the teacher's law; and beside a teacher, how much of its law is shared."""
        source, text = tokens[:, 0], tokens[:, 1]
        inputs = nn.functional.pad(text[:, :-1], (1, 0))  # pad begins a text
        known = (text != 0).float()
        log_q = _logits(self.model, source, inputs).log_softmax(-1)
        if self.teacher is None:
            nats = -log_q.gather(-1, text.unsqueeze(-1)).squeeze(-1)
            return {"nats": (nats * known).sum() / known.sum()}
        with torch.no_grad():
            p = _logits(self.teacher, source, inputs).softmax(-1)
        shared = torch.minimum(p, log_q.exp()).sum(-1)
        nats = -(p * log_q).sum(-1)
        return {"nats": (nats * known).sum() / known.sum(), "alpha": (shared * known).sum() / known.sum()}

    def save(self, folder: Path, held_out: Tensor) -> None:
        self.model.save_pretrained(folder)


def _logits(model: T5ForConditionalGeneration, source: Tensor, inputs: Tensor) -> Tensor:
    given = {"input_ids": source, "attention_mask": (source != 0).long(), "decoder_input_ids": inputs}
    return model(**given, use_cache=False).logits.float()


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


def fit(
    name: str, trainable: PairTraining, data: TokenPairs, held_out: Tensor, recipe: DictConfig, cfg: DictConfig
) -> dict:
    """Take the steps that are left; returns what went in and came out."""
    own = {str(key): value for key, value in recipe.items() if key != "config"}
    longest = int(cfg.data.longest)
    steps = Recipe(**own, window=longest, optimizer="muon",
                   checkpoint_every=cfg.checkpoint_every, evaluate_every=cfg.evaluate_every)  # fmt: skip
    made_of = {"config": OmegaConf.to_container(recipe.config), "seed": cfg.seed, "pairs": len(data.sources)}
    fitting = Fitting(trainable, steps, file=Path(cfg.workdir) / f"{name}.checkpoint.pt", made_of=made_of)
    print(f"{name}: from step {fitting.step} to {steps.steps}", flush=True)
    trainable.model.train()
    fitting.run(lambda step: data.random_batch(step, steps.batch, cfg.seed).to(held_out.device), held_out)
    trainable.model.eval()
    return {"steps": fitting.step, "seconds": round(fitting.seconds), **fitting.history[-1]}


def score(folder: Path, pairs: list[Text], cfg: DictConfig) -> dict[str, float]:
    """BLEU and chrF of a finished model's likeliest translations."""
    target = load_target(path=str(folder), dtype="float32", device=cfg.device, attention="fused", context=None)
    plain = Autoregressive(target=target, sampling=Sampling(temperature=0))
    stopping = Stopping(max_new_tokens=int(cfg.data.longest), eos_ids=(target.tokenizer.eos_token_id,))
    texts: list[str] = []
    for start in range(0, len(pairs), SENTENCES_PER_BATCH):
        sources = [target.tokenizer(pair.text)["input_ids"] for pair in pairs[start : start + SENTENCES_PER_BATCH]]
        found = plain.generate(sources, stopping=stopping, seeds=list(range(len(sources)))).tokens
        texts += [target.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in found]
    return quality(texts, [pair.reference for pair in pairs])


def make_pair(cfg: DictConfig) -> None:
    """Train what is not trained yet, and write the finished models with their provenance."""
    device = torch.device(cfg.device if cfg.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(cfg.threads)
    folder, workdir = Path(cfg.folder), Path(cfg.workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    print("reading the pairs", flush=True)
    training, held_out = (read_pairs(build(cfg[part].source)) for part in ("train", "held_out"))
    if not (workdir / "tokenizer").exists():
        train_tokenizer(training[: cfg.data.tokenizer_pairs], cfg.vocabulary).save_pretrained(workdir / "tokenizer")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(workdir / "tokenizer")
    data = TokenPairs.of(training, tokenizer, cfg.data.longest)
    unseen = TokenPairs.of(held_out, tokenizer, cfg.data.longest)
    sample = unseen.batch(0, len(unseen.sources)).to(device)

    facts: dict = {"command": "python -m experiments.make_pair", "config": OmegaConf.to_container(cfg, resolve=True)}
    facts |= {"torch": torch.__version__, "pairs": len(data.sources), "held_out_pairs": len(unseen.sources)}
    teacher = None
    for name, recipe in {"target": cfg.target, **cfg.drafters}.items():
        model = make_model(recipe.config, tokenizer, cfg.seed).to(device)
        facts[name] = fit(name, PairTraining(model, teacher), data, sample, recipe, cfg)
        facts[name]["parameters"] = sum(parameter.numel() for parameter in model.parameters())
        model.to(torch.bfloat16).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        facts[name] |= score(folder / name, held_out[: cfg.data.scored_pairs], cfg)
        print(name, json.dumps(facts[name]), flush=True)
        if name == "target":
            teacher = model.float().requires_grad_(False)
    (folder / "provenance.json").write_text(json.dumps(facts, indent=2) + "\n")


@hydra.main(version_base="1.3", config_path="../conf", config_name="pair")
def main(cfg: DictConfig) -> None:
    make_pair(cfg)


if __name__ == "__main__":
    main()
