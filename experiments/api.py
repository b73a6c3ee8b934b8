"""For notebooks and scripts: load a pair with the words of the command line, decode, and read what it took."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import InstantiationException
from hydra.version import VersionBase
from omegaconf import DictConfig

from experiments.assemble import (
    REPOSITORY,
    build_engine,
    build_sampling,
    build_stopping,
    build_target,
    check_basics,
    check_parts,
    register_resolvers,
)
from experiments.completion import Completion, Token
from experiments.entry_point import status
from framework.drafter import learning_undone
from framework.engine import Engine
from framework.producer import Producer, producers
from framework.prompts.chat import chat_tokens, is_chat
from framework.stopping import Stopping
from framework.stopwatch import Stopwatch
from framework.target import Target
from framework.token_texts import TokenTexts


def load_pair(*overrides: str) -> "Pair":
    """Load what `python -m experiments.generate OVERRIDES` decodes with.

    Args:
        overrides: as on the command line: load_pair("drafter=medusa", "sampling.temperature=0").

    Raises:
        ValueError, OSError: a setting is wrong, or there is no such model; the message names the yaml key.
        hydra.errors.HydraException: there is no such key or choice.
    """
    register_resolvers()
    try:
        return build_pair(_compose(overrides))
    except InstantiationException as error:
        raise error.__cause__ or error from None  # a constructor's own message names the key


def _compose(overrides: tuple[str, ...]) -> DictConfig:
    """What the command line would make of them; whoever else uses Hydra in this process does not notice."""
    theirs, their_version = GlobalHydra.instance().hydra, VersionBase.instance().version_base
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
            return compose("generate", list(overrides))
    finally:
        GlobalHydra.instance().hydra = theirs
        VersionBase.instance().version_base = their_version


class Pair:
    """A target and its drafter with a verifier, a gamma policy and a sampling setting.

    Attributes:
        engine: the loop, with all its parts.
        stopping: what ends a text.
        seed: of the draws.
    """

    def __init__(self, *, engine: Engine, stopping: Stopping, seed: int, chat: bool | str, system: str | None):
        """
        Args:
            chat: whether a prompt is a user's turn; "auto": where the tokenizer has a chat template.
            system: what a chat begins with; None leaves it to the template.

        Raises:
            ValueError: a chat that the tokenizer has no template for.
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
        """Decode what follows a prompt.

        Args:
            prompt: a text; for an encoder-decoder model, its source.
            max_new_tokens: most tokens to add; None is what the pair was loaded with.
            seed: of the draws; None is the pair's. The same seed gives the same text.
            detailed: whether metrics hold the paper's alpha, `alpha/overlap`, too; that takes time.

        Raises:
            ValueError: the prompt cannot be decoded.
            FloatingPointError: a law is not finite.
        """
        *_, completion = self.stream(prompt, max_new_tokens=max_new_tokens, seed=seed, detailed=detailed)
        return completion

    def stream(
        self, prompt: str, *, max_new_tokens: int | None = None, seed: int | None = None, detailed: bool = False
    ) -> Iterator[Completion]:
        """The same, and one completion after the prompt was read and after every round: the same one, which has grown.

        Another text must not be begun before this one is finished or given up: the target has one cache. What a drafter
        learnt from it is forgotten, since another text may have the same seed.
        """
        with learning_undone(self.engine.drafter):
            yield from self._stream(prompt, max_new_tokens, seed, detailed)

    def _stream(
        self, prompt: str, max_new_tokens: int | None, seed: int | None, detailed: bool
    ) -> Iterator[Completion]:
        stopping = self.stopping
        if max_new_tokens is not None:
            stopping = replace(stopping, max_new_tokens=max_new_tokens)
        stopwatch, texts = Stopwatch(self.target.device), TokenTexts(self.target.tokenizer)
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
            return chat_tokens(tokenizer, [prompt], system=self._system, first_tokens=None)
        return tokenizer(prompt, verbose=False)["input_ids"]


def build_pair(cfg: DictConfig) -> Pair:
    """What a config like conf/generate.yaml describes.

    Raises:
        ValueError, OSError: the message names the yaml key; before a model is loaded where that needs none.
    """
    check_basics(cfg, {"max_new_tokens": 1, "seed": 0}, or_null=["target.context"])
    sampling = build_sampling(cfg)
    factory = check_parts(cfg, {"drafter": cfg.drafter})["drafter"]
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    with status("loading the target"):
        target = build_target(cfg)
    with status("building the drafter"):
        drafter = factory(target=target)
    return Pair(
        engine=build_engine(cfg, drafter, target, sampling, compiled=cfg.engine.compile is True),
        stopping=build_stopping(cfg, target),
        seed=cfg.seed,
        chat=cfg.prompts.chat,
        system=cfg.prompts.system,
    )
