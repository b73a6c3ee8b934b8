"""A workspace and a report of a W&B project, with panels for the usual questions (docs/wandb.md)."""

from collections.abc import Callable, Sequence

import wandb
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws
from wandb_workspaces import expr
from wandb_workspaces.reports.v2.interface import BlockTypes, PanelTypes, UnknownPanel

from experiments.results.record import STAGES
from experiments.tracking.wandb_reading import PROBE_SECONDS
from experiments.tracking.wandb_sending import probe

NAME = "Outrider"
MEASURED = "speedup/measured"
PINNED = (
    "config:drafter.value",
    "config:verifier.value",
    "config:gamma.value",
    "config:temperature.value",
    f"summary:{MEASURED}",
    "summary:speedup/zero_overhead",
    "summary:efficiency",
    "summary:alpha/overlap",
    "summary:tau",
    "summary:c",
    "summary:ms_per_token",
)
PICTURES = ("speedups", "alpha_by_position", "round_time", "over_gamma", "over_batch_size", "gamma_policies")


def save_views(entity: str, project: str, *, group: str | None, temperatures: Sequence[float]) -> dict[str, str]:
    """Save a report and a workspace to a project on the server.

    Args:
        entity: user or team that owns the project.
        project: the project, which exists.
        group: group of the runs to show; None: all runs.
        temperatures: sampling temperatures; the report has a section for each, since they are not comparable.

    Returns:
        the addresses, by kind of view.

    Raises:
        ConnectionError: the server does not answer, rejects the login, or has no such project.
    """
    address = wandb.setup().settings.base_url
    try:
        probe(address, PROBE_SECONDS)
        # The report first, since it checks that the project exists.
        report = report_of(entity, project, group=group, temperatures=temperatures).save()
        workspace = workspace_of(entity, project, group=group).save()
        return {"report": report.url, "workspace": workspace.url}
    except Exception as error:  # the package raises Exception itself
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ConnectionError(f"project is '{entity}/{project}', and saving to {address} failed: {reason}") from error


def workspace_of(entity: str, project: str, *, group: str | None) -> ws.Workspace:
    """Workspace with a section of panels per question, and runs sorted by speedup."""
    return ws.Workspace(
        entity=entity,
        project=project,
        name=_titled(group),
        sections=[ws.Section(name=name, panels=panels(), is_open=True) for name, (_, panels) in SECTIONS.items()],
        settings=ws.WorkspaceSettings(max_runs=50),
        runset_settings=ws.RunsetSettings(
            filters=_filters(group),
            order=[expr.Ordering(expr.Summary(MEASURED), ascending=False)],
            pinned_columns=["run:displayName", *PINNED],
        ),
    )


def report_of(entity: str, project: str, *, group: str | None, temperatures: Sequence[float]) -> wr.Report:
    """Report with the overviews, the measurements at each temperature, and the trainings."""

    def grid(section: str, name: str, *filters: expr.FilterExpr) -> list[BlockTypes]:
        question, panels = SECTIONS[section]
        runs = wr.Runset(
            entity=entity,
            project=project,
            name=name,
            filters=[*_filters(group), *filters],
            order=[wr.OrderBy(wr.SummaryMetric(MEASURED), ascending=False)],
        )
        return [wr.P(question), wr.PanelGrid(runsets=[runs], panels=_placed(panels()))]

    of_kind = expr.Metric("JobType")
    blocks: list[BlockTypes] = [wr.H2("Overview"), *grid("Overview", "overviews", of_kind == "overview")]
    for temperature in temperatures:
        blocks.append(wr.H2(f"Temperature {temperature:g}"))
        at = (of_kind == "measure", expr.Config("temperature") == temperature)
        for section in ("Speedup", "Acceptance", "Time", "Sweeps"):
            blocks += [wr.H3(section), *grid(section, f"T={temperature:g}", *at)]
    blocks += [wr.H2("Training"), *grid("Training", "trainings", of_kind == "train")]
    title = _titled(group)
    return wr.Report(entity=entity, project=project, title=title, blocks=blocks, width="fluid")


def _titled(group: str | None) -> str:
    return f"{NAME}, {group}" if group else NAME


def _filters(group: str | None) -> list[expr.FilterExpr]:
    return [expr.Metric("Group") == group] if group else []


def _placed(panels: list[PanelTypes]) -> list[PanelTypes]:
    """The panels, two in a row of the report's 24 columns."""
    for number, panel in enumerate(panels):
        assert not isinstance(panel, UnknownPanel)
        panel.layout = wr.Layout(x=12 * (number % 2), y=8 * (number // 2), w=12, h=8)
    return panels


def _scatter(title: str, x: wr.Config | wr.SummaryMetric) -> wr.ScatterPlot:
    return wr.ScatterPlot(title=title, x=x, y=wr.SummaryMetric(MEASURED))


def _overview() -> list[PanelTypes]:
    return [
        wr.WeavePanelSummaryTable(table_name="overview/table"),
        wr.MediaBrowser(title="Pages", media_keys=["overview/page"], num_columns=1),
        *(wr.MediaBrowser(title=name, media_keys=[f"overview/{name}"], num_columns=1) for name in PICTURES),
    ]


def _speedup() -> list[PanelTypes]:
    ends = ("speedup/measured_low", "speedup/measured_high")
    return [
        wr.BarPlot(title="Speedup over plain decoding, with its repeats", metrics=[MEASURED, *ends]),
        wr.BarPlot(title="Milliseconds per token", metrics=["ms_per_token"]),
        _scatter("Measured against zero-overhead speedup", wr.SummaryMetric("speedup/zero_overhead")),
        _scatter("Measured against predicted speedup (Theorem 3.8)", wr.SummaryMetric("speedup/predicted")),
    ]


def _acceptance() -> list[PanelTypes]:
    return [
        wr.LinePlot(title="Acceptance by draft position", x="position/number", y=["position/alpha"]),
        wr.LinePlot(title="Tokens per target pass, by prompt", x="prompt/number", y=["prompt/tau"]),
        wr.BarPlot(title="Acceptance rate", metrics=["alpha/overlap", "alpha/empirical"]),
        wr.BarPlot(title="Tokens per target pass", metrics=["tau"]),
    ]


def _time() -> list[PanelTypes]:
    return [
        wr.BarPlot(
            title="Milliseconds of a round, by stage", metrics=[f"stage_ms_per_round/{stage}" for stage in STAGES]
        ),
        wr.BarPlot(title="Cost of a draft step in target passes", metrics=["c"]),
    ]


def _sweeps() -> list[PanelTypes]:
    columns: list[wr.Config | wr.SummaryMetric] = [
        wr.Config("gamma"),
        wr.Config("temperature"),
        *map(wr.SummaryMetric, ("alpha/empirical", "c", MEASURED)),
    ]
    return [
        _scatter("Speedup by gamma", wr.Config("gamma")),
        _scatter("Speedup by batch size", wr.Config("batch_size")),
        wr.ParallelCoordinatesPlot(
            title="Which settings matter", columns=[wr.ParallelCoordinatesPlotColumn(metric=each) for each in columns]
        ),
    ]


def _training() -> list[PanelTypes]:
    return [wr.LinePlot(title="Training loss", x="training/step", y=["training/loss"])]


# Sections by name: the question, and its panels, made anew for each view.
SECTIONS: dict[str, tuple[str, Callable[[], list[PanelTypes]]]] = {
    "Overview": ("Table, page and pictures of each comparison and sweep.", _overview),
    "Speedup": ("Which drafter is fastest, and does theory explain it?", _speedup),
    "Acceptance": ("How many draft tokens are accepted?", _acceptance),
    "Time": ("How is a round's time distributed?", _time),
    "Sweeps": ("Which settings are best?", _sweeps),
    "Training": ("Has a training converged?", _training),
}
