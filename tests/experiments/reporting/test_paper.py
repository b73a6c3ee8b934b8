"""The paper's tables with ours beside them."""

import itertools
import json

import pytest
from hydra import compose, initialize
from omegaconf import OmegaConf

from experiments.config.resolvers import register_resolvers
from experiments.reporting.paper import published
from experiments.reporting.paper.callback import TABLES, BesideThePaper
from experiments.reporting.paper.pictures import draw_figures
from experiments.reporting.paper.tables import KINDS, SIZES, table_1, table_2, table_3, table_4, table_5
from experiments.results.record import Record
from framework.metrics import theory

TASKS, TEMPERATURES = ("translation", "summaries"), (0, 1)
register_resolvers()


def record(task, temperature, drafter, gamma=5, alpha=0.5, speed=1.0, lenience=1.0):
    return Record.from_json(
        {
            "name": f"{task}-{drafter}-T{temperature}-g{gamma}-l{lenience}",
            "point": {"temperature": temperature, "gamma": gamma},
            "config": {"paper": {"task": task, "drafter": drafter}, "verifier": {"lenience": lenience}},
            "metrics": {
                "alpha/overlap": alpha,
                "alpha/empirical": alpha,
                "tau": theory.expected_tokens(alpha, gamma),
                "c": 0.1,
                "v": 1.5,
                "speedup/measured": speed,
                "speedup/predicted": theory.speedup(alpha, gamma, 0.1),
                "speedup/zero_overhead": 1.1 * speed,
                "quality/bleu": 90.0,
                "quality/chrf": 95.0,
                "divergence/total_variation": 0.01,
            },
        }
    )


ALPHA_OF = dict(zip(KINDS, (0.1, 0.2, 0.5, 0.6, 0.7), strict=True))
SPEED_OF = {"small": 1.6, "base": 1.4, "large": 1.1}
SWEEP = [
    record(task, temperature, drafter, gamma, ALPHA_OF[drafter], SPEED_OF[drafter] - 0.01 * abs(gamma - 5))
    for task, temperature, drafter, gamma in itertools.product(TASKS, TEMPERATURES, SIZES, (3, 5, 7))
]


@pytest.mark.parametrize("line", published.TABLE_1)
def test_table_1_is_what_the_theorems_give(line):
    assert round(theory.operations_factor(line.alpha, line.gamma, 0), 2) == line.operations
    assert round(theory.speedup(line.alpha, line.gamma, 0), 2) == line.speed


@pytest.mark.parametrize("line", published.TABLES_2_AND_4)
def test_the_expected_column_is_theorem_3_8_of_rounded_figures(line):
    assert abs(theory.speedup(line.alpha, line.gamma, line.c) - line.expected) <= 0.07


def test_what_the_paper_says_of_lenience_is_its_theorem():
    """At temperature 0, where the paper names its gamma."""
    for alpha, factor in zip(published.TABLE_5[0, "small"], published.TABLE_5_FACTORS[0], strict=True):
        assert abs(theory.speedup(alpha, 8, 0.015) - factor) <= 0.06


def test_the_fastest_gamma_stands_beside_the_published_line():
    for table in (table_2(SWEEP), table_4(SWEEP)):
        assert len(table.rows) == len(published.TABLES_2_AND_4)
        for row, line in zip(table.rows, published.TABLES_2_AND_4, strict=True):
            assert row.labels == {"task": line.task, "T": str(line.temperature), "drafter": line.drafter}
            assert row.compared["γ"] == (line.gamma, 5)
            assert row.compared["α"] == (line.alpha, ALPHA_OF[line.drafter])
    speeds = [row.compared["speedup"] for row in table_2(SWEEP).rows]
    assert speeds == [(line.measured, SPEED_OF[line.drafter]) for line in published.TABLES_2_AND_4]


def test_orders_are_told_as_they_are():
    notes = "\n".join(table_2(SWEEP).notes)
    assert notes.count("α rises with the drafter's size: yes") == 4
    assert "fastest is small (small 1.60, base 1.40, large 1.10); in the paper small" in notes
    points = itertools.product(TASKS, TEMPERATURES, SIZES)
    turned = [record(task, temperature, size, alpha=1 - ALPHA_OF[size]) for task, temperature, size in points]
    assert "\n".join(table_2(turned).notes).count("size: NO (small 0.500, base 0.400, large 0.300)") == 4


def test_table_1_tells_of_measured_points():
    row = table_1([record("translation", 0, "small", gamma=5, alpha=0.8)]).rows[-1]
    assert row.compared["speed"][1] == pytest.approx(3.69, abs=0.01)
    assert row.ours["tokens per target pass"] == pytest.approx(3.69, abs=0.01)


def test_table_3_has_every_kind():
    tasks = (*TASKS, "unconditional")
    table = table_3([record(*key, alpha=ALPHA_OF[key[2]]) for key in itertools.product(tasks, TEMPERATURES, KINDS)])
    assert [row.compared["α at T=0"][1] for row in table.rows] == [
        ALPHA_OF[row.labels["drafter"]] for row in table.rows
    ]
    assert "\n".join(table.notes).count("α rises from unigrams to large models: yes") == 6


def test_table_5_has_every_lenience():
    records = [
        record("translation", temperature, drafter, alpha=1 - 0.5 * lenience, lenience=lenience)
        for (temperature, drafter), lenience in itertools.product(published.TABLE_5, published.LENIENCES)
    ]
    table = table_5(records)
    assert [row.compared["α"][1] for row in table.rows] == [0.5, 0.75, 0.85, 0.95] * len(published.TABLE_5)
    assert "\n".join(table.notes).count("α rises as lenience falls: yes") == len(published.TABLE_5)


@pytest.mark.parametrize("make", [table_1, table_2, table_3, table_4, table_5])
def test_what_was_not_measured_is_a_dash(make):
    cells = make([]).cells()
    assert len({len(row) for row in cells}) == 1
    assert make is table_1 or any("–" in row for row in cells[1:])


@pytest.mark.parametrize("shows", [*TABLES, "figures"])
def test_what_a_sweep_leaves(shows, tmp_path, capsys):
    for number, each in enumerate(SWEEP):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "record.json").write_text(json.dumps(each.to_json()))
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}})
    BesideThePaper(shows=shows).on_multirun_end(config)
    assert (tmp_path / f"paper_{shows}.png").stat().st_size > 10_000
    assert f"paper_{shows}" in capsys.readouterr().out
    if shows != "figures":
        saved = json.loads((tmp_path / f"paper_{shows}.json").read_text())
        assert len(saved["rows"]) == len(TABLES[shows](SWEEP).rows)
        assert (tmp_path / f"paper_{shows}.md").read_text().startswith("# Table")


def test_figures_of_nothing_have_the_lines():
    assert len(draw_figures([]).axes[0].lines) == 5


def test_an_unknown_table_is_refused():
    with pytest.raises(ValueError, match="shows is 'table_6'; allowed: table_1"):
        BesideThePaper(shows="table_6")


@pytest.mark.parametrize(("task", "drafter"), [*itertools.product((*TASKS, "unconditional"), KINDS)])
def test_a_task_with_a_drafter_is_what_its_key_says(task, drafter):
    with initialize(version_base="1.3", config_path="../../../conf"):
        cfg = compose("measure", overrides=[f"+paper_task={task}", f"+paper_drafter={drafter}"])
    assert (cfg.paper.task, cfg.paper.drafter) == (task, drafter)
    if drafter in SIZES:
        assert cfg.drafter.model.path == cfg.paper.draft_models[drafter]
    else:
        assert OmegaConf.to_container(cfg.drafter.corpus) == OmegaConf.to_container(cfg.paper.corpus)


@pytest.mark.parametrize("study", ["paper_table1", "spec_bench"])
def test_a_study_says_where_its_sweeps_lie(study):
    with initialize(version_base="1.3", config_path="../../../conf"):
        cfg = compose("measure", overrides=[f"study={study}"], return_hydra_config=True)
    assert OmegaConf.to_container(cfg.hydra, resolve=False)["sweep"]["dir"].startswith(f"outputs/{study}/")
    assert "resuming" in cfg.hydra.runtime.choices["hydra/sweeper"]
