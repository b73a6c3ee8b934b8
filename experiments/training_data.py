"""What a drafter is trained on: one stream of the target's tokens, from texts or written by the target itself."""

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from torch import Tensor

from framework.autoregressive import Autoregressive
from framework.prompts.prompt_source import PromptSource
from framework.sampling import Sampling
from framework.stopping import Stopping
from framework.target import Target
from framework.whole_numbers import check_whole

TEXTS_PER_CALL = 64  # a tokenizer's batch: large enough for its threads, small enough for memory


def stream_of_texts(source: PromptSource, target: Target) -> np.ndarray:
    """[n] int64: all texts as they are, each followed by the tokenizer's end-of-text token if it has one."""
    texts = [text.text for text in source.texts()]
    documents: list[list[int]] = []
    for start in range(0, len(texts), TEXTS_PER_CALL):
        # The texts need not fit into the model's context, of which a tokenizer would warn.
        encoded = target.tokenizer(texts[start : start + TEXTS_PER_CALL], add_special_tokens=False, verbose=False)
        documents += encoded["input_ids"]
    return _joined(documents, target)


@dataclass(frozen=True)
class Samples:
    """How the target writes its own training text.

    Attributes:
        count: texts written; beyond the number of prompts these are taken again, with other seeds.
        prompt_tokens: of each prompt, taken from anywhere in the texts; None takes the prompts as they are.
        new_tokens: of each text, at most.
        temperatures: taken in turn, batch after batch.
        batch: texts written at once, and kept on the disk.
    """

    count: int
    prompt_tokens: int | None
    new_tokens: int
    temperatures: list[float]
    batch: int

    def __post_init__(self) -> None:
        for key in ("count", "prompt_tokens", "new_tokens", "batch"):
            check_whole(f"samples.{key}", getattr(self, key), least=1, most=10**9, or_null=key == "prompt_tokens")
        given = self.temperatures
        if not isinstance(given, list) or not given or not all(isinstance(t, int | float) and t >= 0 for t in given):
            raise ValueError(f"samples.temperatures is {given!r}; allowed: a list of numbers >= 0, such as [0, 1]")

    def check_lengths(self, *, context: int, window: int | None) -> None:
        """
        Args:
            context: the target's.
            window: tokens that all texts together must hold; None where as many are written as are needed.

        Raises:
            ValueError: a text does not fit into the context, or all of them not fill a window.
        """
        longest = (self.prompt_tokens or 1) + self.new_tokens
        if longest > context:
            raise ValueError(
                f"samples.prompt_tokens is {self.prompt_tokens} and samples.new_tokens {self.new_tokens}; allowed: "
                f"together at most the target's context, {context}"
            )
        if window is not None and self.prompt_tokens is not None and self.count * (longest + 1) < window:
            raise ValueError(
                f"samples.count is {self.count} and samples.new_tokens {self.new_tokens}, not enough for one window; "
                f"allowed: at least training.window, {window} tokens, in all"
            )


def stream_of_samples(prompts: list[list[int]], target: Target, samples: Samples, *, folder: Path) -> np.ndarray:
    """[n] int64: what the target makes of the prompts, they included, each followed by the end-of-text token.

    Every batch is kept in a file that is named after all it depends on, so that a killed run goes on with the next one.
    """
    written: list[list[int]] = []
    starts = range(0, samples.count, samples.batch)
    for start in track(starts, "sampling from the target", disable=not sys.stdout.isatty(), transient=True):
        seeds = list(range(start, min(start + samples.batch, samples.count)))
        begun = [prompts[seed % len(prompts)] for seed in seeds]
        temperature = samples.temperatures[start // samples.batch % len(samples.temperatures)]
        made_of = json.dumps([target.fingerprint, begun, samples.new_tokens, temperature, seeds])
        file = folder / f"{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.json"
        texts = _kept(file, begun)
        if texts is None:
            texts = _continued(begun, target, samples.new_tokens, temperature, seeds)
            _write_whole(file, texts)
        written += texts
    return _joined(written, target)


def _kept(file: Path, begun: list[list[int]]) -> list[list[int]] | None:
    """What an earlier run made of these prompts; None if that is not there, or damaged."""
    try:
        texts = json.loads(file.read_text())
        is_whole = [text[: len(prompt)] for text, prompt in zip(texts, begun, strict=True)] == begun
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None
    return texts if is_whole else None


def _continued(
    prompts: list[list[int]], target: Target, new_tokens: int, temperature: float, seeds: list[int]
) -> list[list[int]]:
    eos = target.tokenizer.eos_token_id
    stopping = Stopping(max_new_tokens=new_tokens, eos_ids=() if eos is None else (eos,))
    plain = Autoregressive(target=target, sampling=Sampling(temperature=temperature))
    new = plain.generate(prompts, stopping=stopping, seeds=seeds).tokens
    return [prompt + tokens for prompt, tokens in zip(prompts, new, strict=True)]


def _write_whole(file: Path, texts: list[list[int]]) -> None:
    """A kill leaves the file or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".new")
    unfinished.write_text(json.dumps(texts))
    unfinished.replace(file)


def _joined(documents: list[list[int]], target: Target) -> np.ndarray:
    eos = target.tokenizer.eos_token_id
    ends = [] if eos is None else [eos]
    parts = [ids if ids[-1:] == ends else ids + ends for ids in documents]
    stream = np.concatenate([np.array(ids, dtype=np.int64) for ids in parts] or [np.empty(0, dtype=np.int64)])
    if len(stream) and stream.max() >= target.vocabulary_size:
        raise ValueError(
            f"the training text holds token id {stream.max()}; allowed: ids below the target's vocabulary size "
            f"{target.vocabulary_size}; the tokenizer does not belong to this target"
        )
    return stream


class Windows:
    """Stretches of a stream of tokens, all of one length."""

    def __init__(self, stream: np.ndarray, size: int, *, text: str, length: str = "training.window"):
        """
        Args:
            stream: [n] int64.
            size: tokens of a window.
            text: where the stream comes from, with the keys that make it longer.
            length: the key that says how long windows are.

        Raises:
            ValueError: the stream is shorter than a window.
        """
        if len(stream) < size:
            raise ValueError(f"{text} gives {len(stream)} tokens; allowed: at least {length}, {size}")
        self.stream, self.size = stream, size

    @property
    def num_tokens(self) -> int:
        return len(self.stream)

    def fingerprint(self) -> str:
        """16 hex digits that name the tokens."""
        return hashlib.sha256(self.stream.tobytes()).hexdigest()[:16]

    def drawn(self, count: int, *, seed: int, step: int) -> Tensor:
        """[count, size] int64 from anywhere; a step draws the same ones always."""
        random = np.random.default_rng((seed, step))
        return self._at(random.integers(0, len(self.stream) - self.size + 1, count))

    def spread(self, count: int) -> Tensor:
        """[count, size] int64 (fewer of a short stream) at even distances over the whole stream."""
        count = min(count, len(self.stream) // self.size)
        return self._at(np.linspace(0, len(self.stream) - self.size, count).astype(int))

    def _at(self, starts: np.ndarray) -> Tensor:
        return torch.from_numpy(np.stack([self.stream[start : start + self.size] for start in starts]))
