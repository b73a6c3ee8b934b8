"""Profiles of rounds: what is measured, that it is measured once, and for which generations it is used again."""

import json
from dataclasses import replace

import pytest
import torch

from drafters.prompt_lookup import PromptLookup
from experiments.measurement import round_timing
from experiments.measurement.plan import Batch
from experiments.measurement.round_timing import distinct_gammas, measure_rounds, profile_identity, provide_profile
from experiments.proof.tiny_drafters import tiny_factory
from experiments.results import round_profiles
from experiments.results.cache_folder import FOLDER, cache_folder
from experiments.results.round_profiles import file_of, load_profile
from framework.conformance.tiny_models import tiny_target
from framework.core.sampling import Sampling
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.auto import Auto
from framework.gamma_policies.fixed import Fixed
from framework.gamma_policies.round_profile import RoundProfile

STOPPING = Stopping(max_new_tokens=24)
BATCH = Batch(number=0, rows=[0], prompts=[[5, 6, 7, 8, 5, 6]], seeds=[0])
OPTIONS = [{"max_ngram": 3}, None]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return tmp_path


def auto(candidates: list[int]) -> Auto:
    return Auto(candidates=candidates, margin=0.03, most_loss=0.02, prior_weight=6, forgetting=0.95, profile=None)


def engine(target=None, *, candidates=(0, 1, 2), temperature: float = 0, name: str = "small_transformer") -> Engine:
    target = target or tiny_target()
    drafter = tiny_factory(name, target.vocabulary_size)(target=target)
    sampling = Sampling(temperature=temperature)
    return Engine(target=target, drafter=drafter, gamma_policy=auto(list(candidates)), sampling=sampling)


def provided(built: Engine, batch: Batch = BATCH, options=OPTIONS) -> RoundProfile | None:
    provide_profile(built, [batch], stopping=STOPPING, options=options)
    return built.gamma_policy.profile


@pytest.fixture
def by_gamma(monkeypatch) -> dict[int, float]:
    """Milliseconds that the rounds of an engine take by gamma, by the clock of the measurement; 0.5 more to restart."""
    took, now, before = {0: 2.0, 1: 3.0, 2: 4.5}, [0.0], [0]
    own = Engine.round

    def timed(self, decoding, **options):
        readout = own(self, decoding, **options)
        gamma = readout.num_nodes
        now[0] += (took[gamma] + 0.5 * (gamma > 0 and before[0] == 0)) / 1000
        before[0] = gamma
        return readout

    monkeypatch.setattr(Engine, "round", timed)
    monkeypatch.setattr(round_timing.time, "perf_counter", lambda: now[0])
    return took


def test_times_of_rounds_and_acceptance_are_those_of_generations(by_gamma) -> None:
    built = engine()
    profile = measure_rounds(built, [BATCH], [0, 1, 2], STOPPING)
    assert profile.round_ms == pytest.approx(by_gamma) and profile.restart_ms == pytest.approx(0.5)
    always = built.target, built.drafter
    tally = Engine(target=always[0], drafter=always[1], gamma_policy=Fixed(gamma=1), sampling=Sampling(temperature=0))
    counted = tally.generate(BATCH.prompts, stopping=STOPPING, seeds=[0]).tally.metrics()["alpha/empirical"]
    assert len(profile.acceptance) == 2 and abs(profile.acceptance[0] - counted) < 0.35
    assert isinstance(built.gamma_policy, Auto)  # its own policy again


def test_the_uniforms_of_a_run_are_not_used(monkeypatch) -> None:
    """Otherwise a run's gammas would depend on uniforms that its later tokens are drawn with."""
    seen, own = [], Engine.begin
    monkeypatch.setattr(
        Engine, "begin", lambda self, *args, **given: seen.append(given["seeds"]) or own(self, *args, **given)
    )
    provided(engine(temperature=1))
    assert seen and all(seeds != BATCH.seeds for seeds in seen)


def test_a_drafter_that_finds_nothing_has_no_times_and_is_measured_again(folder) -> None:
    target = tiny_target()
    drafter = PromptLookup(target, max_ngram=30, min_ngram=30, match="last")
    built = Engine(target=target, drafter=drafter, gamma_policy=auto([0, 2]), sampling=Sampling(temperature=0))
    assert list(provided(built).round_ms) == [0] and built.gamma_policy.usable == [0]
    assert list(folder.rglob("*.json")) == []


def test_rounds_are_measured_once_per_pair_and_setting(folder, monkeypatch, capfd) -> None:
    first = provided(engine())
    assert (
        "measuring rounds of SmallTransformer at T=0, gamma 0, 1, 2; later runs reuse the times"
        in capfd.readouterr().err
    )
    monkeypatch.setattr(round_timing, "measure_rounds", lambda *_: pytest.fail("measured again"))
    again = engine()
    assert provided(again) == first and capfd.readouterr().err == ""
    (file,) = folder.rglob("*.json")
    assert file.parent.name == again.target.fingerprint and file.name.startswith("SmallTransformer-")


def changed(what: str) -> tuple[Engine, Batch, object]:
    """An engine, batch and options that differ in one thing from those of the first measurement."""
    return {
        "target": (engine(tiny_target(seed=3)), BATCH, OPTIONS),
        "drafter": (engine(name="layer_skip"), BATCH, OPTIONS),
        "options": (engine(), BATCH, [{"max_ngram": 2}, None]),
        "batch size": (engine(), replace(BATCH, rows=[0, 1], prompts=BATCH.prompts * 2, seeds=[0, 1]), OPTIONS),
        "temperature": (engine(temperature=1), BATCH, OPTIONS),
        "candidates": (engine(candidates=(0, 1)), BATCH, OPTIONS),
        "threads": (engine(), BATCH, OPTIONS),
        "version": (engine(), BATCH, OPTIONS),
        "source": (engine(), BATCH, OPTIONS),
        "kernels": (engine(), BATCH, OPTIONS),
        "machine": (engine(), BATCH, OPTIONS),
    }[what]


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    ["target", "drafter", "options", "batch size", "temperature", "candidates", "threads", "version", "source",
     "kernels", "machine"],
)  # fmt: skip
def test_another_pair_setting_or_machine_does_not_use_it(what: str, monkeypatch) -> None:
    built = engine()
    identity = profile_identity(built, OPTIONS, BATCH, STOPPING)
    round_profiles.store_profile(identity, RoundProfile({0: 1.0, 1: 2.0, 2: 3.0}, 0, [0.5]))
    assert load_profile(profile_identity(built, OPTIONS, BATCH, STOPPING)) is not None
    other, batch, options = changed(what)
    facts = round_profiles.machine(torch.device("cpu"))
    if what == "threads":
        monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    elif what == "source":
        monkeypatch.setattr(round_profiles, "source_version", lambda part: "edited")
    elif what == "kernels":
        monkeypatch.setattr(round_profiles, "_version_of_kernels", lambda: "edited")
    elif what == "version":
        monkeypatch.setattr(round_profiles, "versions", lambda *names: dict.fromkeys(names, "0"))
    elif what == "machine":
        monkeypatch.setattr(round_profiles, "machine", lambda device: facts | {"processor": "another"})
    assert load_profile(profile_identity(other, options, batch, STOPPING)) is None


def test_a_damaged_file_is_named_and_replaced(capfd) -> None:
    built = engine()
    identity = profile_identity(built, OPTIONS, BATCH, STOPPING)
    file = file_of(identity)
    file.parent.mkdir(parents=True)
    for content in ("{", "[]", json.dumps({"of": {}, "round_ms": {}})):
        file.write_text(content)
        profile = provided(built)
        (damaged, measuring) = capfd.readouterr().err.splitlines()
        assert f"{file} is not used (" in damaged and "measured again" in damaged and "measuring rounds" in measuring
        assert load_profile(identity) == profile


def test_a_folder_that_cannot_be_written_costs_a_line(folder, monkeypatch, capfd) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv(FOLDER, str(folder / "file"))
    assert provided(engine()) is not None
    assert "cannot be written (" in (err := capfd.readouterr().err) and f"set {FOLDER} to another folder" in err


def test_the_folder_is_the_users_cache_unless_it_is_named(tmp_path, monkeypatch) -> None:
    assert cache_folder() == tmp_path
    monkeypatch.delenv(FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert str(cache_folder()) == "/cache/outrider"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert str(cache_folder()) == "/home/somebody/.cache/outrider"


class Nodes:
    """A drafter with these nodes per gamma."""

    def __init__(self, nodes: dict[int, int], depth: int = 0):
        self.num_nodes, self.depth = nodes.__getitem__, depth


def test_gammas_of_equal_drafts_are_tried_once() -> None:
    gammas = [0, 1, 2, 4, 8]
    assert distinct_gammas(gammas, tiny_factory("prompt_lookup", 50)(target=tiny_target())) == gammas
    assert distinct_gammas(gammas, Nodes({1: 6, 2: 12, 4: 16, 8: 16})) == [0, 1, 2, 4]  # four heads
    assert distinct_gammas(gammas, Nodes(dict.fromkeys(gammas, 24), depth=3)) == [0, 4]  # grows three levels always
    assert distinct_gammas(gammas, Nodes(dict.fromkeys(gammas, 24), depth=8)) == [0, 8]


def test_short_generations_leave_out_gammas_that_do_not_fit() -> None:
    identity = profile_identity(engine(candidates=(0, 1, 2, 4)), OPTIONS, BATCH, Stopping(max_new_tokens=4))
    assert identity["gammas"] == [0, 1, 2]
