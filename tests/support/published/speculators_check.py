"""Exported folders in the `speculators` package: its logits on stored inputs, in an environment of its own.

`make check-speculators` runs this file with the package's Python, which has no Outrider. Each folder below
`tests/support/speculators` is an export, with `forward.safetensors`: the inputs, and the package's logits. `--write`
stores these logits; without it, they are compared with the stored ones.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

FOLDER = Path(__file__).parents[1] / "speculators"
STEPS = 5
TOLERANCE = 1e-5  # the package computes softmax and norms in float32


def package_logits(folder: Path, hidden_states: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
    """Logits of drafts from the positions of a text, as the package orders them.

    eagle3: [STEPS, T, Vd], one step for all positions at a time; the tokens of further steps are those of the text.
    peagle: [N, Vd], all positions at depth 0, then those of the longer and longer drafts that fit into the text.
    dflash: [T - block, block, V], a block for every position in turn.

    Args:
        hidden_states: [T, 3 H] the target's states.
        input_ids: [T] int64: for eagle3 and peagle the token after each state, for dflash the token of each state.
    """
    from speculators import SpeculatorModel, SpeculatorModelConfig
    from speculators.losses import resolve_loss_config
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = SpeculatorModel.from_pretrained(folder, config=config, dtype=torch.float64).eval()
    given = {
        "hidden_states": hidden_states[None].double(),
        "input_ids": input_ids[None],
        "document_ids": torch.zeros_like(input_ids)[None],
    }
    logits: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: logits.append(output[0]))
    with torch.no_grad():
        if config.speculators_model_type == "eagle3":
            model(**given, ttt_steps=STEPS)
            return torch.stack(logits)
        last = torch.zeros(1, len(input_ids), config.transformer_layer_config.hidden_size, dtype=torch.float64)
        mask = torch.ones_like(input_ids)[None]
        if config.speculators_model_type == "peagle":
            mask[:, 0] = 0  # or the package counts a draft from before the text
            all_of_them = {"num_depths": STEPS, "down_sample_ratio": 2.0, "down_sample_ratio_min": 2.0}
            loss = resolve_loss_config("kl_div", "eager")
            model(**given, loss_mask=mask, verifier_last_hidden_states=last, loss_config=loss, **all_of_them)
            return logits[0]
        blocks = len(input_ids) - config.block_size
        model._backbone_forward(**given, loss_mask=mask, verifier_last_hidden_states=last, max_anchors=blocks)
        return logits[0].unflatten(0, (blocks, config.block_size))


def main() -> None:
    worst = 0.0
    for folder in sorted(file.parent for file in FOLDER.glob("*/forward.safetensors")):
        stored = load_file(folder / "forward.safetensors")
        logits = package_logits(folder, stored["hidden_states"], stored["input_ids"])
        if "--write" in sys.argv:
            save_file(stored | {"logits": logits.contiguous()}, folder / "forward.safetensors")
            continue
        difference = float((logits - stored["logits"]).abs().max())
        worst = max(worst, difference)
        print(f"{folder.name}: {logits.numel()} logits, largest difference {difference:.1e}")
    if worst > TOLERANCE:
        sys.exit(f"the package's logits differ by {worst:.1e}; allowed: {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
