"""The Verifier contract (framework/verifiers/verifier.py), executable."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from types import MappingProxyType

import torch
from torch import Tensor

from framework.conformance.enumeration import every_draft, target_rows
from framework.conformance.report import Check, Report, require, run_checks
from framework.conformance.standard_cases import ROUNDING_OF, Case, worst_total_variation
from framework.conformance.toy_distributions import logits_of, random_stops, random_supports, random_tables
from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows
from framework.core.sampling import Sampling
from framework.verifiers.verifier import Guarantee, Verifier

DRAWING, GREEDY = Sampling(), Sampling(temperature=0)
SAMPLINGS = {
    "T=1": DRAWING,
    "T=0.7": Sampling(temperature=0.7),
    "top-k 2": Sampling(top_k=2),
    "top-p 0.8": Sampling(top_p=0.8),
    "T=1.3, min-p 0.2": Sampling(temperature=1.3, min_p=0.2),
    "T=0": GREEDY,
}


def check_verifier(
    factory: Callable[[], Verifier], *, samplings: Mapping[str, Sampling] = MappingProxyType(SAMPLINGS)
) -> Report:
    """Check an acceptance rule against its contract and its stated guarantee.

    Args:
        factory: constructor of the rule.
        samplings: named sampling settings at which an exact rule is enumerated.

    Returns:
        the report; `report.require()` raises Breach if a rule of the contract is broken.
    """
    checks = _VerifierChecks(factory(), samplings)
    return run_checks(type(checks.verifier).__name__, list(checks.all()))


class _VerifierChecks:
    """One acceptance rule, with a method per contract rule; each raises Breach or returns an optional remark."""

    def __init__(self, verifier: Verifier, samplings: Mapping[str, Sampling]):
        self.verifier, self.samplings = verifier, samplings
        self.pairs = [pair for pair in product(SamplingScheme, Shape) if self._accepts(*pair)]

    def _accepts(self, scheme: SamplingScheme, shape: Shape) -> bool:
        try:
            self.verifier.check(scheme, shape)
        except ValueError:
            return False
        return True

    def all(self) -> Iterator[Check]:
        """Rules that apply to the verifier, cheap ones first."""
        yield Check("a guarantee is stated", self.states_guarantee)
        yield Check("check takes some drafts, and its errors for others name the yaml key", self.refuses)
        yield Check(
            "both distributions are distributions, and no node that is not offered is accepted", self.distributions
        )
        yield Check("without a node it is a plain target step", self.plain_step)
        yield Check("a row's distributions do not depend on the rows beside it", self.rows_alone)
        yield Check("each argument is left as it was", self.only_reads)
        yield Check("token_rule says whether a node is accepted with probability min(1, p / q)", self.token_rule)
        yield Check("NaN logits leave no distribution, so that the loop can stop", self.no_distribution_from_nan)
        yield Check(
            "a drawn token with q = 0 leaves no distribution",
            self.no_distribution_from_an_excluded_token,
        )
        for (scheme, shape), (words, sampling) in product(self.pairs, self.samplings.items()):
            # On a chain no node has siblings, so that draws with and without replacement are the same.
            if self._promises(sampling) and (scheme, shape) != (SamplingScheme.WITHOUT_REPLACEMENT, Shape.CHAIN):
                for dtype, precision in ((torch.float64, ""), (torch.float32, " in float32")):
                    # Other settings are applied before the rule, regardless of precision.
                    if dtype == torch.float64 or sampling == DRAWING:
                        yield Check(
                            f"{scheme.name} {shape.name} at {words}{precision}: the output's distribution is the "
                            "target's",
                            partial(self.exact, scheme, shape, sampling, dtype),
                        )

    def _promises(self, sampling: Sampling) -> bool:
        guarantee = getattr(self.verifier, "guarantee", None)
        return guarantee is Guarantee.EXACT or (guarantee is Guarantee.GREEDY_EXACT and sampling.greedy)

    def states_guarantee(self) -> str:
        guarantee = getattr(self.verifier, "guarantee", None)
        allowed = ", ".join(f"Guarantee.{member.name}" for member in Guarantee)
        require(
            isinstance(guarantee, Guarantee), f"guarantee is {guarantee!r}; set it on the class to one of {allowed}"
        )
        return self.verifier.guarantee.name

    def refuses(self) -> str:
        require(bool(self.pairs), "check refuses every scheme and shape; then no drafter can be verified")
        for scheme, shape in product(SamplingScheme, Shape):
            if (scheme, shape) not in self.pairs:
                try:
                    self.verifier.check(scheme, shape)
                except ValueError as error:
                    require("verifier" in str(error), f"check says {str(error)!r}; name the yaml key: verifier=")
        return "takes " + ", ".join(f"{scheme.name} {shape.name}" for scheme, shape in self.pairs)

    def distributions(self) -> None:
        for target, draft, _ in self._examples():
            num_rows, width = len(draft.tokens), target.logits.shape[2]
            stop_probs = self.verifier.stop_probs(target, draft)
            self._require_distribution("stop_probs", stop_probs, (num_rows, draft.num_nodes + 1))
            beyond = stop_probs[:, 1:][~draft.valid]
            require(
                not bool((beyond != 0).any()),
                "stop_probs gives mass to a node that is not offered; acceptance ends at pending or an offered node",
            )
            for row in range(draft.num_nodes + 1):
                reached = stop_probs[:, row] > 0  # the next token after an impossible stop is irrelevant
                next_token_probs = self.verifier.next_token_probs(target, draft, torch.full((num_rows,), row))
                self._require_distribution("next_token_probs", next_token_probs, (num_rows, width), where=reached)

    def _require_distribution(
        self, name: str, probs: Tensor, shape: tuple[int, int], *, where: Tensor | None = None
    ) -> None:
        require(
            tuple(probs.shape) == shape and probs.is_floating_point(),
            f"{name} is {probs.dtype} {list(probs.shape)}; return floating {list(shape)}",
        )
        probs = probs if where is None else probs[where]
        error = (probs.sum(1) - 1).abs().max().item() if len(probs) else 0.0
        require(
            bool((probs >= 0).all()) and error < 1e-9,
            f"{name} is negative somewhere, or sums to 1 only within {error:.1e}; return a distribution",
        )

    def plain_step(self) -> None:
        logits = torch.randn(3, 1, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        draft = Draft.empty(3, torch.device("cpu"))
        for sampling in (DRAWING, GREEDY):
            target = TargetRows(logits, draft, sampling)
            stop_probs = self.verifier.stop_probs(target, draft)
            require(
                torch.equal(stop_probs, torch.ones_like(stop_probs)) and tuple(stop_probs.shape) == (3, 1),
                f"an empty draft has stop_probs {stop_probs.tolist()}; it can only end at pending: return ones [B, 1]",
            )
            next_token_probs = self.verifier.next_token_probs(target, draft, torch.zeros(3, dtype=torch.int64))
            require(
                torch.allclose(next_token_probs.double(), sampling.probs(logits[:, 0])),
                "after an empty draft next_token_probs is not p; prefill and gamma 0 are plain target steps",
            )

    def rows_alone(self) -> None:
        for target, draft, _ in self._examples():
            stop = torch.arange(len(draft.tokens)) % (draft.num_nodes + 1)
            together = (self.verifier.stop_probs(target, draft), self.verifier.next_token_probs(target, draft, stop))
            for row in (0, len(draft.tokens) - 1):
                alone = draft.rows(torch.tensor([row]))
                rows = TargetRows(target.logits[row : row + 1], alone, target.sampling)
                own = (
                    self.verifier.stop_probs(rows, alone),
                    self.verifier.next_token_probs(rows, alone, stop[row : row + 1]),
                )
                for name, ours, theirs in zip(("stop_probs", "next_token_probs"), own, together, strict=True):
                    require(
                        torch.allclose(ours[0], theirs[row], rtol=0, atol=1e-12, equal_nan=True),
                        f"{name} of a row alone is {ours[0].tolist()}, in a batch {theirs[row].tolist()}",
                    )

    def only_reads(self) -> None:
        for target, draft, _ in self._examples():
            before = [tensor.clone() for tensor in _tensors(target, draft)]
            stop = draft.offered_depth
            self.verifier.stop_probs(target, draft)
            self.verifier.next_token_probs(target, draft, stop)
            require(
                all(torch.equal(old, new) for old, new in zip(before, _tensors(target, draft), strict=True)),
                "it changed the draft or the logits, which are read again later; work on copies",
            )

    def token_rule(self) -> str:
        """Compare the acceptance of reached nodes with min(1, p / q), over all example drafts."""
        declared, worst = getattr(self.verifier, "token_rule", None), 0.0
        require(isinstance(declared, bool), f"token_rule is {declared!r}; set it on the class to True or False")
        for target, draft, _ in self._examples():
            stop_probs = self.verifier.stop_probs(target, draft)
            reached = stop_probs.flip(1).cumsum(1).flip(1)  # on a chain: probability of reaching each row
            keep = (reached[:, 1:] / reached[:, :-1]).where(draft.valid & (reached[:, :-1] > 1e-9), 0)
            rule = (target.prob_of(draft.tokens) / draft.prob_of_tokens()).clamp(max=1)
            error = (keep - rule.where(draft.valid & (reached[:, :-1] > 1e-9), 0)).abs().max().item()
            worst = max(worst, error if (draft.parent[0] == torch.arange(-1, draft.num_nodes - 1)).all() else 1.0)
        require(
            declared == (worst < 1e-6),
            f"token_rule is {declared}, and nodes are kept with a probability up to {worst:.1e} from min(1, p / q); "
            "the count of accepted nodes would be compared with the wrong distribution",
        )
        return str(declared)

    def no_distribution_from_nan(self) -> None:
        for target, draft, _ in self._examples():
            logits = target.logits.clone()
            logits[:, :, 0] = torch.nan
            rows = TargetRows(logits, draft, target.sampling)
            stop = torch.zeros(len(draft.tokens), dtype=torch.int64)
            total = self.verifier.stop_probs(rows, draft).sum(1) + self.verifier.next_token_probs(
                rows, draft, stop
            ).sum(1)
            require(
                not bool(total.isfinite().any()),
                "logits with NaN gave finite distributions, from which tokens would be drawn; let NaN pass through",
            )
            self._require_no_distribution_from_pending(target, draft)

    def _require_no_distribution_from_pending(self, target: TargetRows, draft: Draft) -> None:
        """With NaN after pending alone, a node tested against it is not accepted or leaves no distribution."""
        logits = target.logits.clone()
        logits[:, 0, 0] = torch.nan
        rows = TargetRows(logits, draft, target.sampling)
        stop_probs = self.verifier.stop_probs(rows, draft)
        for row in range(draft.num_nodes + 1):
            next_token_probs = self.verifier.next_token_probs(rows, draft, torch.full((len(stop_probs),), row))
            finite = (stop_probs.sum(1) + next_token_probs.sum(1)).isfinite()
            require(
                not bool((finite & (stop_probs[:, row] > 0)).any()),
                "nodes were accepted by logits with NaN, and the next token drawn from finite ones; let NaN through",
            )

    def no_distribution_from_an_excluded_token(self) -> None:
        for target, draft, _ in self._examples():
            if draft.probs is None:
                continue
            own = draft.tokens.unsqueeze(2)
            ids = torch.arange(target.logits.shape[2]) if draft.support is None else draft.support
            liar = replace(draft, probs=draft.probs.masked_fill(ids == own, 0.0))
            rows = TargetRows(target.logits, liar, target.sampling)
            total = self.verifier.stop_probs(rows, liar).sum(1)[draft.valid[:, 0]]
            require(
                not bool(total.isfinite().any()),
                "an offered token to which its own probs give zero has finite stop_probs, which cannot be correct; "
                "divide by q and let the result be NaN",
            )

    def exact(self, scheme: SamplingScheme, shape: Shape, sampling: Sampling, dtype: torch.dtype) -> str:
        worst, case = worst_total_variation(self.verifier, scheme=scheme, shape=shape, sampling=sampling, dtype=dtype)
        require(
            worst <= ROUNDING_OF[dtype],
            f"it states {self.verifier.guarantee.name}, and its output is a total variation of {worst:.2g} from the "
            f"target's distribution: {case}. Mend the rule, or state LOSSY",
        )
        return f"total variation {worst:.0e}"

    def _examples(self) -> Iterator[tuple[TargetRows, Draft, Tensor]]:
        """Drafts of every scheme and shape that the rule takes, with some nodes not offered."""
        for (scheme, shape), sampling, kind in product(self.pairs, (DRAWING, GREEDY), ("random", "zeros", "disjoint")):
            random = torch.Generator().manual_seed(1)
            parent = Case(scheme, shape, kind, "dense", 3, 2, False, False, 0).parent
            p, q = random_tables(kind, 3, 2, random, narrow=True)
            supports = None if scheme is SamplingScheme.ONE_HOT else random_supports(q, random)
            for support in (None, supports) if supports else (None,):
                draft, weights = every_draft(
                    q, parent=parent, scheme=scheme, shape=shape, offered=random_stops(3, 2, random), supports=support
                )
                yield target_rows(logits_of(p), draft, sampling), draft, weights


def _tensors(target: TargetRows, draft: Draft) -> list[Tensor]:
    tensors = (target.logits, target.all_probs, draft.tokens, draft.parent, draft.valid, draft.probs, draft.support)
    return [tensor for tensor in tensors if tensor is not None]
