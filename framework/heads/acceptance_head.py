"""Acceptance head: a small network that predicts whether a drafted token is accepted (SpecDec++; Huang et al., 2024).

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

from framework.core.draft import DraftedNode
from framework.core.option_error import MissingFileError, UnreadableError

NUM_FEATURES = 3
LEAST_PROBABILITY = 1e-9  # floor before taking the logarithm
WEIGHTS, FACTS = "head.safetensors", "head.json"


def features_of(node: DraftedNode) -> Tensor:
    """Features [B, 3] float32 of a drafted node.

    They are the log-probabilities of the drafted and of the most likely token, and the entropy of the distribution in
    nats. They exist for every drafter with a distribution, so a head of them alone can be tried on other drafters.
    """
    likeliest = node.probs.amax(1)
    logs = torch.stack([node.confidence, likeliest], 1).clamp(min=LEAST_PROBABILITY).log()
    return torch.cat([logs, node.entropy.unsqueeze(1)], 1).float()


class AcceptanceHead(nn.Module):
    """Residual blocks of SiLU layers over a few features of the drafter's distribution and, if asked for, its state.

    The published head reads the small model's last hidden state.
    """

    def __init__(self, *, width: int, num_blocks: int, state_size: int = 0):
        """
        Args:
            width: W, width of the layers.
            num_blocks: number of residual blocks between the first and the last layer.
            state_size: H, size of the drafter's last hidden state; 0: the head does not read it.
        """
        super().__init__()
        self.state_size = state_size
        self.first = nn.Linear(NUM_FEATURES + state_size, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(num_blocks))
        self.last = nn.Linear(width, 1)

    def forward(self, features: Tensor) -> Tensor:
        """[B] float32: log odds that the token is accepted if all before it are; features [B, 3 + H]."""
        hidden = self.first(features)
        for block in self.blocks:
            hidden = hidden + functional.silu(block(hidden))
        return self.last(hidden).squeeze(-1)

    def chance(self, node: DraftedNode) -> Tensor:
        """[B] float32: probability that the token is accepted if all tokens before it are."""
        return self(self.inputs_of(node)).sigmoid()

    def inputs_of(self, node: DraftedNode) -> Tensor:
        """[B, 3 + H]: the features of a node, and the drafter's state if the head reads it."""
        if not self.state_size:
            return features_of(node)
        assert node.hidden is not None, "the caller checks that the drafter shows its state"
        return torch.cat([features_of(node), node.hidden.float()], 1)


def save_head(folder: Path, head: AcceptanceHead, facts: Mapping[str, object]) -> None:
    """Write a head to a folder, with facts for its JSON file."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(head.state_dict(), folder / WEIGHTS)
    built = {"width": head.first.out_features, "num_blocks": len(head.blocks), "state_size": head.state_size}
    (folder / FACTS).write_text(json.dumps({**built, **facts}, indent=1) + "\n")


def load_head(path: str) -> AcceptanceHead:
    """Read a head, frozen and in evaluation mode.

    Args:
        path: folder of the head.

    Raises:
        OSError: the folder holds no head, or a damaged one.
    """
    folder = Path(path)
    try:
        built = json.loads((folder / FACTS).read_text())
        state_size = built.get("state_size", 0)  # files of earlier versions have none
        head = AcceptanceHead(width=built["width"], num_blocks=built["num_blocks"], state_size=state_size)
        head.load_state_dict(load_file(folder / WEIGHTS))
    except FileNotFoundError as error:
        raise MissingFileError(
            "path", path, "a folder that `train training=stop_head` writes", f"without {WEIGHTS} and {FACTS}"
        ) from error
    except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        problem = f"which holds no whole head ({type(error).__name__})"
        raise UnreadableError("path", path, "a folder that `train training=stop_head` writes", problem) from error
    return head.eval().requires_grad_(False)
