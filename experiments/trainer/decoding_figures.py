"""Decoding figures of a drafter while it is trained: accuracy on given text misleads, drafts meet their own tokens."""

import tempfile
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from experiments.config.builders import build, build_with_target
from framework.core.sampling import Sampling
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.models.target import Target
from framework.training.trainable import FILLER, Trainable, trains_target

GAMMA, PROMPT_TOKENS, NEW_TOKENS = 4, 64, 64


class DecodingFigures:
    """Decodes a few held-out prompts with the drafter as trained so far, at temperature 0 and with gamma 4."""

    def __init__(self, cfg: DictConfig, target: Target):
        """
        Args:
            cfg: config of the training; `decoding_prompts` prompts are decoded.
            target: the drafter's target.
        """
        self._cfg, self._target = cfg, target
        group, _, self._option = str(cfg.training.loaded_by).partition(".")
        self._number = int(cfg.decoding_prompts) if group == "drafter" else 0

    def __call__(self, trainable: Trainable, held_out: Tensor) -> dict[str, float]:
        """tau, and the acceptance of every position that was tested; none without prompts.

        Args:
            trainable: the drafter so far.
            held_out: [n, T] windows, whose beginnings are the prompts, or [n, 2, T] pairs, whose sources are.
        """
        if not self._number:
            return {}
        with tempfile.TemporaryDirectory() as folder:
            trainable.save(Path(folder), held_out)
            node = self._cfg.drafter.copy()
            OmegaConf.update(node, self._option, folder)
            target = trainable.trained_target() if trains_target(trainable) else self._target
            drafter = build_with_target(build(node), node, target)
            engine = Engine(
                target=target, drafter=drafter, gamma_policy=Fixed(gamma=GAMMA), sampling=Sampling(temperature=0)
            )
            prompts = [_prompt(window) for window in held_out[: self._number]]
            # An answer stops at its end token: repetitions after it would inflate tau. Windows of text have no end.
            eos = self._target.tokenizer.eos_token_id if self._target.model.text_start else None
            stopping = Stopping(max_new_tokens=NEW_TOKENS, eos_ids=() if eos is None else (eos,))
            tally = engine.generate(prompts, stopping=stopping, seeds=list(range(len(prompts)))).tally
        assert tally is not None
        metrics = tally.metrics()
        positions = {f"alpha/position/{place}": metrics.get(f"alpha/position/{place}") for place in range(1, GAMMA + 1)}
        figures = {"tau": metrics["tau"]} | positions
        return {name: float(value) for name, value in figures.items() if value is not None}


def _prompt(window: Tensor) -> list[int]:
    """Beginning of a window [T], or the source of a pair [2, T]."""
    if window.dim() == 2:
        return window[0][window[0] != FILLER].tolist()
    return window[:PROMPT_TOKENS].tolist()
