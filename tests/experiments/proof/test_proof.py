"""The proof itself: every cell holds, every fault put in on purpose is seen, and a small bias would be."""

import json
import sys
from itertools import product

import pytest
import torch

from experiments import prove
from experiments.config.builders import rules, yamls
from experiments.proof.negative_controls import Caught, controls
from experiments.proof.proof_matrix import FALSE_ALARM, PROMPT, Cell, Prover
from experiments.proof.tiny_drafters import NAMES
from framework.conformance.goodness_of_fit import chi_square, continuation_distribution
from framework.conformance.tiny_models import NARROW, tiny_target
from framework.conformance.verifier_checks import SAMPLINGS
from framework.core.sampling import Sampling

pytestmark = pytest.mark.usefixtures("narrow_buffers")

# Sequences of a cell; all of them only where fewer leave a doubt: a p-value that one honest cell in ten has.
FEW, ALL, DOUBT = 200_000, 600_000, 0.1

# One drafter of a kind, of those that draft on the device, since row by row on the host hundreds of thousands of
# sequences take minutes. `make prove` has all drafters.
OF_A_KIND = ("corpus_unigram", "eagle3", "layer_skip", "medusa", "small_transformer", "transformer_tree")


@pytest.fixture(scope="module")
def prover() -> Prover:
    return Prover(samples=FEW, vocabulary=3, gamma=2)


@pytest.mark.slow
def test_every_cell_holds_and_is_printed(tmp_path, monkeypatch, capfd):
    """Every drafter with its usual rule at every sampling setting, and with other rules, in one run of the command.

    Chi-square as below.
    """
    monkeypatch.setattr(sys, "argv", ["prove", "samples=20000", "thorough=false", f"hydra.run.dir={tmp_path}"])
    prove.main()
    printed = capfd.readouterr().out
    proof = json.loads((tmp_path / "proof.json").read_text())
    fixed = [cell for cell in held(proof) if cell.gamma_policy == "fixed"]
    assert {(cell.drafter, cell.sampling) for cell in fixed if cell.exact} == set(product(NAMES, SAMPLINGS))
    pairs = {(cell.drafter, cell.verifier) for cell in fixed}
    assert len(fixed) == len(pairs) * 2 + len(NAMES) * (len(SAMPLINGS) - 2)
    for name in (*NAMES, *rules(), *yamls("gamma")):
        assert name in printed or name.startswith("fixed")
    assert "NOT SEEN" not in printed and "BROKEN" not in printed and ", 0 of which do not hold" in printed
    assert len(proof["controls"]) == len(list(controls())) and all(c["with_fault"] > 0 for c in proof["controls"])


def held(proof: dict) -> list[Cell]:
    """All cells, each of which holds: false-alarm rate 1e-9 a chi-square test, below 1e-6 for all; seeds fixed."""
    cells = [Cell(**cell) for cell in proof["cells"]]
    assert {cell.drafter for cell in cells} == set(NAMES)
    assert {cell.verifier for cell in cells} == set(rules())
    assert {cell.gamma_policy for cell in cells} == set(yamls("gamma")) - {"fixed_8"}  # fixed with another number
    assert sum(cell.exact for cell in cells) * FALSE_ALARM < 1e-6  # cells of a lossy rule have no test
    moved = [cell for cell in cells if cell.gamma_policy != "fixed" and cell.sampling == "T=1"]
    assert all(cell.stopped or len(cell.gammas) > 1 for cell in moved), "a policy that did nothing shows nothing"
    for cell in cells:
        assert cell.holds, cell
        assert cell.exact == (cell.p_value is not None), cell
        if cell.exact:
            assert cell.total_variation <= 1e-12 and cell.samples >= (500 if cell.sampling == "T=0" else 2000), cell
    assert max(cell.total_variation for cell in cells if cell.verifier == "lenience") > 1e-3, "nothing was lost"
    return cells


@pytest.mark.parametrize("control", list(controls()), ids=lambda control: control.fault)
def test_a_fault_put_in_on_purpose_is_seen(control):
    assert Caught.of(control).holds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafter", "sampling"),
    [
        *((name, "T=1") for name in OF_A_KIND),
        *((name, "top-p 0.8") for name in ("small_transformer", "medusa", "transformer_tree")),  # a kind of draft each
    ],
)
def test_it_holds_under_samples_that_see_a_hundredth(prover, drafter, sampling, monkeypatch):
    """False-alarm rate 2e-9 each; a total variation of 0.01 is doubted and then seen, as the test below shows."""
    for samples in (FEW, ALL):
        monkeypatch.setattr(prover, "samples", samples)
        cell = prover.cell(drafter, prover.usual(drafter), "fixed", sampling)
        assert cell.holds and cell.samples == samples
        if cell.p_value > DOUBT:
            break


@pytest.mark.parametrize(
    ("samples", "bias", "spread", "rejected"),
    [
        (FEW, 0.01, "one continuation", DOUBT),
        (FEW, 0.01, "half of them", DOUBT),  # in 999 of 1000 draws: 80 degrees of freedom, non-centrality 80
        (ALL, 0.01, "one continuation", FALSE_ALARM),
        (ALL, 0.01, "half of them", FALSE_ALARM),
        (100_000, 0.025, "one continuation", FALSE_ALARM),
        (100_000, 0.025, "half of them", FALSE_ALARM),
        (10_000, 0.08, "half of them", FALSE_ALARM),  # no continuation is likely enough to lose so much
    ],
)
def test_so_many_samples_see_such_a_total_variation(samples, bias, spread, rejected):
    """Drawn from a distribution that is so far off, the sample is rejected at this rate of false alarms, in 20 of 20
    draws.
    """
    probs = continuation_distribution(tiny_target(vocabulary=3, **NARROW), PROMPT, 4, Sampling())
    off = probs.probs.clone()
    likely = off.argsort(descending=True)
    if spread == "one continuation":
        off[likely[0]] -= bias
        off[likely[1]] += bias
    else:  # the mass is moved in proportion, where it is hardest to see
        more, less = likely[::2], likely[1::2]
        off[more] *= 1 + bias / off[more].sum()
        off[less] *= 1 - bias / off[less].sum()
    assert (off - probs.probs).abs().sum() / 2 == pytest.approx(bias)
    dice = torch.Generator().manual_seed(0)
    for _ in range(20):
        drawn = torch.multinomial(off, samples, replacement=True, generator=dice)
        counts = torch.bincount(drawn, minlength=len(off))
        assert chi_square(counts, probs.probs * samples).p_value < rejected


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("samples=10", "samples is 10; allowed"),
        ("max_gamma=0", "max_gamma is 0; allowed"),
        ("max_gamma=true", "max_gamma is True; allowed"),
        ("max_gamma=7", "vocabulary to the power of max_gamma + 4 at most"),
        ("vocabulary=2", "vocabulary is 2; allowed"),
        ("thorough=1", "thorough is 1; allowed: true or false"),
    ],
)
def test_wrong_numbers_are_named(override, message, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["prove", override, f"hydra.run.dir={tmp_path}"])
    with pytest.raises(SystemExit):
        prove.main()
    assert message in capfd.readouterr().err
