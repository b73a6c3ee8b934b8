"""The Drafter contract (framework/core/drafter.py), executable."""

import inspect
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import cast

import torch

from framework.conformance.distribution_checks import (
    FALSE_ALARM,
    LEAST_ROWS,
    require_drawn_from_probs,
    require_valid_by_ancestors,
)
from framework.conformance.draft_rules import (
    require_distributions,
    require_one_distribution_of_siblings,
    require_shapes,
    require_structure,
)
from framework.conformance.goodness_of_fit import continuation_distribution, smallest_seen
from framework.conformance.harness import Harness
from framework.conformance.report import Breach, Check, Report, require, run_checks
from framework.conformance.test_doubles import PATTERNS, Witness
from framework.conformance.tiny_models import tiny_target
from framework.core.draft import Draft, SamplingScheme, Shape
from framework.core.drafter import (
    Drafter,
    TreeDrafter,
    is_refillable,
    is_stepwise,
    learns,
    looks_up,
    preserve_learned_state,
    remembers,
)
from framework.core.sampling import Sampling
from framework.core.sequences import text_of, with_text
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.refill import Queue
from framework.decoding.stopping import Stopping
from framework.metrics.equality import differences, within_float32
from framework.models import forward_output
from framework.models.pretrained import fingerprint
from framework.models.target import Target
from framework.verifiers.default_verifier import default_verifier
from framework.verifiers.verifier import Verifier

DRAWING, FEW_TOKENS, GREEDY = Sampling(), Sampling(top_k=3), Sampling(temperature=0)
NEW_TOKENS = 12
RENAMED_ARGUMENTS = {"keep_drafting": "should_continue"}  # former argument of propose -> current one
MOST_ENUMERATED_GAMMA = 5  # deeper drafts have too many continuations to enumerate
ENTRIES_PER_BATCH = 1_000_000  # batch size times vocabulary; larger batches are slower, since they exceed CPU caches
CHANGED_OUTSIDE_LEARN = (
    "after other generations it drafts otherwise than a new drafter, although learn was not called. If it is meant to "
    "learn, change that state in learn only, with remembers = True, state_dict and load_state_dict "
    "(framework.core.drafter.Learner); if not, begin must forget it"
)
MOST_CELLS = 1000  # with more continuations, top-k truncates the distribution


def check_drafter(
    factory: Callable[..., Drafter],
    *,
    target: Target | None = None,
    verifier: Verifier | None = None,
    gamma: int = 3,
    samples: int = 20_000,
) -> Report:
    """Check a drafter against its contract, based on its declarations and not on its name.

    Args:
        factory: constructor of the drafter, `factory(target=target)`; called several times.
        target: target of the drafts; None: a tiny random model with a vocabulary of 5.
        verifier: exact rule for the drafter's drafts; None: `default_verifier`.
        gamma: depth of the deepest draft, >= 2.
        samples: number of sequences drawn to compare distributions; remarks state the deviation they detect.

    Returns:
        the report; `report.require()` raises Breach if a rule is broken.
    """
    target = target or tiny_target(vocabulary=5)
    found, drafter = _state(target), factory(target=target)
    ground = Harness(target=target, verifier=verifier or default_verifier(drafter.scheme, drafter.shape), gamma=gamma)
    checks = _DrafterChecks(drafter, lambda: factory(target=target), ground, samples, found)
    return run_checks(type(checks.drafter).__name__, list(checks.all()))


class _DrafterChecks:
    """One drafter in its harness, with a method per rule; each raises Breach or returns an optional remark."""

    def __init__(
        self,
        drafter: Drafter,
        build: Callable[[], Drafter],
        ground: Harness,
        samples: int,
        found: dict[str, object],
    ):
        self.build, self.ground, self.samples, self.found = build, ground, samples, found
        self.target = ground.target
        self.drafter = drafter
        self.full_precision = self.target.model.model.dtype in (torch.float32, torch.float64)
        self.tolerance = 1e-4 if self.full_precision else 5e-2

    def all(self) -> Iterator[Check]:
        """Rules that apply to the drafter, cheap ones first."""
        yield Check("scheme, shape and num_uniforms are declared", self.declarations, essential=True)
        yield Check("drafts have the required shapes, dtypes and ids", self.shapes, essential=True)
        yield Check(
            "depth is at most gamma, parents come first, valid is closed under parents", self.structure, essential=True
        )
        yield Check("a generation leaves no state behind, except in learn", self.leaves_nothing, essential=True)
        yield Check("probs are distributions, and absent if and only if tokens are chosen", self.distributions)
        if self.drafter.scheme is not SamplingScheme.ONE_HOT and self.drafter.shape is not Shape.CHAIN:
            yield Check("siblings report one distribution, the one after their parent", self.siblings)
        yield Check("the same sequences and uniforms give the same draft", self.repeatable)
        yield Check("rows do not see each other's drafts", self.rows_alone)
        if looks_up(self.drafter):
            yield Check("look_up gives the tokens of a draft", self.looked_up)
        if self.drafter.scheme is not SamplingScheme.ONE_HOT:
            yield Check("tokens are drawn from the probs that are reported", self.tokens_follow_probs)
            yield Check("whether a node is offered depends on its ancestors only", self.valid_by_ancestors)
        for pattern in PATTERNS:
            yield Check(
                f"its state follows what was committed (accepted: {pattern})",
                lambda pattern=pattern: self.survives(pattern),  # type: ignore[misc]
            )
        yield Check("the target's passes are those of the target alone", self.target_passes)
        if self.full_precision:  # in half precision, passes of different shape break near-ties differently
            yield Check("greedy decoding gives the target's own tokens", self.greedy_equals_plain)
            yield Check("a row's tokens are the same alone, in any order and in any batch", self.batch_invariant)
            if is_refillable(self.drafter) and not (self.target.model.is_recurrent or self.target.model.text_start):
                yield Check("a prompt's tokens are the same in a row that another has left", self.refilled)
        yield Check("the output follows the target's distribution", self.output_distribution)
        if learns(self.drafter):
            yield Check("load_state_dict undoes later learning", self.learned_state_is_restored)
        yield Check("the target is left as it was found", self.target_untouched)

    def declarations(self) -> str:
        drafter, gamma = self.drafter, self.ground.gamma
        for name, kind in (("scheme", SamplingScheme), ("shape", Shape)):
            value = getattr(drafter, name, None)
            allowed = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
            require(isinstance(value, kind), f"{name} is {value!r}; set it on the class to one of {allowed}")
        numbers = [drafter.num_uniforms(depth) for depth in range(1, gamma + 1)]
        require(
            all(isinstance(number, int) and number >= 0 for number in numbers) and numbers == sorted(numbers),
            f"num_uniforms(1...{gamma}) is {numbers}; return whole numbers >= 0 that do not decrease with gamma",
        )
        if drafter.shape is not Shape.CHAIN:
            rooms = [getattr(drafter, "num_nodes", lambda depth: None)(depth) for depth in range(1, gamma + 1)]
            require(
                all(isinstance(room, int) and room >= 1 for room in rooms),
                f"num_nodes(1...{gamma}) is {rooms}; say how many nodes a {drafter.shape.name} of each depth may hold",
            )
        self._require_current_names()
        if hasattr(drafter, "learn") or remembers(drafter):
            lacking = [name for name in ("remembers", "state_dict", "load_state_dict") if not hasattr(drafter, name)]
            require(
                not lacking,
                f"it learns, and has no {', '.join(lacking)}; measurements restore what was learnt in warm-ups "
                "(framework.core.drafter.Learner)",
            )
        return f"{drafter.scheme.name}, {drafter.shape.name}, {numbers[-1]} uniforms for gamma {gamma}"

    def _require_current_names(self) -> None:
        arguments = inspect.signature(self.drafter.propose).parameters
        for old, new in RENAMED_ARGUMENTS.items():
            require(old not in arguments, f"propose takes {old}, which is called {new} now; rename the argument")
        require(
            not is_stepwise(self.drafter) or "should_continue" in arguments,
            "stepwise is True, and propose takes no should_continue; add the argument, or leave stepwise out",
        )

    # Single drafts

    @cached_property
    def drafts(self) -> list[tuple[int, Sampling, Draft]]:
        """A draft of every depth for prompts of different lengths, at several sampling settings."""
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

    def distributions(self) -> None:
        for _, sampling, draft in self.drafts:
            allowed = (
                {self.drafter.scheme, SamplingScheme.ONE_HOT}
                if sampling.greedy or not draft.num_nodes
                else {self.drafter.scheme}
            )
            require(
                draft.scheme in allowed,
                f"a draft says {draft.scheme.name} at temperature {sampling.temperature:g}; the class declares "
                f"{self.drafter.scheme.name} (at temperature 0, ONE_HOT is allowed as well)",
            )
            require_distributions(draft, width=self.target.vocabulary_size)

    def siblings(self) -> None:
        for _, _, draft in self.drafts:
            require_one_distribution_of_siblings(draft, width=self.target.vocabulary_size)

    def repeatable(self) -> None:
        for sampling in (DRAWING, GREEDY):
            first, second = (self.ground.draft(self.drafter, self.ground.prompts, sampling) for _ in range(2))
            self._require_same(
                second,
                first,
                "the same sequences and uniforms gave another draft; all randomness must come from the uniforms, and "
                "begin must forget",
            )

    def looked_up(self) -> None:
        assert looks_up(self.drafter), "checked before"
        for sampling in (DRAWING, GREEDY):
            tokens, draft = self.ground.lookup(self.drafter, sampling)
            for row, (looked_up, offered) in enumerate(zip(tokens, _offered(draft), strict=True)):
                require(looked_up == offered, f"row {row}: look_up gives {looked_up}, and propose drafts {offered}")

    def rows_alone(self) -> None:
        for sampling in (DRAWING, GREEDY):
            together = self.ground.draft(self.drafter, self.ground.prompts, sampling)
            for row, prompt in enumerate(self.ground.prompts):
                self._require_same(
                    together.rows(torch.tensor([row])),
                    self.ground.draft(self.drafter, [prompt], sampling, rows=[row]),
                    f"row {row} drafts otherwise in a batch than alone; check positions, masks and padding: rows "
                    "have different lengths",
                )

    @cached_property
    def many_drafts(self) -> list[Draft]:
        """Many drafts after the same tokens, for a short and a long prompt, at several sampling settings."""
        num_rows = max(LEAST_ROWS, self.samples // 3)
        prompts = [self.ground.prompts[0], max(self.ground.prompts, key=len)]
        settings = ((prompts[0], DRAWING), (prompts[1], DRAWING), (prompts[0], FEW_TOKENS))
        return [self.ground.drafts_of_one(self.drafter, prompt, num_rows, sampling) for prompt, sampling in settings]

    def tokens_follow_probs(self) -> str:
        width, num_rows = self.target.vocabulary_size, len(self.many_drafts[0].tokens)
        num_groups = sum(require_drawn_from_probs(draft, width, self.tolerance) for draft in self.many_drafts)
        return (
            f"{num_groups} chi-square tests, false alarm below {num_groups * FALSE_ALARM:.0e}; {num_rows} drafts "
            f"detect a total variation of about {smallest_seen(num_rows):.2f}"
        )

    def valid_by_ancestors(self) -> None:
        for draft in self.many_drafts:
            require_valid_by_ancestors(draft)

    # Rounds

    @cached_property
    def second(self) -> Drafter:
        """Another drafter from the same factory, for comparison."""
        return self.build()

    def survives(self, pattern: str) -> None:
        for sampling in (DRAWING, GREEDY):
            proposals, _ = self.ground.play(self.drafter, pattern, sampling)
            for number, proposal in enumerate(proposals, start=1):
                self._require_same(
                    proposal.draft,
                    self.ground.draft_again(self.second, proposal, sampling),
                    f"in round {number} it drafts otherwise than a drafter that begins with the same tokens. Read "
                    "every committed token that was not read yet (after full acceptance there are two), and roll back "
                    "rejected tokens",
                )

    def leaves_nothing(self) -> str | None:
        """Play generations in which `learn` is not called; the drafter must still draft like a new one."""
        for sampling in (DRAWING, GREEDY):
            expected = self.ground.draft(self.second, self.ground.prompts, sampling)
            for pattern in ("all", "none"):
                self.ground.play(self.drafter, pattern, sampling, num_rows=3)
            if self._drafts_as(expected, self.drafter, sampling):
                continue
            if not self._drafts_as(expected, self.build(), sampling):
                return "two new drafters draft differently, so this shows nothing"
            got = self.ground.draft(self.drafter, self.ground.prompts, sampling)
            self._require_same(got, expected, CHANGED_OUTSIDE_LEARN)
        return None

    def target_passes(self) -> str:
        """Compare passes of the loop with passes without KV cache, to detect changes to a cache the drafter shares."""
        worst = 0.0
        for pattern in ("all", "a different number in every row"):
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
        with preserve_learned_state(self.drafter):
            got = self.ground.engine(self.drafter, GREEDY).generate(prompts, stopping=stopping, seeds=seeds).tokens
        found, num_tokens = differences(self.target, prompts, expected, got), sum(map(len, expected))
        first = f"row {found[0].row} from new token {found[0].position} on" if found else ""
        require(
            within_float32(found, num_tokens), f"{first} differs from plain decoding, which gives {expected}: {got}"
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

    def refilled(self) -> None:
        prompts, seeds = self.ground.prompts, list(range(len(self.ground.prompts)))
        stopping = Stopping(max_new_tokens=NEW_TOKENS, eos_ids=(0,))
        for sampling in (DRAWING, GREEDY):
            engine = self.ground.engine(Witness(self.drafter), sampling)
            together = engine.generate(prompts, stopping=stopping, seeds=seeds).tokens
            few_rows = Queue(len(prompts), 2)
            in_turn = engine.generate(prompts, stopping=stopping, seeds=seeds, queue=few_rows).tokens
            for number, (expected, got) in enumerate(zip(together, in_turn, strict=True)):
                require(
                    got == expected,
                    f"prompt {number} at temperature {sampling.temperature:g} decodes to {got} in a row that another "
                    f"prompt has left, to {expected} otherwise; begin_rows must forget these rows and no others",
                )

    def output_distribution(self) -> str:
        gamma = min(self.ground.gamma, MOST_ENUMERATED_GAMMA)
        num_tokens = gamma + 2  # one from prefill, then a full round
        small = self.target.vocabulary_size**num_tokens <= MOST_CELLS
        sampling, prompt = DRAWING if small else FEW_TOKENS, self.ground.prompts[0]
        probs = continuation_distribution(self.target, prompt, num_tokens, sampling)
        engine = self.ground.engine(self.drafter, sampling, gamma=gamma)
        tokens: list[list[int]] = []
        with preserve_learned_state(self.drafter):
            for seeds in torch.arange(self.samples).split(max(1, ENTRIES_PER_BATCH // self.target.vocabulary_size)):
                stopping = Stopping(max_new_tokens=num_tokens)
                tokens += engine.generate([prompt] * len(seeds), stopping=stopping, seeds=seeds.tolist()).tokens
        fit = probs.fit(tokens)
        require(
            fit.p_value > FALSE_ALARM,
            f"{self.samples} continuations of {num_tokens} tokens are a total variation of {fit.total_variation:.3f} "
            f"from the target's distribution (chance {fit.p_value:.0e}). Either probs is not the distribution the "
            "tokens were drawn from, or a node was left out because of its own token",
        )
        return f"chi-square p = {fit.p_value:.2g} with {self.samples} samples"

    def learned_state_is_restored(self) -> str:
        before = self.ground.draft(self.drafter, self.ground.prompts, DRAWING)
        # Other prompts, since a drafter may use its memory of a prompt for other prompts only.
        others = [with_text(prompt, [*text_of(prompt), 0]) for prompt in self.ground.prompts]
        with preserve_learned_state(self.drafter):
            engine, seeds = self.ground.engine(self.drafter, DRAWING), list(range(len(others)))
            while self._drafts_as(before, self.drafter, DRAWING) and len(seeds) < self.samples:
                engine.generate(others, stopping=Stopping(max_new_tokens=NEW_TOKENS), seeds=seeds[-8:])
                seeds += range(len(seeds), len(seeds) + 8)
            has_learned = not self._drafts_as(before, self.drafter, DRAWING)
        after = self.ground.draft(self.drafter, self.ground.prompts, DRAWING)
        self._require_same(after, before, "load_state_dict must restore everything that state_dict returned")
        return "it learnt in between" if has_learned else "it learnt nothing in between, so this shows nothing"

    def _drafts_as(self, expected: Draft, drafter: Drafter, sampling: Sampling) -> bool:
        """Whether a drafter gives this draft for the prompts."""
        try:
            self._require_same(self.ground.draft(drafter, self.ground.prompts, sampling), expected, "")
        except Breach:
            return False
        return True

    def target_untouched(self) -> None:
        for name, value in _state(self.target).items():
            require(
                value == self.found[name],
                f"the target's {name} changed; work on a view or a copy: other drafters share this target",
            )

    def _require_same(self, got: Draft, expected: Draft, message: str) -> None:
        """Require equal tokens and probs at offered nodes; other entries of a draft are undefined."""
        for row, (ours, theirs) in enumerate(zip(_offered(got), _offered(expected), strict=True)):
            require(ours == theirs, f"row {row} drafts {ours} instead of {theirs}: {message}")
        if got.probs is not None and expected.probs is not None:
            width, both = self.target.vocabulary_size, min(got.num_nodes, expected.num_nodes)
            error = (got.dense_probs(width)[:, :both] - expected.dense_probs(width)[:, :both]).abs().amax(2)
            worst = error.where(got.valid[:, :both], 0).max().item()
            require(worst < self.tolerance, f"its probs are {worst:.1e} apart: {message}")


def _offered(draft: Draft) -> list[list[int]]:
    """Tokens of the offered nodes, per row."""
    rows = zip(draft.tokens.tolist(), draft.valid.tolist(), strict=True)
    return [[token for token, valid in zip(*row, strict=True) if valid] for row in rows]


def _state(target: Target) -> dict[str, object]:
    """State of the target that a drafter must not change, in comparable form."""
    model = target.model.model
    return {
        "weights": fingerprint(model),
        "config": model.config.to_dict(),
        "training flag": [module.training for module in model.modules()],
        "requires_grad": [parameter.requires_grad for parameter in model.parameters()],
        "hooks": [
            sum(map(_is_foreign, [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]))
            for module in model.modules()
        ],
        "modules": [(type(module), "forward" in vars(module)) for module in model.modules()],
    }


def _is_foreign(hook: Callable[..., object]) -> bool:
    """Whether a hook is none of those by which passes capture states."""
    return getattr(hook, "__module__", None) != forward_output.__name__
