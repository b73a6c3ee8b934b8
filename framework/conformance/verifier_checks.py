"""The Verifier contract (framework/verifiers/verifier.py), executable."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from types import MappingProxyType

import torch
from torch import Tensor

from framework.conformance.report import Check, Report, require, run_checks
from framework.draft import Draft, Law, Shape, TargetRows
from framework.enumeration import every_draft, target_rows
from framework.random_tables import logits_of, random_stops, random_supports, random_tables
from framework.sampling import Sampling
from framework.standard_cases import Case, worst_total_variation
from framework.verifiers.verifier import Guarantee, Verifier

ROUNDING = 1e-12
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
    """Check an acceptance rule against its contract and against the guarantee that it states.

    Args:
        factory: builds the rule.
        samplings: settings at which an exact rule is enumerated, and what to call them.

    Returns:
        the report; `report.require()` raises if a rule of the contract is broken.
    """
    checks = _VerifierChecks(factory(), samplings)
    return run_checks(type(checks.verifier).__name__, list(checks.all()))


class _VerifierChecks:
    """One acceptance rule and a method per rule of the contract; each raises Breach, and may return a remark."""

    def __init__(self, verifier: Verifier, samplings: Mapping[str, Sampling]):
        self.verifier, self.samplings = verifier, samplings
        self.pairs = [pair for pair in product(Law, Shape) if self._accepts(*pair)]

    def _accepts(self, law: Law, shape: Shape) -> bool:
        try:
            self.verifier.check(law, shape)
        except ValueError:
            return False
        return True

    def all(self) -> Iterator[Check]:
        """The rules that apply, cheap ones first."""
        yield Check("a guarantee is stated", self.states_guarantee)
        yield Check("check takes some drafts and refuses others by naming the yaml key", self.refuses)
        yield Check("both laws are laws, and nothing that is not offered is accepted", self.laws)
        yield Check("without a node it is a plain target step", self.plain_step)
        yield Check("a row's laws do not depend on the rows beside it", self.rows_alone)
        yield Check("what it is given is left as it was", self.only_reads)
        yield Check("token_rule says whether a node is kept with probability min(1, p / q)", self.token_rule)
        yield Check("NaN logits leave no law, so that the loop can stop", self.no_law_from_nan)
        yield Check("a drawn token that its own law excludes leaves no law", self.no_law_from_an_excluded_token)
        for (law, shape), (words, sampling) in product(self.pairs, self.samplings.items()):
            # On a chain no node has a sibling, so that drawing with and without replacement are the same.
            if self._promises(sampling) and (law, shape) != (Law.WITHOUT_REPLACEMENT, Shape.CHAIN):
                yield Check(
                    f"{law.name} {shape.name} at {words}: the output's law is the target's",
                    lambda law=law, shape=shape, sampling=sampling: self.exact(law, shape, sampling),  # type: ignore[misc]
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
        require(bool(self.pairs), "check refuses every law and shape; then no drafter can be verified")
        for law, shape in product(Law, Shape):
            if (law, shape) not in self.pairs:
                try:
                    self.verifier.check(law, shape)
                except ValueError as error:
                    require("verifier" in str(error), f"check says {str(error)!r}; name the yaml key: verifier=")
        return "takes " + ", ".join(f"{law.name} {shape.name}" for law, shape in self.pairs)

    def laws(self) -> None:
        for target, draft, _ in self._examples():
            num_rows, width = len(draft.tokens), target.logits.shape[2]
            stop_law = self.verifier.stop_law(target, draft)
            self._require_law("stop_law", stop_law, (num_rows, draft.num_nodes + 1))
            beyond = stop_law[:, 1:][~draft.valid]
            require(
                not bool((beyond != 0).any()),
                "stop_law gives a node that is not offered a chance; acceptance ends at pending or at an offered node",
            )
            for row in range(draft.num_nodes + 1):
                reached = stop_law[:, row] > 0  # what follows a stop that cannot happen does not matter
                replacement = self.verifier.replacement(target, draft, torch.full((num_rows,), row))
                self._require_law("replacement", replacement, (num_rows, width), where=reached)

    def _require_law(self, name: str, law: Tensor, shape: tuple[int, int], *, where: Tensor | None = None) -> None:
        require(
            tuple(law.shape) == shape and law.is_floating_point(),
            f"{name} is {law.dtype} {list(law.shape)}; return floating {list(shape)}",
        )
        law = law if where is None else law[where]
        error = (law.sum(1) - 1).abs().max().item() if len(law) else 0.0
        require(
            bool((law >= 0).all()) and error < 1e-9,
            f"{name} is negative somewhere, or sums to 1 only within {error:.1e}; return a law",
        )

    def plain_step(self) -> None:
        logits = torch.randn(3, 1, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        draft = Draft.empty(3, torch.device("cpu"))
        for sampling in (DRAWING, GREEDY):
            target = TargetRows(logits, draft, sampling)
            stop_law = self.verifier.stop_law(target, draft)
            require(
                torch.equal(stop_law, torch.ones_like(stop_law)) and tuple(stop_law.shape) == (3, 1),
                f"an empty draft has the stop_law {stop_law.tolist()}; it can only end at pending: return ones [B, 1]",
            )
            replacement = self.verifier.replacement(target, draft, torch.zeros(3, dtype=torch.int64))
            require(
                torch.allclose(replacement.double(), sampling.probs(logits[:, 0])),
                "after an empty draft the replacement is not p; prefill and gamma 0 are plain target steps",
            )

    def rows_alone(self) -> None:
        for target, draft, _ in self._examples():
            stop = torch.arange(len(draft.tokens)) % (draft.num_nodes + 1)
            together = (self.verifier.stop_law(target, draft), self.verifier.replacement(target, draft, stop))
            for row in (0, len(draft.tokens) - 1):
                alone = draft.rows(torch.tensor([row]))
                rows = TargetRows(target.logits[row : row + 1], alone, target.sampling)
                own = (self.verifier.stop_law(rows, alone), self.verifier.replacement(rows, alone, stop[row : row + 1]))
                for name, ours, theirs in zip(("stop_law", "replacement"), own, together, strict=True):
                    require(
                        torch.allclose(ours[0], theirs[row], rtol=0, atol=1e-12, equal_nan=True),
                        f"{name} of a row alone is {ours[0].tolist()}, in a batch {theirs[row].tolist()}",
                    )

    def only_reads(self) -> None:
        for target, draft, _ in self._examples():
            before = [tensor.clone() for tensor in _tensors(target, draft)]
            stop = draft.offered_depth
            self.verifier.stop_law(target, draft)
            self.verifier.replacement(target, draft, stop)
            require(
                all(torch.equal(old, new) for old, new in zip(before, _tensors(target, draft), strict=True)),
                "it changed the draft or the logits; they are read again after it: work on copies",
            )

    def token_rule(self) -> str:
        """Over all chains: what is kept of the nodes that are reached, against min(1, p / q)."""
        declared, worst = getattr(self.verifier, "token_rule", None), 0.0
        require(isinstance(declared, bool), f"token_rule is {declared!r}; set it on the class to True or False")
        for target, draft, _ in self._examples():
            stop_law = self.verifier.stop_law(target, draft)
            reached = stop_law.flip(1).cumsum(1).flip(1)  # on a chain: the chance of getting to a row or beyond
            keep = (reached[:, 1:] / reached[:, :-1]).where(draft.valid & (reached[:, :-1] > 1e-9), 0)
            rule = (target.prob_of(draft.tokens) / draft.prob_of_tokens()).clamp(max=1)
            error = (keep - rule.where(draft.valid & (reached[:, :-1] > 1e-9), 0)).abs().max().item()
            worst = max(worst, error if (draft.parent[0] == torch.arange(-1, draft.num_nodes - 1)).all() else 1.0)
        require(
            declared == (worst < 1e-6),
            f"token_rule is {declared}, and nodes are kept with a probability up to {worst:.1e} from min(1, p / q); "
            "the count of accepted nodes would be judged by the wrong law",
        )
        return str(declared)

    def no_law_from_nan(self) -> None:
        for target, draft, _ in self._examples():
            logits = target.logits.clone()
            logits[:, :, 0] = torch.nan
            rows = TargetRows(logits, draft, target.sampling)
            stop = torch.zeros(len(draft.tokens), dtype=torch.int64)
            total = self.verifier.stop_law(rows, draft).sum(1) + self.verifier.replacement(rows, draft, stop).sum(1)
            require(
                not bool(total.isfinite().any()),
                "logits with NaN gave finite laws, from which a token would be drawn; let NaN pass through",
            )

    def no_law_from_an_excluded_token(self) -> None:
        for target, draft, _ in self._examples():
            if draft.probs is None:
                continue
            own = draft.tokens.unsqueeze(2)
            ids = torch.arange(target.logits.shape[2]) if draft.support is None else draft.support
            liar = replace(draft, probs=draft.probs.masked_fill(ids == own, 0.0))
            rows = TargetRows(target.logits, liar, target.sampling)
            total = self.verifier.stop_law(rows, liar).sum(1)[draft.valid[:, 0]]
            require(
                not bool(total.isfinite().any()),
                "an offered token to which its own probs give zero was judged; no number can be right: divide by q and "
                "let the result be NaN",
            )

    def exact(self, law: Law, shape: Shape, sampling: Sampling) -> str:
        worst, case = worst_total_variation(self.verifier, law=law, shape=shape, sampling=sampling)
        require(
            worst <= ROUNDING,
            f"it states {self.verifier.guarantee.name}, and its output is a total variation of {worst:.2g} from the "
            f"target's law: {case}. Mend the rule, or state LOSSY",
        )
        return f"total variation {worst:.0e}"

    def _examples(self) -> Iterator[tuple[TargetRows, Draft, Tensor]]:
        """Drafts of every kind it takes, some of whose nodes are not offered."""
        for (law, shape), sampling, kind in product(self.pairs, (DRAWING, GREEDY), ("random", "zeros", "disjoint")):
            random = torch.Generator().manual_seed(1)
            parent = Case(law, shape, kind, "dense", 3, 2, False, False, 0).parent
            p, q = random_tables(kind, 3, 2, random, narrow=True)
            supports = None if law is Law.ONE_HOT else random_supports(q, random)
            for support in (None, supports) if supports else (None,):
                draft, weights = every_draft(
                    q, parent=parent, law=law, shape=shape, offered=random_stops(3, 2, random), supports=support
                )
                yield target_rows(logits_of(p), draft, sampling), draft, weights


def _tensors(target: TargetRows, draft: Draft) -> list[Tensor]:
    tensors = (target.logits, target.all_probs, draft.tokens, draft.parent, draft.valid, draft.probs, draft.support)
    return [tensor for tensor in tensors if tensor is not None]
