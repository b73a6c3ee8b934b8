"""Random batches to decode, and with what: models, drafters, gamma policies, prompts and what ends them."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from omegaconf import OmegaConf
from torch import Tensor

from experiments.assemble import build, register_resolvers
from experiments.tiny_drafters import NAMES, drafter_node, tiny_factory_of
from framework.autoregressive import Autoregressive
from framework.draft import Draft, Law, Outcome, Shape
from framework.drafter import Drafter
from framework.engine import Engine
from framework.gamma_policies.gamma_policy import Costs, GammaPolicy
from framework.generation import Generation
from framework.sampling import Sampling, draw
from framework.sequences import Sequences
from framework.stopping import Stopping
from framework.target import Target
from framework.tiny_models import tiny_target
from framework.verifiers.lenience import Lenience
from framework.verifiers.verifier import Verifier

register_resolvers()  # one gamma policy's yaml names what is embedded
GAMMA_FOLDER = Path(__file__).parents[1] / "conf" / "gamma"
MAX_GAMMA = 8


# Models


@dataclass(frozen=True)
class Model:
    """A tiny random target, by what it is made from."""

    family: str
    vocabulary: int
    context: int  # that of a tiny small_transformer is 128: the last one here is beyond it
    dtype: torch.dtype


def mostly(usual: list[Any], rare: list[Any]) -> st.SearchStrategy[Any]:
    """One of the usual values, or in 1 of 8 cases a rare one, after which little happens."""
    return st.integers(0, 7).flatmap(lambda number: st.sampled_from(rare if number == 7 else usual))


def models(*dtypes: torch.dtype) -> st.SearchStrategy[Model]:
    return st.builds(
        Model,
        family=st.sampled_from(["llama", "gpt2"]),
        vocabulary=st.sampled_from([50, 5, 2]),
        context=mostly([40, 160, 9], [2]),
        dtype=st.sampled_from(dtypes),
    )


@cache
def target_of(model: Model) -> Target:
    return tiny_target(model.family, vocabulary=model.vocabulary, context=model.context, dtype=model.dtype)


@torch.no_grad()
def uncached(target: Target, tokens: list[int]) -> Tensor:
    """[T, V] logits of one row by a single pass without a cache."""
    return target.model.model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, :, : target.vocabulary_size]


# Drafters


Knobs = tuple[tuple[str, Any], ...]  # of a yaml: names and values, hashable


@cache
def of_yaml(name: str, knobs: Knobs, model: Model, twin: bool) -> Drafter:
    """The drafter of a yaml, for a tiny target and, where it has a model, in float64 like it: no draw is a near-tie."""
    node = OmegaConf.merge(drafter_node(name), dict(knobs))
    for part in (node, node.get("drafter", {})):
        if "dtype" in part.get("model", {}):
            part.model.dtype = "float64"
    if "branching" in node:
        node.branching = [min(children, model.vocabulary) for children in node.branching]
    return tiny_factory_of(node, model.vocabulary)(target=target_of(model))


@dataclass
class Guesses:
    """Chooses up to gamma tokens: the right ones with probability `luck`, else any; a function of the row's tokens.

    What is right is looked up by prompt, and unknown where nothing was decoded before.
    """

    vocabulary: int
    luck: float
    seed: int
    truths: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    law = Law.ONE_HOT
    shape = Shape.CHAIN

    def num_uniforms(self, gamma: int) -> int:
        return 0

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        pass

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        lengths, prompts = sequences.lengths.tolist(), sequences.prompt_lengths.tolist()
        rows = [
            self._guess(tokens[:length], prompt, gamma)
            for tokens, length, prompt in zip(sequences.tokens.tolist(), lengths, prompts, strict=True)
        ]
        depth = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (depth - len(row)) for row in rows], dtype=torch.int64)
        valid = torch.arange(depth) < torch.tensor([[len(row)] for row in rows])
        return Draft.chain(tokens.view(len(rows), depth), self.law, valid=valid)

    def _guess(self, committed: list[int], prompt: int, gamma: int) -> list[int]:
        dice = random.Random(f"{self.seed} {committed}")
        right = self.truths.get(tuple(committed[:prompt]), [])[len(committed) - prompt :]
        right += [0] * gamma
        # What is drafted with a smaller gamma begins like what is drafted with a larger one: near a row's end gamma
        # depends on the rows beside it.
        length = min(gamma, dice.randint(0, MAX_GAMMA))
        return [token if dice.random() < self.luck else dice.randrange(self.vocabulary) for token in right[:length]]

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        pass


class Table:
    """Draws each token from a random law that depends on the token before it, given in full or on a support.

    After some tokens it ends the row's draft: what is offered depends on ancestors only.
    """

    law, shape = Law.IID, Shape.CHAIN

    def __init__(self, *, vocabulary: int, sparse: bool, seed: int):
        dice = torch.Generator().manual_seed(seed)
        masses = (3 * torch.randn(vocabulary, vocabulary, generator=dice)).exp()
        self.support = masses.argsort(1, descending=True)[:, : max(1, vocabulary // 2)] if sparse else None
        if self.support is not None:
            self.support = self.support[:, torch.randperm(self.support.shape[1], generator=dice)]
            masses = masses.gather(1, self.support)
        self.probs = masses / masses.sum(1, keepdim=True)
        self.goes_on = torch.rand(vocabulary, generator=dice) < 0.8

    def num_uniforms(self, gamma: int) -> int:
        return gamma

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        pass

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        before, tokens = [], [sequences.pending]
        for node in range(gamma):
            before.append(tokens[-1])
            index = draw(self.probs[before[-1]], uniforms[:, node])
            drawn = index if self.support is None else self.support[before[-1], index]
            tokens.append(drawn)
        parents = torch.stack(before, 1)
        return Draft.chain(
            torch.stack(tokens[1:], 1),
            self.law,
            probs=self.probs[parents],
            support=None if self.support is None else self.support[parents],
            valid=self.goes_on[parents].cumprod(1).bool(),
        )

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        pass


# A yaml's name with its knobs, "guesses" with its luck, or "table" with whether it is sparse; and a seed.
DrafterChoice = tuple[str, Any, int]


def knobs_of(**values: list[Any]) -> st.SearchStrategy[Knobs]:
    return st.fixed_dictionaries({key: st.sampled_from(some) for key, some in values.items()}).map(
        lambda knobs: tuple(knobs.items())
    )


YAMLS: list[DrafterChoice] = [(name, (), 0) for name in NAMES]
BRANCHINGS = [(3, 2, 1, 1), (2,), (2, 2, 2), (1, 3), (4,)]
BRANCHING: st.SearchStrategy[DrafterChoice] = st.one_of(
    st.tuples(
        st.just("transformer_tree"),
        knobs_of(branching=BRANCHINGS, children=["without_replacement", "iid", "likeliest"]),
        st.just(0),
    ),
    st.tuples(
        st.just("medusa"),
        knobs_of(form=["tree", "greedy_chain", "sampled_chain"], nodes=[16, 1, 5, 60]),
        st.just(0),
    ),
)
ANY_DRAFTER: st.SearchStrategy[DrafterChoice] = st.one_of(
    st.sampled_from(YAMLS),
    BRANCHING,
    st.tuples(st.just("guesses"), st.sampled_from([0.7, 0.0, 0.95, 1.0]), st.integers(0, 99)),
    st.tuples(st.just("table"), st.booleans(), st.integers(0, 99)),
)


def build_drafter(choice: DrafterChoice, model: Model, *, twin: bool = False) -> Drafter:
    name, knob, seed = choice
    if name == "guesses":
        return Guesses(model.vocabulary, knob, seed)
    if name == "table":
        return Table(vocabulary=model.vocabulary, sparse=knob, seed=seed)
    return of_yaml(name, knob, model, twin)


# Policies, sampling, verifiers

GAMMAS = st.integers(1, MAX_GAMMA)
# Ranges of the knobs; a policy that is not here keeps its yaml.
KNOBS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "fixed": st.fixed_dictionaries({"gamma": mostly(list(range(1, MAX_GAMMA + 1)), [0])}),
    "additive": GAMMAS.flatmap(
        lambda most: st.fixed_dictionaries({"max_gamma": st.just(most), "initial": st.integers(1, most)})
    ),
    "best_expected_speed": st.fixed_dictionaries(
        {
            "max_gamma": GAMMAS,
            "c": st.sampled_from([0.0, 0.05, 0.3, 1.0, 5.0]),
            "prior_accepted": st.sampled_from([2, 0.01, 100]),
            "prior_rejected": st.sampled_from([1, 0.01, 100]),
            "forgetting": st.sampled_from([0.9, 0.1, 1]),
            "probe_every": st.sampled_from([None, 1, 3]),
        }
    ),
    "confidence_threshold": st.fixed_dictionaries(
        {"max_gamma": GAMMAS, "threshold": st.sampled_from([0.3, 0.0, 0.05, 0.9, 1.0])}
    ),
    "bandit": st.fixed_dictionaries(
        {
            "gammas": st.lists(st.integers(0, MAX_GAMMA), min_size=1, max_size=4, unique=True),
            "exploration": st.sampled_from([0.2, 0.0, 1.0]),
        }
    ),
}
PolicyChoice = tuple[str, dict[str, Any]]


def policies(*names: str) -> st.SearchStrategy[PolicyChoice]:
    return st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), KNOBS.get(name, st.just({}))))


POLICY_NAMES = sorted((path.stem for path in GAMMA_FOLDER.glob("*.yaml")), key=lambda name: name != "fixed")
ALL_POLICIES = policies(*POLICY_NAMES)
PER_ROW = policies("fixed", "confidence_threshold")  # what they decide for a row does not depend on the others


def build_policy(choice: PolicyChoice) -> GammaPolicy:
    name, knobs = choice
    policy = build(OmegaConf.merge(OmegaConf.load(GAMMA_FOLDER / f"{name}.yaml"), knobs))
    if hasattr(policy, "use_costs"):
        policy.use_costs(Costs(c=0.1, target_times=(1.0,) * (policy.max_gamma + 1)))
    return policy


DRAWING = st.builds(
    Sampling,
    temperature=st.sampled_from([1.0, 0.3, 2.5, 1e-3]),
    top_k=st.sampled_from([0, 1, 3, 1000]),
    top_p=st.sampled_from([1.0, 0.9, 0.3, 1e-6]),
    min_p=st.sampled_from([0.0, 0.05, 0.9]),
)
LENIENT = st.sampled_from([1.0, 0.5, 0.01]).map(lambda lenience: Lenience(lenience=lenience))


def takes(verifier: Verifier, drafter: Drafter) -> bool:
    """Whether a rule can verify what a drafter drafts."""
    try:
        verifier.check(drafter.law, drafter.shape)
    except ValueError:
        return False
    return True


# Prompts and what ends them


def repeated(tokens: list[int], length: int) -> list[int]:
    return (tokens * length)[:length]


def prompts(model: Model) -> st.SearchStrategy[list[list[int]]]:
    """1 to 16 rows of 1 token up to all the context but one, each a few tokens again and again: some can be copied."""
    most = model.context - 1
    lengths = st.one_of(st.integers(1, min(12, most)), st.integers(max(1, most - 12), most))
    patterns = st.lists(st.integers(0, model.vocabulary - 1), min_size=1, max_size=5)
    rows = st.builds(repeated, patterns, lengths)
    return st.lists(rows, min_size=1, max_size=16)


@st.composite
def stoppings(draw: Callable, model: Model) -> Stopping:
    tokens = st.integers(0, model.vocabulary - 1)
    everything = tuple(range(model.vocabulary))
    beyond = (model.vocabulary + 3,)  # a tokenizer may have tokens that the model never says
    some = st.lists(tokens, min_size=1, max_size=max(1, model.vocabulary // 5)).map(tuple)
    eos_ids = draw(mostly([(), None, beyond], [everything]).flatmap(lambda ids: some if ids is None else st.just(ids)))
    tokenizer = target_of(model).tokenizer
    texts = st.lists(tokens, min_size=1, max_size=3).map(tokenizer.decode)
    return Stopping(
        max_new_tokens=draw(mostly(list(range(24, 3, -1)), [1, 2, 3])),
        eos_ids=eos_ids,
        stop_strings=tuple(draw(st.one_of(st.just([]), st.lists(texts, max_size=2)))),
        tokenizer=tokenizer,
    )


@dataclass(frozen=True)
class Case:
    """One batch to decode, and with what."""

    model: Model
    prompts: list[list[int]]
    stopping: Stopping
    drafter: DrafterChoice
    policy: PolicyChoice

    @property
    def target(self) -> Target:
        return target_of(self.model)

    @property
    def seeds(self) -> list[int]:
        return list(range(len(self.prompts)))

    def engine(self, drafter: Drafter, verifier: Verifier, sampling: Sampling) -> Engine:
        """With the rule that is usual for the drafter's drafts where the verifier does not take them."""
        return Engine(
            target=self.target,
            drafter=drafter,
            verifier=verifier if takes(verifier, drafter) else None,
            gamma_policy=build_policy(self.policy),
            sampling=sampling,
        )

    def plain(self, sampling: Sampling) -> Generation:
        decoder = Autoregressive(target=self.target, sampling=sampling)
        return decoder.generate(self.prompts, stopping=self.stopping, seeds=self.seeds)


@st.composite
def cases(
    draw: Callable,
    policies: st.SearchStrategy[PolicyChoice],
    *dtypes: torch.dtype,
    drafters: st.SearchStrategy[DrafterChoice] = ANY_DRAFTER,
) -> Case:
    model = draw(models(*dtypes))
    return Case(model, draw(prompts(model)), draw(stoppings(model)), draw(drafters), draw(policies))
