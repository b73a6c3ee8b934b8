"""Another tokenizer: shared tokens, retokenized text, and exactness of a model with permuted tokens."""

import random
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from drafters.other_tokenizer import OtherTokenizer, StringMatch
from experiments.config.resolvers import ZOO
from framework.conformance.enumeration import output_distribution, target_distribution, total_variation
from framework.conformance.tiny_models import (
    EOS,
    save_tiny,
    tiny_model,
    tiny_other_tokenizer,
    tiny_target,
    tiny_tokenizer,
)
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.drafting.retokenizer import Retokenizer
from framework.drafting.vocab_mapping import map_vocabularies
from framework.gamma_policies.fixed import Fixed
from framework.models.pretrained import load_other_model
from framework.verifiers.speculative_sampling import SpeculativeSampling

PROMPTS = [[1, 2, 3, 1, 2, 3, 1], [49], [0, 7, 8, 45, 0, 8, 9], [0]]


def tokenizer_of(tokens: list[str], decoder: object, **special: str) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    core.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=core, **special)


WRITTEN = {
    "byte level": (["Ġthe", "the", "Ċ", "Ã¶", "x", "</s>"], decoders.ByteLevel()),
    "metaspace": (["▁the", "the", "<0x0A>", "ö", "y", "</s>"], decoders.Metaspace()),
    "word piece": (["the", "##the", "\n", "##ö", "##x", "</s>"], decoders.WordPiece()),
    "as it is": ([" the", "the", "\n", "ö", "z", "</s>"], decoders.Fuse()),
}


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("byte level", "metaspace", [0, 1, 2, 3, 5]),
        ("metaspace", "as it is", [0, 1, 2, 3, 5]),
        ("byte level", "word piece", [0, 1, 3, 4, 5]),  # it has no newline inside a word
        ("as it is", "as it is", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_tokens_are_told_by_what_they_stand_for(one, other, shared):
    pair = [tokenizer_of(*WRITTEN[way], eos_token="</s>") for way in (one, other)]
    assert map_vocabularies(*pair, widths=(6, 6)).tolist() == [shared, shared]
    assert map_vocabularies(*pair, widths=(2, 6)).tolist() == [[0, 1], [0, 1]]


def test_the_end_of_text_is_one_token_and_other_special_ones_are_none():
    theirs = tokenizer_of(["a", "<end>", "<s>", "<pad>"], decoders.Fuse(), eos_token="<end>", bos_token="<s>")
    own = tokenizer_of(["<s>", "<stop>", "a", "<end>"], decoders.Fuse(), eos_token="<stop>", bos_token="<s>")
    assert map_vocabularies(theirs, own, widths=(4, 4)).tolist() == [[0, 1], [2, 1]]


TEXT = (
    "def quicksort(items):\n    if not items:\n        return []\n\n    # größer als “pivot”, 12345 mal 🎈\n"
    "    return quicksort([x for x in rest if x < pivot])   \n\t\nclass ÄÖ_77:\n    it's = 'don''t'\n" * 3
)


@pytest.mark.parametrize("seed", range(6))
def test_a_text_is_rewritten_as_a_whole_whatever_the_rounds_it_comes_in(seed, monkeypatch):
    theirs, own = (AutoTokenizer.from_pretrained(ZOO / name) for name in ("target", "translation/target"))
    committed = theirs(TEXT)["input_ids"]
    dice, text, place = random.Random(seed), Retokenizer(theirs, own), 0
    seen = []
    whole = Retokenizer._tokenised
    monkeypatch.setattr(Retokenizer, "_tokenised", lambda self, text: (seen.append(len(text)), whole(self, text))[1])
    while place < len(committed):
        place += dice.randint(1, 4 if place else 60)
        said = theirs.decode(committed[:place]).rstrip("\ufffd")
        assert text.read(committed[:place]) == own(said, add_special_tokens=False)["input_ids"]
    assert max(seen[1:]) < 100, "a growing text is tokenised again from far before its end"


def test_the_end_of_text_parts_texts():
    theirs, own = tiny_tokenizer(), tokenizer_of(["ab", "b", "a", EOS], decoders.Fuse(), eos_token=EOS)
    text = Retokenizer(theirs, own)
    assert text.read([0]) == [3]
    assert text.read([0, 2, 3, 0, 3]) == [3, 2, 1, 3, 1]


def permuted(folder, **settings):
    """tiny_model(seed 0) with its tokens in reverse order, and the matching tokenizer."""
    vocabulary = 50
    order = torch.arange(vocabulary).flip(0)
    model = tiny_model(seed=0, dtype=torch.float64, **settings)
    weights = {
        name: value[order] if name in ("lm_head.weight", "model.embed_tokens.weight") else value
        for name, value in model.state_dict().items()
    }
    names = [name for name, _ in sorted(tiny_tokenizer().get_vocab().items(), key=lambda item: -item[1])]
    model.load_state_dict(weights)
    model.save_pretrained(folder)
    tokenizer_of(names, decoders.Fuse(), eos_token=EOS).save_pretrained(folder)
    return folder


def drafter_of(folder, target):
    return OtherTokenizer(target, model=load_other_model(path=str(folder), dtype="float64", attention="sdpa"))


def generated(target, drafter, sampling, new_tokens=40):
    engine = Engine(
        target=target,
        drafter=drafter,
        verifier=SpeculativeSampling(),
        gamma_policy=Fixed(gamma=4),
        sampling=sampling,
    )
    seeds = list(range(len(PROMPTS)))
    return engine.generate(PROMPTS, stopping=Stopping(max_new_tokens=new_tokens), seeds=seeds, detailed=True)


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_model_with_its_tokens_permuted_is_never_refused(tmp_path, temperature):
    """Any wrong token mapping or stale cache slot would make p differ from q."""
    target = tiny_target(seed=0, dtype=torch.float64)
    tally = generated(target, drafter_of(permuted(tmp_path), target), Sampling(temperature=temperature)).tally
    tested = sum(tally.tested_by_position)
    assert tested > 100
    assert sum(tally.accepted_by_position) == tested
    assert tally.overlap == pytest.approx(tested, rel=1e-5)


def text_of_model(folder, target, num_tokens=4):
    model = load_other_model(path=str(folder), dtype="float64", attention="sdpa")
    return StringMatch(target, model=model, num_tokens=num_tokens)


def test_the_text_of_the_targets_own_model_is_always_accepted(tmp_path):
    """Each character is a token of both, so a wrong text, split or cache slot would be rejected."""
    target = tiny_target(seed=0, dtype=torch.float64)
    tally = generated(target, text_of_model(permuted(tmp_path), target), Sampling(temperature=0)).tally
    tested = sum(tally.tested_by_position)
    assert tested > 100
    assert sum(tally.accepted_by_position) == tested


def test_texts_match_exactly_whatever_the_model_writes(tmp_path):
    """The rule, enumerated: for every drafted text, one round and plain steps give the target's distribution."""
    vocabulary, sampling = 5, Sampling()
    target = tiny_target(vocabulary=vocabulary, dtype=torch.float64)
    tokenizer = tiny_other_tokenizer(vocabulary)
    folder = save_tiny(tmp_path, vocabulary=len(tokenizer), tokenizer=tokenizer, seed=5)
    drafter = text_of_model(folder, target)
    prompts = [list(pair) for pair in product(range(1, vocabulary), repeat=2)]
    sequences = Sequences.from_prompts(prompts, width=16, device=target.device)
    drafter.begin(sequences, None, sampling)
    draft = drafter.propose(sequences, 2, torch.zeros(len(prompts), 0))
    assert len({tuple(row) for row in draft.tokens.tolist()}) > 1
    random = torch.Generator().manual_seed(0)
    logits = [torch.randn(vocabulary**place, vocabulary, generator=random) * 2 for place in range(3)]
    for row in range(len(prompts)):
        one = draft.rows(torch.tensor([row]))
        got = output_distribution(SpeculativeSampling(), logits, one, torch.ones(1, dtype=torch.float64), sampling)
        assert total_variation(got, target_distribution(logits, sampling)) < 1e-6


def test_a_drafted_text_is_split_as_the_target_splits_it():
    """After "ret", "urn x" goes on within a word, so it is split alone; the end of text becomes the target's."""
    core = Tokenizer(models.WordLevel({"<eos>": 0, "ret": 1, "urn": 2, "return": 3, "x": 4, "f": 5}, unk_token="<eos>"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Whitespace(), decoders.Fuse()
    theirs = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>")
    own = tokenizer_of(["u", "r", "n", " ", "x", "<end>"], decoders.Fuse(), eos_token="<end>")
    drafter = StringMatch.__new__(StringMatch)
    drafter._tokenizer, drafter._target = own, SimpleNamespace(tokenizer=theirs, vocabulary_size=6)
    assert drafter._in_tokens_of_target([1], [0], [0, 1, 2, 3, 4, 5, 4]) == [2, 4, 0]
    assert drafter._in_tokens_of_target([1], [0], [3, 4, 3]) == [4]
    assert drafter._in_tokens_of_target([1], [0], [5]) == [0]


def test_a_short_context_is_moved_along(tmp_path):
    target = tiny_target(seed=0, dtype=torch.float64)
    drafter = drafter_of(save_tiny(tmp_path, context=16, seed=2), target)
    tally = generated(target, drafter, Sampling()).tally
    assert sum(tally.accepted_by_position) > 0
    assert max(len(read) for read in drafter._read) <= 16


def test_what_cannot_draft_is_refused_in_one_line(tmp_path):
    target = tiny_target()
    strange = tokenizer_of(["α", "β"], decoders.Fuse())
    save_tiny(tmp_path / "strange", vocabulary=2, tokenizer=strange)
    with pytest.raises(ValueError, match=r"^model.path is .*, none of whose 2 tokens is among the targe"):
        drafter_of(tmp_path / "strange", target)
    save_tiny(tmp_path / "t5", "t5")
    with pytest.raises(ValueError, match=r"^model.path is .* an encoder-decoder model; allowed: a decoder-only"):
        drafter_of(tmp_path / "t5", target)
    for file in save_tiny(tmp_path / "bare").glob("tokenizer*"):
        file.unlink()
    with pytest.raises((OSError, ValueError), match=r"^model.path is .* cannot be loaded"):
        drafter_of(tmp_path / "bare", target)
