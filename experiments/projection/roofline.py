"""Time of a pass by the roofline: the slower of reading and arithmetic, for weights and for attention, and launches.

Williams, Waterman and Patterson (2009). Activations, logits and sampling are left out, since weights are larger in all
but the smallest models.
"""

from dataclasses import dataclass

from experiments.projection.hardware import BYTES, Hardware
from experiments.projection.model_size import ModelSize


@dataclass(frozen=True)
class PassTime:
    """Seconds of one pass by cause.

    Attributes:
        weights_reading: reading the weights once.
        weights_arithmetic: products with the weights, for all rows and tokens.
        attention_reading: reading keys and values of all rows.
        attention_arithmetic: products with keys and values.
        launches: starting the kernels.
        overlap: whether reading and arithmetic of a product overlap entirely; False: one follows the other.
    """

    weights_reading: float
    weights_arithmetic: float
    attention_reading: float
    attention_arithmetic: float
    launches: float
    overlap: bool = True

    @property
    def seconds(self) -> float:
        """Time of the whole pass."""
        return self._weights + self._attention + self.launches

    @property
    def attention_share(self) -> float:
        """Share of attention in the pass."""
        return self._attention / self.seconds

    @property
    def bound(self) -> str:
        """The largest cause: weights, keys and values, arithmetic, launches."""
        causes = {
            "weights": self.weights_reading,
            "KV cache": self.attention_reading,
            "arithmetic": self.weights_arithmetic + self.attention_arithmetic,
            "launches": self.launches,
        }
        return max(causes, key=lambda cause: causes[cause])

    @property
    def _weights(self) -> float:
        return self._together(self.weights_reading, self.weights_arithmetic)

    @property
    def _attention(self) -> float:
        return self._together(self.attention_reading, self.attention_arithmetic)

    def _together(self, reading: float, arithmetic: float) -> float:
        return max(reading, arithmetic) if self.overlap else reading + arithmetic


@dataclass(frozen=True)
class Roofline:
    """Times of passes on one GPU or CPU.

    Attributes:
        hardware: its figures.
        dtype: dtype of arithmetic, of keys and values, and of the weights unless `weight_bits` is given.
        weight_bits: bits of a stored weight, widened as it is read; None: those of the dtype.
        kernels_per_layer: kernels that a compiled layer launches.
        overlap: as in `PassTime`.
    """

    hardware: Hardware
    dtype: str
    weight_bits: int | None = None
    kernels_per_layer: int = 10
    overlap: bool = True

    def weight_bytes(self, parameters: int) -> float:
        """Bytes of that many stored weights."""
        return parameters * (BYTES[self.dtype] if self.weight_bits is None else self.weight_bits / 8)

    def kv_bytes(self, model: ModelSize, *, batch: int, context: int) -> float:
        """Bytes of keys and values that a pass reads for a batch of texts of that length."""
        return batch * model.attended(context) * 2 * model.kv_heads * model.head_dim * BYTES[self.dtype]

    def pass_time(self, model: ModelSize, *, batch: int, tokens: int, context: int, beside: float = 0.0) -> PassTime:
        """Time of a pass over new tokens of every row of a batch.

        Args:
            model: the model.
            batch: rows.
            tokens: new tokens per row: 1 in plain decoding, gamma + 1 in verification.
            context: earlier tokens per row.
            beside: bytes that other passes of the same round read, which share the cache.
        """
        flops = self.hardware.flops(self.dtype)
        weights = self.weight_bytes(model.read)
        keys = self.kv_bytes(model, batch=batch, context=context + tokens)
        bandwidth = self.hardware.bandwidth(weights + keys + beside)
        # Two operations per weight and token; two products per layer, with keys and with values.
        attended = batch * tokens * model.attended(context + tokens) * model.heads * model.head_dim
        return PassTime(
            weights_reading=weights / bandwidth,
            weights_arithmetic=2 * model.read * batch * tokens / flops,
            attention_reading=keys / bandwidth,
            attention_arithmetic=4 * attended / flops,
            launches=model.all_layers * self.kernels_per_layer * self.hardware.launch_microseconds / 1e6,
            overlap=self.overlap,
        )
