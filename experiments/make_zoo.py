"""Train the embedded models: a byte-level BPE tokenizer, a Llama target, and drafters distilled from it.

Run `python -m experiments.make_zoo`. Killed runs resume from their last checkpoint in `workdir`.
"""

import json
import sys
from pathlib import Path

import hydra
import numpy as np
from omegaconf import DictConfig
from transformers import PreTrainedTokenizerFast

from experiments.entry_point import one_line_errors
from experiments.help_text import register_help
from experiments.pretraining import TokenisedText, Windows, encode, spread, train_models, train_tokenizer
from experiments.python_corpus import Corpus, read_python_corpus
from framework.prompts.standard_library import StandardLibrary

register_help()


def prepare_data(cfg: DictConfig) -> tuple[TokenisedText, dict]:
    """The Python sources of this machine, and their provenance."""
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
    facts = json.loads(prepared.read_text())
    share = cfg.data.standard_library_share
    training = [np.load(workdir / f"{name}.npy") for name in ("standard_library", "packages")]
    text = TokenisedText(
        tokenizer=PreTrainedTokenizerFast.from_pretrained(workdir / "tokenizer"),
        windows=Windows(training, [share, 1 - share], cfg.data.window, cfg.seed),
        held_out=spread(np.load(workdir / "held_out.npy"), cfg.data.window),
        bytes_per_token=facts["bytes_per_held_out_token"],
    )
    return text, facts


def train_zoo(cfg: DictConfig) -> None:
    """Train what is not trained yet, and write the finished models with their provenance."""
    Path(cfg.workdir).mkdir(parents=True, exist_ok=True)
    text, data_facts = prepare_data(cfg)
    print(f"data: {data_facts['tokens']}, {text.bytes_per_token:.2f} bytes per held-out token", flush=True)
    facts = {"command": "python -m experiments.make_zoo", "corpus": data_facts} | train_models(cfg, text)
    (Path(cfg.folder) / "provenance.json").write_text(json.dumps(facts, indent=2) + "\n")


@hydra.main(version_base="1.3", config_path="../conf", config_name="zoo")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="the same command goes on from the last checkpoint"):
        train_zoo(cfg)


if __name__ == "__main__":
    main()
