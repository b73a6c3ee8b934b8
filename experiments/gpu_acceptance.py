"""Prove and measure everything on a GPU in ten minutes: `python -m experiments.gpu_acceptance`, or `make gpu`."""

if __name__ == "__main__":  # before the imports, which take seconds
    import sys

    from experiments.gpu.plain_options import NEEDED, OF_HYDRA, missing, run_plainly

    if lacking := missing([*NEEDED, *OF_HYDRA]):
        if not set(lacking) & set(NEEDED):
            print(f"without {', '.join(lacking)}: arguments are KEY=VALUE for conf/gpu_acceptance.yaml")
        sys.exit(run_plainly(sys.argv[1:]))
    from experiments.config.command import run_command

    run_command("gpu_acceptance")
    raise SystemExit

import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from experiments.config.cli_errors import one_line_errors
from experiments.config.command import command
from experiments.gpu.all_steps import accept
from experiments.gpu.plain_options import folder_of


@command("gpu_acceptance")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="the finished checks are in the folder of the results"):
        settings: Any = OmegaConf.to_container(cfg, resolve=True)
        if status := accept(settings, folder_of(settings, Path(HydraConfig.get().runtime.output_dir))):
            sys.exit(status)
