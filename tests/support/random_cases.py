"""Random test cases: models, drafters, gamma policies, prompts and stopping conditions."""

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
from torch.nn.utils.rnn import pad_sequence

from experiments.config.builders import build
from experiments.config.resolvers import register_resolvers
from experiments.proof.tiny_drafters import NAMES, drafter_node, tiny_factory_of
from framework.conformance.tiny_models import tiny_target
from framework.core.draft import Draft, Outcome, SamplingScheme, Shape
from framework.core.drafter import Drafter
from framework.core.sampling import Sampling, draw
from framework.core.sequences import Sequences
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.generation import Generation
from framework.decoding.stopping import Stopping
from framework.gamma_policies.gamma_policy import Costs, GammaPolicy
from framework.gamma_policies.round_profile import give_costs
from framework.models.target import Target
from framework.verifiers.lenience import Lenience
from framework.verifiers.verifier import Verifier

register_resolvers()  # one gamma policy's yaml refers to an embedded model
GAMMA_FOLDER = Path(__file__).parents[2] / "conf" / "gamma"
MAX_GAMMA = 8


# Models


@dataclass(frozen=True)
class Model:
    """Parameters of a tiny random target."""

    family: str
    vocabulary: int
    context: int  # a tiny small_transformer has 128; the largest value here exceeds it
    dtype: torch.dtype


def mostly(usual: list[Any], rare: list[Any]) -> st.SearchStrategy[Any]:
    """Strategy for a usual value, or in 1 of 8 cases a rare one, which makes a trivial case."""
    return st.integers(0, 7).flatmap(lambda number: st.sampled_from(rare if number == 7 else usual))


# Few, since drafters are built for each: every context with every vocabulary, and either with both families.
ALL_SIZES = [
    ("llama", 50, 40), ("gpt2", 5, 160), ("llama", 2, 9),
    ("gpt2", 50, 160), ("llama", 5, 9), ("gpt2", 2, 40),
    ("gpt2", 50, 9), ("llama", 5, 40), ("llama", 2, 160),
]  # fmt: skip
THREE_SIZES = ALL_SIZES[:3]  # every family, vocabulary and context
SHORT = [("gpt2", 50, 2), ("llama", 5, 2)]


def models(*dtypes: torch.dtype, sizes: st.SearchStrategy[tuple] | None = None) -> st.SearchStrategy[Model]:
    sizes = mostly(ALL_SIZES, SHORT) if sizes is None else sizes
    return st.builds(lambda sizes, dtype: Model(*sizes, dtype), sizes, st.sampled_from(dtypes))


@cache
def target_of(model: Model) -> Target:
    return tiny_target(model.family, vocabulary=model.vocabulary, context=model.context, dtype=model.dtype)


@torch.no_grad()
def uncached(target: Target, texts: list[list[int]]) -> Tensor:
    """[B, T, V] logits by one forward pass without a KV cache; what pads a text on the right is not seen by it."""
    tokens = pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    return target.model.model(input_ids=tokens, use_cache=False).logits[..., : target.vocabulary_size]


# Drafters


Options = tuple[tuple[str, Any], ...]  # options of a yaml as hashable (name, value) pairs


@cache
def of_yaml(name: str, options: Options, model: Model, clone: bool) -> Drafter:
    """Drafter of a yaml for a tiny target. Its model, if any, is float64 like the target, to avoid near-ties."""
    node = OmegaConf.merge(drafter_node(name), dict(options))
    for part in (node, node.get("drafter", {})):
        if "dtype" in part.get("model", {}):
            part.model.dtype = "float64"
    if "branching" in node:
        node.branching = [min(children, model.vocabulary) for children in node.branching]
    return tiny_factory_of(node, model.vocabulary)(target=target_of(model))


@dataclass
class Guesses:
    """Drafter that proposes up to gamma tokens, each correct with probability `luck`, else uniformly random.

    Its draft is a function of the tokens of the row. Correct tokens are looked up in `truths` by prompt, or 0.
    """

    vocabulary: int
    luck: float
    seed: int
    truths: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    scheme = SamplingScheme.ONE_HOT
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
        return Draft.chain(tokens.view(len(rows), depth), self.scheme, valid=valid)

    def _guess(self, committed: list[int], prompt: int, gamma: int) -> list[int]:
        dice = random.Random(f"{self.seed} {committed}")
        right = self.truths.get(tuple(committed[:prompt]), [])[len(committed) - prompt :]
        right += [0] * gamma
        # A draft with a smaller gamma is a prefix of one with a larger gamma, because near a row's end gamma depends on
        # the other rows of the batch.
        length = min(gamma, dice.randint(0, MAX_GAMMA))
        return [token if dice.random() < self.luck else dice.randrange(self.vocabulary) for token in right[:length]]

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        pass


class Table:
    """Drafter that draws from random bigram distributions, given in full or on a sparse support.

    Some tokens end the draft of their row, so that the offered nodes depend only on their ancestors.
    """

    scheme, shape = SamplingScheme.IID, Shape.CHAIN

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
            self.scheme,
            probs=self.probs[parents],
            support=None if self.support is None else self.support[parents],
            valid=self.goes_on[parents].cumprod(1).bool(),
        )

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        pass


# (name, option, seed): a yaml's name with its options, "guesses" with its luck, or "table" with whether it is sparse.
DrafterChoice = tuple[str, Any, int]


def options_of(**values: list[Any]) -> st.SearchStrategy[Options]:
    return st.fixed_dictionaries({key: st.sampled_from(some) for key, some in values.items()}).map(
        lambda options: tuple(options.items())
    )


YAMLS: list[DrafterChoice] = [(name, (), 0) for name in NAMES]
BRANCHINGS = [(3, 2, 1, 1), (2,), (2, 2, 2), (1, 3), (4,)]
BRANCHING: st.SearchStrategy[DrafterChoice] = st.one_of(
    st.tuples(
        st.just("transformer_tree"),
        options_of(branching=BRANCHINGS, children=["without_replacement", "iid", "likeliest"]),
        st.just(0),
    ),
    st.tuples(
        st.just("medusa"),
        options_of(form=["tree", "greedy_chain", "sampled_chain"], nodes=[16, 1, 5, 60]),
        st.just(0),
    ),
)
ANY_DRAFTER: st.SearchStrategy[DrafterChoice] = st.one_of(
    st.sampled_from(YAMLS),
    BRANCHING,
    st.tuples(st.just("guesses"), st.sampled_from([0.7, 0.0, 0.95, 1.0]), st.integers(0, 99)),
    st.tuples(st.just("table"), st.booleans(), st.integers(0, 99)),
)


def fits(choice: DrafterChoice, model: Model) -> bool:
    """Whether a target of this family is not refused by the drafter."""
    return choice[0] != "mtp" or model.family == "llama"  # layers of gpt2 have no rotary positions


def build_drafter(choice: DrafterChoice, model: Model, *, clone: bool = False) -> Drafter:
    name, option, seed = choice
    if name == "guesses":
        return Guesses(model.vocabulary, option, seed)
    if name == "table":
        return Table(vocabulary=model.vocabulary, sparse=option, seed=seed)
    return of_yaml(name, option, model, clone)


# Policies, sampling, verifiers

GAMMAS = st.integers(1, MAX_GAMMA)
# Ranges of the options; policies not listed use their yaml.
OPTIONS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "fixed": st.fixed_dictionaries({"gamma": mostly(list(range(1, MAX_GAMMA + 1)), [0])}),
    "heuristic": GAMMAS.flatmap(
        lambda most: st.fixed_dictionaries({"max_gamma": st.just(most), "initial": st.integers(1, most)})
    ),
    "expected_speedup": st.fixed_dictionaries(
        {
            "max_gamma": GAMMAS,
            "c": st.sampled_from([0.0, 0.05, 0.3, 1.0, 5.0]),
            "prior_accepted": st.sampled_from([2, 0.01, 100]),
            "prior_rejected": st.sampled_from([1, 0.01, 100]),
            "forgetting": st.sampled_from([0.9, 0.1, 1]),
            "probe_every": st.sampled_from([None, 1, 3]),
        }
    ),
    "auto": st.fixed_dictionaries(
        {
            "candidates": st.sets(GAMMAS, min_size=1, max_size=3).map(lambda gammas: [0, *gammas]),
            "margin": st.sampled_from([0.03, 0.0, 0.5]),
            "most_loss": st.sampled_from([0.02, 0.0, 1.0]),
            "prior_weight": st.sampled_from([6, 0.01, 100]),
            "forgetting": st.sampled_from([0.9, 0.1, 1]),
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
    "exp3": st.fixed_dictionaries(
        {
            "gammas": st.lists(st.integers(0, MAX_GAMMA), min_size=1, max_size=4, unique=True),
            "seed": st.integers(0, 3),
        }
    ),
}
PolicyChoice = tuple[str, dict[str, Any]]


def policies(*names: str) -> st.SearchStrategy[PolicyChoice]:
    return st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), OPTIONS.get(name, st.just({}))))


POLICY_NAMES = sorted((path.stem for path in GAMMA_FOLDER.glob("*.yaml")), key=lambda name: name != "fixed")
ALL_POLICIES = policies(*POLICY_NAMES)
PER_ROW = policies("fixed", "confidence_threshold")  # their decision for a row is independent of the other rows


def build_policy(choice: PolicyChoice) -> GammaPolicy:
    name, options = choice
    policy = build(OmegaConf.merge(OmegaConf.load(GAMMA_FOLDER / f"{name}.yaml"), options))
    give_costs(policy, Costs(c=0.1, target_times=(1.0,) * (policy.max_gamma + 1)))
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
    """Whether a verifier accepts the drafter's sampling scheme and shape."""
    try:
        verifier.check(drafter.scheme, drafter.shape)
    except ValueError:
        return False
    return True


# Prompts and stopping conditions


def repeated(tokens: list[int], length: int) -> list[int]:
    return (tokens * length)[:length]


def prompts(model: Model) -> st.SearchStrategy[list[list[int]]]:
    """Strategy for 1 to 16 rows of 1 to context - 1 tokens, each a repeated pattern, so that copying can succeed."""
    most = model.context - 1
    lengths = st.one_of(st.integers(1, min(12, most)), st.integers(max(1, most - 12), most))
    patterns = st.lists(st.integers(0, model.vocabulary - 1), min_size=1, max_size=5)
    rows = st.builds(repeated, patterns, lengths)
    return st.lists(rows, min_size=1, max_size=16)


@st.composite
def stoppings(draw: Callable, model: Model) -> Stopping:
    tokens = st.integers(0, model.vocabulary - 1)
    everything = tuple(range(model.vocabulary))
    beyond = (model.vocabulary + 3,)  # a tokenizer may have tokens that the model never produces
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
    """One batch with its stopping conditions, drafter and gamma policy."""

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
        """Engine of the case, with the drafter's default verifier if the given one does not support its drafts."""
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
    models: st.SearchStrategy[Model],
    drafters: st.SearchStrategy[DrafterChoice] = ANY_DRAFTER,
) -> Case:
    model = draw(models)
    return Case(
        model,
        draw(prompts(model)),
        draw(stoppings(model)),
        draw(drafters.filter(lambda choice: fits(choice, model))),
        draw(policies),
    )
