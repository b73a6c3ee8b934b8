"""A model that writes what it is told to: answers are given, and what is counted is up to their text alone."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from framework.sequences import Sequences
from framework.tree import Tree


class ReferenceModel:
    """Answers every prompt with its reference, whatever it reads: the target that is right about all.

    At every position it is certain of the reference's token there, and behind it of the end. A drafted token is kept if
    it is that one, as with any model that is certain at the end of the reference so far. Chains only.
    """

    def __init__(
        self, answers: Mapping[tuple[int, ...], Sequence[int]], *, end: int, vocabulary_size: int, context: int
    ):
        """
        Args:
            answers: token ids by the prompt's.
            end: what follows an answer.
            vocabulary_size: V.
            context: most positions a row may have.
        """
        self._answers = answers
        self._end = end
        self.vocabulary_size = vocabulary_size
        self.context = context
        self.text_start: list[int] = []
        self.device = torch.device("cpu")
        self.hidden = self.states = torch.empty(0)

    def begin(self, num_rows: int, capacity: int) -> None:
        self._texts = torch.full((num_rows, capacity + 1), self._end)

    def read_sources(self, sequences: Sequences) -> None:
        pass

    def keep_path(self, tree: Tree, path: Tensor, *, after: Tensor) -> None:
        pass

    def forward(
        self,
        tokens: Tensor,
        start: Tensor | None,
        *,
        visible: int,
        keep: Tensor | None = None,
        tree: Tree | None = None,
    ) -> Tensor:
        """As `CachedLM.forward`, for whole prompts or for what follows them."""
        if start is None:
            assert keep is not None
            for row, (prompt, last) in enumerate(zip(tokens.tolist(), keep.tolist(), strict=True)):
                text = [*prompt[: last + 1], *self._answers[tuple(prompt[: last + 1])]]
                self._texts[row, : len(text)] = torch.tensor(text)
            positions = keep.unsqueeze(1)
        else:
            positions = start.unsqueeze(1) + torch.arange(tokens.shape[1])
        following = self._texts.gather(1, (positions + 1).clamp(max=self._texts.shape[1] - 1))
        return functional.one_hot(following, self.vocabulary_size).float()
