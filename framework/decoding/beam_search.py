"""Beam search, plain or speculative: a separate loop over the same parts, since it samples nothing.

w beams, u drafted beams, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from framework.core.draft import Readout, Shape
from framework.core.sampling import largest
from framework.core.sequences import Prompt, Sequences
from framework.core.validation import check_whole
from framework.decoding.beam_tree import BeamTree
from framework.decoding.generation import Generation
from framework.decoding.hypotheses import Continuation, Hypotheses, Hypothesis
from framework.decoding.prefill import prefill
from framework.decoding.stopping import Stopping
from framework.gamma_policies.gamma_policy import GammaPolicy
from framework.metrics.stopwatch import Stopwatch
from framework.metrics.tally import Tally
from framework.models.cached_lm import CachedLM
from framework.models.target import Target


@dataclass(frozen=True)
class BeamGeneration(Generation):
    """The result of beam search; `tokens` holds every prompt's best hypothesis.

    Attributes:
        beams: per prompt, its finished hypotheses with their scores, best first.
    """

    beams: list[list[Hypothesis]] = field(default_factory=list)


class BeamSearch:
    """Beam search in fewer target passes, with unchanged hypotheses and scores (Leviathan et al., 2023, A.4).

    The drafter runs a beam search of gamma steps with u >= w beams, starting from the target's beams. One target pass
    scores all nodes of that search, w + u gamma. The target's beam search then advances step by step while its w beams
    are among the drafter's u: a level of the draft is accepted if all w are. The step that leaves the draft is kept,
    too, since its scores were computed. A draft therefore changes only the number of passes.
    """

    def __init__(
        self,
        *,
        target: Target,
        num_beams: int,
        length_penalty: float = 1.0,
        early_stopping: bool = False,
        drafter: CachedLM | None = None,
        drafted_beams: int = 0,
        gamma_policy: GammaPolicy | None = None,
    ):
        """
        Args:
            target: model whose scores define the search.
            num_beams: w >= 1.
            length_penalty: exponent of the length that divides a finished hypothesis's score.
            early_stopping: whether w finished hypotheses end the search even if better ones are possible.
            drafter: small model with the target's vocabulary; None: plain beam search.
            drafted_beams: u >= w, beams of the drafter's search.
            gamma_policy: policy for the number of drafted steps; its `should_continue` is not called.

        Raises:
            ValueError: a number out of its range, a drafter or a gamma policy without the other, a target with logits
                processors, or a model with recurrent layers.
        """
        check_whole("num_beams", num_beams, least=1)
        if drafter is not None and drafted_beams < num_beams:
            raise ValueError(f"drafted_beams is {drafted_beams!r}; allowed: at least num_beams, {num_beams}")
        if (drafter is None) != (gamma_policy is None):
            raise ValueError("a drafter needs a gamma_policy, and a gamma_policy a drafter; give both or neither")
        if target.processors.options:
            active = ", ".join(target.processors.options)
            raise ValueError(f"beam search does not apply the target's options {active}; set target.generation=ignore")
        for model in (target.model, drafter):
            if model is not None:
                model.refuse_recurrent("beam search reads trees", "models without recurrent layers")
        self.target = target
        self._num_beams = num_beams
        self._length_penalty = length_penalty
        self._early_stopping = early_stopping
        self._drafter = drafter
        self._drafted_beams = drafted_beams
        self._gamma_policy = gamma_policy

    def new_tally(self) -> Tally:
        """An empty tally. A step of the search counts as one committed token, whatever the number of beams."""
        gamma = self._gamma_policy.max_gamma if self._gamma_policy else 0
        return Tally(gamma, gamma * self._drafted_beams, shape=Shape.TREE, token_rule=False)

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        stopping: Stopping,
        seeds: list[int] | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> BeamGeneration:
        """Search for the best continuations of every prompt, one prompt after another.

        Args:
            prompts: token ids per row, none empty, each shorter than the model's context.
            stopping: stopping criteria of a hypothesis, without stop strings.
            seeds: unused, since nothing is sampled.
            stopwatch: times the stages prefill, begin, draft, target and verify.

        Raises:
            ValueError: a prompt cannot be decoded, or stop strings are given.
            FloatingPointError: a model's logits hold NaN.
        """
        if stopping.stop_strings:
            raise ValueError(f"stop_strings is {list(stopping.stop_strings)}; beam search allows none: []")
        stopwatch, tally = stopwatch or Stopwatch(self.target.device), self.new_tally()
        beams = [self._search(prompt, stopping, tally, stopwatch) for prompt in prompts]
        by_length = ["length" if len(each[0].tokens) == stopping.max_new_tokens else "context" for each in beams]
        return BeamGeneration(
            tokens=[list(each[0].tokens) for each in beams],
            finish_reasons=["eos" if each[0].ended_by_eos else by for each, by in zip(beams, by_length, strict=True)],
            tally=tally,
            beams=beams,
        )

    def _search(self, prompt: Prompt, stopping: Stopping, tally: Tally, stopwatch: Stopwatch) -> list[Hypothesis]:
        """Finished hypotheses of one prompt."""
        # In the worst case the hypotheses share no token, and each token has its own node.
        max_nodes = self._num_beams * (stopping.max_new_tokens + 1) + (tally.max_nodes or 0)
        with stopwatch.stage("prefill"):
            sequences, finisher, output = prefill(self.target, [prompt], stopping, max_nodes=max_nodes)
            texts = Hypotheses(
                num_beams=self._num_beams,
                eos_ids=stopping.eos_ids,
                most_tokens=finisher.most_remaining,
                length_penalty=self._length_penalty,
                early_stopping=self._early_stopping,
            )
            first = texts.advance(_continuations(output.logits[0], texts.num_looked_at))
        with stopwatch.stage("begin"):
            tree, policy = self._begin(sequences), self._gamma_policy
            ends = tree.keep([tree.add(-1, token) for _, token in first])
        while not texts.is_over:
            # A round takes up to gamma + 1 steps, so gamma stays below the number of steps left.
            max_depth = finisher.most_remaining - texts.num_tokens - 1
            gamma = min(policy.next_gamma(), max_depth) if policy else 0
            with stopwatch.stage("draft"):
                num_kept = len(tree)
                depth = self._draft(tree, ends, texts, gamma)
            with stopwatch.stage("target"):
                logits = tree.read(self.target.model)
            with stopwatch.stage("verify"):
                num_drafted = len(tree) - num_kept
                known = dict(enumerate(_continuations(logits, texts.num_looked_at), len(tree) - len(logits)))
                num_steps, ends = _walk(tree, ends, texts, known)
                accepted = num_steps - 1
                rejected = not texts.is_over and accepted < depth
                readout = Readout(num_drafted, [1], [depth], [accepted], [int(rejected)], [num_steps], [max_depth])
                tally.observe(readout)
                if policy:
                    policy.observe(readout)
        return texts.finished

    def _begin(self, sequences: Sequences) -> BeamTree:
        """Prefill the drafter, if there is one, and create an empty tree."""
        models = [self.target.model]
        if self._drafter is not None and self._gamma_policy is not None:
            self._gamma_policy.begin()
            self._drafter.read_prompts(sequences)
            models.append(self._drafter)
        return BeamTree(sequences.longest - 1, models)

    def _draft(self, tree: BeamTree, ends: list[int], texts: Hypotheses, gamma: int) -> int:
        """Add the nodes of the drafter's beam search, from the running hypotheses on; returns its depth."""
        beams = [(text.score, node) for text, node in zip(texts.running, ends, strict=True)]
        for depth in range(gamma):
            assert self._drafter is not None
            logits = tree.read(self._drafter)[[node - len(tree) for _, node in beams]]
            # End-of-text tokens are not extended; u other candidates remain, if there are that many at all.
            number = self._drafted_beams + texts.num_looked_at - texts.num_beams
            going_on = [
                (score + log_prob, node, token)
                for (score, node), its in zip(beams, _continuations(logits, number), strict=True)
                for token, log_prob in its
                if not texts.ends(token)
            ]
            best = sorted(going_on, key=lambda each: -each[0])[: self._drafted_beams]
            if not best:
                return depth
            beams = [(score, tree.add(node, token)) for score, node, token in best]
        return gamma


def _walk(
    tree: BeamTree, ends: list[int], texts: Hypotheses, known: dict[int, list[Continuation]]
) -> tuple[int, list[int]]:
    """Advance the search while the continuations of its beams are known; returns the steps taken and the new ends."""
    num_steps = 0
    while True:
        steps = [(ends[number], token) for number, token in texts.advance([known[end] for end in ends])]
        num_steps += 1
        if texts.is_over:
            return num_steps, []
        drafted = [tree.find(*step) for step in steps]
        if None in drafted:
            return num_steps, tree.keep([tree.add(*step) for step in steps])
        ends = [node for node in drafted if node is not None]


def _continuations(logits: Tensor, number: int) -> list[list[Continuation]]:
    """The most likely tokens after each row of logits [n, V], most likely first, without impossible ones.

    Raises:
        FloatingPointError: the logits hold NaN.
    """
    log_probs = (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)
    tokens = largest(log_probs, min(number, logits.shape[-1]))
    # One synchronisation: float64 holds token ids as well as log-probabilities.
    found = torch.stack([tokens.double(), log_probs.gather(1, tokens).double()], -1).tolist()
    if any(math.isnan(row[0][1]) for row in found):
        raise FloatingPointError(
            "the distribution of the next token is not finite: the logits hold NaN (try target.dtype=float32)"
        )
    return [[(int(token), log_prob) for token, log_prob in row if log_prob > -math.inf] for row in found]
