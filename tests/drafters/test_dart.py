"""DART: n-gram frequencies, the tree of the published beam search, and options."""

import math

import numpy as np
import pytest
import torch

from drafters.dart import LEVEL_EXPONENT, NGRAM_WEIGHT, PREDICTION_BASE, Dart
from experiments.proof.tiny_drafters import save_tiny_eagle3, save_tiny_peagle
from framework.conformance.test_doubles import PATTERNS, Dictated, Witness
from framework.conformance.tiny_models import tiny_target
from framework.core.sampling import Sampling
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.drafting.ngram_lookup import UNSEEN, NGramLookup
from framework.gamma_policies.fixed import Fixed
from framework.prompts.prompt_source import Text

PROMPTS = [[5, 6, 7, 8, 5, 6], [9], [1, 2, 1, 2, 1, 2, 1]]
OPTIONS = {"layer_numbers": None, "depth": 3, "candidates": 4, "beam": 3, "nodes": 9, "order": 3}


def documents():
    dice = np.random.default_rng(0)
    return [dice.integers(0, 4, size) for size in (40, 1, 0, 25)]


def frequency(context, token, order):
    """As published: the share of a token after the longest context that it was seen after."""
    texts = [",".join(["", *map(str, document), ""]) for document in documents()]

    def count(gram):
        grams = ("," + ",".join(map(str, gram)) + ",") if gram else ","
        return sum(text.startswith(grams, at) for text in texts for at in range(len(text)))

    for length in range(order - 1, 0, -1):
        if length <= len(context) and (seen := count([*context[-length:], token])):
            return seen / count(context[-length:])
    return UNSEEN


@pytest.mark.parametrize("order", [2, 3, 4])
def test_frequencies_are_counted_ones(order):
    lookup = NGramLookup(documents(), order=order, vocabulary_size=5, device=torch.device("cpu"))
    dice = np.random.default_rng(1)
    texts = [dice.integers(0, 5, size).tolist() for size in (1, 1, 2, 2, *[3] * 30)]
    contexts = torch.tensor([([-1] * order + text)[1 - order :] for text in texts]).unsqueeze(1)
    tokens = torch.arange(5).expand(len(texts), 1, 5)
    expected = [[frequency(text, token, order) for token in range(5)] for text in texts]
    torch.testing.assert_close(lookup.frequencies(contexts, tokens)[:, 0], torch.tensor(expected))


class Corpus:
    """Texts of the tiny tokenizer's letters."""

    def texts(self):
        return [Text("text", "", "abcabcabdabcab" * 3), Text("other", "", "cabbacab")]


def beam_search(training_logits, last, frequency_of, *, candidates, beam, nodes):
    """Paths of the published search, best first, from [depth, Vd] logits and the text's last tokens."""
    kept, paths = [], [((), 0.0)]
    for level, logits in enumerate(training_logits):
        best = logits.topk(candidates)
        scored = [
            (
                (*path, token),
                value
                + (level + 1) ** LEVEL_EXPONENT
                * (PREDICTION_BASE**level * prediction + NGRAM_WEIGHT * math.log(frequency_of([*last, *path], token))),
            )
            for path, value in paths
            for token, prediction in zip(best.indices.tolist(), best.values.log_softmax(0).tolist(), strict=True)
        ]
        kept += scored
        paths = sorted(scored, key=lambda each: -each[1])[:beam]
    return {path for path, _ in sorted(kept, key=lambda each: -each[1])[:nodes]}


@torch.no_grad()
def test_the_tree_is_that_of_the_published_search(tmp_path, monkeypatch):
    """Frequencies are looked up after the text and the path; nodes are the best of all levels."""
    target = tiny_target(dtype=torch.float64)
    dart = Dart(target, path=str(save_tiny_peagle(tmp_path, target)), corpus=Corpus(), **OPTIONS)
    logits = []
    scored = dart._layer.scored
    monkeypatch.setattr(dart._layer, "scored", lambda states: logits.append(scored(states)) or logits[-1])
    drafter = Witness(dart)
    engine = Engine(
        target=target, drafter=drafter, verifier=Dictated(PATTERNS["one"]), gamma_policy=Fixed(gamma=3),
        sampling=Sampling(),
    )  # fmt: skip
    engine.generate(PROMPTS, stopping=Stopping(9), seeds=[0, 1, 2])
    support = dart._layer.support

    def looked_up(text, token):
        context = torch.tensor([-1, *text][-2:]).view(1, 1, 2)
        return float(dart._ngrams.frequencies(context, torch.tensor([[[int(support[token])]]])))

    assert len(drafter.proposals) == len(logits) > 2
    for proposal, all_logits in zip(drafter.proposals, logits, strict=True):
        tree = proposal.draft.tree
        for row, text in enumerate(proposal.committed):
            found = set()
            for node in range(proposal.draft.num_nodes):
                if proposal.draft.valid is not None and not proposal.draft.valid[row, node]:
                    continue
                path, place = (), node
                while place >= 0:
                    path = (int(proposal.draft.tokens[row, place]), *path)
                    place = int(tree.parent[row, place])
                found.add(path)
            expected = beam_search(
                all_logits[row].float(), text,
                lambda before, token, text=text: looked_up(
                    [*text, *[int(support[each]) for each in before[len(text) :]]], token
                ),
                candidates=4, beam=3, nodes=9,
            )  # fmt: skip
            deepest = max(len(path) for path in found)
            expected = {tuple(int(support[token]) for token in path) for path in expected}
            assert found == {path for path in expected if len(path) <= deepest}, row


def test_what_is_wrong_names_its_key(tmp_path):
    target = tiny_target()
    path = str(save_tiny_peagle(tmp_path / "dart", target))
    for option, value in (("depth", 0), ("candidates", 0), ("beam", 0), ("nodes", 0)):
        with pytest.raises(ValueError, match=rf"^{option} is {value}"):
            Dart(target, path=path, corpus=None, **(OPTIONS | {option: value}))
    most = "allowed: at most 11 for a vocabulary of 50"
    for order, message in ((1, "order is 1"), (12, f"order is 12; {most}"), (10**9, f"order is 1000000000; {most}")):
        with pytest.raises(ValueError, match=rf"^{message}"):
            Dart(target, path="/nowhere", corpus=None, **(OPTIONS | {"order": order}))
    with pytest.raises(ValueError, match=r"^path is .* without mask_hidden"):
        Dart(target, path=str(save_tiny_eagle3(tmp_path / "eagle3", target)), corpus=None, **OPTIONS)
    with pytest.raises(ValueError, match=r"^path is .* target .*train drafter=dart"):
        other = tiny_target(seed=1)
        Dart(other, path=path, corpus=None, **OPTIONS)
