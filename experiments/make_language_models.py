"""Train a language model and its drafter from scratch on any text, for unconditional generation.

Run `python -m experiments.make_language_models`; conf/make_language_models.yaml sets the text. Killed runs
resume from their last checkpoint in `workdir`.
"""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("make_language_models")
    raise SystemExit

import json
from pathlib import Path

from omegaconf import DictConfig

from experiments.config.builders import build
from experiments.config.cli_errors import one_line_errors
from experiments.config.command import command
from experiments.config.option_checks import check_kind
from experiments.trainer.pretraining import (
    TokenisedText,
    Windows,
    encode,
    made_with,
    sample_evenly,
    train_models,
    train_tokenizer,
)
from framework.core.option_error import options_under
from framework.core.validation import check_whole
from framework.prompts.prompt_source import PromptSource


def _texts(source: PromptSource, key: str) -> list[str]:
    with options_under(key):
        return [text.text for text in source.texts()]


def read_text(cfg: DictConfig) -> TokenisedText:
    """Read and tokenise the training and held-out texts.

    Raises:
        ValueError: one of them is too short for a window.
    """
    training, held_out = (_texts(build(cfg[part].source), f"{part}.source") for part in ("train", "held_out"))
    tokenizer = train_tokenizer(training, cfg.vocabulary, every_byte=cfg.every_byte)
    stream, unseen = (encode(tokenizer, texts) for texts in (training, held_out))
    if len(stream) <= cfg.data.window + 1:
        raise ValueError(f"train.source gives {len(stream)} tokens; allowed: more than data.window, {cfg.data.window}")
    return TokenisedText(
        tokenizer=tokenizer,
        windows=Windows([stream], [1.0], cfg.data.window, cfg.seed, cfg.data.stride),
        held_out=sample_evenly(unseen, cfg.data.window, cfg.data.stride),
        bytes_per_token=sum(len(text.encode()) for text in held_out) / len(unseen),
    )


@command("make_language_models")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="the same command resumes from the last checkpoint"):
        check_kind("every_byte", cfg.every_byte, [bool])
        check_whole("data.stride", cfg.data.stride, least=1, most=cfg.data.window + 1)
        Path(cfg.workdir).mkdir(parents=True, exist_ok=True)
        print("reading and tokenising the text", flush=True)
        text = read_text(cfg)
        facts = {"command": "python -m experiments.make_language_models", **made_with(cfg)} | train_models(cfg, text)
        (Path(cfg.folder) / "provenance.json").write_text(json.dumps(facts, indent=2) + "\n")
        print(
            f"Next: python -m experiments.{cfg.next} target.path={cfg.folder}/target "
            f"drafter.model.path={cfg.folder}/drafter"
        )
