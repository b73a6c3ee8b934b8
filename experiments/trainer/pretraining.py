"""Pretraining from scratch: a byte-level BPE tokenizer, a target, and drafters distilled from it."""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from experiments.trainer.precision import autocast
from experiments.trainer.trainer import Recipe, Trainer
from framework.models.pretrained import fingerprint
from framework.training.trainable import Trainable

END_OF_TEXT = "<|endoftext|>"
MAX_POSITIONS = 2048
HELD_OUT_WINDOWS = 64


@dataclass(frozen=True)
class TokenisedText:
    """Training and held-out data of language models.

    Attributes:
        tokenizer: tokenizer trained on the same text.
        windows: training windows.
        held_out: [n, window + 1] int64, windows at even distances over the held-out text.
        bytes_per_token: mean over the held-out text.
    """

    tokenizer: PreTrainedTokenizerFast
    windows: "Windows"
    held_out: Tensor
    bytes_per_token: float


def sample_evenly(stream: np.ndarray, window: int, stride: int = 1) -> Tensor:
    """[n, window + 1] int64: windows at even distances over a stream, starting at multiples of stride.

    Raises:
        ValueError: the stream is shorter than one window.
    """
    if len(stream) <= window:
        raise ValueError(f"the held-out text has {len(stream)} tokens; allowed: more than data.window, {window}")
    count = min(HELD_OUT_WINDOWS, (len(stream) - 1) // window)
    starts = np.linspace(0, len(stream) - window - 1, count).astype(int) // stride * stride
    return torch.from_numpy(np.stack([stream[s : s + window + 1].astype(np.int64) for s in starts]))


def byte_level_bpe(
    texts: Iterable[str], vocabulary: int, special_tokens: list[str], *, every_byte: bool = True
) -> Tokenizer:
    """Train byte-level BPE without normalisation, so that decoding restores the string.

    Args:
        every_byte: whether the alphabet has all 256 bytes, or only the bytes in `texts`.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if every_byte else [],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train_tokenizer(texts: list[str], vocabulary: int, *, every_byte: bool = True) -> PreTrainedTokenizerFast:
    """Train a tokenizer on texts, with the end-of-text token as its only special token."""
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_level_bpe(texts, vocabulary, [END_OF_TEXT], every_byte=every_byte),
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
    """Training windows drawn at random from several streams; seed and step determine a batch."""

    def __init__(self, streams: list[np.ndarray], shares: list[float], window: int, seed: int, stride: int = 1):
        """
        Args:
            streams: token streams.
            shares: sampling probability of each stream.
            window: tokens to predict; a window has one more.
            seed: seed of the draws.
            stride: windows start at multiples of it.
        """
        self.streams, self.shares, self.window, self.seed, self.stride = streams, shares, window, seed, stride

    def batch(self, step: int, size: int) -> Tensor:
        """[size, window + 1] int64."""
        random = np.random.default_rng((self.seed, step))
        rows = []
        for _ in range(size):
            stream = self.streams[random.choice(len(self.streams), p=self.shares)]
            start = random.integers(0, len(stream) - self.window - 1) // self.stride * self.stride
            rows.append(stream[start : start + self.window + 1].astype(np.int64))
        return torch.from_numpy(np.stack(rows))


def make_model(config: DictConfig, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """Build a model with random weights; `config` has the model_type and sizes."""
    torch.manual_seed(seed)
    sizes = {str(key): value for key, value in config.items()}
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(
            sizes.pop("model_type"),
            vocab_size=len(tokenizer),
            max_position_embeddings=MAX_POSITIONS,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            **sizes,
        )
    )


class Pretraining:
    """Trainable of a model, trained on text or, given a teacher, by distillation."""

    def __init__(self, model: PreTrainedModel, teacher: PreTrainedModel | None, *, compiled: bool):
        self.module: nn.Module = model
        self.model, self.teacher = model, teacher
        self._models = (model,) if teacher is None else (model, teacher)
        loss: Callable[..., Tensor] = cross_entropy if teacher is None else distillation
        self._loss = torch.compile(loss) if compiled else loss

    def loss(self, tokens: Tensor) -> Tensor:
        with autocast(tokens.device):
            return self._loss(*self._models, tokens)

    def evaluate(self, tokens: Tensor) -> dict[str, float]:
        self.model.eval()
        measures = {"nats": held_out_nats(self.model, tokens)}
        if self.teacher is not None:
            measures["alpha"] = held_out_alpha(self.teacher, self.model, tokens)
        self.model.train()
        return measures

    def save(self, folder: Path, held_out: Tensor) -> None:
        self.model.save_pretrained(folder)


def fit(
    name: str,
    trainable: Trainable,
    recipe: DictConfig,
    cfg: DictConfig,
    *,
    window: int,
    batch: Callable[[int, int], Tensor],
    held_out: Tensor,
    made_of: dict[str, Any],
) -> Trainer:
    """Run the remaining steps of a model's training.

    Args:
        name: name of the model and of its checkpoint in cfg.workdir.
        trainable: the trained model.
        recipe: the model's section of the config.
        cfg: the config.
        window: tokens per window.
        batch: function from step and batch size to windows.
        held_out: windows to evaluate on.
        made_of: further settings that the result depends on.
    """
    own = {str(key): value for key, value in recipe.items() if key not in ("config", "start")}
    steps = Recipe(**own, window=window, optimizer="muon",
                   checkpoint_every=cfg.checkpoint_every, evaluate_every=cfg.evaluate_every)  # fmt: skip
    made_of = {"config": OmegaConf.to_container(recipe.config), "seed": cfg.seed} | made_of
    trainer = Trainer(trainable, steps, file=Path(cfg.workdir) / f"{name}.checkpoint.pt", made_of=made_of)
    print(f"{name}: from step {trainer.step} to {steps.steps}", flush=True)
    trainable.module.train()
    trainer.run(lambda step: batch(step, steps.batch).to(held_out.device), held_out)
    trainable.module.eval()
    return trainer


def ship(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> PreTrainedModel:
    """Write a model in bfloat16.

    Returns:
        The model with the written (rounded) weights in float32, frozen, to serve as teacher.
    """
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model.float().requires_grad_(False)


@torch.no_grad()
def held_out_nats(model: PreTrainedModel, batches: Tensor) -> float:
    """Mean cross-entropy in nats per token over [n, window + 1] held-out windows."""
    return sum(cross_entropy(model, batch[None].to(model.device)).item() for batch in batches) / len(batches)


@torch.no_grad()
def held_out_alpha(target: PreTrainedModel, drafter: PreTrainedModel, batches: Tensor) -> float:
    """Mean overlap sum min(p, q) at temperature 1 over all positions of held-out windows, teacher-forced."""
    overlaps = []
    for batch in batches:
        inputs = batch[None, :-1].to(target.device)
        p, q = (model(input_ids=inputs, use_cache=False).logits.float().softmax(-1) for model in (target, drafter))
        overlaps.append(torch.minimum(p, q).sum(-1).mean().item())
    return float(np.mean(overlaps))


def cross_entropy(model: PreTrainedModel, batch: Tensor) -> Tensor:
    logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def distillation(drafter: PreTrainedModel, target: PreTrainedModel, batch: Tensor) -> Tensor:
    """Cross-entropy of the drafter against the target's full distribution: forward KL up to a constant."""
    inputs = batch[:, :-1]
    with torch.no_grad():
        p = target(input_ids=inputs, use_cache=False).logits.float().softmax(-1)
    log_q = drafter(input_ids=inputs, use_cache=False).logits.float().log_softmax(-1)
    return -(p * log_q).sum(-1).mean()


def lengthened(folder: Path, rope_parameters: DictConfig) -> PreTrainedModel:
    """Load a trained model with rescaled rotary frequencies, for further training on longer texts.

    Frequencies that complete at most one rotation within the trained length are lowered, so that longer texts have no
    unseen angles (YaRN, Peng et al., 2023, 2309.00071).
    """
    config = AutoConfig.from_pretrained(folder)
    config.rope_parameters = OmegaConf.to_container(rope_parameters)
    return AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32)


def made_with(cfg: DictConfig) -> dict[str, Any]:
    """Provenance of a training: torch version and resolved config."""
    return {"torch": torch.__version__, "config": OmegaConf.to_container(cfg, resolve=True)}


def train_models(
    cfg: DictConfig, text: TokenisedText, *, begin: Callable[[str], PreTrainedModel] | None = None
) -> dict[str, Any]:
    """Train a target and its drafters, resuming from checkpoints, and write them to cfg.folder.

    Args:
        cfg: the config.
        text: training and held-out data.
        begin: function from a name to its initial model; None: models with random weights.

    Returns:
        Training facts and held-out measures by model name.
    """
    device = torch.device(cfg.device if cfg.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(cfg.threads)
    facts: dict[str, Any] = {}
    teacher, window = None, cfg.data.window
    for name, recipe in {"target": cfg.target, **cfg.drafters}.items():
        model = (begin(name) if begin else make_model(recipe.config, text.tokenizer, cfg.seed)).to(device)
        trainer = fit(
            name, Pretraining(model, teacher, compiled=cfg.compile), recipe, cfg,
            window=window, batch=text.windows.batch, held_out=text.held_out[::4].to(device),
            made_of={
                "data": OmegaConf.to_container(cfg.data),
                "rope_parameters": getattr(model.config, "rope_parameters", None),
                "first_weights": fingerprint(model),
                "teacher": None if teacher is None else fingerprint(teacher),
            },
        )  # fmt: skip
        shipped = ship(model, text.tokenizer, Path(cfg.folder) / name)
        facts[name] = {
            "steps": trainer.step,
            "tokens": trainer.step * recipe.batch * window,
            "seconds": round(trainer.seconds),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
        } | _quality(shipped, teacher, text)
        print(name, json.dumps(facts[name]), flush=True)
        if teacher is None:
            teacher = shipped
    return facts


def _quality(model: PreTrainedModel, teacher: PreTrainedModel | None, text: TokenisedText) -> dict[str, float]:
    """Measures on the held-out text; alpha only for a drafter."""
    nats = held_out_nats(model, text.held_out)
    measures = {
        "held_out_nats_per_token": round(nats, 4),
        "held_out_bits_per_byte": round(nats / math.log(2) / text.bytes_per_token, 4),
    }
    if teacher is not None:
        measures["held_out_alpha"] = round(held_out_alpha(teacher, model, text.held_out), 4)
    return measures
