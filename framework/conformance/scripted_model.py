"""A model that generates given answers, so that counts depend on their text alone."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from framework.core.sequences import Sequences
from framework.core.tree import Tree
from framework.models.forward_output import ForwardOutput


class ScriptedModel:
    """Answers every prompt with its reference, whatever tokens it reads: a target that is always right.

    At every position its argmax is the reference's token, and `end` after the reference. A drafted token is accepted if
    it is that one, as with any model whose argmax follows the reference. Chains only.
    """

    def __init__(
        self, answers: Mapping[tuple[int, ...], Sequence[int]], *, end: int, vocabulary_size: int, context: int
    ):
        """
        Args:
            answers: token ids of the answers, by token ids of the prompts.
            end: token id after an answer.
            vocabulary_size: V.
            context: largest number of positions of a row.
        """
        self._answers = answers
        self._end = end
        self.vocabulary_size = vocabulary_size
        self.context = context
        self.text_start: list[int] = []
        self.device = torch.device("cpu")

    is_recurrent = False
    num_begun = 0

    def refuse_recurrent(self, given: str, allowed: str) -> None:
        pass

    def read_prompts(self, sequences: Sequences, layers: Sequence[int] = ()) -> ForwardOutput:
        self.num_begun += 1
        num_rows, capacity = sequences.tokens.shape
        self._texts = torch.full((num_rows, capacity + 1), self._end)
        longest = sequences.longest
        return self.forward(sequences.tokens[:, :longest], None, visible=longest, keep=sequences.lengths - 1)

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
        layers: Sequence[int] = (),
    ) -> ForwardOutput:
        """As `CachedLM.forward`, for whole prompts or for the tokens after them."""
        if start is None:
            assert keep is not None
            for row, (prompt, last) in enumerate(zip(tokens.tolist(), keep.tolist(), strict=True)):
                text = [*prompt[: last + 1], *self._answers[tuple(prompt[: last + 1])]]
                self._texts[row, : len(text)] = torch.tensor(text)
            positions = keep.unsqueeze(1)
        else:
            positions = start.unsqueeze(1) + torch.arange(tokens.shape[1])
        following = self._texts.gather(1, (positions + 1).clamp(max=self._texts.shape[1] - 1))
        logits = functional.one_hot(following, self.vocabulary_size).float()
        return ForwardOutput(logits, hidden_states=torch.empty(*tokens.shape, 0), keep=keep)
