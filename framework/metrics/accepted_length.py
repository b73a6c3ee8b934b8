"""Mean accepted length as vLLM, SGLang and EAGLE define it, so that figures can be compared with theirs.

docs/glossary.md has the definitions with their sources.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

from framework.metrics.tally import Tally, ratio

PREFIX = "accepted_length"  # of the metrics


@dataclass(frozen=True)
class Request:
    """Counts of one decoded prompt.

    Attributes:
        new_tokens: tokens of the output, that of the prefill and an end-of-text token included.
        accepted: accepted nodes.
        rounds: rounds after the prefill, with and without a draft.
    """

    new_tokens: int
    accepted: int
    rounds: int


@dataclass(frozen=True)
class AcceptedLengths:
    """Mean accepted length by the definitions of other projects; None where one divides by zero.

    Our rounds offer no node after an end-of-text token or beyond the token budget. Other engines draft there, so that
    in `vllm` and `eagle` their own count of a request may be larger, by at most the last draft.

    Attributes:
        vllm: 1 + accepted nodes ÷ rounds with a draft, over all requests; a bonus token counts even after an
            end-of-text token.
        sglang: mean over requests of new tokens, the prefill's included, ÷ rounds.
        sglang_server: tokens committed in rounds ÷ rounds, over all requests; this is tau.
        eagle: mean over requests of (accepted nodes + rounds) ÷ (rounds - 1), since EAGLE's script divides by the
            index of the last round, which begins at 0.
    """

    vllm: float | None
    sglang: float | None
    sglang_server: float | None
    eagle: float | None

    @classmethod
    def of(cls, tally: Tally, requests: Sequence[Request]) -> Self:
        """
        Args:
            tally: counts of all requests.
            requests: counts of each.
        """
        accepted, undrafted = sum(tally.accepted_by_position), float(tally.accepted[0, 0])
        drafts = ratio(accepted, tally.num_rounds - undrafted)
        return cls(
            vllm=None if drafts is None else 1 + drafts,
            sglang=_mean([ratio(each.new_tokens, each.rounds) for each in requests]),
            sglang_server=ratio(tally.committed, tally.num_rounds),
            eagle=_mean([ratio(each.accepted + each.rounds, each.rounds - 1) for each in requests if each.rounds]),
        )

    def metrics(self) -> dict[str, float | None]:
        """Values by the names of a record's metrics."""
        return {f"{PREFIX}/{name}": value for name, value in asdict(self).items()}


def _mean(values: Sequence[float | None]) -> float | None:
    """Mean of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return ratio(sum(known), len(known))
