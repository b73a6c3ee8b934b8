"""Comparison of a model's cached passes with its own uncached passes: catches faults that no config shows."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from framework.core.sequences import Conditioned, Sequences
from framework.core.tree import Tree
from framework.models.attention_masks import SPAN_SIZES, AttentionMasks
from framework.models.recurrent_reading import RecurrentReader

if TYPE_CHECKING:
    from framework.models.cached_lm import CachedLM

FEWEST_TOKENS, MOST_TOKENS = 8, 23  # tokens per text; with the most, passes over more than FEW_TOKENS are covered
SPAN = 6  # size of windows and chunks during the comparison
PARENTS = (-1, -1, 0, 1)  # two branches of two nodes
BRANCHES = ((0, 2), (1, 3))
TAIL = 3  # tokens read after the kept branch: two in one pass, then one


def probe(lm: "CachedLM") -> str | None:
    """Reason why a model's cached passes differ from its uncached ones, or None.

    The cached passes roll back ragged rows, read a tree, keep one of its branches and continue after it. Windows and
    chunks are shortened during the comparison, so that the text exceeds them. A model with recurrent layers that
    fails is compared again with one pass per drafted token.
    """
    if lm.context < FEWEST_TOKENS:
        return None
    tolerance = 1e-4 if lm.model.dtype in (torch.float32, torch.float64) else 5e-2
    try:
        with torch.no_grad(), _narrowed(lm, SPAN):
            error = _replayed_difference(lm, lm.recurrent) if lm.recurrent else _largest_difference(lm)
            if lm.recurrent and not error < tolerance:
                lm.recurrent.one_by_one = True
                error = _replayed_difference(lm, lm.recurrent)
    except torch.OutOfMemoryError:
        raise
    except Exception as failure:  # the forward pass of another library may raise any
        return f"it does not run with Outrider's cache, masks and positions ({type(failure).__name__}: {failure})"
    if math.isnan(error):
        return "its logits hold NaN; try dtype=float32"
    if not error < tolerance:
        return (
            f"its logits after a roll-back differ from its own uncached ones by {error:.1e} of their size; it is not "
            "causal, takes positions from cache slots, its output layer looks at more than one token, or "
            f"attention={lm.attention} computes something else"
        )
    return None


@contextmanager
def _narrowed(lm: "CachedLM", size: int) -> Iterator[None]:
    """Shorten the spans of all layers in the block, for the model's uncached passes as well.

    Short texts can then exceed a window whose real size would need very long ones. The config is restored on exit.
    """
    config = lm.model.config.get_text_config()
    before = {name: getattr(config, name, None) for name in SPAN_SIZES}
    for name, value in before.items():
        if value is not None:
            setattr(config, name, min(value, size))
    lm.masks = AttentionMasks(config)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is not None:
                setattr(config, name, value)
        lm.masks = AttentionMasks(config)


def _largest_difference(lm: "CachedLM") -> float:
    """Largest difference between cached and uncached logits, relative to 1 + the largest absolute logit."""
    width, depth = min(lm.context, MOST_TOKENS), len(BRANCHES[0])
    drawn, most = _random_tokens(lm, width + len(PARENTS))
    tokens, nodes = drawn[:, :width], drawn[:, width:]
    pending = torch.tensor([width - depth - TAIL - 1, 1], device=lm.device)
    rows = torch.arange(2, device=lm.device)
    source = tokens.flip(1) if lm.text_start else None
    tree = Tree.shared(PARENTS, 2, lm.device)
    kept = BRANCHES[1]
    tail = tokens[:, :TAIL]
    lm.begin(2, width + len(PARENTS))
    if source is not None:
        prompts = [Conditioned(each, lm.text_start) for each in source.tolist()]
        lm.read_sources(Sequences.from_prompts(prompts, width=width, device=lm.device))
    # The first pass is rolled back; the second reads the texts like prompts.
    lm.forward(tokens.flip(1), None, visible=width)
    long = int(pending[0])
    prompt = lm.forward(tokens[:, :long], None, visible=long, keep=torch.full_like(pending, long - 1)).logits[:1]
    read = torch.cat([tokens[rows, pending].unsqueeze(1), nodes], 1)
    branching = lm.forward(read, pending, visible=long + 1 + len(PARENTS), tree=tree).logits
    path = torch.tensor([kept], device=lm.device).expand(2, -1)
    lm.keep_path(tree, path, after=pending + 1)
    end = long + 1 + depth
    stepwise = [
        lm.forward(tail[:, :2], pending + 1 + depth, visible=end + 2).logits,
        lm.forward(tail[:, 2:], pending + 3 + depth, visible=end + 3).logits,
    ]

    differences: list[Tensor] = []
    for row in range(2):
        end = int(pending[row]) + 1
        texts = [torch.cat([tokens[row, :end], nodes[row, list(branch)], tail[row]]) for branch in BRANCHES]
        expected = lm.uncached(torch.stack(texts), None if source is None else source[row].tolist())
        for branch, uncached in zip(BRANCHES, expected, strict=True):
            nodes_read = [0, *(node + 1 for node in branch)]
            differences.append(_difference(uncached[end - 1 : end + depth], branching[row, nodes_read], most))
            if branch == kept:
                differences.append(_difference(uncached[end + depth :], torch.cat(stepwise, 1)[row], most))
        if row == 0:
            differences.append(_difference(expected[0, long - 1 : long], prompt[0], most))
    return float(torch.stack(differences).max())


def _replayed_difference(lm: "CachedLM", recurrent: RecurrentReader) -> float:
    """As `_largest_difference`, for recurrent layers: two rows read a draft, keep two nodes or none, and read on."""
    tokens, most = _random_tokens(lm, min(lm.context, MOST_TOKENS))
    texts, width = tokens.tolist(), tokens.shape[1]
    sequences = Sequences.from_prompts([texts[0][:-4], texts[1][:2]], width=width, device=lm.device)
    lm.begin(*sequences.tokens.shape)
    lm.replay(sequences)
    if recurrent.states.is_kept_elsewhere:
        raise ValueError("its recurrent layers keep their states elsewhere than in transformers' cache layers")
    kept = torch.stack([tokens[0, -4:], tokens[1, 2:6]])
    draft = kept.clone()
    draft[0, 2:], draft[1] = (draft[0, 2:] + 1) % most, (draft[1] + 1) % most
    drafted = torch.cat([sequences.pending.unsqueeze(1), draft], 1)
    lm.forward(drafted, sequences.lengths - 1, visible=width)
    sequences.commit(kept, torch.tensor([3, 1], device=lm.device))
    lm.replay(sequences)
    read_on = torch.stack([tokens[0, -2:], tokens[1, 2:4]])
    logits = lm.forward(read_on, sequences.lengths - 1, visible=width).logits
    expected = [lm.uncached(tokens[row : row + 1, : len(text) + 1]) for row, text in enumerate(sequences.texts)]
    differences = [_difference(whole[0, -2:], got, most) for got, whole in zip(logits, expected, strict=True)]
    return float(torch.stack(differences).max())


def _random_tokens(lm: "CachedLM", width: int) -> tuple[Tensor, int]:
    """[2, width] int64 random tokens that the model knows, and the number of known tokens."""
    most = min(lm.vocabulary_size, lm.num_known)
    drawn = torch.randint(0, most, (2, width), generator=torch.Generator().manual_seed(0)).to(lm.device)
    padding = getattr(lm.model.config.get_text_config(), "pad_token_id", None)  # some models do not count it as text
    return (torch.where(drawn == padding, (drawn + 1) % most, drawn) if isinstance(padding, int) else drawn), most


def _difference(expected: Tensor, got: Tensor, most: int) -> Tensor:
    """Relative difference of logits [M, V], without the padding of a vocabulary that is wider than the model."""
    expected, got = expected[:, :most].double(), got[:, :most].double()
    return (expected - got).abs().max() / (1 + expected.abs().max())
