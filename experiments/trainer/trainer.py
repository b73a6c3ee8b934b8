"""Resumable training loop with checkpoints, for any Trainable."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from experiments.config.progress import Steps
from experiments.config.renamed_options import with_current_options
from experiments.measurement.ranks import Ranks
from experiments.trainer.kept_memory import freed_memory_kept
from experiments.trainer.precision import Float32Muon, has_fast_bfloat16
from framework.core.validation import check_whole
from framework.training.trainable import Trainable
from framework.training.whole_file import write_whole

MAX_GRADIENT = 1.0  # global gradient norm
LOSS_EVERY = 10  # steps between training losses in the history
START_OVER = "give another folder, or delete the file to start over"


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of a training.

    Attributes:
        steps: optimiser steps; may be raised later to continue a training.
        batch: windows per step.
        window: tokens per window.
        learning_rate: peak learning rate.
        warmup: steps of linear warm-up.
        decay: final share of the steps with linear decay to zero.
        optimizer: "adamw" for all parameters, or "muon" for the matrices other than embeddings and output layer, with
            adamw for the other parameters.
        checkpoint_every: steps between checkpoints.
        evaluate_every: steps between evaluations.

    Raises:
        ValueError: a value is out of range; the message names its key.
    """

    steps: int
    batch: int
    window: int
    learning_rate: float
    warmup: int
    decay: float
    optimizer: str
    checkpoint_every: int
    evaluate_every: int

    def __post_init__(self) -> None:
        for key in ("steps", "batch", "window", "warmup", "checkpoint_every", "evaluate_every"):
            check_whole(f"training.{key}", getattr(self, key), least=1, most=10**9)
        for key, most in (("learning_rate", 10**9), ("decay", 1)):
            value = getattr(self, key)
            if not isinstance(value, int | float) or not 0 < value <= most:
                raise ValueError(f"training.{key} is {value!r}; allowed: a number in (0, {most}]")
        if self.optimizer not in ("adamw", "muon"):
            raise ValueError(f"training.optimizer is {self.optimizer!r}; allowed: adamw, muon")

    def rate_at(self, step: int) -> float:
        """Learning rate at a step."""
        remaining = (self.steps - step) / (self.decay * self.steps)
        return self.learning_rate * min(1.0, (step + 1) / self.warmup, remaining)


def make_optimizers(module: nn.Module, kind: str) -> list[torch.optim.Optimizer]:
    """Build optimizers for the parameters that require a gradient."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    outer = {id(layer.weight) for layer in module.modules() if isinstance(layer, nn.Embedding)}
    if isinstance(module, PreTrainedModel):
        outer.add(id(module.get_output_embeddings().weight))
    matrices = [one for one in trained if kind == "muon" and one.ndim == 2 and id(one) not in outer]
    inner = {id(one) for one in matrices}
    others = [one for one in trained if id(one) not in inner]
    optimizers: list[torch.optim.Optimizer] = []
    if matrices:
        muon = torch.optim.Muon if has_fast_bfloat16(matrices[0].device) else Float32Muon
        optimizers.append(muon(matrices, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"))
    if others:
        optimizers.append(torch.optim.AdamW(others, weight_decay=0.0, betas=(0.9, 0.95)))
    return optimizers


def in_line(measures: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value:.3f}" for name, value in measures.items())


class Trainer:
    """A training in progress, with its state and checkpoint file."""

    def __init__(
        self,
        trainable: Trainable,
        recipe: Recipe,
        *,
        file: Path,
        made_of: dict[str, Any],
        ranks: Ranks | None = None,
    ):
        """Resume from the checkpoint, if there is one.

        Args:
            trainable: the trained model.
            recipe: hyperparameters.
            file: the checkpoint file.
            made_of: further settings that the result depends on, as plain values; `agree` adds those known later.
            ranks: processes that share every batch and have equal trainables; None: this process only.

        Raises:
            OSError: the checkpoint cannot be read.
            ValueError: the checkpoint was begun with other settings, or has more steps than the recipe.
        """
        self.trainable, self.recipe, self.file, self._ranks = trainable, recipe, file, ranks or Ranks()
        self.optimizers = make_optimizers(trainable.module, recipe.optimizer)
        self.made_of: dict[str, Any] = {}
        self.step, self.seconds = 0, 0.0
        self.history: list[dict[str, float]] = []  # loss every LOSS_EVERY steps; with held-out measures at evaluations
        saved = self._saved() if file.exists() else {}
        self._begun_with: dict[str, Any] = with_current_options(saved.get("made_of", {}))
        # Only the number of steps and the intervals may differ from the checkpoint's.
        free = ("steps", "checkpoint_every", "evaluate_every")
        self.agree(made_of | {key: value for key, value in asdict(recipe).items() if key not in free})
        if saved:
            self._take_up(saved)

    def agree(self, made_of: dict[str, Any]) -> None:
        """Add settings that the result depends on.

        Raises:
            ValueError: the checkpoint was begun with other values.
        """
        found = self._begun_with
        if changed := sorted(key for key in made_of.keys() & found.keys() if made_of[key] != found[key]):
            shown = ", ".join(f"{key} {found[key]!r}, not {made_of[key]!r}" for key in changed)
            raise ValueError(f"{self.file} was begun with {shown}; {START_OVER}")
        self.made_of |= made_of

    def _saved(self) -> dict[str, Any]:
        device = next(self.trainable.module.parameters()).device
        try:
            saved = torch.load(self.file, map_location=device)
            return {key: saved[key] for key in ("module", "optimizers", "made_of", "step", "seconds", "history")}
        except Exception as error:  # a damaged file may raise anything
            raise OSError(f"{self.file} is not a whole checkpoint ({type(error).__name__}); {START_OVER}") from error

    def _take_up(self, saved: dict[str, Any]) -> None:
        if saved["step"] > self.recipe.steps:
            raise ValueError(
                f"training.steps is {self.recipe.steps}, and {self.file} holds {saved['step']} steps; allowed: at "
                f"least as many; {START_OVER}"
            )
        self.trainable.module.load_state_dict(saved["module"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.step, self.seconds, self.history = saved["step"], saved["seconds"], saved["history"]

    def _save(self) -> None:
        if not self._ranks.is_writer:
            return
        content = {
            "module": self.trainable.module.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "made_of": self.made_of,
            "step": self.step,
            "seconds": self.seconds,
            "history": self.history,
        }
        write_whole(self.file, lambda file: torch.save(content, file))

    def run(
        self,
        batch: Callable[[int], Tensor],
        held_out: Tensor,
        figures: Callable[[Trainable, Tensor], dict[str, float]] = lambda trainable, held_out: {},
    ) -> None:
        """Run the remaining steps.

        Args:
            batch: deterministic function from a step to its batch, [B, T] int64 on the device, whole on every rank.
            held_out: [n, T] int64 windows to evaluate on, on the device.
            figures: further measures of every evaluation, from the trainable and the windows.

        Raises:
            FloatingPointError: the loss is NaN.
        """
        if self.step:
            print(f"resuming at step {self.step} of {self.recipe.steps}")
        with Steps(self.recipe.steps, "training", completed=self.step) as steps, freed_memory_kept():
            while self.step < self.recipe.steps:
                loss = self._take_step(batch(self.step))
                steps.update(f"step {self.step}, loss {loss:.3f}", advance=1)
                evaluates = self._is_due(self.recipe.evaluate_every)
                if evaluates or self._is_due(LOSS_EVERY):
                    measures = self.trainable.evaluate(held_out) if evaluates else {}
                    measures |= figures(self.trainable, held_out) if evaluates else {}
                    self.history.append({"step": self.step, "loss": loss} | measures)
                if evaluates:
                    print(self._state(), flush=True)
                if self._is_due(self.recipe.checkpoint_every):
                    self._save()

    def _state(self) -> str:
        """One-line summary of the latest evaluation."""
        rate = self.step * self.recipe.batch * self.recipe.window / self.seconds
        measures = {name: value for name, value in self.history[-1].items() if name != "step"}
        return f"step {self.step}: {in_line(measures)} ({rate:.0f} tokens/s)"

    def _is_due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self.recipe.steps

    def _take_step(self, batch: Tensor) -> float:
        start = time.perf_counter()
        loss = self.trainable.loss(self._ranks.share(batch))
        loss.backward()
        trained = [parameter for parameter in self.trainable.module.parameters() if parameter.requires_grad]
        loss = loss.detach()
        self._ranks.average([loss, *(parameter.grad for parameter in trained if parameter.grad is not None)])
        nn.utils.clip_grad_norm_(trained, MAX_GRADIENT)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.recipe.rate_at(self.step)
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        value = loss.item()
        if value != value:
            raise FloatingPointError(f"the loss of step {self.step} is NaN; lower training.learning_rate")
        self.seconds += time.perf_counter() - start
        return value
