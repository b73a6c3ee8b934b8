"""Train the embedded models: a byte-level BPE tokenizer, a Llama target, and drafters distilled from it.

Run `python -m experiments.make_zoo`. Killed runs resume from their last checkpoint in `workdir`.
"""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("make_zoo")
    raise SystemExit

import json
import sys
from pathlib import Path

import numpy as np
from omegaconf import DictConfig, OmegaConf
from transformers import PreTrainedTokenizerFast

from experiments.config.cli_errors import one_line_errors
from experiments.config.command import command
from experiments.corpora.python_corpus import Corpus, read_python_corpus
from experiments.corpora.standard_library import StandardLibrary
from experiments.trainer.pretraining import (
    TokenisedText,
    Windows,
    encode,
    lengthened,
    made_with,
    sample_evenly,
    train_models,
    train_tokenizer,
)


def prepare_data(cfg: DictConfig) -> dict:
    """Tokenise the Python sources of this machine into cfg.workdir, unless done before.

    Returns:
        Provenance of the corpus.
    """
    workdir = Path(cfg.workdir)
    prepared = workdir / "data.json"
    if not prepared.exists():
        print("reading and tokenising the corpus: a minute or two", flush=True)
        corpus: Corpus = read_python_corpus()
        sample = corpus.standard_library + corpus.packages[::8]
        train_tokenizer(sample, cfg.vocabulary).save_pretrained(workdir / "tokenizer")
        tokenizer = PreTrainedTokenizerFast.from_pretrained(workdir / "tokenizer")
        held_out = [text.text for text in StandardLibrary(split="held_out").texts()]
        parts = {"standard_library": corpus.standard_library, "packages": corpus.packages, "held_out": held_out}
        streams = {name: encode(tokenizer, texts) for name, texts in parts.items()}
        for name, stream in streams.items():
            np.save(workdir / f"{name}.npy", stream)
        held_out_bytes = sum(len(text.encode()) for text in held_out)
        facts = {
            "fingerprint": corpus.fingerprint(),
            "licences": corpus.licences,
            "files": {name: len(texts) for name, texts in parts.items()},
            "tokens": {name: len(stream) for name, stream in streams.items()},
            "copies_of_held_out_text_dropped": corpus.num_copies_dropped,
            "bytes_per_held_out_token": held_out_bytes / len(streams["held_out"]),
            "python": sys.version.split()[0],
        }
        prepared.write_text(json.dumps(facts, indent=2))
    return json.loads(prepared.read_text())


def read_text(folder: Path, data: DictConfig, seed: int) -> TokenisedText:
    """Load the output of `prepare_data` from a folder as windows, sized and mixed by `data`."""
    share = data.standard_library_share
    training = [np.load(folder / f"{name}.npy") for name in ("standard_library", "packages")]
    return TokenisedText(
        tokenizer=PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer"),
        windows=Windows(training, [share, 1 - share], data.window, seed),
        held_out=sample_evenly(np.load(folder / "held_out.npy"), data.window),
        bytes_per_token=json.loads((folder / "data.json").read_text())["bytes_per_held_out_token"],
    )


def train_zoo(cfg: DictConfig) -> None:
    """Train all models, resuming from checkpoints, and write them with their provenance into cfg.folder.

    A second phase trains on longer texts unless `longer` is null.
    """
    workdir = Path(cfg.workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    corpus = prepare_data(cfg)
    print(f"data: {corpus['tokens']}, {corpus['bytes_per_held_out_token']:.2f} bytes per held-out token", flush=True)
    facts = {"command": "python -m experiments.make_zoo", "corpus": corpus, **made_with(cfg)}
    if cfg.longer is None:
        facts |= train_models(cfg, read_text(workdir, cfg.data, cfg.seed))
    else:
        short = _merged(cfg, {"folder": str(workdir / "short")})
        longer = _merged(cfg, cfg.longer, {"workdir": str(workdir / "longer")})
        facts["short"] = train_models(short, read_text(workdir, short.data, cfg.seed))
        facts |= train_models(
            longer,
            read_text(workdir, longer.data, cfg.seed),
            begin=lambda name: lengthened(Path(short.folder) / name, longer.rope_parameters),
        )
    (Path(cfg.folder) / "provenance.json").write_text(json.dumps(facts, indent=2) + "\n")


def _merged(cfg: DictConfig, *changes: DictConfig | dict[str, str]) -> DictConfig:
    """Merge changes into a copy of cfg; they may add keys."""
    merged = OmegaConf.merge(OmegaConf.to_container(cfg), *changes)
    assert isinstance(merged, DictConfig)
    return merged


@command("make_zoo")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="the same command resumes from the last checkpoint"):
        train_zoo(cfg)
