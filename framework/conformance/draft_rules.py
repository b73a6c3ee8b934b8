"""What holds for a single draft: shapes, structure, laws. Each function raises Breach where it does not."""

import torch

from framework.conformance.report import require
from framework.draft import Draft, Law, Shape

SAME_LAW = 1e-5  # of one law that was computed once for each of two siblings, in float32


def node_depths(draft: Draft) -> torch.Tensor:
    """[B, N] int64: 1 for children of pending, one more for each generation after them."""
    depths = torch.ones_like(draft.tokens)
    for node in range(1, draft.num_nodes):
        parent = draft.parent[:, node]
        below = depths.gather(1, parent.clamp(min=0).unsqueeze(1)).squeeze(1) + 1
        depths[:, node] = torch.where(parent < 0, 1, below)
    return depths


def require_shapes(draft: Draft, *, num_rows: int, width: int, device: torch.device) -> None:
    """Tensors of B rows and N nodes, of the right dtype and on the target's device, with ids below `width`."""
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
        f"a node holds token {wrong[:1].tolist()}; allowed: 0 to {width - 1}, in nodes that are not valid, too",
    )


def require_structure(draft: Draft, *, shape: Shape, gamma: int) -> None:
    """At most gamma deep, parents before children, valid closed under parents, and a chain where one was declared."""
    if not draft.num_nodes:
        return
    index = torch.arange(draft.num_nodes, device=draft.parent.device)
    require(
        bool(((draft.parent >= -1) & (draft.parent < index)).all()),
        f"parent is {draft.parent[0].tolist()}; a parent comes before its children, and -1 is pending",
    )
    deepest = int(node_depths(draft).max())
    require(
        deepest <= gamma,
        f"gamma was {gamma}, and a node lies {deepest} deep; draft at most gamma deep, or the buffers overflow",
    )
    require(
        draft.shape is shape,
        f"a draft says {draft.shape.name}, and the drafter declares {shape.name}; hand the shape to Draft(shape=...)",
    )
    require(
        shape is not Shape.CHAIN or bool((draft.parent == index - 1).all()),
        f"shape is CHAIN, and parent is {draft.parent[0].tolist()}; on a chain node i hangs on node i - 1",
    )
    with_pending = torch.cat([torch.ones_like(draft.valid[:, :1]), draft.valid], 1)
    require(
        not bool((draft.valid & ~with_pending.gather(1, draft.parent + 1)).any()),
        "a node is valid whose parent is not; a node can only be offered behind offered nodes",
    )


def require_laws(draft: Draft, *, width: int) -> None:
    """Probs of drawn tokens are laws over a vocabulary of `width`, and chosen tokens have none."""
    probs, support = draft.probs, draft.support
    if draft.law is Law.ONE_HOT:
        require(
            probs is None and support is None,
            "a ONE_HOT draft carries probs or support; leave both None: a chosen token has no law",
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
    offered = probs[draft.valid]
    require(
        bool((offered >= 0).all()) and bool(((offered.sum(1) - 1).abs() < 1e-3).all()),
        "the probs of an offered node are negative or do not sum to 1; report the law itself, normalised",
    )
    require(
        bool((draft.prob_of_tokens()[draft.valid] > 0).all()),
        "an offered token has probability 0 in its own probs; then that is not the law it was drawn from",
    )


def require_one_law_of_siblings(draft: Draft, *, width: int) -> None:
    """Offered siblings report the same probs: the law after their parent, whatever their elders drew."""
    if draft.probs is None or not draft.num_nodes:
        return
    laws, elders = draft.dense_probs(width), draft.tree.elder & draft.valid.unsqueeze(1)
    first = elders.int().argmax(2)
    apart = (laws - laws.gather(1, first.unsqueeze(2).expand_as(laws))).abs().amax(2)
    apart = apart.where(elders.any(2) & draft.valid, 0)
    row, node = divmod(int(apart.argmax()), draft.num_nodes)
    require(
        bool((apart <= SAME_LAW).all()),
        f"the probs of node {node} are {apart.max():.2g} from those of its sibling {first[row, node]}; report the law "
        "after their parent for both. The verifier itself takes out what elder siblings drew",
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
