"""The Python interface: what its document shows runs as it stands, and what it returns is what the loop did."""

import itertools
import json
import re
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from experiments.api import Pair, load_pair
from experiments.reporting.token_colours import DARK, LIGHT, page_rules
from framework.conformance.tiny_models import save_tiny
from framework.decoding.autoregressive import Autoregressive

ROOT = Path(__file__).parents[2]
GREEDY = ("drafter=prompt_lookup", "sampling.temperature=0", "gamma.gamma=3", "max_new_tokens=24")


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair(*GREEDY)


def test_the_document_runs_as_it_stands(capsys):
    namespace: dict = {}
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python_api.md").read_text(), re.DOTALL)
    lines = [line for line in snippets[0].splitlines() if line]
    assert len(lines) <= 5
    for snippet in snippets:
        exec(snippet, namespace)
    printed = capsys.readouterr().out
    assert "tokens were drafted" in printed
    assert 0 < namespace["completion"].alpha < 1 < namespace["completion"].tau
    assert namespace["total"].num_rounds > 3 and len(snippets) >= 5


def test_the_notebook_runs_and_holds_what_it_printed(capsys):
    text = (ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8")
    assert str(ROOT) not in text and not re.search(r"/(home|root|Users|work|tmp)/", text) and len(text) < 20_000
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    namespace: dict = {}
    for cell in cells:
        exec("".join(cell["source"]), namespace)
        printed = "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")
        assert len(capsys.readouterr().out.splitlines()) == len(printed.splitlines())
    assert namespace["completion"].tau > 1 and len(cells) > 4


def test_greedy_text_and_passes_are_those_of_plain_decoding(pair):
    prompt = "import os\nimport sys\nimport "
    completion = pair.generate(prompt)
    tokenizer = pair.target.tokenizer
    plain = Autoregressive(target=pair.target, sampling=pair.engine.sampling).generate(
        [tokenizer(prompt)["input_ids"]], stopping=pair.stopping, seeds=[0]
    )
    assert [[token.id for token in completion.tokens]] == plain.tokens
    assert completion.text == tokenizer.decode(plain.tokens[0]) and str(completion) == prompt + completion.text
    assert completion.finish_reason == "length"
    assert completion.target_passes < len(completion.tokens) - 1


def test_producers_agree_with_the_counts():
    pair = load_pair("drafter=prompt_lookup", "gamma.gamma=3")
    completion = pair.generate("def f(x):\n    return x\n\ndef g(x):\n    return x\n", max_new_tokens=60)
    made = [token.producer for token in completion.tokens]
    accepted, tested = sum(completion.tally.accepted_by_position), sum(completion.tally.tested_by_position)
    assert made.count("accepted") == accepted > 0
    assert made.count("replaced") == tested - accepted > 0  # a chain loses at most one node a round
    assert len(made) - made.count("accepted") == 1 + completion.target_passes
    assert completion.alpha == accepted / tested


def test_a_stream_grows_into_what_generate_returns(pair):
    lengths, texts = [], []
    for completion in pair.stream("import os\nimport sys\n"):
        lengths.append(len(completion.tokens))
        texts.append(completion.text)
    assert lengths == sorted(set(lengths)) and lengths[0] == 1
    assert all(whole.startswith(part) for part, whole in itertools.pairwise(texts))
    assert completion.tokens == pair.generate("import os\nimport sys\n").tokens


def test_what_is_behind_a_stop_string_is_never_shown():
    pair = load_pair(*GREEDY, "stop_strings=['\n']")
    *earlier, completion = [each.text for each in pair.stream("import os\nimport sys\nimport ")]
    assert completion.count("\n") == 1 and all("\n" not in text for text in earlier)


def test_it_goes_on_beside_whoever_else_uses_hydra():
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.2"):
        theirs = GlobalHydra.instance().hydra
        load_pair(*GREEDY)
        assert GlobalHydra.instance().hydra is theirs
        assert compose("measure", ["drafter=ngram"]).drafter.order == 4
    load_pair(*GREEDY)
    assert not GlobalHydra.instance().is_initialized()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("gamma.gamma=-1", "gamma.gamma is -1"),
        ("sampling.top_p=2", "sampling.top_p is 2"),
        ("max_new_tokens=0", "max_new_tokens is 0"),
        ("engine.compile=perhaps", "engine.compile is 'perhaps'"),
        ("verifier=k_seq", "verifier"),
        ("prompts.chat=true", "prompts.chat is True"),
    ],
)
def test_what_is_wrong_is_said_with_its_key(wrong, says):
    drafter = "drafter=transformer_tree" if wrong == "verifier=k_seq" else "drafter=prompt_lookup"
    with pytest.raises(ValueError, match=re.escape(says)):
        load_pair(drafter, wrong)


def test_a_notebook_gets_the_text_with_its_colours_and_no_markup_of_the_model_s(pair):
    completion = pair.generate("<b>&", max_new_tokens=8)
    shown = completion._repr_html_()
    assert "&lt;b&gt;&amp;" in shown and "<b>" not in shown
    assert shown.count('title="') == len(completion.tokens) and completion.in_words in shown
    # In the page's own shades.
    assert all(LIGHT[token.producer].background in shown for token in completion.tokens)
    assert all(colours.background in page_rules() for palette in (LIGHT, DARK) for colours in palette.values())


def test_an_encoder_decoder_model_reads_a_prompt_as_its_source(tmp_path):
    save_tiny(tmp_path / "t5", family="t5", vocabulary=30)
    pair = load_pair("target=pretrained", f"target.path={tmp_path / 't5'}", "target.dtype=float32", *GREEDY)
    assert len(pair.generate("ab c").tokens) == 24
