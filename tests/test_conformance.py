"""The conformance kit lets an honest part through, and names what is wrong with a broken one."""

import re
from dataclasses import replace

import pytest
import torch

from experiments.tiny_drafters import tiny_factory
from framework.conformance import Breach, check_drafter, check_verifier
from framework.conformance.rig import Witness
from framework.draft import Draft, Law, Shape
from framework.drafter import learns
from framework.sampling import Sampling, argmax, draw
from framework.tiny_models import tiny_target
from framework.verifiers.speculative_sampling import SpeculativeSampling
from framework.verifiers.verifier import Guarantee

V = 5
SAMPLES = 4000


class Bigram:
    """Honest: draws every token from a fixed law given the one before it."""

    law, shape = Law.IID, Shape.CHAIN

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
        return Draft.chain(torch.stack(tokens, 1), self.law, probs=torch.stack(probs, 1))

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
    """Draws from one law and reports a sharper one."""

    def propose(self, sequences, gamma, uniforms):
        draft = super().propose(sequences, gamma, uniforms)
        sharper = draft.probs**1.3
        return replace(draft, probs=sharper / sharper.sum(2, keepdim=True))


class TemperedLate(Bigram):
    """Honest after little text; after more of it draws from a flatter law than it reports."""

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
    """Honest: the weak token itself is still offered."""

    def propose(self, sequences, gamma, uniforms):
        draft = super().propose(sequences, gamma, uniforms)
        strong = (draft.prob_of_tokens() > 0.3).cumprod(1).bool()
        return draft.offered(torch.cat([torch.ones_like(strong[:, :1]), strong[:, :-1]], 1))


class OwnRandomness(Bigram):
    def choose(self, probs, uniforms, i):
        return torch.multinomial(probs, 1).squeeze(1)


class CopiesFirstRow(Bigram):
    def propose(self, sequences, gamma, uniforms):
        draft = super().propose(sequences, gamma, uniforms)
        return Draft.chain(
            draft.tokens[:1].expand_as(draft.tokens), Law.IID, probs=draft.probs[:1].expand_as(draft.probs)
        )


class Remembers(Bigram):
    """Sharpens with every round, and begin does not undo it."""

    rounds = 0

    def observe(self, sequences, outcome):
        self.rounds += 1

    def propose(self, sequences, gamma, uniforms):
        self.logits = self.logits * (1 + 0.1 * self.rounds)
        return super().propose(sequences, gamma, uniforms)


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
    """Drafts with the target's own cache, and leaves other tokens in it."""

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


class ChosenWithLaw(Bigram):
    law = Law.ONE_HOT


class SaysOtherwise(Bigram):
    def propose(self, sequences, gamma, uniforms):
        draft = super().propose(sequences, gamma, uniforms)
        return replace(draft, law=Law.WITHOUT_REPLACEMENT)


class Bush(Bigram):
    """Two children of pending, drawn independently, and one child of the first; honest."""

    shape = Shape.TREE
    law = Law.IID
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
        return Draft(tokens, parent, torch.ones_like(tokens, dtype=torch.bool), self.law, probs, shape=self.shape)


class BushOfDifferent(Bush):
    """Says that siblings are drawn independently, and draws the second without the first's token."""

    def choose(self, probs, siblings, parent, uniforms):
        if parent == -1 and siblings:
            probs = probs.scatter(1, siblings[0].unsqueeze(1), 0.0)
        return draw(probs, uniforms)


class BushWithoutReplacement(Bush):
    """Draws the second sibling without the first's token, and says so; honest."""

    law = Law.WITHOUT_REPLACEMENT

    def choose(self, probs, siblings, parent, uniforms):
        if parent == -1 and siblings:
            left = probs.scatter(1, siblings[0].unsqueeze(1), 0.0)
            probs = torch.where(left.sum(1, keepdim=True) > 0, left, probs)
        return draw(probs, uniforms)

    def made(self, tokens, probs, parents):
        draft = super().made(tokens, probs, parents)
        was_left = probs[:, 1].gather(1, tokens[:, 1:2]).squeeze(1) > 0
        differs = was_left & (tokens[:, 0] != tokens[:, 1])  # at temperature 0 there is no second token to draw
        return draft.offered(torch.where(torch.arange(len(parents)) == 1, differs.unsqueeze(1), True))


class BushOfWhatIsLeft(BushWithoutReplacement):
    """Reports of the second sibling what it was drawn from, and not the law after its parent."""

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


class NoLaw(Bigram):
    law = "iid"


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
    (Flattering, "tokens are drawn from the probs", "the very law"),
    (DropsWeak, "depends on its ancestors only", "looks weak biases the output; keep it and stop after it"),
    (OwnRandomness, "the same sequences", "come from the uniforms"),
    (CopiesFirstRow, "rows do not see each other", "otherwise in a batch than alone"),
    (Remembers, "begin forgets", "begin must forget"),
    (Writes, "its state follows", "belong to the loop"),
    (EditsConfig, "left as it was found", "the target's config changed"),
    (EditsWeights, "left as it was found", "the target's weights changed"),
    (TrainsTarget, "left as it was found", "the target's training flag changed"),
    (OverwritesCache, "passes are those of the target alone", "disturbs the target's cache"),
    (Deep, "depth is at most gamma", "gamma was 1, and a node lies 2 deep"),
    (Int32, "shapes, dtypes and ids", r"tokens is torch.int32 \[8, 1\] on cpu; return torch.int64"),
    (OutOfVocabulary, "shapes, dtypes and ids", "allowed: 0 to 4"),
    (Orphans, "depth is at most gamma", "a node is valid whose parent is not"),
    (Backwards, "depth is at most gamma", "a parent comes before its children"),
    (Unnormalised, "probs are laws", "do not sum to 1"),
    (Float64, "probs are laws", r"torch.float64.*return float32 \[B, N, V\]"),
    (ChosenWithLaw, "probs are laws", "leave both None"),
    (SaysOtherwise, "probs are laws", "says WITHOUT_REPLACEMENT.*declares IID"),
    (NoLaw, "are declared", "law is 'iid'; set it on the class to one of Law.ONE_HOT"),
    (HalfUniforms, "are declared", "return whole numbers"),
    (Raises, "shapes, dtypes and ids", "it raised KeyError: 'a bug'"),
    (BushOfDifferent, "tokens are drawn from", "node 1: token"),
    (
        BushOfWhatIsLeft,
        "siblings report one law",
        r"node 1 are 0\.\d+ from those of its sibling 0; report the law after",
    ),
    (BushSaysChain, "depth is at most gamma", r"says CHAIN, and the drafter declares TREE.*shape=\.\.\."),
    (BushWithoutRoom, "depth is at most gamma", r"has 2 nodes where 1 were announced \(num_nodes\)"),
    (BushThatHidesItsSize, "are declared", "say how many nodes a TREE"),
]


@pytest.mark.parametrize(("drafter", "rule", "message"), BROKEN, ids=[case[0].__name__ for case in BROKEN])
def test_a_broken_drafter_is_told_what_is_wrong(drafter, rule, message):
    report = check_drafter(drafter, samples=SAMPLES)
    told = [finding.breach for finding in report.breaches if rule in finding.rule]
    assert told and re.search(message, told[0]), report
    with pytest.raises(Breach, match=re.escape(told[0])):
        report.require()


@pytest.mark.parametrize("drafter", [Bigram, StopsAfterWeak, Bush, BushWithoutReplacement])
def test_an_honest_drafter_passes(drafter):
    check_drafter(drafter, samples=SAMPLES).require()


@pytest.mark.parametrize(
    "break_it",
    [
        lambda drafter: setattr(drafter, "observe", _believes_all_was_read(drafter.model)),
        lambda drafter: setattr(drafter.model, "catch_up", _reads_pending_only(drafter.model)),
    ],
    ids=["no_rollback", "reads_only_pending"],
)
def test_a_cache_that_lost_the_thread_is_seen(break_it):
    """Such a drafter is exact all the same, and only accepted less often: nothing but this check would tell."""

    def factory(target):
        drafter = tiny_factory("small_transformer", V)(target=target)
        break_it(drafter)
        return drafter

    report = check_drafter(factory, samples=SAMPLES)
    broken = {finding.rule.split(" (")[0] for finding in report.breaches}
    assert "its state follows what was committed" in broken
    assert broken.isdisjoint({"greedy decoding gives the target's own tokens", "the output follows the target's law"})
    assert "Read every committed token" in str(report)


def _believes_all_was_read(model):
    """What was rejected stays in the cache in the place of what was committed."""
    return lambda sequences, outcome: setattr(model, "cached", sequences.lengths.clone())


def _reads_pending_only(model):
    def catch_up(sequences):
        if not model.cached.any():
            return honest(sequences)
        start = sequences.lengths - 1
        return model.forward(sequences.pending.unsqueeze(1), start, visible=sequences.longest)[:, 0]

    honest = model.catch_up
    return catch_up


def test_a_witness_lets_who_learns_not_learn_and_nobody_else_seem_to():
    class Learning(Bigram):
        def learn(self, sequences):
            raise AssertionError

    target = tiny_target(vocabulary=V)
    assert not learns(Witness(Bigram(target)))
    witness = Witness(Learning(target))
    assert learns(witness)
    witness.learn(None)


def test_a_real_target_is_cut_down_to_few_tokens():
    """With a vocabulary too large to count continuations, the law is checked under top-k."""
    target = tiny_target(vocabulary=50)
    factory = tiny_factory("small_transformer", 50)
    check_drafter(factory, target=target, samples=SAMPLES).require()


# Verifiers


class KeepsAll(SpeculativeSampling):
    """Accepts whatever is offered, and says that this is exact."""

    def stop_law(self, target, draft):
        return torch.nn.functional.one_hot(draft.offered_depth, draft.num_nodes + 1).double()


class ResidualIsP(SpeculativeSampling):
    def replacement(self, target, draft, stop):
        return target.probs(stop)


class AcceptsHidden(SpeculativeSampling):
    def stop_law(self, target, draft):
        return super().stop_law(target, replace(draft, valid=torch.ones_like(draft.valid)))


class HidesNan(SpeculativeSampling):
    def stop_law(self, target, draft):
        law = super().stop_law(target, draft)
        return torch.where(law.isnan(), 1 / law.shape[1], law)

    def replacement(self, target, draft, stop):
        return super().replacement(target, draft, stop).nan_to_num(0.2)


class Mixes(SpeculativeSampling):
    def stop_law(self, target, draft):
        law = super().stop_law(target, draft)
        return law.mean(0, keepdim=True).expand_as(law)


class Scribbles(SpeculativeSampling):
    def replacement(self, target, draft, stop):
        result = super().replacement(target, draft, stop)
        target.all_probs.zero_()
        return result


class NotNormalised(SpeculativeSampling):
    def replacement(self, target, draft, stop):
        return super().replacement(target, draft, stop) * 2


class RefusesAll(SpeculativeSampling):
    def check(self, law, shape):
        raise ValueError("no")


class GrudgesWithoutKey(SpeculativeSampling):
    def check(self, law, shape):
        if shape is not Shape.CHAIN:
            raise ValueError("chains only")


class Undeclared(SpeculativeSampling):
    token_rule = False


class NoGuarantee(SpeculativeSampling):
    guarantee = "exact"


class AlwaysDrafts(SpeculativeSampling):
    def replacement(self, target, draft, stop):
        return super().replacement(target, draft, stop) if draft.num_nodes else target.probs(stop).roll(1, 1)


class Lossy(SpeculativeSampling):
    """Honest about being lossy."""

    guarantee = Guarantee.LOSSY

    def replacement(self, target, draft, stop):
        return target.probs(stop)


class GreedyOnly(Lossy):
    """Exact at temperature 0, and claims no more."""

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
        (AcceptsHidden, "both laws are laws", "not offered"),
        (HidesNan, "NaN logits", "let NaN pass through"),
        (Mixes, "rows beside it", "of a row alone is"),
        (Scribbles, "left as it was", "work on copies"),
        (NotNormalised, "both laws are laws", "replacement is negative somewhere, or sums to 1 only within"),
        (RefusesAll, "takes some drafts", "no drafter can be verified"),
        (GrudgesWithoutKey, "takes some drafts", "name the yaml key"),
        (Undeclared, "token_rule says", "token_rule is False, and nodes are kept"),
        (NoGuarantee, "guarantee", "set it on the class to one of Guarantee.EXACT"),
        (AlwaysDrafts, "plain target step", "the replacement is not p"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_verifier_is_told_what_is_wrong(verifier, rule, message):
    report = check_verifier(verifier, samplings={"T=1": Sampling(), "T=0": Sampling(temperature=0)})
    told = [finding.breach for finding in report.breaches if rule in finding.rule]
    assert told and re.search(message, told[0]), report


@pytest.mark.parametrize("verifier", [Lossy, GreedyOnly])
def test_a_verifier_is_held_to_what_it_claims_and_to_no_more(verifier):
    report = check_verifier(verifier)
    report.require()
    assert any("output's law" in finding.rule for finding in report.findings) == (verifier is GreedyOnly)
