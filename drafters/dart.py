"""DART drafter: one layer predicts all positions in one pass; n-grams choose the tree (Liu et al., 2026)."""

import torch
from torch import Tensor

from framework.core.draft import Draft, SamplingScheme, Shape
from framework.core.sequences import Sequences
from framework.core.validation import check_whole
from framework.drafting.ngram_lookup import NGramLookup, check_order
from framework.drafting.ngram_tables import tokenised_documents
from framework.drafting.tree_builder import TreeBuilder, num_grown
from framework.heads.eagle_states import DrafterOnStates
from framework.heads.published_eagle import read_peagle
from framework.models.target import Target
from framework.prompts.prompt_source import PromptSource

# Published weights, by level from 0 on: of a level in a path's score, and of its prediction beside the n-gram.
LEVEL_EXPONENT, PREDICTION_BASE, NGRAM_WEIGHT = -0.7, 0.9, 0.5


class Dart(DrafterOnStates):
    """Grows a tree of chosen tokens from predictions that do not know the tokens of other positions.

    The layer reads the states of the whole text, and masks after it. Its most likely tokens of every position are the
    candidates of a beam search. The score of a path weighs the predictions and the frequency of each token after those
    before it in a corpus. The best nodes of all levels are drafted (Liu et al., 2026, 2601.19278).
    """

    scheme = SamplingScheme.ONE_HOT
    shape = Shape.TREE

    def __init__(
        self,
        target: Target,
        *,
        path: str,
        layer_numbers: str | None,
        depth: int,
        candidates: int,
        beam: int,
        nodes: int,
        order: int,
        corpus: PromptSource | None,
    ):
        """
        Args:
            target: the target that the layer was trained for.
            path: folder or hub name of a layer, written by `train drafter=dart`, or a published P-EAGLE.
            layer_numbers: how its config numbers the target's layers, as for `read_eagle`.
            depth: levels grown in every round, whatever gamma is; nodes deeper than gamma are not offered.
            candidates: tokens per position; capped at the draft vocabulary's size.
            beam: paths of every level that are continued.
            nodes: drafted nodes, out of those of all levels; capped at their number.
            order: longest n-gram, >= 2; `check_order` bounds it.
            corpus: texts whose n-grams are counted; None: predictions alone score a path.

        Raises:
            OSError: the files cannot be read.
            ValueError: an option out of range, another kind of layer, or one trained for another target.
        """
        for key, value in (("depth", depth), ("candidates", candidates), ("beam", beam), ("nodes", nodes)):
            check_whole(key, value, least=1)
        check_order(order, target.vocabulary_size)
        self._layer = read_peagle(path, target, layer_numbers=layer_numbers)
        support = self._layer.support
        self._candidates = min(candidates, target.vocabulary_size if support is None else len(support))
        self.depth, self._beam = depth, beam
        self._nodes = min(nodes, num_grown(depth, children=self._candidates, growing=beam))
        self._ngrams = None
        if corpus is not None:
            self._ngrams = NGramLookup(
                tokenised_documents(corpus, target),
                order=order,
                vocabulary_size=target.vocabulary_size,
                device=target.device,
            )
        super().__init__(self._layer, room=depth)

    def num_uniforms(self, gamma: int) -> int:
        return 0

    def num_nodes(self, gamma: int) -> int:
        return self._nodes

    @torch.no_grad()
    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        token, state = self._layer.masked_pair()
        states = self._states.catch_up_with_masks(sequences, self.depth, token=token, state=state)
        best, support = self._layer.scored(states).float().topk(self._candidates), self._layer.support
        predictions = best.values.log_softmax(-1)  # [B, depth, K]; over the candidates alone, as published
        candidates = best.indices if support is None else support[best.indices]
        tree, paths = TreeBuilder(sequences.num_rows, device=candidates.device), self._last_tokens(sequences)
        for level in range(self.depth):
            if level:
                chosen, above = tree.grow(self._beam)
                paths = paths.gather(1, above.unsqueeze(2).expand(-1, -1, paths.shape[2]))
                paths = torch.cat([paths[..., 1:], chosen.unsqueeze(2)], 2)
            tokens = candidates[:, level].unsqueeze(1).expand(-1, paths.shape[1], -1)
            scores = PREDICTION_BASE**level * predictions[:, level].unsqueeze(1)
            if self._ngrams is not None:
                scores = scores + NGRAM_WEIGHT * self._ngrams.frequencies(paths, tokens).log()
            tree.add_children(tokens, ((level + 1) ** LEVEL_EXPONENT * scores).expand_as(tokens))
        return tree.draft(self._nodes, deepest=gamma)

    def _last_tokens(self, sequences: Sequences) -> Tensor:
        """[B, 1, order - 1] int64: the last tokens of every row, pending among them; -1 before its beginning."""
        order = 2 if self._ngrams is None else self._ngrams.order
        places = sequences.lengths.unsqueeze(1) + torch.arange(1 - order, 0, device=sequences.lengths.device)
        tokens = sequences.tokens.gather(1, places.clamp(min=0))
        return torch.where(places < 0, -1, tokens).unsqueeze(1)
