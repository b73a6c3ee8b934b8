"""A small network that says of a drafted token how likely it is to be kept (SpecDec++; Huang et al., 2024).

B rows, W width.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from framework.draft import DraftedNode

NUM_FEATURES = 3
LEAST_PROBABILITY = 1e-9  # a logarithm's floor
WEIGHTS, FACTS = "head.safetensors", "head.json"


def features_of(node: DraftedNode) -> Tensor:
    """[B, 3] float32: the logarithms of the token's probability and of the likeliest one's, and the law's entropy.

    What is published reads the small model's last hidden state. These three are known of every drafter that has a law,
    so that one head serves them all, and can be tried on another drafter than its own.
    """
    likeliest = node.law.amax(1)
    logs = torch.stack([node.confidence, likeliest], 1).clamp(min=LEAST_PROBABILITY).log()
    return torch.cat([logs, node.entropy.unsqueeze(1)], 1).float()


class AcceptanceHead(nn.Module):
    """Residual blocks of SiLU layers over a few features of the drafter's law."""

    def __init__(self, *, width: int, num_blocks: int):
        """
        Args:
            width: W of the layers.
            num_blocks: how many of them stand between the first and the last.
        """
        super().__init__()
        self.first = nn.Linear(NUM_FEATURES, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(num_blocks))
        self.last = nn.Linear(width, 1)

    def forward(self, features: Tensor) -> Tensor:
        """[B] float32: log odds that the token is kept, given that all before it are; features [B, 3]."""
        hidden = self.first(features)
        for block in self.blocks:
            hidden = hidden + functional.silu(block(hidden))
        return self.last(hidden).squeeze(-1)

    def chance(self, node: DraftedNode) -> Tensor:
        """[B] float32: the probability of being kept."""
        return self(features_of(node)).sigmoid()


def save_head(folder: Path, head: AcceptanceHead, facts: Mapping[str, object]) -> None:
    """Write a head, with what is to be known of it."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(head.state_dict(), folder / WEIGHTS)
    built = {"width": head.first.out_features, "num_blocks": len(head.blocks)}
    (folder / FACTS).write_text(json.dumps({**built, **facts}, indent=1) + "\n")


def load_head(path: str, *, key: str) -> AcceptanceHead:
    """Read a head.

    Args:
        path: its folder.
        key: the yaml key that names the folder.

    Raises:
        OSError: no head there, or none that can be read.
    """
    folder = Path(path)
    try:
        built = json.loads((folder / FACTS).read_text())
        head = AcceptanceHead(width=built["width"], num_blocks=built["num_blocks"])
        head.load_state_dict(load_file(folder / WEIGHTS))
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{key} is {path!r}: no {WEIGHTS} with a {FACTS} there; allowed: a folder that "
            "python -m experiments.train training=stop_head writes"
        ) from error
    except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise OSError(f"{key} is {path!r}: not a whole head ({type(error).__name__})") from error
    return head.eval().requires_grad_(False)
