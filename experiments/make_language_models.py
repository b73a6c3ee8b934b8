"""Train a language model and its drafter from scratch on any text, for unconditional generation.

Run `python -m experiments.make_language_models`; conf/language_models.yaml says on which text. Killed runs resume from
their last checkpoint in `workdir`.
"""

import json
from pathlib import Path

import hydra
from omegaconf import DictConfig

from experiments.assemble import build, register_resolvers
from experiments.entry_point import one_line_errors
from experiments.knobs import check_kind
from experiments.pretraining import TokenisedText, Windows, encode, made_with, spread, train_models, train_tokenizer
from framework.whole_numbers import check_whole

register_resolvers()


def read_text(cfg: DictConfig) -> TokenisedText:
    """The texts of the two sources, tokenised.

    Raises:
        ValueError: one of them is too short.
    """
    training, held_out = ([text.text for text in build(cfg[part].source).texts()] for part in ("train", "held_out"))
    tokenizer = train_tokenizer(training, cfg.vocabulary, every_byte=cfg.every_byte)
    stream, unseen = (encode(tokenizer, texts) for texts in (training, held_out))
    if len(stream) <= cfg.data.window + 1:
        raise ValueError(f"train.source gives {len(stream)} tokens; allowed: more than data.window, {cfg.data.window}")
    return TokenisedText(
        tokenizer=tokenizer,
        windows=Windows([stream], [1.0], cfg.data.window, cfg.seed, cfg.data.stride),
        held_out=spread(unseen, cfg.data.window, cfg.data.stride),
        bytes_per_token=sum(len(text.encode()) for text in held_out) / len(unseen),
    )


@hydra.main(version_base="1.3", config_path="../conf", config_name="language_models")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="the same command goes on from the last checkpoint"):
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


if __name__ == "__main__":
    main()
