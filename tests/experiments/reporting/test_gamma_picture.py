"""Gamma policies in a picture: who stands in a panel, in what order, and what the oracle is taken of."""

import pytest

from experiments.reporting.plots.gamma_picture import policy_panels
from experiments.reporting.plots.pictures import draw_pictures
from experiments.results.record import Record
from experiments.results.records import group_records


def record(policy: str, speed: float, oracle: float | None, *, drafter: str = "ngram", gamma: int = 8) -> Record:
    point = {"drafter": drafter, "gamma_policy": policy, "gamma": gamma, "temperature": 0, "batch_size": 1}
    metrics = {"speedup/measured": speed - 0.1, "speedup/zero_overhead": speed, "speedup/oracle_gamma": oracle,
               "tau": 2.0, "gamma/mean": 3.0}  # fmt: skip
    return Record(name=f"{drafter}-{policy}-{gamma}", point=point, metrics=metrics)


RECORDS = [
    record("heuristic", 1.4, 1.8),
    record("fixed", 1.2, 1.7, gamma=4),
    record("fixed_8", 1.1, 2.1),
    record("bandit", 1.3, None),  # in a batch there is no oracle
    record("fixed", 2.0, 2.5, drafter="medusa", gamma=4),
    record("fixed", 1.9, 2.6, drafter="medusa", gamma=2),  # one policy, twice
]


def test_a_panel_has_the_policies_of_a_drafter_and_the_highest_oracle() -> None:
    (panel,) = policy_panels(group_records(RECORDS))
    assert panel.drafter == "ngram" and panel.oracle == 2.1
    assert [each.point["gamma_policy"] for each in panel.records] == ["heuristic", "fixed", "fixed_8"]
    assert [label.split()[0] for label in panel.labels] == ["heuristic", "fixed", "fixed_8"]


@pytest.mark.slow
def test_it_is_drawn_where_there_are_policies(tmp_path) -> None:
    assert tmp_path / "gamma_policies.png" in draw_pictures(RECORDS, tmp_path)
    assert not (set(draw_pictures(RECORDS[-2:], tmp_path / "few")) & {tmp_path / "few" / "gamma_policies.png"})
