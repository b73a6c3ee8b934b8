"""References replayed: the loop counts what their text alone decides."""

import sys
from pathlib import Path

import pytest

from drafters.input_copy import InputCopy
from experiments import replay
from framework.conformance.scripted_model import ScriptedModel
from framework.conformance.tiny_models import save_tiny, tiny_target
from framework.core.sampling import Sampling
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.models.target import Target
from framework.verifiers.speculative_sampling import SpeculativeSampling


def test_the_answers_come_out_in_the_passes_that_their_text_allows() -> None:
    """Also of two prompts at once. The first answer is its prompt with one token changed: its first token is found in
    the prompt, the copy is lost at the change, and one token later there is a place again."""
    answers = {(9, 5, 6, 7, 8, 4): [5, 6, 3, 8, 4], (2, 1): [7]}
    tiny = tiny_target()
    model = ScriptedModel(answers, end=0, vocabulary_size=50, context=100)
    engine = Engine(
        target=Target(model, tiny.tokenizer, 50, ""),  # type: ignore[arg-type]
        drafter=InputCopy(tiny, max_ngram=3),
        verifier=SpeculativeSampling(),
        gamma_policy=Fixed(gamma=4),
        sampling=Sampling(temperature=0),
    )
    stopping = Stopping(max_new_tokens=20, eos_ids=(0,))
    for prompts in (list(answers), [next(iter(answers))]):
        generation = engine.generate(list(map(list, prompts)), stopping=stopping, seeds=list(range(len(prompts))))
        assert generation.tokens == [[*answers[prompt], 0] for prompt in prompts]
    # 5 with the prompt; 6 accepted and 3 instead of 7; 8 without a draft; 4 accepted and the end.
    assert generation.tally.accepted.sum(0).tolist() == [1, 2, 0, 0, 0] and generation.tally.committed == 5


@pytest.mark.slow
def test_the_command_prints_a_row_per_drafter_and_rate(tmp_path: Path, monkeypatch, capsys) -> None:
    save_tiny(tmp_path / "target", seed=1)
    (tmp_path / "argparse.py").write_text("".join(f"abcdef_{i} = fedcba\n" for i in range(200)))
    arguments = ["target=pretrained", f"target.path={tmp_path}/target", "target.dtype=float32", "device=cpu",
                 f"prompts.source.folder={tmp_path}", "prompts.source.split=train", "prompts.source.lines=3",
                 "vary.values=[0.0,1.0]", "max_new_tokens=20", f"hydra.run.dir={tmp_path}/out"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["replay", *arguments])
    replay.main()
    rows = (tmp_path / "out" / "table.md").read_text().splitlines()[2:]
    assert [row.split(" | ")[:2] for row in rows] == [
        [f"| {rate}", drafter]
        for rate in ("0.0", "1.0")
        for drafter in ("input_copy", "prompt_lookup", "suffix_lookup")
    ]
    tau = [float(row.split(" | ")[3]) for row in rows]
    assert tau[0] > tau[3], "a text with typos is copied less well"
    deeper = [entry.replace("vary.values=[0.0,1.0]", "vary.values=[1,8]") for entry in arguments] + [
        "vary.key=gamma.gamma"
    ]
    monkeypatch.setattr(sys, "argv", ["replay", *deeper])
    replay.main()
    rows = (tmp_path / "out" / "table.md").read_text().splitlines()[2:]
    assert float(rows[3].split(" | ")[3]) > 2 >= float(rows[0].split(" | ")[3]), "what is varied counts"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+drafter@drafters.other=uniform_random", "drafters.other drafts on the device, or a tree; allowed: "),
        ("gamma=auto", "gamma is a policy that adapts; allowed: fixed, "),
        ("vary.values=[]", "allowed: a key and, as values, a list of its values; or vary=null"),
        ("vary.key=no.such", "vary.key is 'no.such', which this config does not have; allowed: "),
    ],
)
def test_what_cannot_be_replayed_is_said(tmp_path: Path, monkeypatch, capsys, override: str, message: str) -> None:
    save_tiny(tmp_path / "target", seed=1)
    arguments = ["target=pretrained", f"target.path={tmp_path}/target", "target.dtype=float32", "device=cpu",
                 "prompts.count=1", "vary.values=[0.0]", "max_new_tokens=20",
                 f"hydra.run.dir={tmp_path}/out"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["replay", *arguments, override])
    with pytest.raises(SystemExit):
        replay.main()
    assert message in " ".join(capsys.readouterr().err.split())
