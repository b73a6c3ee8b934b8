"""Precision of trainings: bfloat16 where its products are fast, else float32."""

import math

import torch
from torch import Tensor


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 is faster than float32: products take thirty times as long on a CPU without AVX-512."""
    return device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def autocast(device: torch.device) -> torch.autocast:
    """Autocast to bfloat16 where that is faster."""
    return torch.autocast(device.type, torch.bfloat16, enabled=has_fast_bfloat16(device))


class Float32Muon(torch.optim.Muon):
    """`torch.optim.Muon` with its orthogonalisation in float32 in place of bfloat16."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient, by the learning rate that matches AdamW's."""
        for group in self.param_groups:
            rate = group["lr"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                buffer = self.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
                buffer.lerp_(parameter.grad, 1 - group["momentum"])
                update = parameter.grad.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer
                update = _orthogonal(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
                parameter.mul_(1 - rate * group["weight_decay"])
                parameter.add_(update, alpha=-rate * 0.2 * math.sqrt(max(parameter.shape)))


def _orthogonal(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """[A, B]: the matrix with singular values near 1, by a quintic Newton-Schulz iteration."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    wide = matrix.T if is_tall else matrix
    wide = wide / wide.norm().clamp(min=eps)
    a, b, c = coefficients
    for _ in range(steps):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.T if is_tall else wide
