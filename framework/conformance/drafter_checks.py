"""The Drafter contract (framework/drafter.py), executable."""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import cast

import torch

from framework.autoregressive import Autoregressive
from framework.conformance.draft_rules import (
    require_laws,
    require_one_law_of_siblings,
    require_shapes,
    require_structure,
)
from framework.conformance.drawn_tokens import (
    FALSE_ALARM,
    LEAST_ROWS,
    require_drawn_from_probs,
    require_valid_by_ancestors,
)
from framework.conformance.proving_ground import ProvingGround
from framework.conformance.report import Check, Report, require, run_checks
from framework.conformance.rig import PATTERNS, Witness
from framework.draft import Draft, Law, Shape
from framework.drafter import Drafter, TreeDrafter, learning_undone, learns
from framework.equality import differences, within_float32
from framework.goodness_of_fit import continuation_law, smallest_seen
from framework.pretrained import fingerprint
from framework.sampling import Sampling
from framework.stopping import Stopping
from framework.target import Target
from framework.tiny_models import tiny_target
from framework.verifiers.standard import standard_rule
from framework.verifiers.verifier import Verifier

DRAWING, FEW_TOKENS, GREEDY = Sampling(), Sampling(top_k=3), Sampling(temperature=0)
NEW_TOKENS = 12
MOST_LAW_GAMMA = 5  # deeper drafts have more continuations than can be counted
ENTRIES_PER_BATCH = 1_000_000  # of one law; more rows at once are slower, for want of memory near the cores
LAW_CELLS = 1000  # above so many continuations a law is cut down by top-k


def check_drafter(
    factory: Callable[..., Drafter],
    *,
    target: Target | None = None,
    verifier: Verifier | None = None,
    gamma: int = 3,
    samples: int = 20_000,
) -> Report:
    """Check a drafter against its contract, by what it declares and never by its name.

    Args:
        factory: builds the drafter: `factory(target=target)`; called several times.
        target: what to draft for; None takes a tiny random model with a vocabulary of 5.
        verifier: an exact rule for the drafter's drafts; None takes the standard one.
        gamma: deepest draft asked for, >= 2.
        samples: sequences drawn to compare laws; what they can show is said beside each check.

    Returns:
        the report; `report.require()` raises if a rule is broken.
    """
    target = target or tiny_target(vocabulary=5)
    found, drafter = _state(target), factory(target=target)
    ground = ProvingGround(target=target, verifier=verifier or standard_rule(drafter.law, drafter.shape), gamma=gamma)
    checks = _DrafterChecks(drafter, lambda: factory(target=target), ground, samples, found)
    return run_checks(type(checks.drafter).__name__, list(checks.all()))


class _DrafterChecks:
    """One drafter on its ground, and a method per rule; each raises Breach, and may return a remark."""

    def __init__(
        self,
        drafter: Drafter,
        build: Callable[[], Drafter],
        ground: ProvingGround,
        samples: int,
        found: dict[str, object],
    ):
        self.build, self.ground, self.samples, self.found = build, ground, samples, found
        self.target = ground.target
        self.drafter = drafter
        self.full_precision = self.target.model.model.dtype in (torch.float32, torch.float64)
        self.tolerance = 1e-4 if self.full_precision else 5e-2

    def all(self) -> Iterator[Check]:
        """The rules that apply, cheap ones first."""
        yield Check("law, shape and num_uniforms are declared", self.declarations, essential=True)
        yield Check("drafts have the shapes, dtypes and ids they must", self.shapes, essential=True)
        yield Check(
            "depth is at most gamma, parents come first, valid is closed under parents", self.structure, essential=True
        )
        yield Check("probs are laws, and absent exactly where tokens are chosen", self.laws)
        if self.drafter.law is not Law.ONE_HOT and self.drafter.shape is not Shape.CHAIN:
            yield Check("siblings report one law, the one after their parent", self.siblings)
        yield Check("the same sequences and uniforms give the same draft", self.repeatable)
        yield Check("rows do not see each other's drafts", self.rows_alone)
        if self.drafter.law is not Law.ONE_HOT:
            yield Check("tokens are drawn from the probs that are reported", self.tokens_follow_probs)
            yield Check("whether a node is offered depends on its ancestors only", self.valid_by_ancestors)
        for pattern in PATTERNS:
            yield Check(
                f"its state follows what was committed (accepted: {pattern})",
                lambda pattern=pattern: self.survives(pattern),  # type: ignore[misc]
            )
        yield Check("begin forgets earlier sequences", self.begin_forgets)
        yield Check("the target's passes are those of the target alone", self.target_passes)
        if self.full_precision:  # in half precision passes of different shape break near-ties differently
            yield Check("greedy decoding gives the target's own tokens", self.greedy_equals_plain)
            yield Check("a row decodes alike alone, in any order and in any batch", self.batch_invariant)
        yield Check("the output follows the target's law", self.output_law)
        if learns(self.drafter):
            yield Check("it can go back to what it had learnt", self.learning_undone)
        yield Check("the target is left as it was found", self.target_untouched)

    def declarations(self) -> str:
        drafter, gamma = self.drafter, self.ground.gamma
        for name, kind in (("law", Law), ("shape", Shape)):
            value = getattr(drafter, name, None)
            allowed = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
            require(isinstance(value, kind), f"{name} is {value!r}; set it on the class to one of {allowed}")
        numbers = [drafter.num_uniforms(depth) for depth in range(1, gamma + 1)]
        require(
            all(isinstance(number, int) and number >= 0 for number in numbers) and numbers == sorted(numbers),
            f"num_uniforms(1...{gamma}) is {numbers}; return whole numbers >= 0 that do not fall as gamma grows",
        )
        if drafter.shape is not Shape.CHAIN:
            rooms = [getattr(drafter, "num_nodes", lambda depth: None)(depth) for depth in range(1, gamma + 1)]
            require(
                all(isinstance(room, int) and room >= 1 for room in rooms),
                f"num_nodes(1...{gamma}) is {rooms}; say how many nodes a {drafter.shape.name} of each depth may hold",
            )
        return f"{drafter.law.name}, {drafter.shape.name}, {numbers[-1]} uniforms for gamma {gamma}"

    # Single drafts

    @cached_property
    def drafts(self) -> list[tuple[int, Sampling, Draft]]:
        """A draft of every depth on ragged prompts, at several settings."""
        return [
            (gamma, sampling, self.ground.draft(self.drafter, self.ground.prompts, sampling, gamma=gamma))
            for sampling in (DRAWING, FEW_TOKENS, GREEDY)
            for gamma in range(1, self.ground.gamma + 1)
        ]

    def shapes(self) -> None:
        num_rows, width = len(self.ground.prompts), self.target.vocabulary_size
        for _, _, draft in self.drafts:
            require_shapes(draft, num_rows=num_rows, width=width, device=self.target.device)

    def structure(self) -> None:
        for gamma, _, draft in self.drafts:
            require_structure(draft, shape=self.drafter.shape, gamma=gamma)
            room = gamma if self.drafter.shape is Shape.CHAIN else cast(TreeDrafter, self.drafter).num_nodes(gamma)
            require(
                draft.num_nodes <= room,
                f"a draft of depth {gamma} has {draft.num_nodes} nodes where {room} were announced (num_nodes); the "
                "buffers would overflow",
            )

    def laws(self) -> None:
        for _, sampling, draft in self.drafts:
            allowed = {self.drafter.law, Law.ONE_HOT} if sampling.greedy or not draft.num_nodes else {self.drafter.law}
            require(
                draft.law in allowed,
                f"a draft says {draft.law.name} at temperature {sampling.temperature:g}; the class declares "
                f"{self.drafter.law.name} (at temperature 0, ONE_HOT is allowed as well)",
            )
            require_laws(draft, width=self.target.vocabulary_size)

    def siblings(self) -> None:
        for _, _, draft in self.drafts:
            require_one_law_of_siblings(draft, width=self.target.vocabulary_size)

    def repeatable(self) -> None:
        for sampling in (DRAWING, GREEDY):
            first, second = (self.ground.draft(self.drafter, self.ground.prompts, sampling) for _ in range(2))
            self._require_same(
                second,
                first,
                "the same sequences and uniforms gave another draft; all randomness must come from the uniforms, and "
                "begin must forget",
            )

    def rows_alone(self) -> None:
        for sampling in (DRAWING, GREEDY):
            together = self.ground.draft(self.drafter, self.ground.prompts, sampling)
            for row, prompt in enumerate(self.ground.prompts):
                self._require_same(
                    together.rows(torch.tensor([row])),
                    self.ground.draft(self.drafter, [prompt], sampling, rows=[row]),
                    f"row {row} drafts otherwise in a batch than alone; look at positions, masks and padding: rows "
                    "have different lengths",
                )

    @cached_property
    def many_drafts(self) -> list[Draft]:
        """Many drafts after the same tokens, after little and after much text, at several settings."""
        num_rows = max(LEAST_ROWS, self.samples // 3)
        prompts = [self.ground.prompts[0], max(self.ground.prompts, key=len)]
        settings = ((prompts[0], DRAWING), (prompts[1], DRAWING), (prompts[0], FEW_TOKENS))
        return [self.ground.drafts_of_one(self.drafter, prompt, num_rows, sampling) for prompt, sampling in settings]

    def tokens_follow_probs(self) -> str:
        width, num_rows = self.target.vocabulary_size, len(self.many_drafts[0].tokens)
        num_groups = sum(require_drawn_from_probs(draft, width, self.tolerance) for draft in self.many_drafts)
        return (
            f"{num_groups} chi-square tests, false alarm below {num_groups * FALSE_ALARM:.0e}; {num_rows} drafts show "
            f"a total variation of about {smallest_seen(num_rows):.2f}"
        )

    def valid_by_ancestors(self) -> None:
        for draft in self.many_drafts:
            require_valid_by_ancestors(draft)

    # Rounds

    @cached_property
    def second(self) -> Drafter:
        """Another one of its kind, to compare with."""
        return self.build()

    def survives(self, pattern: str) -> None:
        for sampling in (DRAWING, GREEDY):
            proposals, _ = self.ground.play(self.drafter, pattern, sampling)
            for number, proposal in enumerate(proposals, start=1):
                self._require_same(
                    proposal.draft,
                    self.ground.draft_again(self.second, proposal, sampling),
                    f"in round {number} it drafts otherwise than one that begins with the same tokens. Read every "
                    "committed token that was not read yet (after full acceptance there are two), and roll back what "
                    "was rejected",
                )

    def begin_forgets(self) -> None:
        for sampling in (DRAWING, GREEDY):
            self.ground.play(self.drafter, "all", sampling, num_rows=3)
            self._require_same(
                self.ground.draft(self.drafter, self.ground.prompts, sampling),
                self.ground.draft(self.build(), self.ground.prompts, sampling),
                "after other sequences it drafts otherwise than a new one; begin must forget them",
            )

    def target_passes(self) -> str:
        """Passes of the loop against uncached ones: sees what a drafter does to a cache it borrows."""
        worst = 0.0
        for pattern in ("all", "another number in every row"):
            for proposal, logits in zip(*self.ground.play(self.drafter, pattern, DRAWING), strict=True):
                for row, tokens in enumerate(proposal.committed):
                    expected = self.ground.uncached(tokens)[-1]
                    error = (logits[row, 0].double() - expected).abs().max() / (1 + expected.abs().max())
                    worst = max(worst, error.item())
        require(
            worst < self.tolerance,
            f"the target's logits differ from uncached ones by {worst:.1e} of their size; the drafter disturbs the "
            "target's cache, positions or weights",
        )
        return f"within {worst:.0e}"

    # Whole generations

    def greedy_equals_plain(self) -> str:
        prompts, seeds = self.ground.prompts, list(range(len(self.ground.prompts)))
        stopping = Stopping(max_new_tokens=NEW_TOKENS, eos_ids=(0,))
        plain = Autoregressive(target=self.target, sampling=GREEDY)
        expected = plain.generate(prompts, stopping=stopping, seeds=seeds).tokens
        got = self.ground.engine(self.drafter, GREEDY).generate(prompts, stopping=stopping, seeds=seeds).tokens
        found, num_tokens = differences(self.target, prompts, expected, got), sum(map(len, expected))
        first = f"row {found[0].row} from new token {found[0].position} on" if found else ""
        require(
            within_float32(found, num_tokens), f"{first} is not what plain decoding gives: {expected} against {got}"
        )
        return f"{len(found)} differences in {num_tokens} tokens"

    def batch_invariant(self) -> None:
        prompts, seeds = self.ground.prompts, list(range(len(self.ground.prompts)))
        stopping = Stopping(max_new_tokens=NEW_TOKENS, eos_ids=(0,))
        for sampling in (DRAWING, GREEDY):
            engine = self.ground.engine(Witness(self.drafter), sampling)
            together = engine.generate(prompts, stopping=stopping, seeds=seeds).tokens
            backwards = engine.generate(prompts[::-1], stopping=stopping, seeds=seeds[::-1]).tokens[::-1]
            for row, prompt in enumerate(prompts):
                alone = engine.generate([prompt], stopping=stopping, seeds=[row]).tokens[0]
                require(
                    together[row] == backwards[row] == alone,
                    f"row {row} at temperature {sampling.temperature:g} decodes to {together[row]} in the batch, to "
                    f"{backwards[row]} in the reversed batch, to {alone} alone",
                )

    def output_law(self) -> str:
        gamma = min(self.ground.gamma, MOST_LAW_GAMMA)
        num_tokens = gamma + 2  # prefill's, then a whole round
        small = self.target.vocabulary_size**num_tokens <= LAW_CELLS
        sampling, prompt = DRAWING if small else FEW_TOKENS, self.ground.prompts[0]
        law = continuation_law(self.target, prompt, num_tokens, sampling)
        engine = self.ground.engine(self.drafter, sampling, gamma=gamma)
        tokens: list[list[int]] = []
        for seeds in torch.arange(self.samples).split(max(1, ENTRIES_PER_BATCH // self.target.vocabulary_size)):
            stopping = Stopping(max_new_tokens=num_tokens)
            tokens += engine.generate([prompt] * len(seeds), stopping=stopping, seeds=seeds.tolist()).tokens
        fit = law.fit(tokens)
        require(
            fit.p_value > FALSE_ALARM,
            f"{self.samples} continuations of {num_tokens} tokens are a total variation of {fit.total_variation:.3f} "
            f"from the target's law (chance {fit.p_value:.0e}). Either probs is not the law the tokens were drawn "
            "from, or a node was left out because of its own token",
        )
        return f"chi-square p = {fit.p_value:.2g} with {self.samples} samples"

    def learning_undone(self) -> str:
        before = self.ground.draft(self.drafter, self.ground.prompts, DRAWING)
        with learning_undone(self.drafter):
            engine, seeds = self.ground.engine(self.drafter, DRAWING), list(range(len(self.ground.prompts)))
            while self._still(before) and len(seeds) < self.samples:
                engine.generate(self.ground.prompts, stopping=Stopping(max_new_tokens=NEW_TOKENS), seeds=seeds[-8:])
                seeds += range(len(seeds), len(seeds) + 8)
            learnt = not self._still(before)
        after = self.ground.draft(self.drafter, self.ground.prompts, DRAWING)
        self._require_same(after, before, "relearn must bring back all that learnt returned")
        return "it had learnt in between" if learnt else "nothing was learnt in between, so that nothing is shown"

    def _still(self, before: Draft) -> bool:
        """Whether it drafts as before."""
        now = self.ground.draft(self.drafter, self.ground.prompts, DRAWING)
        width = self.target.vocabulary_size
        same = torch.equal(now.tokens, before.tokens)
        return same and (now.probs is None or torch.equal(now.dense_probs(width), before.dense_probs(width)))

    def target_untouched(self) -> None:
        for name, value in _state(self.target).items():
            require(
                value == self.found[name],
                f"the target's {name} changed; work on a view or a copy: other drafters share this target",
            )

    def _require_same(self, got: Draft, expected: Draft, message: str) -> None:
        """Equal where nodes are offered; whatever else a draft holds means nothing."""
        for row, (ours, theirs) in enumerate(zip(_offered(got), _offered(expected), strict=True)):
            require(ours == theirs, f"row {row} drafts {ours} instead of {theirs}: {message}")
        if got.probs is not None and expected.probs is not None:
            width, both = self.target.vocabulary_size, min(got.num_nodes, expected.num_nodes)
            error = (got.dense_probs(width)[:, :both] - expected.dense_probs(width)[:, :both]).abs().amax(2)
            worst = error.where(got.valid[:, :both], 0).max().item()
            require(worst < self.tolerance, f"its probs are {worst:.1e} apart: {message}")


def _offered(draft: Draft) -> list[list[int]]:
    """Tokens of the offered nodes, row by row."""
    rows = zip(draft.tokens.tolist(), draft.valid.tolist(), strict=True)
    return [[token for token, valid in zip(*row, strict=True) if valid] for row in rows]


def _state(target: Target) -> dict[str, object]:
    """What a drafter must not change, in a form that can be compared."""
    model = target.model.model
    return {
        "weights": fingerprint(model),
        "config": model.config.to_dict(),
        "training flag": [module.training for module in model.modules()],
        "requires_grad": [parameter.requires_grad for parameter in model.parameters()],
        "hooks": [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        "modules": [(type(module), "forward" in vars(module)) for module in model.modules()],
    }
