"""Sampling: logits to probabilities, then probabilities and uniforms to tokens. Pure functions of tensors.

B rows, V vocabulary, S support; `...` stands for any leading axes.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from framework.core.option_error import OptionError

LEAST_TEMPERATURE = 1e-30  # float32 logits up to 3e8, divided by it, stay finite
LONGEST_SUM, BLOCK = 8192, 512  # entries of a cumulative sum in one piece, and of each block of a longer one
ENTRIES_AT_ONCE, ENTRIES_ON_GPU = 2**22, 2**26  # logits copied per step of `prob_of`: 16 MB, and 256 MB on a GPU


@dataclass(frozen=True)
class Sampling:
    """Sampling settings that define p and q: temperature, then top-k, top-p and min-p, in that order.

    Attributes:
        temperature: 0, or at least LEAST_TEMPERATURE; 0 puts all mass on the argmax (the smallest id on ties).
        top_k: keep the k most likely tokens, ties with the k-th included; 0 keeps all.
        top_p: in (0, 1]; keep the most likely tokens until their mass reaches top_p, the crossing one included.
        min_p: in [0, 1); keep tokens at least min_p times as likely as the most likely one.

    Raises:
        ValueError: a setting is outside its range; the message names the yaml key.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        def require(holds: bool, key: str, allowed: str) -> None:
            if not holds:
                raise OptionError(key, getattr(self, key), allowed)

        for key in ("temperature", "top_k", "top_p", "min_p"):
            value = getattr(self, key)
            require(isinstance(value, int | float) and not isinstance(value, bool), key, "a number")
        require(
            self.temperature == 0 or LEAST_TEMPERATURE <= self.temperature < float("inf"),
            "temperature",
            f"0, or a number >= {LEAST_TEMPERATURE:g}: logits divided by less overflow in float32",
        )
        require(float(self.top_k).is_integer() and self.top_k >= 0, "top_k", "a whole number >= 0 (0 keeps all)")
        require(0 < self.top_p <= 1, "top_p", "a number in (0, 1]")
        require(0 <= self.min_p < 1, "min_p", "a number in [0, 1)")
        object.__setattr__(self, "_numbers", {})

    def numbers_on(self, device: torch.device) -> tuple[Tensor, ...]:
        """Temperature, top_p and log(min_p) as float64 scalars on a device, cached per device.

        They are tensors, so that one compiled graph serves all values. Call this once on every device before
        anything is compiled for it.
        """
        known: dict[tuple[str, int | None], tuple[Tensor, ...]] = self._numbers  # type: ignore[attr-defined]
        key = (device.type, device.index)
        if key not in known:
            numbers = (self.temperature, self.top_p, math.log(self.min_p) if self.min_p else -math.inf)
            known[key] = tuple(torch.tensor(number, dtype=torch.float64, device=device) for number in numbers)
        return known[key]

    @property
    def greedy(self) -> bool:
        """Whether the distribution is one-hot at the argmax."""
        return self.temperature == 0

    def probs(self, logits: Tensor) -> Tensor:
        """Standardise logits into the distribution to sample from.

        Args:
            logits: [..., V] floating point; -inf forbids a token; not modified.

        Returns:
            [..., V] float32 (float64 for float64 logits), each row summing to 1. A row is all NaN if its logits hold
            NaN or forbid every token.
        """
        if self.greedy:
            one_hot = torch.zeros_like(_floating(logits)).scatter_(-1, argmax(logits).unsqueeze(-1), 1.0)
            # argmax hides NaN, and returns a token even if all are forbidden; the distribution must do neither.
            return one_hot + torch.where(logits.amax(-1, keepdim=True).isfinite(), 0.0, torch.nan)
        temperature, top_p, log_min_p = self.numbers_on(logits.device)
        scaled = _floating(logits) / temperature
        if 0 < self.top_k < scaled.shape[-1]:
            kth = scaled.topk(int(self.top_k), dim=-1).values[..., -1:]
            scaled = scaled.masked_fill(scaled < kth, -torch.inf)
        if self.top_p < 1:
            scaled = scaled.masked_fill(~_in_nucleus(scaled.softmax(-1), top_p), -torch.inf)
        if self.min_p > 0:
            scaled = scaled.masked_fill(scaled < scaled.amax(-1, keepdim=True) + log_min_p, -torch.inf)
        return scaled.softmax(-1)

    def prob_of(self, logits: Tensor, rows: Tensor, tokens: Tensor) -> Tensor:
        """Probabilities of single tokens, computed in slices of the logits.

        At V = 128k, the full distributions of all rows take far more memory.

        Args:
            logits: [B, R, V] as for `probs`.
            rows: [B, N] int64 in [0, R): the distribution of each token.
            tokens: [B, N] int64.

        Returns:
            [B, N] entries of `probs`, in its dtype.
        """
        batch = torch.arange(len(tokens), device=tokens.device).unsqueeze(1)
        entries = ENTRIES_AT_ONCE if logits.device.type == "cpu" else ENTRIES_ON_GPU
        step = max(1, entries // logits[:, 0].numel())
        found = torch.empty(tokens.shape, device=tokens.device)
        for start, piece in zip(range(0, logits.shape[1], step), logits.split(step, dim=1), strict=True):
            here = self.probs(piece)[batch, (rows - start).clamp(0, piece.shape[1] - 1), tokens]
            found = torch.where(rows < start, found.to(here.dtype), here)
        return found

    def sample(self, logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Draw a token from each distribution.

        Args:
            logits: [..., V].
            uniforms: [...].

        Returns:
            [...] int64 tokens, and [...] bool: whether the largest logit is finite, which NaN, +inf and rows without
            any token fail.
        """
        tokens = argmax(logits) if self.greedy else draw(self.probs(logits), uniforms)
        return tokens, logits.amax(-1).isfinite()


def _floating(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def nucleus(probs: Tensor, top_p: float) -> Tensor:
    """[..., S]: the distribution [..., S] over its most likely entries until they sum to `top_p`, as for `Sampling`."""
    kept = torch.where(_in_nucleus(probs, top_p), probs, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def _in_nucleus(probs: Tensor, mass: Tensor | float) -> Tensor:
    """[..., V] bool: the most likely entries until they sum to `mass`, the crossing one included; least ids on ties."""
    bound = (least_by_bits if probs.device.type == "cpu" else least_by_sorting)(probs, mass)
    above, tied = probs > bound, probs == bound
    mass_above = torch.where(above, probs, 0.0).sum(-1, keepdim=True, dtype=torch.float64)
    # As many of the tied ones as bring the mass above to `mass`; all of them if they have none themselves.
    most = torch.ceil((mass - mass_above) / bound.double())
    return above | (tied & (_cumsum(tied, torch.int32) <= most))


def least_by_sorting(probs: Tensor, mass: Tensor | float) -> Tensor:
    """[..., 1]: the largest bound such that the entries of probs [..., V] at or above it sum to at least `mass`.

    The bound is 0 if all entries sum to less.
    """
    ordered = probs.sort(-1, descending=True).values
    num_below = (_cumsum(ordered, torch.float64) < mass).sum(-1, keepdim=True)
    least = ordered.gather(-1, num_below.clamp(max=probs.shape[-1] - 1))
    return torch.where(num_below < probs.shape[-1], least, 0.0)


def least_by_bits(probs: Tensor, mass: Tensor | float) -> Tensor:
    """As `least_by_sorting`, by a binary search over the bits of the bound.

    Non-negative floats are ordered like their bit patterns. On a CPU, sorting 128k entries takes longer.
    """
    kind, num_bits = (torch.int64, 62) if probs.dtype == torch.float64 else (torch.int32, 30)
    bits = probs.view(kind)
    bound = torch.zeros_like(bits[..., :1])
    for bit in reversed(range(num_bits)):
        higher = bound | (1 << bit)
        enough = torch.where(bits >= higher, probs, 0.0).sum(-1, keepdim=True, dtype=torch.float64) >= mass
        bound = torch.where(enough, higher, bound)
    return bound.view(probs.dtype)


def argmax(values: Tensor) -> Tensor:
    """Index of the largest value, the smallest index on ties. [..., V] -> [...] int64."""
    # torch.argmax leaves ties open; equality with plain decoding needs one fixed rule.
    width = values.shape[-1]
    ids = torch.arange(width, device=values.device)
    return torch.where(values == values.amax(-1, keepdim=True), ids, width - 1).amin(-1)


def largest(values: Tensor, number: int) -> Tensor:
    """Indices of the largest values, largest first, the smallest index on ties. [..., V] -> [..., number] int64."""
    width = values.shape[-1]
    ids = torch.arange(width, device=values.device)
    found: list[Tensor] = []
    # topk leaves the order of equal values open, but its values are fixed.
    best = values.topk(number, dim=-1).values
    for place, value in enumerate(best.split(1, dim=-1)):
        is_here = values == value
        if place:
            is_here = is_here & ((ids > found[-1]) | (value != best[..., place - 1 : place]))
        found.append(torch.where(is_here, ids, width - 1).amin(-1, keepdim=True))
    return torch.cat(found, -1)


def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Invert the cumulative distribution: the first index whose cumulative mass exceeds u times the total.

    Sums are float64: with 24-bit uniforms or sums, a draw among 128k tokens is biased by 1e-3.

    Args:
        probs: [..., S] non-negative masses; they need not sum to 1.
        uniforms: [...] float64 in [0, 1).

    Returns:
        [...] int64 in [0, S); never an entry of zero mass.
    """
    return draw_several(probs, uniforms.unsqueeze(-1)).squeeze(-1)


def draw_several(probs: Tensor, uniforms: Tensor) -> Tensor:
    """K independent draws from each distribution: uniforms [..., K] -> [..., K] int64, otherwise as `draw`."""
    masses = probs.double()
    if probs.shape[-1] <= LONGEST_SUM:
        cumulative = masses.cumsum(-1)
        return _first_beyond(cumulative, uniforms.double() * cumulative[..., -1:])
    if probs.dim() == 1:  # one distribution for all
        return draw_several(probs.unsqueeze(0), uniforms.reshape(1, -1)).view(uniforms.shape)
    blocks = _in_blocks(masses)
    ends = blocks.sum(-1).cumsum(-1)
    bounds = uniforms.double() * ends[..., -1:]
    block = _first_beyond(ends, bounds)
    left = (bounds - pad(ends[..., :-1], (1, 0)).gather(-1, block)).clamp(min=0)
    within = blocks.gather(-2, block.unsqueeze(-1).expand(*block.shape, BLOCK)).cumsum(-1)
    place = _first_beyond(within, left.unsqueeze(-1)).squeeze(-1)
    return (block * BLOCK + place).clamp_(max=probs.shape[-1] - 1)


def _first_beyond(cumulative: Tensor, bounds: Tensor) -> Tensor:
    """Index of the first cumulative mass [..., S] that exceeds each bound [..., K]; [..., K] int64."""
    total = cumulative[..., -1:]
    # A bound can round up to the total, beyond the last entry.
    bounds = torch.minimum(bounds, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, bounds, right=True).clamp_(max=cumulative.shape[-1] - 1)


def _cumsum(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Cumulative sums [..., S] over the last axis."""
    if values.shape[-1] <= LONGEST_SUM:
        return values.cumsum(-1, dtype=dtype)
    within = _in_blocks(values).cumsum(-1, dtype=dtype)
    ends = within[..., -1].cumsum(-1, dtype=dtype)
    before = pad(ends[..., :-1], (1, 0))
    return (within + before.unsqueeze(-1)).flatten(-2)[..., : values.shape[-1]]


def _in_blocks(values: Tensor) -> Tensor:
    """[..., N, BLOCK] from [..., S]: consecutive blocks, the last one filled up with zeros.

    A GPU sums the entries of one row one after the other, but rows side by side.
    """
    return pad(values, (0, -values.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
