"""Every committed token with who produced it, and how likely target and drafter found it."""

from dataclasses import dataclass

from framework.draft import Outcome
from framework.producer import Producer


@dataclass(frozen=True)
class Drafted:
    """A node's token: its id, and how likely target and drafter found it after the node's parent."""

    token: int
    p: float
    q: float


@dataclass(frozen=True)
class Traced:
    """A committed token.

    Attributes:
        token: its id.
        producer: whose it is.
        p: how likely the target found it; None for the first token of a row, which came with reading the prompt.
        q: how likely the drafter did; None where it drafted nothing.
        instead_of: of a replaced token, the first node that was lost there.
    """

    token: int
    producer: Producer
    p: float | None
    q: float | None = None
    instead_of: Drafted | None = None


class TokenTrace:
    """What became of every row of a batch, token by token, and how many nodes were tested: an engine's `watch`.

    Attributes:
        accepted: per row, nodes that were kept.
        tested: per row, those and the first ones that were not.
    """

    def __init__(self, num_rows: int, *, most_tokens: int):
        """
        Args:
            num_rows: of the batch.
            most_tokens: of every row, so many are traced. They cost a few looks at the device a round, so 0 where only
                the counts are wanted.
        """
        self.accepted = [0] * num_rows
        self.tested = [0] * num_rows
        self._most_tokens = most_tokens
        self._behind_first: list[list[Traced]] = [[] for _ in range(num_rows)]

    def watch(self, outcome: Outcome) -> None:
        """Take down one round."""
        rows = zip(*(each.tolist() for each in (outcome.active, outcome.num_accepted, outcome.lost)), strict=True)
        for row, (active, num_accepted, lost) in enumerate(rows):
            self.accepted[row] += num_accepted if active else 0
            self.tested[row] += num_accepted + lost if active else 0
        # The first token, which no round brings, is one of them.
        if any(len(traced) + 1 < self._most_tokens for traced in self._behind_first):
            self._trace(outcome)

    def tokens(self, generated: list[list[int]]) -> list[list[Traced]]:
        """Per row the first tokens, `most_tokens` at most; generated are the rows that the engine returned."""
        return [
            [Traced(token, "plain", None) for token in tokens[:1]] + traced[: len(tokens) - 1]
            if self._most_tokens
            else []
            for tokens, traced in zip(generated, self._behind_first, strict=True)
        ]

    def _trace(self, outcome: Outcome) -> None:
        draft, target = outcome.draft, outcome.target
        next_token = outcome.next_token.unsqueeze(1)
        next_p = target.probs(outcome.stop).gather(1, next_token)[:, 0].tolist()
        nodes: list[list[Drafted]] = [[] for _ in next_p]
        next_q, lost_node = [0.0] * len(next_p), [0] * len(next_p)
        if draft.num_nodes:
            # Rejected nodes hang on the row where acceptance stopped; of siblings, the first one stands for all.
            first_lost = (draft.valid & (draft.parent == outcome.stop.unsqueeze(1) - 1)).int().argmax(1)
            law = draft.probs_of_nodes(first_lost.unsqueeze(1), target.logits.shape[2])[:, 0]
            next_q, lost_node = law.gather(1, next_token)[:, 0].tolist(), first_lost.tolist()
            p, q = target.prob_of(draft.tokens), draft.prob_of_tokens()
            nodes = [
                [Drafted(*node) for node in zip(*row, strict=True)]
                for row in zip(draft.tokens.tolist(), p.tolist(), q.tolist(), strict=True)
            ]
        offered = draft.valid.any(1).tolist() if draft.num_nodes else [False] * len(next_p)
        paths = draft.tree.path(outcome.stop).tolist()
        accepted, kept = outcome.num_accepted.tolist(), outcome.num_committed.tolist()
        for row, is_lost in enumerate(outcome.lost.tolist()):
            path = [nodes[row][node] for node in paths[row][: accepted[row]]]
            found = [Traced(node.token, "accepted", node.p, node.q) for node in path]
            token = int(outcome.next_token[row])
            if is_lost:
                found.append(Traced(token, "replaced", next_p[row], next_q[row], nodes[row][lost_node[row]]))
            else:
                found.append(Traced(token, "bonus" if offered[row] else "plain", next_p[row]))
            room = self._most_tokens - 1 - len(self._behind_first[row])
            self._behind_first[row] += found[: max(0, min(kept[row], room))]
