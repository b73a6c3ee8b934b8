"""Medusa-1: heads are fitted to text while the target stays frozen, so that its law is what it was.

B rows, T tokens, K heads, R ranks.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from framework.medusa_heads import MedusaHeads, load_heads, save_heads
from framework.target import Target
from framework.trainable import FILLER, model_inputs, texts_of
from framework.whole_numbers import check_whole

WINDOWS_AT_ONCE = 8  # when evaluating
NO_LABEL = -100  # what cross-entropy leaves out


class MedusaTraining:
    """Minimises sum_k discount^k CE_k, where head k = 1...K at position t is to predict token t + 1 + k."""

    def __init__(
        self, target: Target, *, num_heads: int, output: str, discount: float, ranks: int, path: str | None = None
    ):
        """
        Args:
            target: stays frozen.
            num_heads: K >= 1.
            output: tied, mapped or own: what the heads' output layers have of the target's.
            discount: in (0, 1], what a head weighs of the one before it.
            ranks: how many of a head's top tokens are counted in held-out accuracies, and may stand in a tree.
            path: folder of heads to be trained on, say those of an earlier state of the target; None begins anew.

        Raises:
            OSError: there are no heads in the folder, or they are damaged.
            ValueError: a knob out of its range, or the heads are of another kind.
        """
        check_whole("training.trainable.num_heads", num_heads, least=1)
        most = target.vocabulary_size
        for key, holds, value, allowed in (
            ("discount", 0 < discount <= 1, discount, "a number in (0, 1]"),
            ("ranks", 1 <= ranks <= most, ranks, f"1 to the size of the target's vocabulary, {most}"),
        ):
            if not holds:
                raise ValueError(f"training.trainable.{key} is {value!r}; allowed: {allowed}")
        self.module: nn.Module = (
            MedusaHeads(target, num_heads=num_heads, output=output).float()
            if path is None
            else _begun(path, target, num_heads=num_heads, output=output)
        )
        self._target = target
        self._num_heads = num_heads
        self._weights = torch.tensor([discount**head for head in range(1, num_heads + 1)], device=target.device)
        self._ranks = ranks

    def loss(self, tokens: Tensor) -> Tensor:
        """Scalar; tokens [B, T] or [B, 2, T] int64.

        Raises:
            ValueError: T < K + 2, so that some head has nothing to predict.
        """
        if tokens.shape[-1] < self._num_heads + 2:
            raise ValueError(
                f"training.window is {tokens.shape[-1]}; allowed: at least {self._num_heads + 2}, two more than "
                "training.trainable.num_heads"
            )
        labels = labels_behind(tokens, self._num_heads)
        nats = functional.cross_entropy(self._logits(tokens).flatten(0, 2), labels.flatten(), reduction="none")
        per_head = nats.view(labels.shape).sum((0, 1)) / (labels != NO_LABEL).sum((0, 1))
        return (self._weights * per_head).sum()

    def evaluate(self, tokens: Tensor) -> dict[str, float]:
        """For every head how often the right token was its best, and how often among its best R."""
        found = {}
        for head, by_rank in enumerate(self.accuracies(tokens), start=1):
            found[f"head {head} top-1"] = by_rank[0]
            found[f"head {head} top-{self._ranks}"] = sum(by_rank)
        return found

    def save(self, folder: Path, held_out: Tensor) -> None:
        """Write the heads with their accuracies on held-out windows [n, T] int64."""
        assert isinstance(self.module, MedusaHeads)
        save_heads(folder, self.module, target=self._target, accuracies=self.accuracies(held_out))

    @torch.no_grad()
    def accuracies(self, tokens: Tensor) -> list[list[float]]:
        """[K][R] how often the token of each rank is the right one, over all positions of windows [n, T] int64."""
        hits = torch.zeros(self._num_heads, self._ranks, device=tokens.device)
        for windows in tokens.split(WINDOWS_AT_ONCE):
            ranked = self._logits(windows).topk(self._ranks).indices
            hits += (ranked == labels_behind(windows, self._num_heads).unsqueeze(3)).sum((0, 1))
        num_known = (labels_behind(tokens, self._num_heads) != NO_LABEL).sum((0, 1))
        return (hits / num_known.unsqueeze(1)).tolist()

    def _logits(self, tokens: Tensor) -> Tensor:
        """[B, T - 2, K, V] float32: of the heads at every token behind which there is something to predict."""
        return self.module(output_layer_input(self._target.model.model, tokens)[:, :-2]).float()


def _begun(path: str, target: Target, *, num_heads: int, output: str) -> MedusaHeads:
    """
    Raises:
        OSError: there are no heads in the folder, or they are damaged.
        ValueError: they are of another kind.
    """
    heads, _ = load_heads(path, target, key="training.trainable.path", to_be_trained_on=True)
    if (heads.num_heads, heads.output) != (num_heads, output):
        raise ValueError(
            f"training.trainable.path is {path!r}, {heads.num_heads} heads with output {heads.output}; allowed: heads "
            f"as training.trainable.num_heads and training.trainable.output have them, {num_heads} and {output}"
        )
    return heads.float()


def labels_behind(tokens: Tensor, number: int) -> Tensor:
    """[B, T - 2, number] int64: the tokens from the second one behind each on, NO_LABEL where the text ends before.

    Args:
        tokens: [B, T] windows, or [B, 2, T] pairs, int64.
        number: how many of them.
    """
    text = texts_of(tokens)
    padded = functional.pad(text.masked_fill(text == FILLER, NO_LABEL), (0, number), value=NO_LABEL)
    return padded.unfold(1, number, 1)[:, 2:-1]


@torch.no_grad()
def output_layer_input(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """[B, T, H] what a model's output layer reads in an uncached pass over tokens [B, T] or [B, 2, T] int64."""
    seen: list[Tensor] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        seen.append(inputs[0])
        return (inputs[0][:, :1],)  # its logits are not wanted: one row of them is enough

    hook = model.get_output_embeddings().register_forward_pre_hook(look)
    try:
        model(**model_inputs(tokens), use_cache=False)
    finally:
        hook.remove()
    return seen[0]
