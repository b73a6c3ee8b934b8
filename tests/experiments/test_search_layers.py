"""The search for layers: its costs and its surrogate against second ways of computing, its budget, and its memory."""

import itertools
import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from drafters.layer_skip import LayerSkip
from experiments import search_layers
from experiments.reporting.plots.layer_pictures import alpha_that_pays, pareto_front
from experiments.tuning import layer_search
from experiments.tuning.layer_comparison import compare, decode_held_out, in_words, rivals_of
from experiments.tuning.layer_objectives import Evaluation, Measured, StepCosts, ZeroOverhead, engine_for, measure_costs
from experiments.tuning.layer_search import Search, all_sets, bits_of, evaluation_of, exhaust, uniform_sets
from experiments.tuning.optuna_study import Budget
from framework.conformance.tiny_models import save_tiny, tiny_target
from framework.core.sampling import Sampling
from framework.decoding.stopping import Stopping
from framework.drafting.layer_set import LayerSet, load_layer_set, save_layer_set
from framework.drafting.layer_skip_model import SubLayers
from framework.gamma_policies.fixed import Fixed
from framework.metrics import theory
from framework.models.pretrained import load_target, processors_of

CONF = Path(__file__).parents[2] / "conf"
PROMPTS = [[5, 6, 7, 8, 5, 6], [9], [3, 4], [1, 2, 1, 2, 1, 2, 1]]
COSTS = StepCosts(rest=0.1, attention=0.05, mlp=0.1, target_times=(1.0, 1.1, 1.2, 1.3))


@pytest.fixture
def cfg(tmp_path: Path) -> DictConfig:
    """The search of conf/search_layers.yaml on a tiny target of three layers; operations make it repeatable."""
    save_tiny(tmp_path / "target", context=256, num_hidden_layers=3)
    lines = [{"prompt": text} for text in ("def ab(x):", "return", "z", "while a")]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    overrides = [
        "target=pretrained", f"target.path={tmp_path / 'target'}", "target.dtype=float32", "device=cpu",
        "prompts=jsonl", "prompts@held_out=jsonl", f"folder={tmp_path / 'search'}",
        f"prompts.source.path={tmp_path / 'prompts.jsonl'}", f"held_out.source.path={tmp_path / 'prompts.jsonl'}",
        "gamma.gamma=3", "max_new_tokens=12", "trials=12", "minutes=null", "cost=operations",
    ]  # fmt: skip
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("search_layers", overrides)


# Costs


def test_a_step_costs_what_was_kept() -> None:
    """0.1 + 0.05 * attentions kept + 0.1 * MLPs kept."""
    assert COSTS.c(LayerSet(4, (), ())) == pytest.approx(0.7)
    assert COSTS.c(LayerSet(4, (1, 2, 3), (0,))) == pytest.approx(0.1 + 0.05 + 0.3)


def test_zero_overhead_speedup_is_the_best_gamma_of_eq_1_over_time() -> None:
    for alphas, c in itertools.product(([0.9, 0.8, 0.7], [0.5] * 3, [0.0] * 3, [1.0] * 3), (0.05, 0.5, 0.9)):
        speeds = {
            gamma: sum(alphas[gamma - 1] ** i for i in range(gamma + 1)) / (gamma * c + COSTS.target_times[gamma])
            for gamma in (1, 2, 3)
        }
        value, gamma = COSTS.zero_overhead(alphas, c)
        assert value == pytest.approx(max(speeds.values())) and speeds[gamma] == pytest.approx(value)


def test_counted_operations_add_up_for_every_set() -> None:
    """Solved from three sets, they hold for all others; the arithmetic of sub-layers is known by heart."""
    hidden, inner, heads, head, kv, vocabulary, layers = 32, 48, 4, 8, 2, 50, 3
    target = tiny_target(num_hidden_layers=layers)
    costs = measure_costs(target, PROMPTS, Sampling(), max_gamma=1, by="operations")
    assert costs.target_times == (1.0, 1.0)
    attention, mlp, output = 2 * hidden * head * (2 * heads + 2 * kv), 2 * 3 * hidden * inner, 2 * hidden * vocabulary
    assert costs.mlp / costs.rest == pytest.approx(mlp / output, rel=1e-6)
    # On top of the projections come scores and values, 2 * 2 * heads * head for a slot, which are not counted on a CPU.
    assert costs.attention / costs.rest == pytest.approx(attention / output, rel=1e-6)
    assert costs.c(LayerSet(layers, (), ())) == pytest.approx(1)


@pytest.mark.slow
def test_timed_costs_are_numbers_that_can_be_remembered() -> None:
    costs = measure_costs(tiny_target(), PROMPTS, Sampling(), max_gamma=2, by="time")
    assert len(costs.target_times) == 3 and min(costs.rest, costs.attention, costs.mlp) >= 0
    again = StepCosts.from_json(json.loads(json.dumps({**vars(costs)})))
    assert again == costs


# The surrogate


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0), Sampling(temperature=0.7, top_k=5)], ids=str)
def test_overlaps_are_those_of_the_real_loop(sampling: Sampling) -> None:
    """Fed the tokens of the target's own text, the drafter's distributions and the target's give the same overlaps."""
    target = tiny_target(num_hidden_layers=3, dtype=torch.float64)
    skip, gamma, rounds = LayerSet(3, (1,), (0, 2)), 3, 2
    surrogate = ZeroOverhead(target, PROMPTS, sampling, COSTS, rounds=rounds, seed=0)
    surrogate.overlaps(LayerSet(3, (0, 2), ()))  # another set before: what it wrote must not be seen
    got = surrogate.overlaps(skip)

    plain = continuations(target, PROMPTS, sampling, rounds * gamma)
    model = target.model.model
    clone = SubLayers(model).without(skip)
    rows = []
    for prompt, new in zip(PROMPTS, plain, strict=True):
        for number in range(1, rounds + 1):
            text = torch.tensor([prompt + new[: number * gamma]])
            p = sampling.probs(model(input_ids=text).logits[0, -gamma:])
            cache = model(input_ids=text[:, :-gamma], use_cache=True).past_key_values
            q = sampling.probs(clone(input_ids=text[:, -gamma:], past_key_values=cache).logits[0])
            rows.append(torch.minimum(p, q).sum(1))
    assert torch.allclose(got, torch.stack(rows), rtol=0, atol=1e-9)


def test_overlaps_are_with_the_processed_distribution() -> None:
    """With nothing skipped, q is the raw distribution of the target's own text."""
    raw = tiny_target(num_hidden_layers=3, dtype=torch.float64)
    options = {"repetition_penalty": 1.6, "no_repeat_ngram_size": 2, "forced_eos_token_id": 3, "min_new_tokens": 2}
    target = replace(raw, processors=processors_of(raw.model.model, options, vocabulary_size=50))
    sampling, gamma, rounds = Sampling(temperature=0.7), 3, 2
    got = ZeroOverhead(target, PROMPTS, sampling, COSTS, rounds=rounds, seed=0).overlaps(LayerSet(3, (), ()))
    expected = []
    for prompt, new in zip(PROMPTS, continuations(target, PROMPTS, sampling, rounds * gamma), strict=True):
        for place in range(rounds * gamma):
            text = torch.tensor([new[: place + 1]])
            logits = target.next_logits(prompt, text, max_new_tokens=rounds * gamma)[0]
            q = sampling.probs(raw.uncached(prompt + new[: place + 1])[-1])
            expected.append(torch.minimum(sampling.probs(logits), q).sum())
    assert torch.allclose(got.flatten(), torch.stack(expected), rtol=0, atol=1e-9)
    assert got.min() < 0.1, "the raw distribution gives ones"


def continuations(target, prompts, sampling, num_tokens):
    from framework.decoding.autoregressive import Autoregressive

    plain = Autoregressive(target=target, sampling=sampling)
    return plain.generate(prompts, stopping=Stopping(num_tokens), seeds=list(range(len(prompts)))).tokens


def test_a_judgement_is_eq_1_of_the_mean_overlap() -> None:
    target = tiny_target(num_hidden_layers=3)
    surrogate = ZeroOverhead(target, PROMPTS, Sampling(), COSTS, rounds=2, seed=0)
    skip = LayerSet(3, (1,), (0, 2))
    evaluation, by_depth = surrogate.evaluate(skip), surrogate.overlaps(skip).double().mean(0)
    assert evaluation.c == COSTS.c(skip)
    assert evaluation.alpha == pytest.approx(float(by_depth[: evaluation.gamma].mean()))
    expected = theory.expected_tokens(evaluation.alpha, evaluation.gamma)
    spent = evaluation.gamma * evaluation.c + COSTS.target_times[evaluation.gamma]
    assert evaluation.value == pytest.approx(expected / spent)


def test_skipping_nothing_overlaps_wholly() -> None:
    target = tiny_target(num_hidden_layers=3)
    evaluation = ZeroOverhead(target, PROMPTS, Sampling(), COSTS, rounds=2, seed=0).evaluate(LayerSet(3, (), ()))
    assert evaluation.alpha == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_the_real_loop_is_timed_and_counted() -> None:
    target = tiny_target(num_hidden_layers=3)
    policy, greedy = Fixed(gamma=2), Sampling(temperature=0)
    measured = Measured(
        target, PROMPTS, greedy, COSTS, gamma_policy=policy, max_new_tokens=10, repeats=2, seed=0
    )  # fmt: skip
    whole, little = measured.evaluate(LayerSet(3, (), ())), measured.evaluate(LayerSet.exit_after(1, 3))
    assert whole.alpha == 1 and little.alpha < 1 and whole.value > 0 and little.c < whole.c


# The search


class Known:
    """Every bit has a price of its own: the optimum is known, and skipping the first and the last bit pays."""

    direction = "maximize"

    def __init__(self, num_layers: int):
        self.prices = [0.3 if bit in (0, 2 * num_layers - 1) else -0.1 for bit in range(2 * num_layers)]
        self.evaluated: list[LayerSet] = []

    def evaluate(self, layer_set: LayerSet) -> Evaluation:
        self.evaluated.append(layer_set)
        value = sum(price * bit for price, bit in zip(self.prices, layer_set.bits, strict=True))
        return Evaluation(value=value, alpha=0.5, c=0.5, gamma=1)


def search_in(folder: Path, num_layers: int = 3, **settings) -> Search:
    return Search(folder, num_layers, **({"direction": "maximize", "made_of": {"a": 1}, "seed": 0} | settings))


@pytest.mark.slow
def test_it_finds_the_optimum_of_a_known_function(tmp_path: Path) -> None:
    """8 bits, 255 sets: 25 trials, 11 of them uniform skipping, which does not contain it."""
    objective, search = Known(4), search_in(tmp_path, 4)
    layer_search.run_search(search, objective, Budget(trials=25, minutes=None))
    best, value = exhaust(objective, 4)
    assert best == LayerSet(4, (0,), (3,)) and best not in uniform_sets(4) and value.value == 0.6
    assert LayerSet.from_bits(bits_of(search.best)) == best
    assert evaluation_of(search.best) == value


@pytest.mark.slow
def test_uniform_skipping_comes_first(tmp_path: Path) -> None:
    objective, search = Known(4), search_in(tmp_path, 4)
    layer_search.run_search(search, objective, Budget(trials=11, minutes=None))
    assert objective.evaluated == uniform_sets(4) and len(uniform_sets(4)) == 3 + 4 + 4


@pytest.mark.slow
def test_no_set_is_judged_twice_and_the_last_one_ends_the_search(tmp_path: Path) -> None:
    """Two layers have 15 sets that leave something; a Gaussian process alone would ask for the best again and again."""
    objective, search = Known(2), search_in(tmp_path, 2)
    layer_search.run_search(search, objective, Budget(trials=40, minutes=None))
    assert len(search.trials) == 15 and {each.bits for each in objective.evaluated} == {
        each.bits for each in all_sets(2)
    }
    assert search.is_exhausted


@pytest.mark.slow
def test_a_search_goes_on_where_it_stopped(tmp_path: Path) -> None:
    first, second = Known(3), Known(3)
    layer_search.run_search(search_in(tmp_path), first, Budget(trials=10, minutes=None))
    search = search_in(tmp_path)
    search.study.ask()  # a run that was killed leaves a trial behind
    layer_search.run_search(search_in(tmp_path), second, Budget(trials=14, minutes=None))
    assert len(search_in(tmp_path).trials) == 14
    assert not {each.bits for each in first.evaluated} & {each.bits for each in second.evaluated}
    assert search_in(tmp_path).remembered("costs", lambda: [1, 2]) == [1, 2]
    assert search_in(tmp_path).remembered("costs", lambda: [3]) == [1, 2]
    states = [trial.state for trial in search_in(tmp_path).study.trials]
    assert optuna.trial.TrialState.RUNNING not in states


def test_a_search_made_of_something_else_is_refused(tmp_path: Path) -> None:
    search_in(tmp_path)
    with pytest.raises(ValueError, match=r"folder is '.*', which holds a search with another a; set folder to"):
        search_in(tmp_path, made_of={"a": 2})


@pytest.mark.parametrize("content", [b"not a database", None], ids=["garbage", "torn"])
def test_what_is_no_search_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "search.sqlite"
    if content is None:
        layer_search.run_search(search_in(tmp_path), Known(3), Budget(trials=3, minutes=None))
        content = file.read_bytes()[: file.stat().st_size // 2]
    file.write_bytes(content)
    with pytest.raises(OSError, match=r"search\.sqlite holds no search .*; delete it to start over, or set folder"):
        search_in(tmp_path)


def test_minutes_end_a_search(tmp_path: Path) -> None:
    class Slow(Known):
        def evaluate(self, layer_set: LayerSet) -> Evaluation:
            time.sleep(0.05)
            return super().evaluate(layer_set)

    search = search_in(tmp_path)
    layer_search.run_search(search, Slow(3), Budget(trials=None, minutes=0.2 / 60))
    assert 1 <= len(search.trials) <= 4 and search.seconds >= 0.2


@pytest.mark.parametrize(
    ("trials", "minutes", "message"),
    [
        (None, None, "trials and minutes are both null"),
        (0, None, "trials is 0; allowed: a whole number >= 1, or null"),
        (10, -1, "minutes is -1; allowed: a number > 0, or null"),
        ("many", None, "trials is 'many'"),
    ],
)
def test_a_wrong_budget_is_named(trials, minutes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Budget(trials, minutes)


def test_all_sets_are_all_but_the_empty_one() -> None:
    sets = list(all_sets(3))
    assert len(sets) == len(set(sets)) == 4**3 - 1


# The comparison


def test_rivals_cost_the_same() -> None:
    found = LayerSet(8, (0, 1, 2), (5, 6))
    rivals = rivals_of(found, COSTS)
    same, whole = rivals["uniform, as many of each"], rivals["uniform, whole layers"]
    assert COSTS.c(same) == COSTS.c(found) and same != found
    assert whole.skip_attention == whole.skip_mlp
    every = [LayerSet.uniform(8, attention=n, mlp=n) for n in range(8)]
    assert abs(COSTS.c(whole) - COSTS.c(found)) == min(abs(COSTS.c(each) - COSTS.c(found)) for each in every)


def test_held_out_tau_is_that_of_the_real_loop() -> None:
    target, sampling, skip = tiny_target(num_hidden_layers=3), Sampling(), LayerSet(3, (1,), ())
    held_out = decode_held_out(target, skip, 2, PROMPTS, sampling, COSTS, max_new_tokens=12, seed=7)
    engine = engine_for(target, skip, Fixed(gamma=2), sampling)
    # With a fixed gamma a row's tokens do not depend on its batch, but a batch goes on until its last row is done.
    tallies = [
        engine.generate([prompt], stopping=Stopping(12), seeds=[7 + row]).tally for row, prompt in enumerate(PROMPTS)
    ]
    taus = [float(tally.committed) / float(tally.passes.sum()) for tally in tallies]
    spent = 2 * COSTS.c(skip) + COSTS.target_times[2]
    assert held_out.by_prompt == pytest.approx([tau / spent for tau in taus])
    tau = sum(float(tally.committed) for tally in tallies) / sum(float(tally.passes.sum()) for tally in tallies)
    assert held_out.tau == pytest.approx(tau) and held_out.zero_overhead == pytest.approx(tau / spent)
    rows = compare({"found": held_out, "itself": held_out})
    assert rows["itself"]["found_ahead_by"] == rows["itself"]["standard_error"] == 0
    rows["other"] = rows["itself"] | {"skip_mlp": [2]}
    itself, other, *_ = list(in_words(rows))[1:]
    assert itself.split() == ["itself", "the", "same", "set"] and "not beaten, by +0.000" in other
    for zero_overhead, pays in ((0.99, False), (1.01, True)):
        rows["found"]["zero_overhead"] = zero_overhead
        assert ("does not pay" in list(in_words(rows))[-1]) != pays


def test_the_pareto_front_by_hand() -> None:
    points = [(0.5, 0.6), (0.2, 0.3), (0.5, 0.7), (0.4, 0.2), (0.9, 0.7), (1.0, 0.9)]
    assert pareto_front(points) == [(0.2, 0.3), (0.5, 0.7), (1.0, 0.9)]


def test_the_alpha_that_pays() -> None:
    """With gamma 1 alone, (1 + alpha) / (c + v) >= 1 from alpha = c + v - 1 on."""
    costs = StepCosts(rest=0, attention=0, mlp=0, target_times=(1.0, 1.2))
    assert alpha_that_pays(costs, 0.3) == pytest.approx(0.5, abs=1e-3)
    assert alpha_that_pays(costs, 1.5) != alpha_that_pays(costs, 1.5)  # NaN: never


# The command


@pytest.mark.slow
def test_the_command_searches_compares_and_writes_what_the_drafter_loads(
    cfg: DictConfig, tmp_path: Path, capsys
) -> None:
    result = search_layers.search_layers(cfg)
    said = capsys.readouterr().out
    target = load_target(path=str(tmp_path / "target"), dtype="float32", device="cpu", attention="sdpa", context=None)
    found = load_layer_set(str(result), target, 3)
    assert LayerSkip(target, layers=str(result), skip_attention=None, skip_mlp=None, exit_after=None).skip == found
    entries = OmegaConf.to_container(OmegaConf.load(result))
    assert entries["trials"] == 12 and entries["optuna"] == optuna.__version__ and entries["provenance"]["versions"]
    assert entries["optimum"]["value"] >= entries["found"]["value"] - 1e-12
    assert list(entries["held_out"]) == [
        "found", "uniform, as many of each", "uniform, whole layers", "uniform, the best of any cost"
    ]  # fmt: skip
    assert (tmp_path / "search" / "search.png").stat().st_size > 10_000
    assert "the best of all 63" in said and str(result) in said
    for step in (
        "reading 4 prompts",
        "evaluating sets; earlier runs evaluated 0",
        "comparing on 4 held-out",
        "minutes in total",
    ):
        assert step in said


def test_a_result_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    target, file = tiny_target(), tmp_path / "layers.yaml"
    save_layer_set(file, LayerSet(2, (0,), ()), fingerprint=target.fingerprint, facts={})
    beyond = file.read_bytes().replace(b'"skip_attention": [0]', b'"skip_attention": [7]')
    for content, says in ((b"\xff\xfe", "did not write .UnicodeDecodeError"), (beyond, r"skip_attention is \[7\]")):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=rf"^layers is .*layers\.yaml', which .*{says}"):
            load_layer_set(str(file), target, 2)
    with pytest.raises(FileNotFoundError, match=r"^layers is .*, a folder; allowed: a file"):
        load_layer_set(str(tmp_path), target, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("num_layers", "trials"), [(4, 40), (6, 100)])
def test_a_search_comes_near_the_best_of_all_sets(
    num_layers: int, trials: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judging a few per cent of all sets of a random target reaches 98% of the optimum, and no less than uniform."""
    # In memory: a trial waits for the disk some twenty times.
    monkeypatch.setattr(
        layer_search, "open_study", lambda folder, name, direction, made_of: optuna.create_study(direction=direction)
    )
    target = tiny_target(num_hidden_layers=num_layers, hidden_size=16, intermediate_size=24)
    costs = measure_costs(target, PROMPTS, Sampling(), max_gamma=2, by="operations")
    objective = ZeroOverhead(target, PROMPTS, Sampling(), costs, rounds=1, seed=0)
    search = search_in(tmp_path, num_layers)
    layer_search.run_search(search, objective, Budget(trials=trials, minutes=None))
    _, best = exhaust(objective, num_layers)
    assert best.value >= search.best.value >= 0.98 * best.value
    assert search.best.value >= max(objective.evaluate(each).value for each in uniform_sets(num_layers))


@pytest.mark.slow
def test_measured_time_can_be_the_objective(cfg: DictConfig) -> None:
    cfg.objective, cfg.trials, cfg.repeats, cfg.rounds = "measured", 3, 1, 1
    entries = OmegaConf.load(search_layers.search_layers(cfg))
    assert entries.found.objective == "measured" and entries.optimum is None
    stored = search_in(Path(cfg.folder), direction="minimize", made_of=OmegaConf.to_container(entries.made_of))
    assert entries.found.value == min(trial.value for trial in stored.trials)


def test_a_folder_with_another_search_is_refused(cfg: DictConfig) -> None:
    search_in(Path(cfg.folder), made_of={"objective": cfg.objective, "sampling": {"temperature": 0.5}})
    with pytest.raises(ValueError, match=r"holds a search with another cost, .*sampling, .*target; set folder"):
        search_layers.search_layers(cfg)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("objective", "speed", "objective is 'speed'; allowed: zero_overhead, measured"),
        ("cost", "money", "cost is 'money'; allowed: time, operations"),
        ("exhaustive", "yes", "exhaustive is 'yes'; allowed: auto, True, False"),
        ("rounds", 9, "rounds is 9 and the largest gamma 3"),
        ("rounds", 0, "rounds is 0; allowed"),
        ("repeats", 0.5, "repeats is 0.5; allowed"),
        ("gamma.gamma", 0, "the largest gamma 0; allowed: a gamma >= 1"),
        ("trials", 0, "trials is 0"),
        ("threads", 0, "threads is 0; allowed"),
        ("seed", -1, "seed is -1; allowed"),
        ("held_out.count", 0, "held_out.count is 0; allowed"),
    ],
)
def test_a_wrong_setting_is_named_before_a_model_is_loaded(cfg: DictConfig, key: str, value, message: str) -> None:
    OmegaConf.update(cfg, key, value)
    cfg.target.path = "/nowhere"
    with pytest.raises(ValueError, match=re.escape(message)):
        search_layers.search_layers(cfg)


@pytest.mark.slow
def test_a_killed_search_goes_on(cfg: DictConfig, tmp_path: Path) -> None:
    """Killed in earnest, in the middle of a trial."""
    OmegaConf.save(cfg, tmp_path / "cfg.yaml")
    program = (
        "from omegaconf import OmegaConf\nfrom experiments.search_layers import search_layers\n"
        f"search_layers(OmegaConf.load({str(tmp_path / 'cfg.yaml')!r}))"
    )
    running = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2])
    database = tmp_path / "search" / "search.sqlite"
    while running.poll() is None and not (database.exists() and done(database) >= 3):
        time.sleep(0.1)
    running.send_signal(signal.SIGKILL)
    running.wait()
    before = done(database)
    assert before >= 3
    search_layers.search_layers(cfg)
    assert done(database) == 12


def done(database: Path) -> int:
    """Sets judged. Only looked at: Optuna would make its tables where the search is about to."""
    try:
        with closing(sqlite3.connect(database)) as opened:
            return opened.execute("SELECT COUNT(*) FROM trials WHERE state = 'COMPLETE'").fetchone()[0]
    except sqlite3.OperationalError:  # not written yet
        return 0
