"""The workspace and the report that are saved to a W&B project."""

import fnmatch
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments import wandb_report
from tests.support.wandb_server import REPOSITORY, Wandb, environment, serving

# The command for a project that exists, then for one that does not.
SAVES = """
import sys
from experiments import wandb_report
for project in ("me/outrider", "me/nowhere"):
    sys.argv = ["wandb_report", f"project={project}", "group=gamma", "temperatures=[0.5]"]
    wandb_report.main()
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Wandb, subprocess.CompletedProcess[str]]:
    """The server after the command, and what the command printed."""
    pytest.importorskip("wandb_workspaces")
    folder, wandb = tmp_path_factory.mktemp("views"), Wandb()
    with serving(wandb) as address:
        done = subprocess.run([sys.executable, "-c", SAVES], cwd=folder, env=environment(folder, address),
                              capture_output=True, text=True, timeout=300)  # fmt: skip
    return wandb, done


def spec_of(wandb: Wandb, kind: str) -> dict[str, Any]:
    (view,) = (view for view in wandb.views if view["type"] == kind)
    assert (view["entityName"], view["projectName"], view["displayName"]) == ("me", "outrider", "Outrider, gamma")
    return view["spec"]


def values(node: Any, *keys: str) -> Iterator[Any]:
    """Values of these keys anywhere in a spec; the items of lists one by one."""
    for key, value in node.items() if isinstance(node, dict) else [(None, each) for each in node]:
        if key in keys:
            yield from value if isinstance(value, list) else [value]
        elif isinstance(value, dict | list):
            yield from values(value, *keys)


def shown_by(spec: dict[str, Any]) -> set[str]:
    """Names of everything that the panels of a view show."""
    keys = ("metrics", "xAxis", "yAxis", "accessor", "mediaKeys", "columnOrder")
    given = {name for name in values(spec, *keys) if isinstance(name, str)} - {"_step", "run:displayName"}
    return {re.sub(r"^(summary|config):|\.value$", "", name) for name in given}


@pytest.mark.slow
def test_a_workspace_and_a_report_are_saved_and_their_addresses_printed(saved: Any) -> None:
    wandb, done = saved
    assert [view["type"] for view in wandb.views] == ["runs", "project-view"]
    report, workspace = done.stdout.splitlines()
    assert re.fullmatch(r"report: http://\S+/me/outrider/reports/\S+--view1", report)
    assert re.fullmatch(r"workspace: http://\S+/me/outrider\?nw=\w+", workspace)


def test_the_panels_show_what_the_docs_list_and_runs_log(saved: Any) -> None:
    """`test_every_panel_of_the_docs_shows_what_is_logged` compares the docs with what runs log."""
    text = (REPOSITORY / "docs" / "wandb.md").read_text(encoding="utf-8")
    listed = [name for row in text.splitlines() if row.startswith("|") for name in re.findall(r"`(\S+?)`", row)]
    for kind in ("runs", "project-view"):
        spec = spec_of(saved[0], kind)
        shown = shown_by(spec)
        assert '"overview/table"' in json.dumps(spec)
        assert {"speedup/measured", "position/alpha", "gamma", "overview/page", "training/loss"} <= shown
        assert [name for name in shown if not any(fnmatch.fnmatch(name, each) for each in listed)] == []


def test_a_report_has_a_section_per_temperature_that_shows_its_runs_only(saved: Any) -> None:
    blocks = spec_of(saved[0], "runs")["blocks"]
    headings = ["".join(child["text"] for child in block["children"]) for block in blocks if block.get("level") == 2]
    assert headings == ["Overview", "Temperature 0.5", "Training"]
    filters = [json.dumps(grid["metadata"]["runSets"][0]["filters"]) for grid in blocks if "metadata" in grid]
    kinds = [re.search(r'"(overview|measure|train)"', each)[1] for each in filters]  # type: ignore[index]
    assert kinds == ["overview", *["measure"] * 4, "train"]
    assert all('"gamma"' in each for each in filters), "the group"
    assert [("0.5" in each) for each in filters] == [False] + [True] * 4 + [False]


def test_a_workspace_shows_the_group_fastest_first(saved: Any) -> None:
    (runs,) = spec_of(saved[0], "project-view")["section"]["runSets"]
    assert '"gamma"' in json.dumps(runs["filters"])
    (key,) = runs["sort"]["keys"]
    assert key == {"key": {"section": "summary", "name": "speedup/measured"}, "ascending": False}


def test_a_project_that_is_missing_is_one_line(saved: Any) -> None:
    _, done = saved
    line = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "project is 'me/nowhere'" in line and "not found" in line
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("project=null", "project is None; allowed: entity/project"),
        ("project=outrider", "project is 'outrider'; allowed: entity/project"),
        ("temperatures=cold", "temperatures is 'cold'; allowed: a list of numbers >= 0"),
        ("temperatures=[-1]", "temperatures is [-1]; allowed: a list of numbers >= 0"),
        ("group=7", "group is 7; allowed: the name of a group of runs, or null"),
        ("group=gamma", "needs the package wandb-workspaces: pip install"),
    ],
)
def test_wrong_input_and_a_missing_package_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wandb_report, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["wandb_report", "project=me/outrider", wrong])
    with pytest.raises(SystemExit):
        wandb_report.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line and list(tmp_path.iterdir()) == []
