"""From logits to distributions, and from distributions to tokens."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from framework.core.sampling import (
    BLOCK,
    LEAST_TEMPERATURE,
    LONGEST_SUM,
    Sampling,
    _in_nucleus,
    argmax,
    draw,
    draw_several,
    largest,
    least_by_bits,
    least_by_sorting,
)

NAN, INF = float("nan"), float("inf")
ALMOST_ONE = math.nextafter(1, 0)


def distribution(sampling: Sampling, masses: list[float]) -> list[float]:
    """The standardised distribution of log masses, in float64 for exact boundaries."""
    return sampling.probs(torch.tensor(masses, dtype=torch.float64).log()).tolist()


def draws(masses: list[float], uniforms: list[float]) -> list[int]:
    probs = torch.tensor(masses, dtype=torch.float64).expand(len(uniforms), -1)
    return draw(probs, torch.tensor(uniforms, dtype=torch.float64)).tolist()


# Settings


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("temperature", value) for value in (-0.1, 1e-31, 5e-324, NAN, INF, "1", True, None)),
        *(("top_k", value) for value in (-1, 1.5, NAN, INF, "5", True, None)),
        *(("top_p", value) for value in (0, -0.1, 1.1, NAN, INF, "0.9", True, None)),
        *(("min_p", value) for value in (-0.1, 1, NAN, INF, "0.1", False, None)),
    ],
)
def test_bad_settings_name_their_key(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{key} is .*; allowed: "):
        Sampling(**{key: value})


def test_the_ends_of_the_ranges_are_allowed() -> None:
    assert Sampling(temperature=0, top_k=0, top_p=1, min_p=0).greedy
    masses = [0.5, 0.25, 0.125, 0.125]
    assert distribution(Sampling(temperature=1, top_k=0, top_p=1, min_p=0), masses) == pytest.approx(masses)
    assert distribution(Sampling(top_p=1e-9), masses) == [1, 0, 0, 0]
    assert (
        distribution(Sampling(top_k=4), masses)
        == distribution(Sampling(top_k=5), masses)
        == distribution(Sampling(), masses)
    )


# Distributions


def test_agrees_with_transformers() -> None:
    """Order and boundaries equal those of transformers' warpers, on logits without ties."""
    random = torch.Generator().manual_seed(0)
    settings = [
        Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        for temperature in (0.3, 1, 1.7)
        for top_k in (0, 1, 7, 40)
        for top_p in (1, 0.95, 0.5, 0.05)
        for min_p in (0, 0.02, 0.3)
    ]
    for sampling in settings:
        logits = 3 * torch.randn(16, 50, generator=random, dtype=torch.float64)
        warpers = LogitsProcessorList([TemperatureLogitsWarper(float(sampling.temperature))])
        warpers += [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
        warpers += [TopPLogitsWarper(float(sampling.top_p))] if sampling.top_p < 1 else []
        warpers += [MinPLogitsWarper(float(sampling.min_p))] if sampling.min_p else []
        expected = warpers(torch.zeros(16, 1, dtype=torch.int64), logits.clone()).softmax(1)
        assert torch.allclose(sampling.probs(logits), expected, rtol=0, atol=1e-12), sampling
        assert torch.allclose(sampling.probs(logits.float()).double(), expected, rtol=0, atol=1e-6), sampling


def test_settings_apply_in_order() -> None:
    masses = [0.4, 0.3, 0.2, 0.1]
    # After top-k the first token alone has mass 4/7; before top-k, two tokens reach 1/2.
    assert distribution(Sampling(top_k=2, top_p=0.5), masses) == [1, 0, 0, 0]
    # Min-p first would leave 4/7 and 3/7, and top-p after it only the first.
    assert distribution(Sampling(top_p=0.5, min_p=0.6), masses) == pytest.approx([4 / 7, 3 / 7, 0, 0])
    # At temperature 1/2 the masses are 16, 9, 4 and 1 in 30: the first token alone reaches 1/2.
    assert distribution(Sampling(temperature=0.5, top_p=0.5), masses) == [1, 0, 0, 0]
    assert distribution(Sampling(temperature=0.5, min_p=0.5), masses) == pytest.approx([16 / 25, 9 / 25, 0, 0])


def test_boundaries() -> None:
    masses = [0.25, 0.5, 0.125, 0.125]
    assert distribution(Sampling(top_p=0.5), masses) == [0, 1, 0, 0]
    assert distribution(Sampling(top_p=0.51), masses) == pytest.approx([1 / 3, 2 / 3, 0, 0])  # crossing token kept
    assert distribution(Sampling(top_p=0.76), masses) == pytest.approx(
        [2 / 7, 4 / 7, 1 / 7, 0]
    )  # ties go to the smaller id
    assert distribution(Sampling(top_k=3), masses) == pytest.approx(masses)  # top-k keeps a tie with the third
    assert distribution(Sampling(top_k=2), masses) == pytest.approx([1 / 3, 2 / 3, 0, 0])
    assert distribution(Sampling(min_p=0.25), [2.0, 8.0, 4.0, 1.0]) == pytest.approx([2 / 14, 8 / 14, 4 / 14, 0])


def test_boundaries_to_the_last_bit() -> None:
    equal = torch.zeros(64)  # a softmax of exactly 1/64 each
    assert Sampling(top_p=0.5).probs(equal).tolist() == [1 / 32] * 32 + [0] * 32
    probs = Sampling().probs(torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64))
    min_p = (probs[1] / probs[0]).item()
    assert min_p * probs[0] == probs[1]
    assert (Sampling(min_p=min_p).probs(probs.log()) > 0).tolist() == [True, True, False]
    at_bound = math.log(0.25)
    logits = torch.tensor([0.0, at_bound, math.nextafter(at_bound, -INF)], dtype=torch.float64)
    assert (Sampling(min_p=0.25).probs(logits) > 0).tolist() == [True, True, False]


@pytest.mark.slow
def test_the_nucleus_ends_where_its_mass_is_reached() -> None:
    """Masses exact in binary: top-p meets every prefix sum to the last bit."""
    random = np.random.default_rng(0)
    for _ in range(100):
        parts = random.multinomial(64, [1 / 8] * 8)
        order = sorted(range(8), key=lambda token: (-parts[token], token))
        probs, reached = torch.from_numpy(parts / 64), 0
        for number, token in enumerate(order[:-1], start=1):
            reached += parts[token]
            if parts[order[number]] and reached < 64:
                kept = _in_nucleus(probs, torch.tensor(reached / 64, dtype=torch.float64))
                assert kept.nonzero().flatten().tolist() == sorted(order[:number])
                more = _in_nucleus(probs, torch.tensor(reached / 64 + 1e-9, dtype=torch.float64))
                assert more.nonzero().flatten().tolist() == sorted(order[: number + 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sorting_finds_the_nucleus_of_the_search_by_bits(dtype: torch.dtype) -> None:
    """Masses of 0 to 31 parts of a power of two: sums are exact in any order; many ties, and subnormal masses."""
    parts = torch.randint(32, (200, 50), generator=torch.Generator().manual_seed(0))
    for scale in (2.0**-10, torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps):
        masses = parts.to(dtype) * scale
        for share in (1 / 64, 0.5, 63 / 64, 1.0, 1.5):
            mass = (share * parts.sum(-1, keepdim=True)).double() * scale
            expected = least_by_bits(masses, mass)
            assert torch.equal(least_by_sorting(masses, mass), expected)
    assert (expected == 0).all()


def test_a_long_distribution_is_summed_in_blocks_as_in_one_piece() -> None:
    """Parts of a power of two: sums are exact in any order; most masses are zero, among them whole blocks."""
    random = torch.Generator().manual_seed(0)
    parts = torch.randint(-20, 5, (3, 2 * LONGEST_SUM + 37), generator=random).clamp(min=0)
    parts[0, : 3 * BLOCK], parts[1, -BLOCK:], parts[2] = 0, 0, 0
    parts[2, 5 * BLOCK - 1] = 1
    masses, cumulative = parts.float() / 2**20, parts.cumsum(1)
    uniforms = torch.rand(3, 4000, generator=random, dtype=torch.float64)
    uniforms[:, 0], uniforms[:, 1] = 0, ALMOST_ONE
    uniforms[:, 2:400] = cumulative[:, 5:8000:20][:, :398] / cumulative[:, -1:]  # at the ends of masses, or nearly
    found = draw_several(masses, uniforms)
    assert (parts.gather(1, found) > 0).all()
    bounds = (uniforms * cumulative[:, -1:]).minimum(torch.nextafter(cumulative[:, -1:].double(), torch.zeros(())))
    assert torch.equal(found, torch.searchsorted(cumulative.double(), bounds, right=True))

    for mass in (0.25, 0.75, 1.0):
        wanted = mass * masses.sum(1, keepdim=True).double()
        bound = least_by_bits(masses, wanted)
        assert torch.equal(least_by_sorting(masses, wanted), bound)
        above, tied = masses > bound, masses == bound
        before = (masses * above).sum(1, keepdim=True).double() + (tied.cumsum(1) - 1) * bound.double()
        assert torch.equal(_in_nucleus(masses, wanted), above | (tied & (before < wanted)))


def test_temperature_zero_is_the_argmax_with_the_smallest_id_on_ties() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, -1.0], [-INF, -INF, -5.0, -INF], [0.0, 0.0, 0.0, 0.0]])
    assert argmax(logits).tolist() == [1, 2, 0]
    assert Sampling(temperature=0, top_k=1, top_p=0.1).probs(logits).argmax(1).tolist() == [1, 2, 0]
    assert Sampling(temperature=0).probs(logits).sum(1).tolist() == [1, 1, 1]
    random = torch.Generator().manual_seed(1)
    tied = torch.randint(0, 4, (500, 37), generator=random).float()
    expected = [row.index(max(row)) for row in tied.tolist()]
    assert argmax(tied).tolist() == expected
    uniforms = torch.rand(500, generator=random, dtype=torch.float64)
    assert Sampling(temperature=0).sample(tied, uniforms)[0].tolist() == expected


def test_a_low_temperature_approaches_temperature_zero() -> None:
    logits = torch.randn(50, 20, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(Sampling(temperature=1e-6).probs(logits), Sampling(temperature=0).probs(logits), atol=1e-6)


def test_the_least_temperature_divides_what_models_say_in_float32() -> None:
    """At a lower temperature, unequal logits would all become infinite, and the row NaN."""
    logits = torch.tensor([[-3e8, 1.0, 3e8], [-3e8, -2e8, -2.9e8]])
    assert Sampling(temperature=LEAST_TEMPERATURE).probs(logits).tolist() == [[0, 0, 1], [0, 1, 0]]
    assert not (logits / (LEAST_TEMPERATURE / 10)).isfinite().all()


SETTINGS = [
    Sampling(),
    Sampling(temperature=0),
    Sampling(top_k=2),
    Sampling(top_p=0.6),
    Sampling(min_p=0.1),
    Sampling(temperature=0.8, top_k=3, top_p=0.9, min_p=0.05),
]


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_distributions_sum_to_one_and_leave_the_logits_alone(sampling: Sampling) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        logits = torch.randn(2, 3, 11, generator=torch.Generator().manual_seed(3)).to(dtype)
        before = logits.clone()
        probs = sampling.probs(logits)
        assert torch.equal(logits, before)
        assert probs.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert torch.allclose(probs.sum(-1), torch.ones(2, 3, dtype=probs.dtype)) and (probs >= 0).all()


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_forbidden_tokens_have_no_mass(sampling: Sampling) -> None:
    logits = torch.tensor([[-INF, 0.3, -INF, 0.1], [-INF, -INF, -INF, -40.0]])
    probs = sampling.probs(logits)
    assert probs[logits == -INF].eq(0).all() and probs.isfinite().all()
    assert probs[1].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_rows_without_a_distribution_are_nan_and_the_others_are_not(sampling: Sampling) -> None:
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.1, NAN, 0.3, 0.4], [NAN] * 4, [-INF] * 4])
    probs = sampling.probs(logits)
    assert probs[0].isfinite().all()
    assert probs[1:].isnan().all()


# Draws


def test_draw_inverts_the_cumulative_distribution_exactly() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        masses = random.integers(0, 5, size=random.integers(1, 9)).tolist()
        total = sum(masses)
        if not total:
            continue
        # u * total is a multiple of 1/16, often on a boundary; only u that are exact doubles remain.
        uniforms = [u for u in (Fraction(j, 16 * total) for j in range(16 * total)) if Fraction(float(u)) == u]
        expected = [next(i for i in range(len(masses)) if sum(masses[: i + 1]) > u * total) for u in uniforms]
        assert draws(masses, [float(u) for u in uniforms]) == expected


@pytest.mark.parametrize("scale", [1.0, 1e-300, 5e-324, 1e300])
def test_an_entry_without_mass_is_never_drawn(scale: float) -> None:
    assert draws([0, 0, scale, 0, scale, 0, 0], [0.0, ALMOST_ONE]) == [2, 4]
    assert draws([0, scale, 0], [0.0, 0.3, ALMOST_ONE]) == [1, 1, 1]


def test_an_entry_without_mass_is_never_drawn_wherever_rounding_leads() -> None:
    random = torch.Generator().manual_seed(4)
    masses = torch.rand(20_000, 9, generator=random, dtype=torch.float64)
    masses = masses * (torch.rand(masses.shape, generator=random) < 0.5)
    masses[:, 4] += 1e-3
    masses[:, [0, -1]] = 0
    for uniform in (0.0, 0.5, ALMOST_ONE):
        index = draw(masses, torch.full((len(masses),), uniform, dtype=torch.float64))
        assert (masses.gather(1, index.unsqueeze(1)) > 0).all()


def test_draws_resolve_more_than_24_bits() -> None:
    width, rare = 128_000, 100_001
    probs = torch.full((width,), 1 / width)
    probs[rare] = 1e-9
    cumulative = probs.double().cumsum(0)
    uniform = (cumulative[rare - 1] + 0.5e-9) / cumulative[-1]
    assert draw(probs, uniform) == rare
    # Multiples of 2**-24 miss it, and float32 sums do not resolve it.
    coarse = torch.tensor([math.floor(uniform * 2**24), math.ceil(uniform * 2**24)], dtype=torch.float64) / 2**24
    assert rare not in draw(probs, coarse)
    assert cumulative[rare].float() == cumulative[rare - 1].float()


def test_draws_follow_the_distribution() -> None:
    """Chi-square of 60 cells; false-alarm rate 1e-7, fixed seed."""
    random = torch.Generator().manual_seed(5)
    probs = (1.5 * torch.randn(60, generator=random)).clamp(min=-3).softmax(0)
    number = 300_000
    index = draw(probs.expand(number, -1), torch.rand(number, generator=random, dtype=torch.float64))
    expected = probs.double() * number / probs.double().sum()
    assert expected.min() > 5
    assert chisquare(torch.bincount(index, minlength=60), expected).pvalue > 1e-7


def test_masses_need_not_sum_to_one() -> None:
    random = torch.Generator().manual_seed(6)
    probs = torch.rand(100, 7, generator=random)
    uniforms = torch.rand(100, generator=random, dtype=torch.float64)
    assert torch.equal(draw(probs, uniforms), draw(1024 * probs, uniforms))


@pytest.mark.filterwarnings("error")
def test_shapes() -> None:
    random = torch.Generator().manual_seed(7)
    probs = torch.rand(2, 3, 5, generator=random)
    uniforms = torch.rand(2, 3, generator=random, dtype=torch.float64)
    index = draw(probs, uniforms)
    assert index.shape == (2, 3) and index.dtype == torch.int64
    for row in range(2):
        assert torch.equal(draw(probs[row], uniforms[row]), index[row])
    shared = draw(probs[0, 0], uniforms)  # one distribution for all rows
    assert torch.equal(shared, draw(probs[0, 0].expand(2, 3, 5), uniforms))
    assert draw(torch.tensor([0.0, 2.0]), torch.tensor(0.3, dtype=torch.float64)).shape == ()


def test_sample_draws_from_the_standardised_distribution() -> None:
    random = torch.Generator().manual_seed(8)
    logits: Tensor = torch.randn(40, 9, generator=random)
    uniforms = torch.rand(40, generator=random, dtype=torch.float64)
    sampling = Sampling(temperature=0.8, top_k=4)
    tokens, healthy = sampling.sample(logits, uniforms)
    assert torch.equal(tokens, draw(sampling.probs(logits), uniforms)) and healthy.all()
    logits[0, 0] = torch.nan
    assert not sampling.sample(logits, uniforms)[1][0]


def test_a_draw_from_nan_stays_in_range() -> None:
    """The loops check distributions after the draw, which must not raise an IndexError first."""
    index = draw(torch.full((3, 5), NAN), torch.tensor([0.0, 0.5, ALMOST_ONE], dtype=torch.float64))
    assert ((index >= 0) & (index < 5)).all()


def test_a_temperature_beyond_the_machine_integers_is_a_flat_distribution() -> None:
    """Found by fuzzing: torch rejects such an int as a divisor."""
    probs = Sampling(temperature=10**20).probs(torch.tensor([1.0, 2.0]))
    assert torch.equal(probs, torch.tensor([0.5, 0.5]))


def test_the_largest_come_in_order_and_the_smallest_ids_first_on_ties() -> None:
    """Indices of a stable sort, on values with ties, some of them forbidden."""
    values = torch.randint(-2, 3, (40, 3, 9), generator=torch.Generator().manual_seed(0)).double()
    values[values == -2] = -INF
    values[values == 0] *= -1.0  # 0 and -0 are equal
    values[::2][values[::2] == 0] = 0.0
    for number in (1, 2, 5, 9):
        expected = values.sort(dim=-1, descending=True, stable=True).indices[..., :number]
        assert torch.equal(largest(values, number), expected)
    assert torch.equal(largest(values, 1).squeeze(-1), argmax(values))
    assert (largest(torch.full((2, 4), NAN), 3) < 4).all()


def test_several_draws_are_as_many_single_ones() -> None:
    random = torch.Generator().manual_seed(0)
    probs = torch.rand(4, 3, 9, generator=random) * (torch.rand(4, 3, 9, generator=random) < 0.7)
    uniforms = torch.rand(4, 3, 5, generator=random, dtype=torch.float64)
    uniforms[..., 0], uniforms[..., 1] = 0, ALMOST_ONE
    single = torch.stack([draw(probs, each) for each in uniforms.unbind(2)], 2)
    assert torch.equal(draw_several(probs, uniforms), single)
