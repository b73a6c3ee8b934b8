"""N-gram frequencies of a corpus on the target's device, for scoring many continuations at once.

B rows, L contexts of a row, K continuations of each, V vocabulary.
"""

import numpy as np
import torch
from torch import Tensor

from framework.core.option_error import OptionError
from framework.core.validation import check_whole

UNSEEN = 1e-10  # frequency of a continuation that was never seen (DART's)
LARGEST_KEY = 2**63  # of int64


def check_order(order: int, vocabulary_size: int) -> None:
    """Check the length of the longest n-gram.

    Raises:
        ValueError: it is below 2, or an n-gram of this vocabulary would not fit into an int64.
    """
    check_whole("order", order, least=2)
    most = 1
    while max(vocabulary_size, 2) ** (most + 1) <= LARGEST_KEY:
        most += 1
    if order > most:
        raise OptionError("order", order, f"at most {most} for a vocabulary of {vocabulary_size} tokens")


class NGramLookup:
    """Finds how often a token followed the longest context after which it was seen.

    Every n-gram is a number whose digits to the base V are its tokens. The numbers of each length are sorted, so that
    one search finds a tensor of n-grams without the host.
    """

    def __init__(self, documents: list[np.ndarray], *, order: int, vocabulary_size: int, device: torch.device):
        """
        Args:
            documents: int64 token ids, each in [0, V); n-grams do not cross document boundaries.
            order: longest n-gram, as checked by `check_order`; contexts have 1 ... order - 1 tokens.
            vocabulary_size: V.
            device: of the tokens to look up.
        """
        self.order, self._vocabulary_size = order, vocabulary_size
        self._levels: list[tuple[Tensor, Tensor]] = []  # sorted n-grams and their counts, from length 1 on
        for length in range(1, order + 1):
            grams = [
                sum(ids[place : len(ids) - length + 1 + place] * vocabulary_size ** (length - 1 - place)
                    for place in range(length))
                for ids in documents if len(ids) >= length
            ]  # fmt: skip
            found = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *grams]), return_counts=True)
            self._levels.append((torch.from_numpy(found[0]).to(device), torch.from_numpy(found[1]).to(device)))

    def frequencies(self, contexts: Tensor, tokens: Tensor) -> Tensor:
        """
        Args:
            contexts: [B, L, order - 1] int64: the last tokens of each context; -1 before the text's beginning.
            tokens: [B, L, K] int64.

        Returns:
            [B, L, K] float32: the share of a token among the continuations of the longest context that it was seen
            after; UNSEEN if there is none.
        """
        found = torch.full(tokens.shape, UNSEEN, device=tokens.device)
        context = torch.zeros_like(contexts[..., 0])
        for length in range(1, self.order):
            # A context that begins before the text is negative, like the first of its digits: it is never found.
            context = context + contexts[..., -length] * self._vocabulary_size ** (length - 1)
            seen = self._count(length, context).unsqueeze(-1)
            together = self._count(length + 1, context.unsqueeze(-1) * self._vocabulary_size + tokens)
            found = torch.where(together > 0, together / seen.clamp(min=1), found)
        return found

    def _count(self, length: int, grams: Tensor) -> Tensor:
        """Occurrences of n-grams of a length, in the shape of `grams`."""
        keys, counts = self._levels[length - 1]
        if not len(keys):
            return torch.zeros_like(grams)
        place = torch.searchsorted(keys, grams).clamp(max=len(keys) - 1)
        return torch.where(keys[place] == grams, counts[place], 0)
