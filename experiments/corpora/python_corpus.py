"""Training corpus of the Python sources on this machine, with licences and a fingerprint."""

import hashlib
import sysconfig
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from experiments.corpora.standard_library import StandardLibrary

LONG_LINE = 40  # characters; shorter lines are common to all Python code and do not indicate a copy
MAX_HELD_OUT_SHARE = 0.1  # of a file's long lines; above it the file counts as a copy of held-out text
MAX_CHARACTERS = 200_000  # larger files are generated tables
PACKAGES = (
    "torch", "transformers", "sympy", "networkx", "numpy", "matplotlib", "nltk", "wandb", "rich", "fonttools",
    "huggingface_hub", "setuptools", "pydantic", "mpmath", "pytest", "joblib", "fsspec", "omegaconf", "hydra-core",
    "jinja2", "click", "requests", "regex", "tokenizers", "safetensors", "tqdm", "packaging", "httpx", "anyio",
)  # fmt: skip


@dataclass
class Corpus:
    """Training texts by origin.

    Attributes:
        standard_library: texts of the training split, with the library's own tests.
        packages: texts of installed dependencies.
        licences: licence of every origin, from its metadata.
        num_copies_dropped: number of files left out because they repeat held-out text.
    """

    standard_library: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)
    licences: dict[str, str] = field(default_factory=dict)
    num_copies_dropped: int = 0

    def fingerprint(self) -> str:
        """SHA-256 over all texts in order."""
        digest = hashlib.sha256()
        for text in self.standard_library + self.packages:
            digest.update(hashlib.sha256(text.encode()).digest())
        return digest.hexdigest()


def read_python_corpus() -> Corpus:
    """Read the standard library's training split and the installed packages, without held-out text."""
    held_out = {line for text in StandardLibrary(split="held_out").texts() for line in _long_lines(text.text)}
    corpus = Corpus(licences={"standard library": "PSF-2.0"})

    def keep(text: str, into: list[str]) -> None:
        lines = _long_lines(text)
        if lines and sum(line in held_out for line in lines) > MAX_HELD_OUT_SHARE * len(lines):
            corpus.num_copies_dropped += 1
        elif 500 <= len(text) <= MAX_CHARACTERS:
            into.append(text)

    for text in StandardLibrary(split="train").texts():
        keep(text.text, corpus.standard_library)
    for path in sorted((Path(sysconfig.get_paths()["stdlib"]) / "test").rglob("*.py")):
        keep(path.read_text(encoding="utf-8", errors="replace"), corpus.standard_library)
    for package in PACKAGES:
        try:
            distribution = metadata.distribution(package)
        except metadata.PackageNotFoundError:
            continue
        corpus.licences[f"{package} {distribution.version}"] = _licence(distribution)
        for file in sorted(distribution.files or [], key=str):
            path = Path(str(file.locate()))
            if path.suffix == ".py" and path.is_file():
                keep(path.read_text(encoding="utf-8", errors="replace"), corpus.packages)
    return corpus


def _long_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if len(line.strip()) >= LONG_LINE]


def _licence(distribution: metadata.Distribution) -> str:
    fields = distribution.metadata
    classifiers = [c.rsplit("::", 1)[-1].strip() for c in fields.get_all("Classifier", []) if c.startswith("License")]
    stated = next(iter(fields.get_all("License-Expression", []) or []), "") or ", ".join(classifiers) or "not stated"
    return stated.splitlines()[0][:80]
