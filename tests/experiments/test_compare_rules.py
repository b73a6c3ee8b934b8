"""Rules on the same drafts: what they expect is what decoding gives, and the table tells which is better."""

import json
import sys

import pytest
import torch

from experiments import compare_rules
from experiments.proof.tiny_drafters import tiny_factory
from framework.conformance.tiny_models import save_tiny, tiny_target
from framework.core.sampling import Sampling
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed

PROMPTS = [[1 + row, 2, 3] for row in range(8)]
STOPPING = Stopping(max_new_tokens=24)


def scored(drafter: str, rules: list[str], *, seeds: int = 4) -> list[compare_rules.Scores]:
    target = tiny_target(vocabulary=12)
    built = tiny_factory(drafter, 12)(target=target)
    return compare_rules.score_rules(
        target, built, rules, gamma=3, sampling=Sampling(), prompts=PROMPTS,
        stopping=STOPPING, first_seed=0, seeds=seeds,
    )  # fmt: skip


@pytest.mark.slow
@torch.no_grad()
def test_what_a_rule_expects_is_what_decoding_gives():
    """8 x 40 rows of some 12 rounds: within 5 standard errors of tokens per round, which is below 1e-6 by chance."""
    target = tiny_target(vocabulary=12)
    drafter, rule = tiny_factory("small_transformer", 12)(target=target), compare_rules.rules()["speculative_sampling"]
    engine = Engine(target=target, drafter=drafter, verifier=rule, gamma_policy=Fixed(gamma=3), sampling=Sampling())
    tallies = [
        engine.generate(PROMPTS, stopping=STOPPING, seeds=list(range(8 * seed, 8 * seed + 8))).tally
        for seed in range(40)
    ]
    measured = sum(float(tally.committed) for tally in tallies) / sum(tally.num_rounds for tally in tallies)
    found = scored("small_transformer", ["speculative_sampling"], seeds=40)
    expected = [scores.tokens["speculative_sampling"] for scores in found]
    # Tokens of a round spread over 0 to 4: a standard deviation of 2 at most. A row's last draft is cut where its
    # budget ends, for the expectation as for the draws.
    error = 2 / sum(tally.num_rounds for tally in tallies) ** 0.5
    assert abs(measured - sum(expected) / 40) < 5 * error


@pytest.mark.slow
def test_block_is_never_behind_token_by_token_on_the_same_drafts():
    found = scored("small_transformer", ["speculative_sampling", "block"])
    for scores in found:
        assert scores.tokens["block"] >= scores.tokens["speculative_sampling"] - 1e-9
    assert sum(scores.tokens["block"] - scores.tokens["speculative_sampling"] for scores in found) > 1e-3


@pytest.mark.slow
def test_the_optimum_is_the_overlap_of_one_draft_and_above_every_rule_of_several():
    """Speculative sampling is optimal for one draft; 8 x 8 rows: within 5 standard errors, 0.5 / sqrt(rounds)."""
    (one,) = scored("small_transformer", ["speculative_sampling"], seeds=1)
    assert one.kept_at_depth_1["speculative_sampling"] == pytest.approx(one.optimum, abs=0.2)
    several = scored("transformer_tree", ["recursive_rejection", "traversal"], seeds=8)
    for rule in ("recursive_rejection", "traversal"):
        below = [scores.optimum - scores.kept_at_depth_1[rule] for scores in several]
        assert sum(below) / len(below) > -5 * 0.5 / (8 * 8 * 8) ** 0.5


@pytest.mark.slow
def test_the_command_prints_and_keeps_its_table(tmp_path, monkeypatch, capfd):
    save_tiny(tmp_path / "target", seed=1)
    save_tiny(tmp_path / "drafter", seed=2)
    (tmp_path / "prompts.txt").write_text("ab ca ba\n\nba ba ca\n")
    row = "{drafter: small_transformer, options: {}, temperature: 1, gamma: 2, rules: [speculative_sampling, block]}"
    arguments = [
        "target=pretrained", f"target.path={tmp_path}/target", "target.dtype=float32", "device=cpu", f"rows=[{row}]",
        f"drafters.small_transformer.model.path={tmp_path}/drafter", "prompts=plain_text", "prompts.count=null",
        f"prompts.source.path={tmp_path}/prompts.txt", "prompts.source.split_on=paragraph", "max_new_tokens=6",
        "seeds=2", f"hydra.run.dir={tmp_path}/out",
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["compare_rules", *arguments])
    compare_rules.main()
    rows = json.loads((tmp_path / "out" / "rules.json").read_text())
    assert [row["rule"] for row in rows] == ["speculative_sampling", "block"]
    assert rows[0]["gain"] is None and rows[1]["gain"] == pytest.approx(rows[1]["expected"] - rows[0]["expected"])
    assert "block" in capfd.readouterr().out and "| block |" in (tmp_path / "out" / "rules.md").read_text()


ROW = {"drafter": "small_transformer", "options": "{}", "temperature": 1, "gamma": 2, "rules": "[block]"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["seeds=1"], "seeds is 1; allowed: a whole number from 2"),
        (["threads=0"], "threads is 0; allowed"),
        (["rows=[]"], "rows is []; allowed: a list of rows"),
        ({"drafter": "foo"}, "rows.1.drafter is 'foo'; allowed: small_transformer, transformer_tree, medusa"),
        ({"options": "{foo: 1}"}, "rows.1.options is {'foo': 1}; allowed: some of model"),
        ({"options": None}, "rows.1 is {'drafter'"),
        ({"rules": "[]"}, "rows.1.rules is []; allowed: a list of"),
        ({"rules": "[block, foo]"}, "rows.1.rules is ['block', 'foo']; allowed: a list of"),
        ({"rules": "block"}, "rows.1.rules is 'block'; allowed: a list of"),
        ({"gamma": 0}, "rows.1.gamma is 0; allowed"),
        ({"temperature": -1}, "rows.1.temperature is -1; allowed: 0, or"),
    ],
    ids=str,
)
def test_what_is_wrong_is_told_before_a_model_is_loaded(tmp_path, monkeypatch, capfd, wrong, says):
    given = wrong if isinstance(wrong, list) else [rows_of(ROW, ROW | wrong)]
    assert says in stderr_of(monkeypatch, capfd, tmp_path, "target=pretrained", "target.path=/nowhere", *given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"drafter": "transformer_tree", "options": "{branching: [2]}"}, "rows.1.rules: verifier=block"),
        ({"drafter": "transformer_tree", "options": "{branching: [2, 2, 2]}"}, "rows.1.gamma: the drafter's tree"),
        (
            {"drafter": "transformer_tree", "options": "{children: many}"},
            "rows.1.options.children is 'many'; allowed",
        ),
        ({"options": "{model: {path: /nowhere}}"}, "rows.1.options.model.path is '/nowhere'"),
    ],
    ids=str,
)
def test_every_row_is_tried_before_anything_is_decoded(tmp_path, monkeypatch, capfd, row, says):
    monkeypatch.setattr(compare_rules, "score_rules", None)
    assert says in stderr_of(monkeypatch, capfd, tmp_path, rows_of(ROW, ROW | row))


def rows_of(*rows: dict) -> str:
    """As an override; what is None is left out."""
    shown = [", ".join(f"{key}: {value}" for key, value in row.items() if value is not None) for row in rows]
    return "rows=[" + ", ".join(f"{{{each}}}" for each in shown) + "]"


def stderr_of(monkeypatch, capfd, tmp_path, *arguments: str) -> str:
    """What a run that fails says, on one line."""
    monkeypatch.setattr(sys, "argv", ["compare_rules", *arguments, "device=cpu", f"hydra.run.dir={tmp_path}/out"])
    with pytest.raises(SystemExit):
        compare_rules.main()
    shown = capfd.readouterr().err
    assert "Traceback" not in shown
    return shown
