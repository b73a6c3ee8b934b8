"""Drafts from the logits of all positions at once, none of which knows what is drafted at another one."""

import torch
from torch import Tensor

from framework.draft import Draft, Law, Shape
from framework.sampling import Sampling, argmax, draw
from framework.static_tree import best_paths, parents_of
from framework.tree import Tree

FORMS = {
    "tree": (Law.ONE_HOT, Shape.TREE),
    "greedy_chain": (Law.ONE_HOT, Shape.CHAIN),
    "sampled_chain": (Law.IID, Shape.CHAIN),
}


class PositionsAtOnce:
    """Arranges the tokens of every position: as a tree of the top ones, or as a chain of the best or of drawn ones.

    The tree is the one that held-out accuracies make the best of its budget.

    Attributes:
        law, shape: of the drafts.
    """

    def __init__(self, *, form: str, nodes: int, accuracies: list[list[float]], device: torch.device):
        """
        Args:
            form: tree, greedy_chain or sampled_chain.
            nodes: budget of the tree, >= 1; chains have one node for every position.
            accuracies: [positions][rank] how often the token of that rank was the right one.

        Raises:
            ValueError: an unknown form, or no nodes.
        """
        self.check_form(form)
        self.form = form
        self.law, self.shape = FORMS[form]
        paths = best_paths(accuracies, nodes)
        self._depths = [len(path) for path in paths]
        self._deepest = max(self._depths) if form == "tree" else len(accuracies)
        self._ranks = max(max(path) for path in paths) + 1  # tokens wanted of every position
        places = [(len(path) - 1) * self._ranks + path[-1] for path in paths]
        self._places = torch.tensor(places, device=device)
        self._parents = parents_of(paths)
        self._trees: dict[tuple[int, int], Tree] = {}  # by nodes and rows; made once, and shared by all rounds

    @staticmethod
    def check_form(form: str) -> None:
        """
        Raises:
            ValueError: there is no such form.
        """
        if form not in FORMS:
            raise ValueError(f"drafter.form is {form!r}; allowed: {', '.join(FORMS)}")

    def num_uniforms(self, gamma: int) -> int:
        """One per node of a sampled chain; nothing else is drawn."""
        return self.depth(gamma) if self.form == "sampled_chain" else 0

    def num_nodes(self, gamma: int) -> int:
        """Nodes no deeper than gamma."""
        return sum(depth <= gamma for depth in self._depths) if self.form == "tree" else self.depth(gamma)

    def depth(self, gamma: int) -> int:
        """How deep a draft is that may be gamma deep: how many positions are wanted."""
        return min(gamma, self._deepest)

    def draft(self, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Draft:
        """
        Args:
            logits: [B, depth, V] float32.
            uniforms: [B, num_uniforms] float64 in [0, 1).
        """
        if self.form == "tree":
            return self._tree(logits)
        if self.form == "greedy_chain" or sampling.greedy:
            return Draft.chain(argmax(logits), Law.ONE_HOT)
        probs = sampling.probs(logits)
        return Draft.chain(draw(probs, uniforms), Law.IID, probs=probs)

    def _tree(self, logits: Tensor) -> Draft:
        num_nodes = self.num_nodes(logits.shape[1])
        ranked = logits.topk(self._ranks).indices.flatten(1)  # [B, depth * ranks]
        tokens = ranked[:, self._places[:num_nodes]]
        key = (num_nodes, len(tokens))
        if key not in self._trees:
            self._trees[key] = Tree.shared(self._parents[:num_nodes], len(tokens), tokens.device)
        return Draft.of_tree(self._trees[key], tokens, Law.ONE_HOT)
