"""Drafts from logits of all positions that were predicted in parallel, independently of each other's tokens."""

import torch
from torch import Tensor

from framework.core.draft import Draft, SamplingScheme, Shape
from framework.core.option_error import OptionError
from framework.core.sampling import Sampling, argmax, draw
from framework.core.tree import Tree
from framework.drafting.static_tree import best_paths, parents_of

FORMS = {
    "tree": (SamplingScheme.ONE_HOT, Shape.TREE),
    "greedy_chain": (SamplingScheme.ONE_HOT, Shape.CHAIN),
    "sampled_chain": (SamplingScheme.IID, Shape.CHAIN),
}


class ParallelDraft:
    """Arranges per-position tokens in a draft: a tree of the top tokens, or a chain of the best or of drawn tokens.

    The tree has the largest expected number of accepted nodes under held-out accuracies and the node budget.

    Attributes:
        scheme: sampling scheme of the drafts.
        shape: shape of the drafts.
    """

    def __init__(self, *, form: str, nodes: int, accuracies: list[list[float]], device: torch.device):
        """
        Args:
            form: tree, greedy_chain or sampled_chain.
            nodes: node budget of the tree, >= 1; chains have one node per position.
            accuracies: `[positions][rank]`: how often the token of that rank was correct on held-out text.
            device: device of the drafts.

        Raises:
            ValueError: an unknown form, or nodes < 1.
        """
        self.check_form(form)
        self.form = form
        self.scheme, self.shape = FORMS[form]
        paths = best_paths(accuracies, nodes)
        self._depths = [len(path) for path in paths]
        self._deepest = max(self._depths) if form == "tree" else len(accuracies)
        self._ranks = max(max(path) for path in paths) + 1  # top tokens needed per position
        places = [(len(path) - 1) * self._ranks + path[-1] for path in paths]
        self._places = torch.tensor(places, device=device)
        self._parents = parents_of(paths)
        self._trees: dict[tuple[int, int], Tree] = {}  # by nodes and rows

    @staticmethod
    def check_form(form: str) -> None:
        """Check that a form exists.

        Raises:
            ValueError: an unknown form.
        """
        if form not in FORMS:
            raise OptionError("form", form, f"{', '.join(FORMS)}")

    def num_uniforms(self, gamma: int) -> int:
        """One per node of a sampled chain; zero for the other forms."""
        return self.depth(gamma) if self.form == "sampled_chain" else 0

    def num_nodes(self, gamma: int) -> int:
        """Number of nodes up to depth gamma."""
        return sum(depth <= gamma for depth in self._depths) if self.form == "tree" else self.depth(gamma)

    def depth(self, gamma: int) -> int:
        """Depth of a draft under gamma, which is the number of positions that it needs."""
        return min(gamma, self._deepest)

    def build_trees(self, num_rows: int, max_gamma: int) -> None:
        """As `WithTrees.build_trees`; without effect for chains."""
        if self.form == "tree":
            for depth in range(1, self.depth(max_gamma) + 1):
                self._tree_of(self.num_nodes(depth), num_rows)

    def draft(self, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Draft:
        """Arrange the tokens of one round.

        Args:
            logits: [B, depth, V] float32.
            sampling: temperature and truncation of a sampled chain, which is greedy at temperature 0.
            uniforms: [B, num_uniforms] float64 in [0, 1).
        """
        if self.form == "tree":
            return self._tree(logits)
        if self.form == "greedy_chain" or sampling.greedy:
            return Draft.chain(argmax(logits), SamplingScheme.ONE_HOT)
        probs = sampling.probs(logits)
        return Draft.chain(draw(probs, uniforms), SamplingScheme.IID, probs=probs)

    def _tree(self, logits: Tensor) -> Draft:
        num_nodes = self.num_nodes(logits.shape[1])
        ranked = logits.topk(self._ranks).indices.flatten(1)  # [B, depth * ranks]
        tokens = ranked[:, self._places[:num_nodes]]
        return Draft.of_tree(self._tree_of(num_nodes, len(tokens)), tokens, SamplingScheme.ONE_HOT)

    def _tree_of(self, num_nodes: int, num_rows: int) -> Tree:
        """The tree of the first nodes, shared by all rounds."""
        key = num_nodes, num_rows
        if key not in self._trees:
            self._trees[key] = Tree.shared(self._parents[:num_nodes], num_rows, self._places.device)
        return self._trees[key]
