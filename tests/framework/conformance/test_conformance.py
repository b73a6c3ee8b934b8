"""The conformance kit passes honest parts and names the fault of a broken one."""

import itertools
import re
from dataclasses import replace

import pytest
import torch

from experiments.proof.tiny_drafters import tiny_factory
from framework.conformance import Breach, check_drafter, check_verifier
from framework.conformance.report import run_checks
from framework.conformance.test_doubles import Witness
from framework.conformance.tiny_models import tiny_target
from framework.core.draft import Draft, SamplingScheme, Shape
from framework.core.drafter import learns
from framework.core.sampling import Sampling, argmax, draw
from framework.verifiers.speculative_sampling import SpeculativeSampling
from framework.verifiers.verifier import Guarantee
from tests.support.slow_cases import mostly_slow

pytestmark = pytest.mark.usefixtures("narrow_buffers")

V = 5
SAMPLES = 4000


@pytest.fixture
def checks_only(monkeypatch):
    """Limit the kit to its essential checks and those whose rules contain given parts."""

    def narrow(*rules):
        def run(part, checks):
            return run_checks(part, [check for check in checks if check.essential or _is_among(check.rule, rules)])

        for kit in ("drafter_checks", "verifier_checks"):
            monkeypatch.setattr(f"framework.conformance.{kit}.run_checks", run)

    return narrow


def _is_among(rule, parts):
    return any(part in rule for part in parts)


class Bigram:
    """Honest: draws every token from a fixed distribution given the token before it."""

    scheme, shape = SamplingScheme.IID, Shape.CHAIN

    def __init__(self, target):
        self.target = target
        self.logits = torch.randn(V, V, generator=torch.Generator().manual_seed(4))

    def num_uniforms(self, gamma):
        return gamma

    def begin(self, sequences, prefill, sampling):
        self.sampling = sampling

    def propose(self, sequences, gamma, uniforms):
        token, tokens, probs = sequences.pending, [], []
        for i in range(gamma):
            probs.append(self.sampling.probs(self.logits[token]))
            token = self.choose(probs[-1], uniforms, i)
            tokens.append(token)
        return Draft.chain(torch.stack(tokens, 1), self.scheme, probs=torch.stack(probs, 1))

    def choose(self, probs, uniforms, i):
        return draw(probs, uniforms[:, i])

    def observe(self, sequences, outcome):
        pass


class Greedy(Bigram):
    def choose(self, probs, uniforms, i):
        return argmax(probs)


class OneUniform(Bigram):
    def choose(self, probs, uniforms, i):
        return draw(probs, uniforms[:, 0])


class BestOfTwo(Bigram):
    def num_uniforms(self, gamma):
        return 2 * gamma

    def choose(self, probs, uniforms, i):
        both = torch.stack([draw(probs, uniforms[:, 2 * i]), draw(probs, uniforms[:, 2 * i + 1])], 1)
        return both.gather(1, probs.gather(1, both).argmax(1, keepdim=True)).squeeze(1)


class Flattering(Bigram):
    """Draws from one distribution and reports a sharper one."""

    def propose(self, sequences, gamma, uniforms):
        draft = super().propose(sequences, gamma, uniforms)
        sharper = draft.probs**1.3
        return replace(draft, probs=sharper / sharper.sum(2, keepdim=True))


class TemperedLate(Bigram):
    """Honest on short texts; on longer ones, draws from a flatter distribution than it reports."""

    def propose(self, sequences, gamma, uniforms):
        self.is_late = sequences.lengths > 30
        return super().propose(sequences, gamma, uniforms)

    def choose(self, probs, uniforms, i):
        flat = probs.sqrt() / probs.sqrt().sum(1, keepdim=True)
        return draw(torch.where(self.is_late.unsqueeze(1), flat, probs), uniforms[:, i])


class DropsWeak(Bigram):
    def propose(self, sequences, gamma, uniforms):
        draft = super().propose(sequences, gamma, uniforms)
        return draft.offered((draft.prob_of_tokens() > 0.3).cumprod(1).bool())


class StopsAfterWeak(Bigram):
    """Honest: offers the weak token and stops after it."""

    def propose(self, sequences, gamma, uniforms):
        draft = super().propose(sequences, gamma, uniforms)
        strong = (draft.prob_of_tokens() > 0.3).cumprod(1).bool()
        return draft.offered(torch.cat([torch.ones_like(strong[:, :1]), strong[:, :-1]], 1))


class GlobalRandomness(Bigram):
    def choose(self, probs, uniforms, i):
        return torch.multinomial(probs, 1).squeeze(1)


class OwnRandomness(Bigram):
    def __init__(self, target):
        super().__init__(target)
        self.random = torch.Generator()
        self.random.seed()

    def choose(self, probs, uniforms, i):
        return torch.multinomial(probs, 1, generator=self.random).squeeze(1)


class CopiesFirstRow(Bigram):
    def propose(self, sequences, gamma, uniforms):
        draft = super().propose(sequences, gamma, uniforms)
        return Draft.chain(
            draft.tokens[:1].expand_as(draft.tokens), SamplingScheme.IID, probs=draft.probs[:1].expand_as(draft.probs)
        )


class Remembers(Bigram):
    """Sharpens its distribution in every round; begin does not reset it."""

    rounds = 0

    def observe(self, sequences, outcome):
        self.rounds += 1

    def propose(self, sequences, gamma, uniforms):
        self.logits = self.logits * (1 + 0.1 * self.rounds)
        return super().propose(sequences, gamma, uniforms)


class Counts(Bigram):
    """Honest: draws from the pairs of tokens in all texts decoded so far, counted in learn."""

    remembers = True

    def __init__(self, target):
        super().__init__(target)
        self.counts = torch.ones(V, V)

    def begin(self, sequences, prefill, sampling):
        super().begin(sequences, prefill, sampling)
        self.read = sequences.prompt_lengths.tolist()

    def propose(self, sequences, gamma, uniforms):
        self.logits = self.counts.log()
        return super().propose(sequences, gamma, uniforms)

    def learn(self, sequences):
        for row, text in enumerate(sequences.committed):
            for pair in itertools.pairwise(text[self.read[row] - 1 :]):
                self.counts[pair] += 1
            self.read[row] = len(text)

    def state_dict(self):
        return {"counts": self.counts.clone()}

    def load_state_dict(self, state):
        self.counts = state["counts"].clone()


class LearnsInObserve(Counts):
    """Exact, too; but measurements cannot tell which state is a generation's, and which to restore."""

    def observe(self, sequences, outcome):
        super().learn(sequences)

    def learn(self, sequences):
        pass


class LearnsWithoutState(Bigram):
    def learn(self, sequences):
        pass

    def state_dict(self):
        return {}


class OldArgument(Bigram):
    def propose(self, sequences, gamma, uniforms, keep_drafting=None):
        return super().propose(sequences, gamma, uniforms)


class StepwiseWithoutArgument(Bigram):
    stepwise = True


class Writes(Bigram):
    def observe(self, sequences, outcome):
        sequences.tokens[:, 0] += 1


class EditsConfig(Bigram):
    def begin(self, sequences, prefill, sampling):
        super().begin(sequences, prefill, sampling)
        self.target.model.model.config.num_hidden_layers = 1


class EditsWeights(Bigram):
    def begin(self, sequences, prefill, sampling):
        super().begin(sequences, prefill, sampling)
        self.target.model.model.get_output_embeddings().weight.data[0, 0] += 1e-3


class TrainsTarget(Bigram):
    def begin(self, sequences, prefill, sampling):
        super().begin(sequences, prefill, sampling)
        self.target.model.model.train()


class OverwritesCache(Bigram):
    """Drafts with the target's own cache and leaves other tokens in it."""

    def propose(self, sequences, gamma, uniforms):
        start = (sequences.lengths - 2).clamp(min=0)
        self.target.model.forward(torch.zeros_like(sequences.pending).unsqueeze(1), start, visible=sequences.longest)
        return super().propose(sequences, gamma, uniforms)


class Deep(Bigram):
    def num_uniforms(self, gamma):
        return gamma + 1

    def propose(self, sequences, gamma, uniforms):
        return super().propose(sequences, gamma + 1, uniforms) if gamma < 3 else super().propose(sequences, 3, uniforms)


class Int32(Bigram):
    def propose(self, sequences, gamma, uniforms):
        draft = super().propose(sequences, gamma, uniforms)
        return replace(draft, tokens=draft.tokens.int())


class OutOfVocabulary(Bigram):
    def propose(self, sequences, gamma, uniforms):
        draft = super().propose(sequences, gamma, uniforms)
        return replace(draft, tokens=draft.tokens + V)


class Orphans(Bigram):
    def propose(self, sequences, gamma, uniforms):
        draft = super().propose(sequences, gamma, uniforms)
        return replace(draft, valid=torch.arange(gamma).expand_as(draft.valid) > 0)


class Backwards(Bigram):
    def propose(self, sequences, gamma, uniforms):
        draft = super().propose(sequences, gamma, uniforms)
        return replace(draft, parent=draft.parent.flip(1))


class Unnormalised(Bigram):
    def propose(self, sequences, gamma, uniforms):
        draft = super().propose(sequences, gamma, uniforms)
        return replace(draft, probs=draft.probs * 0.5)


class Float64(Bigram):
    def propose(self, sequences, gamma, uniforms):
        draft = super().propose(sequences, gamma, uniforms)
        return replace(draft, probs=draft.probs.double())


class ChosenWithProbs(Bigram):
    scheme = SamplingScheme.ONE_HOT


class LooksUpOthers(Greedy):
    scheme, on_host = SamplingScheme.ONE_HOT, True

    def propose(self, sequences, gamma, uniforms):
        return replace(super().propose(sequences, gamma, uniforms), probs=None)

    def look_up(self, sequences, gamma):
        return [[0] * gamma for _ in sequences.texts]


class SaysOtherwise(Bigram):
    def propose(self, sequences, gamma, uniforms):
        draft = super().propose(sequences, gamma, uniforms)
        return replace(draft, scheme=SamplingScheme.WITHOUT_REPLACEMENT)


class Bush(Bigram):
    """Honest: two independent children of pending, and one child of the first."""

    shape = Shape.TREE
    scheme = SamplingScheme.IID
    parents = (-1, -1, 0)

    def num_nodes(self, gamma):
        return 3

    def num_uniforms(self, gamma):
        return 3

    def propose(self, sequences, gamma, uniforms):
        parents = self.parents if gamma > 1 else self.parents[:2]
        above, tokens, probs = [sequences.pending], [], []
        for node, parent in enumerate(parents):
            probs.append(self.sampling.probs(self.logits[above[parent + 1]]))
            tokens.append(self.choose(probs[-1], tokens, parent, uniforms[:, node]))
            above.append(tokens[-1])
        return self.made(torch.stack(tokens, 1), torch.stack(probs, 1), parents)

    def choose(self, probs, siblings, parent, uniforms):
        return draw(probs, uniforms)

    def made(self, tokens, probs, parents):
        parent = torch.tensor(parents).expand(len(tokens), -1)
        return Draft(tokens, parent, torch.ones_like(tokens, dtype=torch.bool), self.scheme, probs, shape=self.shape)


class BushOfDifferent(Bush):
    """Declares independent siblings, but draws the second without the first's token."""

    def choose(self, probs, siblings, parent, uniforms):
        if parent == -1 and siblings:
            probs = probs.scatter(1, siblings[0].unsqueeze(1), 0.0)
        return draw(probs, uniforms)


class BushWithoutReplacement(Bush):
    """Honest: draws the second sibling without the first's token and declares it."""

    scheme = SamplingScheme.WITHOUT_REPLACEMENT

    def choose(self, probs, siblings, parent, uniforms):
        if parent == -1 and siblings:
            left = probs.scatter(1, siblings[0].unsqueeze(1), 0.0)
            probs = torch.where(left.sum(1, keepdim=True) > 0, left, probs)
        return draw(probs, uniforms)

    def made(self, tokens, probs, parents):
        draft = super().made(tokens, probs, parents)
        was_left = probs[:, 1].gather(1, tokens[:, 1:2]).squeeze(1) > 0
        differs = was_left & (tokens[:, 0] != tokens[:, 1])  # temperature 0 leaves no second token to draw
        return draft.offered(torch.where(torch.arange(len(parents)) == 1, differs.unsqueeze(1), True))


class BushOfWhatIsLeft(BushWithoutReplacement):
    """Reports the second sibling's residual distribution instead of the distribution after its parent."""

    def made(self, tokens, probs, parents):
        left = probs[:, 1].scatter(1, tokens[:, :1], 0.0)
        left = left / left.sum(1, keepdim=True)
        probs = torch.stack([probs[:, 0], left.where(left.isfinite(), probs[:, 1]), *probs.unbind(1)[2:]], 1)
        return super().made(tokens, probs, parents)


class BushSaysChain(Bush):
    def made(self, tokens, probs, parents):
        return replace(super().made(tokens, probs, parents), shape=Shape.CHAIN)


class BushWithoutRoom(Bush):
    def num_nodes(self, gamma):
        return gamma


class BushThatHidesItsSize(Bush):
    num_nodes = None

    def __getattribute__(self, name):
        if name == "num_nodes":
            raise AttributeError(name)
        return super().__getattribute__(name)


class NoDistribution(Bigram):
    scheme = "iid"


class HalfUniforms(Bigram):
    def num_uniforms(self, gamma):
        return gamma / 2


class Raises(Bigram):
    def propose(self, sequences, gamma, uniforms):
        raise KeyError("a bug")


BROKEN = [
    (Greedy, "tokens are drawn from the probs", "a greedy, filtered or re-ranked"),
    (OneUniform, "tokens are drawn from the probs", "a uniform of its own"),
    (BestOfTwo, "tokens are drawn from the probs", "re-ranked"),
    (TemperedLate, "tokens are drawn from", "where its probs say"),
    (Flattering, "tokens are drawn from the probs", "the very distribution"),
    (DropsWeak, "depends on its ancestors only", "looks weak biases the output; keep it and stop after it"),
    (OwnRandomness, "the same sequences", "come from the uniforms"),
    (LooksUpOthers, "look_up gives the tokens", r"look_up gives \[0, 0, 0\], and propose drafts \[\d, \d, \d\]"),
    (CopiesFirstRow, "rows do not see each other", "otherwise in a batch than alone"),
    (GlobalRandomness, "leaves no state behind", "torch's global generator; draw with the uniforms"),
    (Remembers, "leaves no state behind", "begin must forget"),
    (LearnsInObserve, "leaves no state behind", "If it is meant to learn, change that state in learn only"),
    (LearnsWithoutState, "are declared", "it learns, and has no remembers, load_state_dict"),
    (OldArgument, "are declared", "propose takes keep_drafting, which is called should_continue now"),
    (StepwiseWithoutArgument, "are declared", "propose takes no should_continue"),
    (Writes, "leaves no state behind", "belong to the loop"),
    (EditsConfig, "left as it was found", "the target's config changed"),
    (EditsWeights, "left as it was found", "the target's weights changed"),
    (TrainsTarget, "left as it was found", "the target's training flag changed"),
    (OverwritesCache, "passes are those of the target alone", "disturbs the target's cache"),
    (Deep, "depth is at most gamma", "gamma was 1, and a node lies 2 deep"),
    (Int32, "shapes, dtypes and ids", r"tokens is torch.int32 \[8, 1\] on cpu; return torch.int64"),
    (OutOfVocabulary, "shapes, dtypes and ids", "allowed: 0 to 4"),
    (Orphans, "depth is at most gamma", "a node is valid whose parent is not"),
    (Backwards, "depth is at most gamma", "a parent comes before its children"),
    (Unnormalised, "probs are distributions", "do not sum to 1"),
    (Float64, "probs are distributions", r"torch.float64.*return float32 \[B, N, V\]"),
    (ChosenWithProbs, "probs are distributions", "leave both None"),
    (SaysOtherwise, "probs are distributions", "says WITHOUT_REPLACEMENT.*declares IID"),
    (NoDistribution, "are declared", "scheme is 'iid'; set it on the class to one of SamplingScheme.ONE_HOT"),
    (HalfUniforms, "are declared", "return whole numbers"),
    (Raises, "shapes, dtypes and ids", "it raised KeyError: 'a bug'"),
    (BushOfDifferent, "tokens are drawn from", "node 1: token"),
    (
        BushOfWhatIsLeft,
        "siblings report one distribution",
        r"node 1 are 0\.\d+ from those of its sibling 0; report the distribution after",
    ),
    (BushSaysChain, "depth is at most gamma", r"says CHAIN, and the drafter declares TREE.*shape=\.\.\."),
    (BushWithoutRoom, "depth is at most gamma", r"has 2 nodes where 1 were announced \(num_nodes\)"),
    (BushThatHidesItsSize, "are declared", "say how many nodes a TREE"),
]


@pytest.mark.parametrize(("drafter", "rule", "message"), BROKEN, ids=[case[0].__name__ for case in BROKEN])
def test_a_broken_drafter_is_told_what_is_wrong(checks_only, drafter, rule, message):
    checks_only(rule)
    report = check_drafter(drafter, samples=SAMPLES)
    shown = [finding.breach for finding in report.breaches if rule in finding.rule]
    assert shown and re.search(message, shown[0]), report
    with pytest.raises(Breach, match=re.escape(shown[0])):
        report.require()


@pytest.mark.parametrize(
    "drafter", mostly_slow([Bigram, StopsAfterWeak, Counts, Bush, BushWithoutReplacement], fast=[Bigram, Bush])
)
def test_an_honest_drafter_passes(drafter):
    check_drafter(drafter, samples=SAMPLES).require()


@pytest.mark.slow
@pytest.mark.parametrize(
    "break_it",
    [
        lambda drafter: setattr(drafter, "observe", _believes_all_was_read(drafter._cache)),
        lambda drafter: setattr(drafter._cache, "read", _reads_pending_only(drafter._cache)),
    ],
    ids=["no_rollback", "reads_only_pending"],
)
def test_a_cache_that_lost_the_thread_is_seen(checks_only, break_it):
    """Output stays exact while acceptance falls: only this check finds the fault."""

    def factory(target):
        drafter = tiny_factory("small_transformer", V)(target=target)
        break_it(drafter)
        return drafter

    state = "its state follows what was committed"
    output = {"greedy decoding gives the target's own tokens", "the output follows the target's distribution"}
    checks_only(state, *output)
    report = check_drafter(factory, samples=SAMPLES)
    broken = {finding.rule.split(" (")[0] for finding in report.breaches}
    assert broken == {state}
    assert output < {finding.rule for finding in report.findings}
    assert "Read every committed token" in str(report)


def _believes_all_was_read(cache):
    """Count rejected tokens as read: they stay in the slots of committed ones."""
    return lambda sequences, outcome: setattr(cache, "cached", sequences.lengths.clone())


def _reads_pending_only(cache):
    def read(sequences):
        if not cache.cached.any():
            return honest(sequences)
        start = sequences.lengths - 1
        return cache.model.forward(sequences.pending.unsqueeze(1), start, visible=sequences.longest)

    honest = cache.read
    return read


def test_a_witness_lets_who_learns_not_learn_and_nobody_else_seem_to():
    class Learning(Bigram):
        def learn(self, sequences):
            raise AssertionError

    target = tiny_target(vocabulary=V)
    assert not learns(Witness(Bigram(target)))
    witness = Witness(Learning(target))
    assert learns(witness)
    witness.learn(None)


@pytest.mark.slow
def test_a_real_target_is_cut_down_to_few_tokens(checks_only):
    """With too many continuations to count, the check compares distributions under top-k."""
    checks_only("the output follows the target's distribution")
    target = tiny_target(vocabulary=50)
    factory = tiny_factory("small_transformer", 50)
    report = check_drafter(factory, target=target, samples=SAMPLES)
    report.require()
    assert "chi-square" in report.findings[-1].remark


# Verifiers


class KeepsAll(SpeculativeSampling):
    """Accepts every node and claims to be exact."""

    def stop_probs(self, target, draft):
        return torch.nn.functional.one_hot(draft.offered_depth, draft.num_nodes + 1).double()


class ResidualIsP(SpeculativeSampling):
    def next_token_probs(self, target, draft, stop):
        return target.probs(stop)


class AcceptsHidden(SpeculativeSampling):
    def stop_probs(self, target, draft):
        return super().stop_probs(target, replace(draft, valid=torch.ones_like(draft.valid)))


class HidesNan(SpeculativeSampling):
    def stop_probs(self, target, draft):
        probs = super().stop_probs(target, draft)
        return torch.where(probs.isnan(), 1 / probs.shape[1], probs)

    def next_token_probs(self, target, draft, stop):
        return super().next_token_probs(target, draft, stop).nan_to_num(0.2)


class Mixes(SpeculativeSampling):
    def stop_probs(self, target, draft):
        probs = super().stop_probs(target, draft)
        return probs.mean(0, keepdim=True).expand_as(probs)


class Scribbles(SpeculativeSampling):
    def next_token_probs(self, target, draft, stop):
        result = super().next_token_probs(target, draft, stop)
        target.all_probs.zero_()
        return result


class NotNormalised(SpeculativeSampling):
    def next_token_probs(self, target, draft, stop):
        return super().next_token_probs(target, draft, stop) * 2


class RefusesAll(SpeculativeSampling):
    def check(self, scheme, shape):
        raise ValueError("no")


class GrudgesWithoutKey(SpeculativeSampling):
    def check(self, scheme, shape):
        if shape is not Shape.CHAIN:
            raise ValueError("chains only")


class Undeclared(SpeculativeSampling):
    token_rule = False


class NoGuarantee(SpeculativeSampling):
    guarantee = "exact"


class AlwaysDrafts(SpeculativeSampling):
    def next_token_probs(self, target, draft, stop):
        return super().next_token_probs(target, draft, stop) if draft.num_nodes else target.probs(stop).roll(1, 1)


class Lossy(SpeculativeSampling):
    """Lossy, and declared so."""

    guarantee = Guarantee.LOSSY

    def next_token_probs(self, target, draft, stop):
        return target.probs(stop)


class GreedyOnly(Lossy):
    """Exact at temperature 0, its only claim."""

    guarantee = Guarantee.GREEDY_EXACT


@pytest.mark.parametrize(
    ("verifier", "rule", "message"),
    [
        (
            ResidualIsP,
            "IID CHAIN at T=1:",
            r"states EXACT, and its output is a total variation of 0\.\d+.*or state LOSSY",
        ),
        (KeepsAll, "ONE_HOT CHAIN at T=0:", "Mend the rule"),
        (AcceptsHidden, "both distributions are distributions", "not offered"),
        (HidesNan, "NaN logits", "let NaN pass through"),
        (Mixes, "rows beside it", "of a row alone is"),
        (Scribbles, "left as it was", "work on copies"),
        (
            NotNormalised,
            "both distributions are distributions",
            "next_token_probs is negative somewhere, or sums to 1 only within",
        ),
        (RefusesAll, "takes some drafts", "no drafter can be verified"),
        (GrudgesWithoutKey, "takes some drafts", "name the yaml key"),
        (Undeclared, "token_rule says", "token_rule is False, and nodes are kept"),
        (NoGuarantee, "guarantee", "set it on the class to one of Guarantee.EXACT"),
        (AlwaysDrafts, "plain target step", "next_token_probs is not p"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_verifier_is_told_what_is_wrong(checks_only, verifier, rule, message):
    checks_only(rule)
    report = check_verifier(verifier, samplings={"T=1": Sampling(), "T=0": Sampling(temperature=0)})
    shown = [finding.breach for finding in report.breaches if rule in finding.rule]
    assert shown and re.search(message, shown[0]), report


@pytest.mark.parametrize("verifier", [Lossy, GreedyOnly])
def test_a_verifier_is_held_to_what_it_claims_and_to_no_more(verifier):
    report = check_verifier(verifier)
    report.require()
    assert any("output's distribution" in finding.rule for finding in report.findings) == (verifier is GreedyOnly)
