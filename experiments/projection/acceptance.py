"""Tokens that rounds commit: from a given alpha, or from the counts of measured rounds."""

from dataclasses import dataclass

from experiments.results.record import Record
from framework.metrics.theory import expected_tokens

SAME = 1e-9  # nodes and depth per pass of a chain differ by rounding only
WITH_DRAFT_MODEL = ("small_transformer", "online_small_transformer")
FREE_BELOW = 0.1  # c of drafts that are copied from a text or a table


@dataclass(frozen=True)
class Acceptance:
    """Accepted and offered nodes of rounds.

    Attributes:
        name: what was measured or assumed.
        alpha: acceptance rate over tested tokens.
        rounds: `[offered][accepted]`: numbers of measured rounds; None: acceptance is independent, with this alpha.
        has_draft_model: whether a model makes the drafts; otherwise they take no time.
    """

    name: str
    alpha: float
    rounds: tuple[tuple[float, ...], ...] | None = None
    has_draft_model: bool = True

    @classmethod
    def of_record(cls, name: str, record: Record) -> "Acceptance":
        """The acceptance of a measured drafter.

        Raises:
            ValueError: its drafts are no chains, or neither a draft model nor a copy makes them, or it has no counts.
        """
        metrics, drafter = record.metrics, str(record.point.get("drafter"))
        rounds = record.counts.get("rounds_by_offered_and_accepted")
        alphas = [metrics.get(each) for each in ("alpha/overlap", "alpha/empirical")]
        alpha = next((each for each in alphas if each is not None), None)
        nodes, depth = (metrics.get(each) or 0.0 for each in ("nodes/mean", "gamma/mean"))
        has_draft_model = drafter in WITH_DRAFT_MODEL
        if not rounds or alpha is None or not sum(map(sum, rounds)):
            raise ValueError(f"{name} has no counts of tested tokens")
        if abs(nodes - depth) > SAME * depth:
            raise ValueError(f"{name} drafts trees; allowed: chains")
        if not has_draft_model and (record.models.get("drafter") or (metrics.get("c") or 0) >= FREE_BELOW):
            raise ValueError(f"{name} drafts with parts of its own; allowed: a draft model, or copies of a text")
        return cls(name, alpha, tuple(map(tuple, rounds)), has_draft_model)

    @property
    def most(self) -> int | None:
        """Largest gamma for which tau is known; None: any."""
        return None if self.rounds is None else len(self.rounds) - 1

    def tau(self, gamma: int) -> float:
        """Tokens per round at a gamma; measured rounds are cut to that many nodes."""
        if self.rounds is None:
            return expected_tokens(self.alpha, gamma)
        cut = sum(number * (1 + min(accepted, gamma)) for row in self.rounds for accepted, number in enumerate(row))
        return cut / sum(map(sum, self.rounds))

    def offered(self, gamma: int) -> dict[int, float]:
        """Share of rounds by number of offered nodes; a drafter that copies text offers none in some."""
        if self.rounds is None:
            return {gamma: 1.0}
        total, shares = sum(map(sum, self.rounds)), dict[int, float]()
        for offered, row in enumerate(self.rounds):
            if share := sum(row) / total:
                shares[min(offered, gamma)] = shares.get(min(offered, gamma), 0.0) + share
        return shares
