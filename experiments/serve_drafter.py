"""Drafter for targets in other processes: `python -m experiments.serve_drafter`.

Of the target, only the tokenizer is loaded.
"""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("serve_drafter")
    raise SystemExit

import torch
from omegaconf import DictConfig

from experiments.config.builders import build, check_basics
from experiments.config.cli_errors import announce, one_line_errors, status
from experiments.config.command import command
from experiments.config.option_checks import check_kind
from framework.core.option_error import OptionError, options_under
from framework.core.validation import check_whole
from framework.models.pretrained import load_tokenizer
from framework.remote.peers import check_drafter_of, listen, secret_of_environment, serve


@command("serve_drafter")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="no drafter is served any more"):
        check_basics(cfg, {}, or_null=())
        check_kind("host", cfg.host, [str])
        check_whole("port", cfg.port, least=0, most=2**16 - 1)
        if cfg.device != "cpu":
            raise OptionError("device", cfg.device, "cpu")
        secret = secret_of_environment()
        with options_under("drafter"):
            factory = build(cfg.drafter)
        with options_under("target"):
            option = "tokenizer" if cfg.target.get("tokenizer") else "path"
            tokenizer = load_tokenizer(str(cfg.target[option]), option=option)
        if cfg.threads is not None:
            torch.set_num_threads(cfg.threads)
        with listen(cfg.host, cfg.port, secret=secret) as listening:
            with status("loading the drafter"):
                check_drafter_of(factory, tokenizer)
            announce(f"serving {cfg.drafter._target_} at {cfg.host}:{listening.getsockname()[1]}")
            serve(listening, factory, tokenizer, secret=secret, tell=announce)
