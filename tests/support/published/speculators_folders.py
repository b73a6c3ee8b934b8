"""Random drafters as folders of the `speculators` package, with inputs for `speculators_check.py`.

`python -m tests.support.published.speculators_folders` writes them anew, then
`.venv-speculators/bin/python -m tests.support.published.speculators_check --write` adds the package's logits.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file

from framework.conformance.tiny_models import save_tiny
from framework.heads.published_files import Export
from framework.heads.speculators_format import speculators_dflash, speculators_eagle3
from tests.support.published.dflash import random_dflash
from tests.support.published.eagle3 import random_eagle3

FOLDER = Path(__file__).parents[1] / "speculators"
EAGLE3 = {
    "eagle3": {},
    "eagle3_qwen3": {"model_type": "qwen3", "draft_vocab_size": 50, "norm_before_residual": True},
    "peagle": {"mask_token_id": 49},
}
NAMES = ("dflash", *EAGLE3)


def export_of(name: str) -> Export:
    """The drafter with a name of NAMES, exported."""
    target = {"name": "tests/support/speculators/target", "architectures": ["LlamaForCausalLM"]}
    if name == "dflash":
        return speculators_dflash(*random_dflash(), **target)
    return speculators_eagle3(*random_eagle3(**EAGLE3[name]), **target, layers=[0, 1, 2], speculative_tokens=5)


if __name__ == "__main__":
    save_tiny(FOLDER / "target", hidden_size=16, intermediate_size=24)
    for name in NAMES:
        export_of(name).save(FOLDER / name)
        random = torch.Generator().manual_seed(1)
        inputs = {"hidden_states": torch.randn(9, 48, generator=random)}
        inputs["input_ids"] = torch.randint(50, (9,), generator=random)
        save_file(inputs, FOLDER / name / "forward.safetensors")
