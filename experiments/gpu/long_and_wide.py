"""The step `long_and_wide`: passes over long texts and many rows, and verification in a large vocabulary."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from experiments.gpu.findings import Findings
from experiments.gpu.parts import drafter_named
from experiments.gpu.profiling import peak, profiled, reset_peak, seconds_each
from experiments.gpu.random_models import random_llama, random_prompts, random_target_of
from experiments.gpu.rounds import DRAWN, NUCLEUS, begin_decoding, engine_of
from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows
from framework.core.sampling import draw, least_by_bits, least_by_sorting
from framework.core.tree import Tree
from framework.models.attention import AUTO, FLEX
from framework.models.target import Target
from framework.verifiers.default_verifier import default_verifier

PARENTS = [-1, -1, 0, 1]  # two chains of two nodes
TIMES = 10  # runs of each pass, and of verification


def run(findings: Findings, sizes: Mapping[str, Any], device: torch.device) -> None:
    for rows in sizes["verified_rows"]:
        run_rows = partial(check_verification, findings, rows, sizes["vocabulary"], sizes["dtype"], device)
        findings.attempt(f"verification, B={rows}", run_rows)
    model = random_llama(sizes["target"], device=device, dtype=sizes["dtype"])
    for attention in (AUTO, FLEX):
        for name, text in sizes["texts"].items():
            part = name if attention == AUTO else f"{name}, {attention}"
            findings.attempt(part, partial(check_passes, findings, model, attention, part, **text))


def check_passes(
    findings: Findings, model: PreTrainedModel, attention: str, name: str, *, rows: int, tokens: int
) -> None:
    """Read texts of that many tokens, then time the passes of a round after them."""
    target = random_target_of(model, attention)
    device = target.device
    reset_peak(device)
    engine = engine_of(target, drafter_named("prompt_lookup", target), DRAWN, gamma=len(PARENTS))
    sequences = begin_decoding(engine, random_prompts(target, [tokens] * rows), rounds=4).sequences
    nodes = torch.randint(target.vocabulary_size, (rows, len(PARENTS)), device=device)
    fed = torch.cat([sequences.pending.unsqueeze(1), nodes], 1)
    tree = Tree.shared(PARENTS, rows, device)
    passes = {
        "one row": partial(pass_over, target, fed[:, :1], sequences.lengths - 1, sequences.longest, None),
        "five rows": partial(pass_over, target, fed, sequences.lengths - 1, sequences.longest, None),
        "tree of five": partial(pass_over, target, fed, sequences.lengths - 1, sequences.longest, tree),
    }
    kernels = {}
    for each, run_pass in passes.items():
        kernels[each] = kernel_seconds(run_pass, device)
        findings.measure(f"{name}, {each}: kernels of a pass", 1000 * kernels[each], "ms")
    for each in ("five rows", "tree of five"):
        findings.measure(f"{name}, {each}: over one row", kernels[each] / kernels["one row"])
    for kind, size in peak(device).items():
        findings.measure(f"{name}: peak of {kind} memory", size / 2**30, "GiB")


def pass_over(target: Target, tokens: Tensor, start: Tensor, longest: int, tree: Tree | None) -> object:
    """A target pass over pending and nodes, as in a round."""
    return target.model.forward(tokens, start, visible=longest + tokens.shape[1] - 1, tree=tree)


def kernel_seconds(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of one run's kernels, without the time that eager Python leaves between them."""

    def repeated() -> None:
        for _ in range(TIMES):
            run()

    repeated()
    return profiled(repeated, device).seconds / TIMES


def check_verification(findings: Findings, rows: int, vocabulary: int, dtype: str, device: torch.device) -> None:
    """Time the usual rule of a chain on random logits, with top-p."""
    reset_peak(device)
    verify = verification(rows, vocabulary, getattr(torch, dtype), device)
    name = f"verification, V={vocabulary}, B={rows}"
    findings.measure(f"{name}: kernels", 1000 * kernel_seconds(verify, device), "ms")
    findings.measure(f"{name}: eager", 1000 * seconds_each(verify, device, times=TIMES), "ms")
    for kind, size in peak(device).items():
        findings.measure(f"{name}: peak of {kind} memory", size / 2**30, "GiB")
    probs, mass = torch.randn(rows, len(PARENTS) + 1, vocabulary, device=device).mul_(4).softmax(-1), NUCLEUS.top_p
    for way, search in {"sorting": least_by_sorting, "bits": least_by_bits}.items():
        run = partial(search, probs, torch.tensor(mass, dtype=torch.float64, device=device))
        findings.measure(f"{name}: kernels of top-p by {way}", 1000 * kernel_seconds(run, device), "ms")


def verification(rows: int, vocabulary: int, dtype: torch.dtype, device: torch.device) -> Callable[[], Tensor]:
    """From logits and a drawn chain of four nodes to the stop and the next token."""
    gamma = len(PARENTS)
    logits = 4 * torch.randn(rows, gamma + 1, vocabulary, dtype=dtype, device=device)
    q = NUCLEUS.probs(logits[:, :-1] + torch.randn_like(logits[:, :-1]))
    numbers = torch.rand(gamma + 2, rows, dtype=torch.float64, device=device)
    draft = Draft.chain(draw(q, numbers[2:].T.contiguous()), SamplingScheme.IID, probs=q)
    rule = default_verifier(draft.scheme, Shape.CHAIN)

    def verify() -> Tensor:
        target = TargetRows(logits, draft, NUCLEUS)
        stop = draw(rule.stop_probs(target, draft), numbers[0])
        return draw(rule.next_token_probs(target, draft, stop), numbers[1])

    return verify
