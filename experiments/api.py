"""Python API for notebooks and scripts: load a pair with command-line overrides and decode with metrics."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from hydra import compose
from hydra.errors import InstantiationException
from omegaconf import DictConfig

from experiments.config.builders import (
    build_engine,
    build_sampling,
    build_stopping,
    build_target,
    build_with_target,
    check_basics,
    check_parts,
    register_resolvers,
)
from experiments.config.cli_errors import status
from experiments.config.command_line import check_overrides, hydra_apart
from experiments.reporting.completion import Completion, Token
from framework.core.drafter import preserve_learned_state
from framework.core.option_error import options_under
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.metrics.producer import Producer, producers
from framework.metrics.stopwatch import Stopwatch
from framework.models.target import Target
from framework.prompts.chat import chat_tokens, is_chat
from framework.prompts.detokenizer import Detokenizer


def load_pair(*overrides: str) -> "Pair":
    """Load the pair that `python -m experiments.generate OVERRIDES` uses.

    Args:
        overrides: Hydra overrides as on the command line: load_pair("drafter=medusa", "sampling.temperature=0").

    Raises:
        ValueError, OSError: an option is wrong, or a model does not exist; the message names the yaml key.
    """
    register_resolvers()
    try:
        return build_pair(_compose(check_overrides("generate", overrides)))
    except InstantiationException as error:
        raise error.__cause__ or error from None  # the constructor's message names the key


def _compose(overrides: Sequence[str]) -> DictConfig:
    with hydra_apart("generate"):
        return compose("generate", list(overrides))


class Pair:
    """A target and its drafter with a verifier, a gamma policy and a sampling setting.

    Attributes:
        engine: the decoding engine.
        stopping: stopping criteria.
        seed: default seed.
    """

    def __init__(self, *, engine: Engine, stopping: Stopping, seed: int, chat: bool | str, system: str | None):
        """
        Args:
            engine: the decoding engine.
            stopping: stopping criteria.
            seed: default seed.
            chat: whether a prompt becomes a user's turn; "auto": if the tokenizer has a chat template.
            system: system message of a chat; None: the template's own.

        Raises:
            ValueError: chat is set, and the tokenizer has no chat template.
        """
        self.engine = engine
        self.stopping = stopping
        self.seed = seed
        self._chat = is_chat(self.target.tokenizer, chat=chat, system=system)
        self._system = system

    @property
    def target(self) -> Target:
        return self.engine.target

    def generate(
        self, prompt: str, *, max_new_tokens: int | None = None, seed: int | None = None, detailed: bool = False
    ) -> Completion:
        """Decode the continuation of a prompt.

        Args:
            prompt: a text; for an encoder-decoder model, its source.
            max_new_tokens: maximum number of new tokens; None: the pair's.
            seed: seed of sampling; None: the pair's. Equal seeds give equal texts.
            detailed: whether to compute the paper's alpha, `alpha/overlap`, too, which costs time.

        Raises:
            ValueError: the prompt cannot be decoded.
            FloatingPointError: a distribution is not finite.
        """
        *_, completion = self.stream(prompt, max_new_tokens=max_new_tokens, seed=seed, detailed=detailed)
        return completion

    def stream(
        self, prompt: str, *, max_new_tokens: int | None = None, seed: int | None = None, detailed: bool = False
    ) -> Iterator[Completion]:
        """Decode like `generate`, but yield the growing completion after prefill and after every round.

        The same `Completion` object is yielded each time. Finish or abandon a stream before starting another: the
        target has one KV cache. A drafter's learning is undone at the end, so that equal seeds give equal texts.
        """
        with preserve_learned_state(self.engine.drafter):
            yield from self._stream(prompt, max_new_tokens, seed, detailed)

    def _stream(
        self, prompt: str, max_new_tokens: int | None, seed: int | None, detailed: bool
    ) -> Iterator[Completion]:
        stopping = self.stopping
        if max_new_tokens is not None:
            stopping = replace(stopping, max_new_tokens=max_new_tokens)
        stopwatch, texts = Stopwatch(self.target.device), Detokenizer(self.target.tokenizer)
        with torch.no_grad():
            decoding = self.engine.begin(
                [self._tokens_of(prompt)],
                stopping=stopping,
                seeds=[self.seed if seed is None else seed],
                detailed=detailed,
                stopwatch=stopwatch,
            )
        completion = Completion(prompt, decoding.tally)
        by: list[Producer] = ["plain"]
        while True:
            (tokens,) = decoding.finisher.new_tokens
            new = tokens[len(completion.tokens) :]
            pieces = [texts.append(token) for token in new]
            (completion.finish_reason,) = decoding.finisher.finish_reasons
            if completion.finish_reason:
                pieces[-1] += texts.rest()
            completion.tokens += map(Token, new, pieces, by)
            completion.seconds = stopwatch.seconds()
            yield completion
            if completion.finish_reason:
                return
            with torch.no_grad():
                by = producers(self.engine.round(decoding), 0)

    def _tokens_of(self, prompt: str) -> list[int]:
        tokenizer = self.target.tokenizer
        if self._chat:
            return chat_tokens(tokenizer, [prompt], system=self._system, max_prompt_tokens=None)
        return tokenizer(prompt, verbose=False)["input_ids"]


def build_pair(cfg: DictConfig) -> Pair:
    """Build the pair described by a config such as conf/generate.yaml.

    Raises:
        ValueError, OSError: the message names the yaml key. Checks that need no model run before one is loaded.
    """
    check_basics(cfg, {"max_new_tokens": 1, "seed": 0}, or_null=["target.context"])
    sampling = build_sampling(cfg)
    factory = check_parts(cfg, {"drafter": cfg.drafter})["drafter"]
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    with status("loading the target"):
        target = build_target(cfg)
    with status("building the drafter"):
        drafter = build_with_target(factory, cfg.drafter, target)
    engine = build_engine(cfg, drafter, target, sampling, compiled=cfg.engine.compile is True)
    stopping = build_stopping(cfg, target)
    with options_under("prompts"):
        return Pair(engine=engine, stopping=stopping, seed=cfg.seed, chat=cfg.prompts.chat, system=cfg.prompts.system)
