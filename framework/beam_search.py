"""Beam search, plain or speculative: its own loop over the same parts, since it is no sampling and draws nothing.

w beams under way, u drafted beams, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from framework.beam_tree import BeamTree
from framework.cached_lm import CachedLM
from framework.draft import Readout, Shape
from framework.gamma_policies.gamma_policy import GammaPolicy
from framework.generation import Generation
from framework.hypotheses import Continuation, Hypotheses, Hypothesis
from framework.prefill import prefill
from framework.sampling import largest
from framework.sequences import Prompt, Sequences
from framework.stopping import Stopping
from framework.stopwatch import Stopwatch
from framework.tally import Tally
from framework.target import Target
from framework.whole_numbers import check_whole


@dataclass(frozen=True)
class BeamGeneration(Generation):
    """What beam search returns; tokens are those of every prompt's best text.

    Attributes:
        beams: per prompt its finished texts with their scores, the best first.
    """

    beams: list[list[Hypothesis]] = field(default_factory=list)


class BeamSearch:
    """Beam search in fewer target passes, with the texts and scores of plain beam search (Leviathan et al., 2023, A.4).

    A small model searches gamma steps ahead with u >= w beams, from the target's own. One target pass scores all that
    it went through, w + u gamma nodes. Then the target's own search goes on step by step, as far as its w beams are
    among the small model's u: a level of the draft is accepted if they all are. The step that leaves the draft is kept,
    too: what it needs was scored. So a draft changes how many passes it takes and nothing else.
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
            target: whose beam search it is.
            num_beams: w >= 1.
            length_penalty: what a finished text's length is raised to before its score is divided by it.
            early_stopping: whether w finished texts are enough, or better ones are waited for.
            drafter: a small model with the target's vocabulary; None is plain beam search.
            drafted_beams: u >= w, of the small model's search.
            gamma_policy: how many steps it goes ahead; that it may end a draft in between is not asked.

        Raises:
            ValueError: a number out of its range, or a drafter without a gamma policy.
        """
        check_whole("num_beams", num_beams, least=1)
        if drafter is not None and drafted_beams < num_beams:
            raise ValueError(f"drafted_beams is {drafted_beams!r}; allowed: at least num_beams, {num_beams}")
        if (drafter is None) != (gamma_policy is None):
            raise ValueError("a drafter needs a gamma_policy, and a gamma_policy a drafter; give both or neither")
        self.target = target
        self._num_beams = num_beams
        self._length_penalty = length_penalty
        self._early_stopping = early_stopping
        self._drafter = drafter
        self._drafted_beams = drafted_beams
        self._gamma_policy = gamma_policy

    def new_tally(self) -> Tally:
        """Without counts yet. A step of the search commits one token, whatever the number of beams."""
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
        """Search the best texts behind every prompt, one prompt after another.

        Args:
            prompts: token ids per row, none empty, each within the model's context.
            stopping: what ends a text; stop strings are not looked for.
            seeds: not used, since nothing is drawn.
            stopwatch: gets the stages prefill, begin, draft, target and verify.

        Raises:
            ValueError: a prompt cannot be decoded, or there are stop strings.
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
        """The finished texts of one prompt."""
        # At worst the texts share nothing, and there is a node for each of their tokens.
        max_nodes = self._num_beams * (stopping.max_new_tokens + 1) + (tally.max_nodes or 0)
        with stopwatch.stage("prefill"):
            sequences, finisher, logits = prefill(self.target, [prompt], stopping, max_nodes=max_nodes)
            texts = Hypotheses(
                num_beams=self._num_beams,
                eos_ids=stopping.eos_ids,
                most_tokens=finisher.most_remaining,
                length_penalty=self._length_penalty,
                early_stopping=self._early_stopping,
            )
            first = texts.advance(_continuations(logits[0], texts.num_looked_at))
        with stopwatch.stage("begin"):
            tree, policy = self._begin(sequences), self._gamma_policy
            ends = tree.keep([tree.add(-1, token) for _, token in first])
        while not texts.is_over:
            # What follows the last step is not asked for: a draft of that depth cannot be left.
            room = finisher.most_remaining - texts.num_tokens - 1
            gamma = min(policy.next_gamma(), room) if policy else 0
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
                lost = not texts.is_over and accepted < depth
                readout = Readout(num_drafted, [1], [depth], [accepted], [int(lost)], [num_steps], [room])
                tally.observe(readout)
                if policy:
                    policy.observe(readout)
        return texts.finished

    def _begin(self, sequences: Sequences) -> BeamTree:
        """Let the small model read the prompt, too."""
        models = [self.target.model]
        if self._drafter is not None and self._gamma_policy is not None:
            self._gamma_policy.begin()
            self._drafter.begin_with(sequences)
            models.append(self._drafter)
        return BeamTree(sequences.longest - 1, models)

    def _draft(self, tree: BeamTree, ends: list[int], texts: Hypotheses, gamma: int) -> int:
        """Add what the small model's search goes through, from the texts under way; returns how deep that is."""
        beams = [(text.score, node) for text, node in zip(texts.running, ends, strict=True)]
        for depth in range(gamma):
            assert self._drafter is not None
            logits = tree.read(self._drafter)[[node - len(tree) for _, node in beams]]
            # No text goes on behind its end; without these tokens there are still u, if there are so many at all.
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
    """Search on for as long as what follows the texts under way is known: how many steps, and where they end now."""
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
    """The likeliest tokens behind each row of logits [n, V], the likeliest first; impossible ones are left out.

    Raises:
        FloatingPointError: the logits hold NaN.
    """
    log_probs = (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)
    tokens = largest(log_probs, min(number, logits.shape[-1]))
    # The one wait for the device: float64 holds tokens as well as log-probabilities.
    found = torch.stack([tokens.double(), log_probs.gather(1, tokens).double()], -1).tolist()
    if any(math.isnan(row[0][1]) for row in found):
        raise FloatingPointError(
            "the law of the next token is not finite: the logits hold NaN (try target.dtype=float32)"
        )
    return [[(int(token), log_prob) for token, log_prob in row if log_prob > -math.inf] for row in found]
