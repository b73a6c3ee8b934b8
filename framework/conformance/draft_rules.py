"""Rules for a single draft: shapes, structure, distributions. A broken rule raises Breach."""

import torch

from framework.conformance.report import require
from framework.core.draft import Draft, SamplingScheme, Shape
from framework.core.draft_faults import probs_fault, structure_fault

SAME_DISTRIBUTION = 1e-5  # largest difference of one distribution computed in float32 for each of two siblings


def node_depths(draft: Draft) -> torch.Tensor:
    """[B, N] int64: depth of each node, 1 for children of pending."""
    depths = torch.ones_like(draft.tokens)
    for node in range(1, draft.num_nodes):
        parent = draft.parent[:, node]
        below = depths.gather(1, parent.clamp(min=0).unsqueeze(1)).squeeze(1) + 1
        depths[:, node] = torch.where(parent < 0, 1, below)
    return depths


def require_shapes(draft: Draft, *, num_rows: int, width: int, device: torch.device) -> None:
    """Require tensors [B, N] of the right dtype on the target's device, with ids below `width`."""
    nodes = tuple(draft.tokens.shape)
    require(
        len(nodes) == 2 and nodes[0] == num_rows,
        f"tokens have the shape {list(nodes)} for {num_rows} rows; return [B, N]",
    )
    for name, tensor, dtype in (
        ("tokens", draft.tokens, torch.int64),
        ("parent", draft.parent, torch.int64),
        ("valid", draft.valid, torch.bool),
    ):
        require(
            tuple(tensor.shape) == nodes and tensor.dtype == dtype and tensor.device == device,
            f"{name} is {tensor.dtype} {list(tensor.shape)} on {tensor.device}; "
            f"return {dtype} {list(nodes)} on {device}",
        )
    wrong = draft.tokens[(draft.tokens < 0) | (draft.tokens >= width)]
    require(
        not wrong.numel(),
        f"a node holds token {wrong[:1].tolist()}; allowed: 0 to {width - 1}, also in nodes that are not valid",
    )


def require_structure(draft: Draft, *, shape: Shape, gamma: int) -> None:
    """Require a depth of at most gamma, the declared shape, and no structural fault."""
    if not draft.num_nodes:
        return
    require(
        draft.shape is shape,
        f"a draft says {draft.shape.name}, and the drafter declares {shape.name}; pass the shape to Draft(shape=...)",
    )
    fault = structure_fault(draft)
    require(fault is None, fault or "")
    deepest = int(node_depths(draft).max())
    require(
        deepest <= gamma,
        f"gamma was {gamma}, and a node lies {deepest} deep; draft at most gamma deep, or the buffers overflow",
    )


def require_distributions(draft: Draft, *, width: int) -> None:
    """Require that probs of drawn tokens are distributions over `width` tokens, and that chosen tokens have none."""
    probs, support = draft.probs, draft.support
    if draft.scheme is SamplingScheme.ONE_HOT:
        require(
            probs is None and support is None,
            "a ONE_HOT draft carries probs or support; leave both None: a chosen token has no distribution",
        )
        return
    require(
        probs is not None and probs.dtype == torch.float32 and probs.shape[:2] == draft.tokens.shape,
        f"probs is {None if probs is None else (probs.dtype, list(probs.shape))} for drawn tokens "
        f"{list(draft.tokens.shape)}; return float32 [B, N, V], or [B, N, S] with a support",
    )
    assert probs is not None
    if support is None:
        require(probs.shape[2] == width, f"probs has {probs.shape[2]} entries a node; expected {width}")
    else:
        _require_support(support, probs.shape, width)
    fault = probs_fault(draft)
    require(fault is None, fault or "")
    require(
        bool((draft.prob_of_tokens()[draft.valid] > 0).all()),
        "an offered token has probability 0 in its own probs; probs must be the distribution it was drawn from",
    )


def require_one_distribution_of_siblings(draft: Draft, *, width: int) -> None:
    """Require that offered siblings report equal probs: the distribution after their parent, before any draw."""
    if draft.probs is None or not draft.num_nodes:
        return
    distributions, elders = draft.dense_probs(width), draft.tree.elder & draft.valid.unsqueeze(1)
    first = elders.int().argmax(2)
    apart = (distributions - distributions.gather(1, first.unsqueeze(2).expand_as(distributions))).abs().amax(2)
    apart = apart.where(elders.any(2) & draft.valid, 0)
    row, node = divmod(int(apart.argmax()), draft.num_nodes)
    require(
        bool((apart <= SAME_DISTRIBUTION).all()),
        f"the probs of node {node} are {apart.max():.2g} from those of its sibling {first[row, node]}; report the "
        "distribution after their parent for both. The verifier itself removes the tokens of earlier siblings",
    )


def _require_support(support: torch.Tensor, shape: torch.Size, width: int) -> None:
    require(
        support.dtype == torch.int64 and support.shape == shape,
        f"support is {support.dtype} {list(support.shape)}; return int64 {list(shape)}",
    )
    require(bool(((support >= 0) & (support < width)).all()), f"support holds ids outside 0 to {width - 1}")
    ordered = support.sort(2).values
    require(
        not bool((ordered[..., 1:] == ordered[..., :-1]).any()),
        "a token occurs twice in a node's support; give each token one entry",
    )
