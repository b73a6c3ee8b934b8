"""Trace of every committed token: its producer, and its probabilities p and q."""

from collections.abc import Sequence
from dataclasses import dataclass

from framework.core.draft import Outcome
from framework.metrics.producer import Producer


@dataclass(frozen=True)
class Drafted:
    """A node's token: its id, and its probabilities under target and drafter after the node's parent."""

    token: int
    p: float
    q: float


@dataclass(frozen=True)
class Traced:
    """A committed token.

    Attributes:
        token: its id.
        producer: its `Producer`.
        p: its probability under the target; None for the first token of a row, which prefill commits.
        q: its probability under the drafter; None where nothing was drafted.
        instead_of: the first rejected node, of a replaced token.
    """

    token: int
    producer: Producer
    p: float | None
    q: float | None = None
    instead_of: Drafted | None = None


class TokenTrace:
    """Traces and counts of tested nodes for every prompt of a batch; its `on_round` is for `Engine.generate`.

    Attributes:
        accepted: per prompt, number of accepted nodes.
        tested: per prompt, number of accepted and first rejected nodes.
        rounds: per prompt, number of rounds in which its row was active.
    """

    def __init__(self, num_prompts: int, *, most_tokens: int, in_row: Sequence[int] | None = None):
        """
        Args:
            num_prompts: prompts of the batch.
            most_tokens: number of tokens to trace per prompt. Tracing synchronises with the device several times per
                round; 0: counts only.
            in_row: per row, the number of the prompt that it decodes, up to date in every round
                (`framework.decoding.refill.Queue.in_row`); None: each prompt has its own row.
        """
        self.accepted = [0] * num_prompts
        self.tested = [0] * num_prompts
        self.rounds = [0] * num_prompts
        self._in_row = range(num_prompts) if in_row is None else in_row
        self._most_tokens = most_tokens
        self._after_first: list[list[Traced]] = [[] for _ in range(num_prompts)]

    def on_round(self, outcome: Outcome) -> None:
        """Record one round."""
        rows = zip(*(each.tolist() for each in (outcome.active, outcome.num_accepted, outcome.rejected)), strict=True)
        for prompt, (active, num_accepted, rejected) in zip(self._in_row, rows, strict=True):
            self.accepted[prompt] += num_accepted if active else 0
            self.tested[prompt] += num_accepted + rejected if active else 0
            self.rounds[prompt] += bool(active)
        # The first token, committed by prefill, counts towards most_tokens.
        if any(len(traced) + 1 < self._most_tokens for traced in self._after_first):
            self._trace(outcome)

    def tokens(self, generated: list[list[int]]) -> list[list[Traced]]:
        """Traces of the first `most_tokens` tokens per prompt; `generated` holds those that the engine returned."""
        return [
            [Traced(token, "plain", None) for token in tokens[:1]] + traced[: len(tokens) - 1]
            if self._most_tokens
            else []
            for tokens, traced in zip(generated, self._after_first, strict=True)
        ]

    def _trace(self, outcome: Outcome) -> None:
        draft, target = outcome.draft, outcome.target
        assert target is not None, "a round of the loop has the target's probabilities"
        next_token = outcome.next_token.unsqueeze(1)
        next_p = target.probs(outcome.stop).gather(1, next_token)[:, 0].tolist()
        nodes: list[list[Drafted]] = [[] for _ in next_p]
        next_q, lost_node = [0.0] * len(next_p), [0] * len(next_p)
        if draft.num_nodes:
            # Rejected nodes are children of the stop; the first of them stands for all siblings.
            first_lost = (draft.valid & (draft.parent == outcome.stop.unsqueeze(1) - 1)).int().argmax(1)
            probs = draft.probs_of_nodes(first_lost.unsqueeze(1), target.logits.shape[2])[:, 0]
            next_q, lost_node = probs.gather(1, next_token)[:, 0].tolist(), first_lost.tolist()
            p, q = target.prob_of(draft.tokens), draft.prob_of_tokens()
            nodes = [
                [Drafted(*node) for node in zip(*row, strict=True)]
                for row in zip(draft.tokens.tolist(), p.tolist(), q.tolist(), strict=True)
            ]
        offered = draft.valid.any(1).tolist() if draft.num_nodes else [False] * len(next_p)
        paths = draft.tree.path(outcome.stop).tolist()
        accepted, kept = outcome.num_accepted.tolist(), outcome.num_committed.tolist()
        for row, is_rejected in enumerate(outcome.rejected.tolist()):
            path = [nodes[row][node] for node in paths[row][: accepted[row]]]
            found = [Traced(node.token, "accepted", node.p, node.q) for node in path]
            token = int(outcome.next_token[row])
            if is_rejected:
                found.append(Traced(token, "replaced", next_p[row], next_q[row], nodes[row][lost_node[row]]))
            else:
                found.append(Traced(token, "bonus" if offered[row] else "plain", next_p[row]))
            traced = self._after_first[self._in_row[row]]
            room = self._most_tokens - 1 - len(traced)
            traced += found[: max(0, min(kept[row], room))]
