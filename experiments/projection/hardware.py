"""Hardware as the roofline sees it: memory bandwidth, arithmetic rates, launch cost, and where they are stated."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Self

from experiments.projection.presets import check_above_zero, check_keys, read_preset
from framework.core.option_error import OptionError

# Bytes of a number, by the dtype that a yaml may give a rate for.
BYTES = {"float32": 4, "bfloat16": 2, "float8": 1}
NEEDED = ("name", "source", "gigabytes", "gigabytes_per_second", "teraflops")


@dataclass(frozen=True)
class Hardware:
    """Figures of one GPU or CPU.

    Attributes:
        name: its name.
        source: document that states the figures, or how they were measured or derived.
        gigabytes: memory, in 1e9 bytes.
        gigabytes_per_second: bandwidth of that memory.
        teraflops: dense arithmetic rate by dtype, in 1e12 operations per second; an addition and a multiplication are
            two operations.
        launch_microseconds: time between two kernels of a recorded graph; on a CPU, of a parallel region.
        cache_megabytes: largest working set that stays in the last-level cache; 0: caches are left out.
        cache_gigabytes_per_second: bandwidth of that cache.
        unverified: names of the figures that could not be read in the source itself.
    """

    name: str
    source: str
    gigabytes: float
    gigabytes_per_second: float
    teraflops: Mapping[str, float]
    launch_microseconds: float = 0.0
    cache_megabytes: float = 0.0
    cache_gigabytes_per_second: float = 0.0
    unverified: tuple[str, ...] = field(default=())

    @classmethod
    def read(cls, key: str, given: object) -> Self:
        """Read a preset by name, or a yaml of the same form.

        Raises:
            ValueError, OSError: the message names the yaml key.
        """
        content = read_preset("hardware", key, given)
        optional = [each.name for each in fields(cls) if each.name not in NEEDED]
        check_keys(f"{key} {given}", content, NEEDED, optional)
        content["unverified"] = tuple(content.get("unverified") or ())
        made = cls(**content)
        made._check(f"{key} {Path(str(given)).stem}")
        return made

    def _check(self, key: str) -> None:
        rates = self.teraflops if isinstance(self.teraflops, Mapping) else {}
        if not rates or not set(rates) <= set(BYTES):
            raise OptionError(f"{key}: teraflops", self.teraflops, f"rates of some of {', '.join(BYTES)}")
        above_zero = {f"teraflops.{dtype}": rate for dtype, rate in rates.items()}
        above_zero |= {name: getattr(self, name) for name in ("gigabytes", "gigabytes_per_second")}
        # These may be 0 as well.
        others = ("launch_microseconds", "cache_megabytes", "cache_gigabytes_per_second")
        above_zero |= {name: value for name in others if (value := getattr(self, name)) != 0}
        for name, value in above_zero.items():
            check_above_zero(f"{key}: {name}", value)
        if self.cache_megabytes and not self.cache_gigabytes_per_second:
            raise OptionError(f"{key}: cache_gigabytes_per_second", 0, "a number > 0 if cache_megabytes is given")

    def reaching(self, *, bandwidth: float, arithmetic: float) -> Self:
        """The same with shares of the stated bandwidths and arithmetic rates."""
        return replace(
            self,
            gigabytes_per_second=bandwidth * self.gigabytes_per_second,
            cache_gigabytes_per_second=bandwidth * self.cache_gigabytes_per_second,
            teraflops={dtype: arithmetic * rate for dtype, rate in self.teraflops.items()},
        )

    def flops(self, dtype: str) -> float:
        """Arithmetic operations per second.

        Raises:
            ValueError: no rate is known for this dtype.
        """
        if dtype not in self.teraflops:
            raise OptionError("dtype", dtype, f"{', '.join(self.teraflops)} on {self.name}")
        return 1e12 * self.teraflops[dtype]

    def bandwidth(self, working_set: float) -> float:
        """Bytes per second of the memory that holds a working set of that many bytes."""
        is_cached = 0 < working_set <= 1e6 * self.cache_megabytes
        return 1e9 * (self.cache_gigabytes_per_second if is_cached else self.gigabytes_per_second)
