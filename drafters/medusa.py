"""Heads on the target's own hidden state draft several tokens at once, without another pass (Cai et al., 2024)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from framework.draft import Draft, Law, Outcome, Shape
from framework.lesson import Lesson
from framework.medusa_heads import load_heads
from framework.sampling import Sampling, argmax, draw
from framework.sequences import Sequences
from framework.static_tree import best_paths, parents_of
from framework.target import Target
from framework.tree import Tree

FORMS = {
    "tree": (Law.ONE_HOT, Shape.TREE),
    "greedy_chain": (Law.ONE_HOT, Shape.CHAIN),
    "sampled_chain": (Law.IID, Shape.CHAIN),
}


class Medusa:
    """Drafts from the hidden state behind the last accepted token; no head sees what another one drafted.

    As a tree it takes the top tokens of every head, arranged in the tree that held-out accuracies make the best one of
    its budget; as a greedy chain the likeliest token of each head; as a sampled chain a token drawn from each.
    """

    def __init__(self, target: Target, *, path: str, form: str, nodes: int):
        """
        Args:
            target: whom the heads were trained for.
            path: folder of heads, as `experiments.train` writes it.
            form: tree, greedy_chain or sampled_chain.
            nodes: budget of the tree, >= 1; chains have one node for every head.

        Raises:
            OSError: no heads there.
            ValueError: an unknown form, no nodes, or heads for another target.
        """
        if form not in FORMS:
            raise ValueError(f"drafter.form is {form!r}; allowed: {', '.join(FORMS)}")
        self.form = form
        self.law, self.shape = FORMS[form]
        self._heads, accuracies = load_heads(path, target)
        paths = best_paths(accuracies, nodes)
        self._depths = [len(path) for path in paths]
        self._deepest = max(self._depths) if form == "tree" else self._heads.num_heads
        self._ranks = max(max(path) for path in paths) + 1  # tokens wanted of every head
        places = [(len(path) - 1) * self._ranks + path[-1] for path in paths]
        self._places = torch.tensor(places, device=target.device)
        self._parents = parents_of(paths)
        self._trees: dict[tuple[int, int], Tree] = {}  # by nodes and rows; made once, and shared by all rounds

    def num_uniforms(self, gamma: int) -> int:
        """One per node of a sampled chain; nothing else is drawn."""
        return self._depth(gamma) if self.form == "sampled_chain" else 0

    def num_nodes(self, gamma: int) -> int:
        """Nodes no deeper than gamma."""
        return sum(depth <= gamma for depth in self._depths) if self.form == "tree" else self._depth(gamma)

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling
        self.observe(sequences, prefill)

    @torch.no_grad()
    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        """Draft as deep as gamma and the number of heads allow."""
        logits = self._heads(self._hidden, self._depth(gamma)).float()
        if self.form == "tree":
            return self._tree(logits, self.num_nodes(gamma))
        if self.form == "greedy_chain" or self._sampling.greedy:
            return Draft.chain(argmax(logits), Law.ONE_HOT)
        probs = self._sampling.probs(logits)
        return Draft.chain(draw(probs, uniforms), Law.IID, probs=probs)

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        # The target's output layer made the token that is pending now from this state.
        hidden = outcome.target.hidden
        assert hidden is not None, "heads need TargetRows.hidden"
        self._hidden = hidden[torch.arange(len(hidden), device=hidden.device), outcome.stop]

    @property
    def module(self) -> nn.Module:
        return self._heads

    def logits_of(self, lessons: Sequence[Lesson]) -> tuple[Tensor, Tensor]:
        """Head k learns the law of the token k places behind the one that its state is for, given the text between."""
        p_logits, q_logits = [], []
        for lesson in lessons:
            assert lesson.hidden is not None, "heads need TargetRows.hidden"
            for head, logits in enumerate(self._heads(lesson.hidden).unbind(1), start=1):
                p_logits.append(lesson.p_logits[head:])
                q_logits.append(logits[: len(p_logits[-1])])
        return torch.cat(p_logits), torch.cat(q_logits)

    def refresh(self, sequences: Sequences) -> None:
        """Nothing was computed with the heads as they were."""

    def _depth(self, gamma: int) -> int:
        return min(gamma, self._deepest)

    def _tree(self, logits: Tensor, num_nodes: int) -> Draft:
        ranked = logits.topk(self._ranks).indices.flatten(1)  # [B, depth * ranks]
        tokens = ranked[:, self._places[:num_nodes]]
        key = (num_nodes, len(tokens))
        if key not in self._trees:
            self._trees[key] = Tree.shared(self._parents[:num_nodes], len(tokens), tokens.device)
        return Draft.of_tree(self._trees[key], tokens, Law.ONE_HOT)
