"""The embedded models: what their provenance claims, and greedy equality on held-out prompts (of all of them: slow)."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from drafters.input_copy import InputCopy
from drafters.small_transformer import SmallTransformer
from experiments.config.resolvers import ZOO, register_resolvers
from experiments.corpora.grammar_pairs import GrammarPairs
from experiments.corpora.standard_library import StandardLibrary
from experiments.corpora.typos import MisspeltSentences
from experiments.peers.hugging_face import HuggingFaceGenerate
from experiments.proof.tiny_drafters import drafter_node
from experiments.quality.references import quality
from framework.core.drafter import Drafter
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.metrics.equality import differences, within_float32
from framework.models.pretrained import load_draft_model, load_target
from framework.models.target import Target
from framework.prompts.prompt_set import make_prompts
from framework.prompts.prompt_source import Text

CONF = Path(__file__).parents[2] / "conf"
# All but drafters that are read from checkpoints alone, none of which is embedded.
DRAFTERS = sorted(
    path.stem
    for path in (CONF / "drafter").glob("*.yaml")
    if path.stem != "mtp" and not OmegaConf.is_missing(OmegaConf.load(path), "path")
)
GREEDY = Sampling(temperature=0)
NEW_TOKENS = 40


@cache
def target() -> Target:
    return load_target(path=str(ZOO / "target"), dtype="float32", device="cpu", attention="sdpa", context=None)


@cache
def prompts() -> list[list[int]]:
    """The beginning of every held-out file, in ragged lengths."""
    found = make_prompts(
        StandardLibrary(split="held_out", folder=None),
        target().tokenizer,
        count=None,
        max_prompt_tokens=96,
        max_tokens=1000,
        overflow="error",
        vocabulary_size=target().vocabulary_size,
        chat=False,
        system=None,
    ).prompts
    return [list(prompt.tokens[: 96 - 7 * (i % 9)]) for i, prompt in enumerate(found)]


@cache
def stopping() -> Stopping:
    return Stopping(max_new_tokens=NEW_TOKENS, eos_ids=(target().tokenizer.eos_token_id,))


@cache
def baseline(number: int) -> list[int]:
    """Of one prompt."""
    decoder = Autoregressive(target=target(), sampling=GREEDY)
    return decoder.generate([prompts()[number]], stopping=stopping(), seeds=[0]).tokens[0]


def assert_equals_baseline(got: list[list[int]], one_in: int) -> None:
    """Compare what was made of every so many-th prompt."""
    expected = [baseline(number) for number in range(0, len(prompts()), one_in)]
    found = differences(target(), prompts()[::one_in], expected, got)
    assert within_float32(found, sum(map(len, expected))), found


def decoded_with(
    target: Target, drafter: Drafter, prompts: list[list[int]], stopping: Stopping, batch_size: int
) -> list[list[int]]:
    """What a drafter's target writes, greedily, so many prompts at once."""
    engine = Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=4), sampling=GREEDY)
    got = []
    for first in range(0, len(prompts), batch_size):
        batch = prompts[first : first + batch_size]
        got += engine.generate(batch, stopping=stopping, seeds=[0] * len(batch)).tokens
    return got


@pytest.mark.slow
def test_the_baseline_equals_hugging_face_on_held_out_prompts():
    decoder = HuggingFaceGenerate(target=target(), sampling=GREEDY)
    got = [decoder.generate([prompt], stopping=stopping(), seeds=[0]).tokens[0] for prompt in prompts()]
    assert len(got) >= 30
    assert_equals_baseline(got, 1)


# One of each kind: copied, drawn by a model, by heads, as a tree, and learning on the way.
KINDS = ["prompt_lookup", "small_transformer", "medusa", "transformer_tree", "online_small_transformer"]
# Alone, a prompt takes the way of one row, which some of them show.
CASES = [*((name, 3, 8) for name in DRAFTERS), *((name, 6, 1) for name in KINDS)]


@pytest.mark.slow
@pytest.mark.parametrize("name, one_in, batch_size", CASES)
def test_every_drafter_equals_the_baseline_on_held_out_prompts(name, one_in, batch_size):
    got = decoded_with(target(), _drafter(name), prompts()[::one_in], stopping(), batch_size)
    assert_equals_baseline(got, one_in)


@cache
def _drafter(name: str):
    register_resolvers()
    root = OmegaConf.create({"target": {"dtype": "float32", "attention": "sdpa"}})
    root.drafter = drafter_node(name)
    return instantiate(root.drafter)(target=target())


@pytest.mark.slow
def test_the_models_are_as_good_as_their_provenance_says():
    """Target and drafter on held-out text: at least 0.25 nats apart, and alpha at temperature 1 at least one half."""
    claimed = json.loads((ZOO / "provenance.json").read_text())
    drafter = load_draft_model(path=str(ZOO / "drafter"), dtype="float32", attention="sdpa")(target()).model
    texts = [text.text for text in StandardLibrary(split="held_out", folder=None).texts()]
    stream = [token for text in texts for token in target().tokenizer(text, verbose=False)["input_ids"]]
    length, count = claimed["config"]["longer"]["data"]["window"] + 1, 6
    starts = [i * (len(stream) - length) // (count - 1) for i in range(count)]
    batch = torch.tensor([stream[start : start + length] for start in starts])
    with torch.no_grad():
        distributions = [
            model(input_ids=batch[:, :-1]).logits.log_softmax(-1) for model in (target().model.model, drafter)
        ]
    nats = [-probs.gather(2, batch[:, 1:, None]).mean().item() for probs in distributions]
    alpha = torch.minimum(*(probs.exp() for probs in distributions)).sum(-1).mean().item()
    assert nats[1] - nats[0] >= 0.25
    assert alpha >= 0.5
    # Other windows of the same files, and another Python's library elsewhere: near the claim, not equal to it.
    for name, measured in zip(("target", "drafter"), nats, strict=True):
        assert abs(claimed[name]["held_out_nats_per_token"] - measured) < 0.25
    assert abs(claimed["drafter"]["held_out_alpha"] - alpha) < 0.1


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_the_zoo_is_small_and_says_where_it_comes_from():
    claimed = json.loads((ZOO / "provenance.json").read_text())
    assert size_of(ZOO / "translation") < 10e6 and size_of(ZOO) < 40e6
    assert claimed["corpus"]["fingerprint"] and claimed["corpus"]["licences"]["standard library"]
    assert claimed["target"]["parameters"] > 8 * claimed["drafter"]["parameters"]


TRANSLATION = ZOO / "translation"
SENTENCES = 80


@cache
def translator() -> Target:
    return load_target(path=str(TRANSLATION / "target"), dtype="float32", device="cpu", attention="sdpa", context=None)


@cache
def sentences() -> list[Text]:
    return list(GrammarPairs(split="held_out", size=1000, seed=0).texts())[:SENTENCES]


@cache
def sources() -> list[list[int]]:
    return [translator().tokenizer(sentence.text)["input_ids"] for sentence in sentences()]


@cache
def ending() -> Stopping:
    return Stopping(max_new_tokens=64, eos_ids=(translator().tokenizer.eos_token_id,))


@cache
def translations() -> list[list[int]]:
    plain = Autoregressive(target=translator(), sampling=GREEDY)
    return plain.generate(sources(), stopping=ending(), seeds=[0] * SENTENCES).tokens


@pytest.mark.slow
def test_the_translation_target_writes_german():
    claimed = json.loads((TRANSLATION / "provenance.json").read_text())
    assert claimed["target"]["quality/bleu"] >= 90
    written = [translator().tokenizer.decode(tokens, skip_special_tokens=True) for tokens in translations()]
    assert quality(written, [sentence.reference for sentence in sentences()])["quality/bleu"] >= 90
    sizes = [claimed[f"drafter_{size}"] for size in ("small", "base", "large")]
    for measure in ("parameters", "alpha"):
        assert [each[measure] for each in sizes] == sorted(each[measure] for each in sizes)


@pytest.mark.slow
def test_the_translation_target_writes_what_hugging_face_has_it_write():
    theirs = HuggingFaceGenerate(target=translator(), sampling=GREEDY)
    some = range(0, SENTENCES, 4)
    got = [theirs.generate([sources()[i]], stopping=ending(), seeds=[0]).tokens[0] for i in some]
    found = differences(translator(), [sources()[i] for i in some], [translations()[i] for i in some], got)
    assert within_float32(found, sum(map(len, got))), found


@pytest.mark.slow
@pytest.mark.parametrize("size", ["small", "base", "large"])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_translations_with_each_drafter_are_the_targets_own(size, batch_size):
    path = str(TRANSLATION / f"drafter_{size}")
    model = load_draft_model(path=path, dtype="float32", attention="sdpa")
    drafter = SmallTransformer(translator(), model=model)
    got = decoded_with(translator(), drafter, sources()[:40], ending(), batch_size)
    found = differences(translator(), sources()[:40], translations()[:40], got)
    assert within_float32(found, sum(map(len, got))), found


CORRECTOR = ZOO / "typo_corrector"


@pytest.mark.slow
@pytest.mark.parametrize("name, batch_size", [("target", 8), ("shallow", 1)])
def test_typos_are_corrected_with_and_without_copies_of_the_source(name, batch_size):
    path = str(CORRECTOR / name)
    target = load_target(path=path, dtype="float32", device="cpu", attention="sdpa", context=None)
    pairs = list(MisspeltSentences(split="held_out", size=24, sentences=1, rate=0.2, seed=0).texts())
    sources = [target.tokenizer(pair.text)["input_ids"] for pair in pairs]
    stopping = Stopping(max_new_tokens=64, eos_ids=(target.tokenizer.eos_token_id,))
    plain = Autoregressive(target=target, sampling=GREEDY)
    written = plain.generate(sources, stopping=stopping, seeds=[0] * len(sources)).tokens
    texts = [target.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in written]
    claimed = json.loads((CORRECTOR / "provenance.json").read_text())[name]["quality/exact"]
    assert abs(quality(texts, [pair.reference for pair in pairs])["quality/exact"] - claimed) < 30
    got = decoded_with(target, InputCopy(target, max_ngram=3), sources, stopping, batch_size)
    found = differences(target, sources, written, got)
    assert within_float32(found, sum(map(len, got))), found
