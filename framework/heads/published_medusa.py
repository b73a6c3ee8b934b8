"""Published layouts of Medusa heads: that of the original project (Cai et al., 2024, 2401.10774), and vLLM's.

Head i from 0, block j from 0, H hidden, V rows of the output layers. All blocks of a head share their weights. The
original layout comes in two versions: heads with output layers of their own (v1), or scored by the target's (v2).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from framework.core.option_error import MissingFileError, OptionError
from framework.heads.head_checkpoint import Accuracies
from framework.heads.published_files import PublishedFiles, check_tensors, open_published

ORIGINAL_FILE = "medusa_lm_head"
# Made from the published tree mc_sim_7b_63 (medusa_choices.py of the original project), which lists 63 nodes by value:
# with any budget, the best tree under this table consists of the first nodes of that list.
PUBLISHED_ACCURACIES: Accuracies = [
    [0.6, 0.0992, 0.0456, 0.0261, 0.0153, 0.0109, 0.0094, 0.0083, 0.0072, 0.0062],
    [0.2894, 0.0858, 0.0467, 0.0311, 0.0248, 0.0195, 0.0169, 0.0152, 0.0135, 0.0123],
    [0.1734, 0.0659, 0.0456, 0.026, 0.022, 0.0205, 0.0191, 0.0173, 0.0166, 0.016],
    [0.1153, 0.057, 0.03, 0.0158, 0.0083, 0.0044, 0.0023, 0.0012, 0.0006, 0.0003],
]


@dataclass(frozen=True)
class Layout:
    """Names of the tensors of head {head} and its block {block}; {blocks} is the number of blocks."""

    weight: str  # [H, H]
    bias: str  # [H]
    output: str  # [V, H]

    def names(self, kind: str, num_heads: int, blocks: int) -> list[list[str]]:
        """`[head][block]`: names of all tensors of a kind."""
        name = getattr(self, kind)
        return [
            [name.format(head=head, block=block, blocks=blocks) for block in range(blocks)] for head in range(num_heads)
        ]

    def tensors(self, *, weights: Tensor, biases: Tensor, outputs: Sequence[Tensor], blocks: int) -> dict[str, Tensor]:
        """Tensors of heads by their names, each with its own memory.

        Args:
            weights: [K, H, H].
            biases: [K, H].
            outputs: K output layers [V, H], one that all heads share, or none.
            blocks: how often a head's block is applied.
        """
        named: dict[str, Tensor] = {}
        for kind, values in (("weight", weights), ("bias", biases)):
            for names, tensor in zip(self.names(kind, len(weights), blocks), values, strict=True):
                named |= dict.fromkeys(names, tensor)
        for names, tensor in zip(self.names("output", len(outputs), blocks), outputs, strict=True):
            named[names[0]] = tensor
        return {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in named.items()}


ORIGINAL = Layout("{head}.{block}.linear.weight", "{head}.{block}.linear.bias", "{head}.{blocks}.weight")
VLLM = Layout("blocks.{head}.layers.{block}.weight", "blocks.{head}.layers.{block}.bias", "lm_heads.{head}.weight")


@dataclass(frozen=True)
class PublishedHeads:
    """Heads as read.

    Attributes:
        files: the checkpoint.
        weights: [K, H, H].
        biases: [K, H].
        outputs: K output layers [V, H], or none: the target's own scores the heads.
        blocks: how often a head's block is applied.
        accuracies: those that `config.json` records, as exported here; else the ones of the published tree.
    """

    files: PublishedFiles
    weights: Tensor
    biases: Tensor
    outputs: list[Tensor]
    blocks: int
    accuracies: Accuracies


def read_published_heads(path: str, *, hidden_size: int, rows: int) -> PublishedHeads:
    """Read heads in either layout; their number is counted, because published configs name another one.

    Args:
        path: a local folder, or a hub name.
        hidden_size: H of the target.
        rows: V, rows of the target's output layer.

    Raises:
        OSError: the files cannot be read, or hold no heads.
        ValueError: heads of another target, or with a feature that is not implemented.
    """
    files = open_published(path)
    has_own_file = any(files.folder.glob(f"{ORIGINAL_FILE}.*"))
    tensors = files.tensors(stem=ORIGINAL_FILE if has_own_file else "*")
    tensors = {name.removeprefix("medusa_heads."): tensor for name, tensor in tensors.items()}
    layout = VLLM if VLLM.weight.format(head=0, block=0) in tensors else ORIGINAL
    num_heads = _count(tensors, layout.weight, "head")
    blocks = _count(tensors, layout.weight, "block")
    if not num_heads:
        allowed = (
            "a folder that `train drafter=medusa` wrote, or heads in the layout of the original project or of vLLM"
        )
        raise MissingFileError("path", path, allowed, "without Medusa heads")
    _check_features(files, tensors)

    weights, biases = layout.names("weight", num_heads, blocks), layout.names("bias", num_heads, blocks)
    outputs = [each[0] for each in layout.names("output", num_heads, blocks)]
    shared = layout is VLLM and bool(files.config.get("original_lm_head"))
    stored = outputs[:1] if shared else outputs
    has_outputs = layout is VLLM or any(name in tensors for name in outputs)
    has_biases = layout is ORIGINAL or bool(files.config.get("medusa_fc_bias"))

    square = torch.empty(hidden_size, hidden_size, device="meta")
    row, output = square[0], torch.empty(rows, hidden_size, device="meta")
    expected = dict.fromkeys(chain(*weights), square)
    expected |= dict.fromkeys(chain(*biases) if has_biases else [], row)
    expected |= dict.fromkeys(stored if has_outputs else [], output)
    sizes = {"hidden size": hidden_size, "vocabulary": rows}
    check_tensors(tensors, expected, files=files, sizes=sizes)

    for names in weights + (biases if has_biases else []):
        if not all(torch.equal(tensors[name], tensors[names[0]]) for name in names):
            problem = f"where {names[0]} and {names[-1]} differ"
            raise OptionError("path", path, "heads whose blocks share their weights", problem)
    stacked = torch.stack([tensors[names[0]] for names in weights])
    return PublishedHeads(
        files=files,
        weights=stacked,
        biases=torch.stack([tensors[names[0]] for names in biases]) if has_biases else torch.zeros_like(stacked[:, 0]),
        outputs=[tensors[stored[0] if shared else name] for name in outputs] if has_outputs else [],
        blocks=blocks,
        accuracies=_accuracies(files, num_heads),
    )


def _count(tensors: dict[str, Tensor], name: str, part: str) -> int:
    """Number of heads, or of blocks of the first head; a missing one before the last is counted."""
    found = (n for n in range(len(tensors)) if name.format(**{"head": 0, "block": 0, part: n}) in tensors)
    return 1 + max(found, default=-1)


def _check_features(files: PublishedFiles, tensors: dict[str, Tensor]) -> None:
    """
    Raises:
        ValueError: the heads draft from a part of the vocabulary, or scale their logits.
    """
    if "token_map" in tensors:
        problem = "whose token_map drafts from a part of the vocabulary, which is not implemented"
        raise OptionError("path", files.path, "heads that score the whole vocabulary", problem)
    whole, part = files.config.get("vocab_size"), files.config.get("truncated_vocab_size")
    if part is not None and part != whole:
        problem = f"whose truncated_vocab_size is {part}, of {whole}, which is not implemented"
        raise OptionError("path", files.path, "heads that score the whole vocabulary", problem)
    if (scale := files.config.get("logit_scale", 1)) != 1:
        raise OptionError("path", files.path, "heads with logit_scale 1", f"whose logit_scale is {scale}")


def _accuracies(files: PublishedFiles, num_heads: int) -> Accuracies:
    recorded = files.config.get("accuracies")
    if recorded is not None:
        lists = isinstance(recorded, list) and all(isinstance(each, list) and each for each in recorded)
        numbers = lists and all(type(share) in (int, float) for each in recorded for share in each)
        if not numbers or len(recorded) != num_heads:
            problem = "whose config.json has other accuracies than a list of numbers for every head"
            raise OptionError("path", files.path, "a config.json as exported, or without accuracies", problem)
        return recorded
    # The published tree is four deep; further heads count half as much each.
    further = [[share / 2**more for share in PUBLISHED_ACCURACIES[-1]] for more in range(1, num_heads - 3)]
    return [*PUBLISHED_ACCURACIES, *further][:num_heads]
