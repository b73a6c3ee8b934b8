"""The step `exactness`: tokens equal to plain decoding's and Hugging Face's, and samples that follow the target."""

from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Any

import torch

from drafters.small_transformer import SmallTransformer
from drafters.transformer_tree import TransformerTree
from experiments.corpora.grammar_pairs import GrammarPairs
from experiments.gpu.findings import Findings
from experiments.gpu.parts import DRAFTERS, ZOO, drafter_named, embedded_target, library_prompts
from experiments.gpu.random_models import drafter_for, random_prompts, random_target
from experiments.gpu.rounds import DRAWN, GREEDY, NUCLEUS, engine_of, tokens_of
from experiments.measurement.timing import Decoder
from experiments.peers.hugging_face import HuggingFaceGenerate
from framework.conformance.goodness_of_fit import continuation_distribution
from framework.conformance.tiny_models import tiny_model, tiny_tokenizer
from framework.core.drafter import Drafter
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.metrics.equality import differences, within_float32
from framework.models.cached_lm import CachedLM
from framework.models.pretrained import fingerprint
from framework.models.target import Target
from framework.verifiers.block import BlockVerification
from framework.verifiers.traversal import Traversal

FALSE_ALARM = 1e-9  # of one chi-square test
CELL_VOCABULARY, CELL_PROMPT, CELL_GAMMA = 3, [1, 2, 1, 1, 2], 2
ROWS_PER_BATCH = 2_000
CELLS = {  # drafter, verifier (None: the drafter's usual one) and sampling
    "chain, speculative sampling, T=1": ("chain", None, DRAWN),
    "chain, block verification, T=0.8 top-p 0.9": ("chain", BlockVerification(), NUCLEUS),
    "tree, recursive rejection, T=1": ("tree", None, DRAWN),
    "tree, traversal, T=0.8 top-p 0.9": ("tree", Traversal(), NUCLEUS),
}


def run(findings: Findings, sizes: Mapping[str, Any], device: torch.device) -> None:
    target = embedded_target(device, "float32")
    findings.note(attention=target.model.attention)
    prompts = library_prompts(target, sizes["prompt_tokens"])
    greedy = Greedy(findings, target, prompts, Stopping(max_new_tokens=sizes["new_tokens"]))
    findings.attempt("baseline", greedy.check_baseline)
    for name in sizes["drafters"] or DRAFTERS:
        findings.attempt(name, partial(greedy.check_drafter, name))
    findings.attempt("T5", partial(check_t5, findings, sizes, device))
    for name in CELLS:
        findings.attempt(name, partial(check_cell, findings, name, sizes["samples"], device))
    pair = Pair(findings, sizes["compiled"], device)
    for name in sizes["compiled"]["decoders"]:
        findings.attempt(f"compiled {name}", partial(pair.check, name))


class Greedy:
    """Checks of greedy tokens, one prompt at a time and all prompts as one batch."""

    def __init__(
        self, findings: Findings, target: Target, prompts: list[list[int]], stopping: Stopping, *, name: str = ""
    ):
        """
        Args:
            name: beginning of the checks' names.
        """
        self._findings, self._target, self._prompts, self._stopping = findings, target, prompts, stopping
        self._name = name
        self._expected: dict[str, list[list[int]]] = {}

    def check_baseline(self) -> None:
        """Decode by Hugging Face and by the baseline, which all drafters are compared with."""
        plain = Autoregressive(target=self._target, sampling=GREEDY)
        hugging_face = HuggingFaceGenerate(target=self._target, sampling=GREEDY)
        self._expected = {"Hugging Face": self._one_by_one(hugging_face)}
        alone = self._one_by_one(plain)
        self._check(f"{self._name}baseline, B=1", alone)
        self._expected["the baseline"] = alone
        self._check(f"{self._name}baseline, B={len(self._prompts)}", tokens_of(plain, self._prompts, self._stopping))

    def check_drafter(self, name: str) -> None:
        self.check_engine(name, engine_of(self._target, drafter_named(name, self._target), GREEDY))

    def check_engine(self, name: str, engine: Engine) -> None:
        """Compare an engine's tokens with those of the plain loops.

        Raises:
            ValueError: the baseline's check failed, so that there are none.
        """
        if "the baseline" not in self._expected:
            raise ValueError("there is no baseline to compare with")
        self._check(f"{name}, B=1", self._one_by_one(engine))
        self._check(f"{name}, B={len(self._prompts)}", tokens_of(engine, self._prompts, self._stopping))

    def _check(self, name: str, got: list[list[int]]) -> None:
        found = {
            other: differences(self._target, self._prompts, tokens, got, max_new_tokens=self._stopping.max_new_tokens)
            for other, tokens in self._expected.items()
        }
        num_tokens = sum(map(len, got))
        words = ", ".join(f"{len(each)} of {len(got)} texts differ from {other}" for other, each in found.items())
        holds = bool(found) and all(within_float32(each, num_tokens) for each in found.values())
        margins = [f"{each.margin:.1g}" for several in found.values() for each in several]
        measured = f"{words}{', margins ' + ' '.join(margins) if margins else ''}"
        self._findings.require(f"{name}: greedy tokens", holds and num_tokens > 0, measured, "equal, but for near-ties")

    def _one_by_one(self, decoder: Decoder) -> list[list[int]]:
        return [tokens_of(decoder, [prompt], self._stopping)[0] for prompt in self._prompts]


def check_t5(findings: Findings, sizes: Mapping[str, Any], device: torch.device) -> None:
    """Greedy translations by the embedded T5, with a small T5 as the drafter."""
    target = embedded_target(device, "float32", path="translation/target")
    texts = islice(GrammarPairs(split="held_out", size=100, seed=0).texts(), len(sizes["prompt_tokens"]))
    prompts = [target.tokenizer.encode(each.text) for each in texts]
    greedy = Greedy(findings, target, prompts, Stopping(max_new_tokens=sizes["new_tokens"]), name="T5, ")
    greedy.check_baseline()
    model = {
        "_target_": "framework.models.pretrained.load_draft_model",
        "path": str(ZOO / "translation" / "drafter_base"),
        "dtype": "float32",
        "attention": "auto",
    }
    engine = engine_of(target, drafter_named("small_transformer", target, model=model), GREEDY)
    greedy.check_engine("T5, small_transformer", engine)


def check_cell(findings: Findings, name: str, samples: int, device: torch.device) -> None:
    """Chi-square test of sampled tokens against the exact distribution of a tiny random target."""
    kind, verifier, sampling = CELLS[name]
    target = tiny_target_on(device)

    def small(target: Target) -> CachedLM:
        return CachedLM(tiny_model(vocabulary=CELL_VOCABULARY, seed=1).to(device), vocabulary_size=CELL_VOCABULARY)

    drafter: Drafter = SmallTransformer(target, model=small)
    if kind == "tree":
        drafter = TransformerTree(target, model=small, branching=[2, 1], children="without_replacement")
    engine = engine_of(target, drafter, sampling, gamma=CELL_GAMMA, verifier=verifier)
    stopping = Stopping(max_new_tokens=CELL_GAMMA + 2)  # the token of the prefill, and one round
    tokens: list[list[int]] = []
    for first in range(0, samples, ROWS_PER_BATCH):
        seeds = list(range(first, min(first + ROWS_PER_BATCH, samples)))
        tokens += engine.generate([CELL_PROMPT] * len(seeds), stopping=stopping, seeds=seeds).tokens
    fit = continuation_distribution(target, CELL_PROMPT, len(tokens[0]), sampling).fit(tokens)
    measured = f"p = {fit.p_value:.3g} over {samples} samples"
    findings.require(f"{name}: chi-square", fit.p_value > FALSE_ALARM, measured, f"p above {FALSE_ALARM:g}")


def tiny_target_on(device: torch.device) -> Target:
    """A tiny random target on a device."""
    model = tiny_model(vocabulary=CELL_VOCABULARY).to(device)
    cached = CachedLM(model, vocabulary_size=CELL_VOCABULARY)
    return Target(cached, tiny_tokenizer(CELL_VOCABULARY), CELL_VOCABULARY, fingerprint(model))


class Pair:
    """Checks that compiled rounds give the eager loop's tokens at T=1."""

    def __init__(self, findings: Findings, sizes: Mapping[str, Any], device: torch.device):
        """
        Args:
            sizes: `decoders`, `prompt_tokens`, `new_tokens`; `target` and `drafter`: sizes of random models in place
                of the embedded pair, or None.
        """
        self._findings, self._sizes = findings, sizes
        self._random = sizes["target"] is not None
        make = partial(random_target, sizes["target"], device=device, dtype="float32")
        self._target = make() if self._random else embedded_target(device, "float32")
        prompts = random_prompts if self._random else library_prompts
        self._prompts = prompts(self._target, sizes["prompt_tokens"])

    def check(self, name: str) -> None:
        """Decode the prompts as a batch, eagerly and compiled, with the same seeds."""
        stopping = Stopping(max_new_tokens=self._sizes["new_tokens"])
        decoders = (self._decoder(name, compiled=mode) for mode in (False, True))
        eager, compiled = (tokens_of(each, self._prompts, stopping) for each in decoders)
        self._findings.require_equal(f"{name}, compiled, T=1: tokens by seed", compiled, eager)

    def _decoder(self, name: str, *, compiled: bool) -> Decoder:
        if name == "baseline":
            return Autoregressive(target=self._target, sampling=DRAWN, compiled=compiled)
        sizes = self._sizes["drafter"]
        drafter = drafter_for(name, sizes, self._target) if self._random else drafter_named(name, self._target)
        return engine_of(self._target, drafter, DRAWN, compiled=compiled)
