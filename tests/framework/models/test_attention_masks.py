"""Block masks against additive masks: the same slots are seen, and the blocks with such slots are read."""

from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

from framework.core.tree import Tree
from framework.models.attention_masks import BLOCK, AttentionMasks, Branches
from framework.models.cache_slots import Slots

ROWS, VISIBLE, CAPACITY = 3, 300, 320
STARTS = torch.tensor([290, 0, 124])  # in the last block, which is not full; in the first; before the second
KINDS = ["full_attention", "sliding_attention", "chunked_attention"]
PARENTS = [-1, -1, 0, 1, 1, 2, 4, 0]


def masks_of(**config: object) -> AttentionMasks:
    return AttentionMasks(SimpleNamespace(layer_types=KINDS, **config))


def check(blocks: dict, additive: dict, *, may_read_more: bool) -> None:
    """Compare the masks of every kind of layer; `additive` ones are 0 where a slot is seen.

    Args:
        may_read_more: whether blocks of which no slot is seen may be read.
    """
    for kind in KINDS:
        mask, seen = blocks[kind], additive[kind] == 0
        function = create_mask(mask.mask_mod, ROWS, None, seen.shape[2], VISIBLE, "cpu")
        assert torch.equal(function, seen), kind
        lists = (mask.kv_num_blocks, mask.kv_indices), (mask.full_kv_num_blocks, mask.full_kv_indices)
        for row, place in product(range(ROWS), range(mask.kv_indices.shape[2])):
            masked, whole = (indices[row, 0, place, : numbers[row, 0, place]].tolist() for numbers, indices in lists)
            assert len({*masked, *whole}) == len(masked) + len(whole)
            tokens = seen[row, 0, place * BLOCK : (place + 1) * BLOCK]
            for block, slots in enumerate(tokens.split(BLOCK, 1)):
                is_whole = bool(slots.all()) and slots.shape[1] == BLOCK
                assert (block in whole) == is_whole, (kind, row, place, block)
                is_needed = bool(slots.any()) and not is_whole
                is_allowed = may_read_more and not slots.any()
                assert (block in masked) == is_needed or is_allowed, (kind, row, place, block)


@pytest.mark.parametrize("num_tokens", [1, 5, 140])
@pytest.mark.parametrize("size", [1, 4, 200])
def test_chains(size: int, num_tokens: int) -> None:
    masks, cache = masks_of(sliding_window=size, attention_chunk_size=size), Slots(1)
    cache.begin(ROWS, CAPACITY, torch.device("cpu"))
    slots = STARTS.clamp(max=VISIBLE - num_tokens).unsqueeze(1) + cache.ids[:num_tokens]
    keys = cache.ids[:VISIBLE].unsqueeze(0)
    additive = masks.of(cache.causal(slots, VISIBLE), slots, keys, torch.float32)
    check(masks.in_blocks(slots, VISIBLE), additive, may_read_more=False)


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("size", [1, 2, 4, 200])
def test_trees(size: int, first: int) -> None:
    """The tokens read are all rows of a tree, or its later ones."""
    masks, cache = masks_of(sliding_window=size, attention_chunk_size=size), Slots(1)
    cache.begin(ROWS, CAPACITY, torch.device("cpu"))
    tree = Tree.shared(PARENTS, ROWS, torch.device("cpu"))
    sees, depth = tree.sees[:, first:], tree.depth[:, first:]
    slots = STARTS.unsqueeze(1) + cache.ids[first : len(PARENTS) + 1]
    branches = Branches(STARTS, STARTS.unsqueeze(1) + depth, sees, tree.depth)
    keys = cache.positions_of_tree(STARTS, tree.depth, VISIBLE)
    additive = masks.of(cache.of_tree(STARTS, sees, VISIBLE), branches.positions, keys, torch.float32)
    check(masks.in_blocks(slots, VISIBLE, branches), additive, may_read_more=True)


def test_tokens_beyond_the_slots_seen_read_the_last_block() -> None:
    """Rows that need fewer tokens than others run past the visible slots."""
    slots = torch.tensor([[VISIBLE + 4, VISIBLE + 5]])
    mask = AttentionMasks(SimpleNamespace(layer_types=None, sliding_window=3)).in_blocks(slots, VISIBLE)
    assert mask.kv_num_blocks.tolist() == [[[1]]] and mask.kv_indices[0, 0, 0, 0] == (VISIBLE - 1) // BLOCK
    assert mask.full_kv_num_blocks.tolist() == [[[0]]]
