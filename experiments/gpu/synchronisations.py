"""The step `synchronisations`: waits of the host in a round, copies between host and GPU, and kernels."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from experiments.gpu.findings import Findings
from experiments.gpu.parts import DRAFTERS, drafter_named, embedded_target, library_prompts
from experiments.gpu.profiling import profiled, waits_of_host
from experiments.gpu.rounds import NUCLEUS, begin_decoding, engine_of, run_rounds
from framework.core.drafter import compiles
from framework.models.target import Target

WARM_UP = 3  # rounds before the watched ones


def run(findings: Findings, sizes: Mapping[str, Any], device: torch.device) -> None:
    target = embedded_target(device, sizes["dtype"])
    prompts = library_prompts(target, sizes["prompt_tokens"])
    for name in sizes["drafters"] or DRAFTERS:
        findings.attempt(name, partial(check_rounds, findings, sizes, target, prompts, name, compiled=False))
    for name in sizes["compiled"]:
        findings.attempt(
            f"{name}, compiled", partial(check_rounds, findings, sizes, target, prompts, name, compiled=True)
        )


def check_rounds(
    findings: Findings,
    sizes: Mapping[str, Any],
    target: Target,
    prompts: list[list[int]],
    name: str,
    *,
    compiled: bool,
) -> None:
    """Watch rounds of a drafter for waits of the host, then profile as many."""
    rounds, drafter = sizes["rounds"], drafter_named(name, target)
    if compiled and not compiles(drafter):
        raise ValueError(f"synchronisations.compiled has {name}, which learns; allowed: drafters that can be compiled")
    engine = engine_of(target, drafter, NUCLEUS, compiled=compiled)
    decoding = begin_decoding(engine, prompts, rounds=WARM_UP + 2 * rounds)
    for _ in range(WARM_UP):
        engine.round(decoding)
    with waits_of_host(target.device) as waits:
        run_rounds(engine, decoding, rounds)()
    work = profiled(run_rounds(engine, decoding, rounds), target.device)
    subject = f"{name}{', compiled' if compiled else ''}"
    findings.measure(
        f"{subject}: waits per round", len(waits) / rounds, f"at {', '.join(sorted(set(waits)))}" if waits else ""
    )
    findings.measure(f"{subject}: copies to the host per round", work.to_host / rounds)
    findings.measure(f"{subject}: copies to the GPU per round", work.to_device / rounds)
    findings.measure(f"{subject}: kernels per round", work.kernels.total() / rounds)
    findings.note(**{subject: {"attention": work.attention, "kernels": dict(work.kernels.most_common(20))}})
