"""Measure under random yaml values: it runs to a record, or says in one line which key is wrong."""

import atexit
import contextlib
import io
import json
import re
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from unittest import mock

import torch
from hypothesis import strategies as st
from omegaconf import OmegaConf

from experiments import measure
from experiments.config import resolvers
from experiments.measurement import bench
from experiments.proof.tiny_drafters import FITTED, PUBLISHED
from experiments.results.records import load_records
from framework.conformance.tiny_models import save_tiny
from framework.drafting.layer_set import LayerSet, save_layer_set
from framework.heads.acceptance_head import AcceptanceHead, save_head
from framework.models.pretrained import load_target
from tests.support.fuzzing import fuzz

CONF = Path(measure.__file__).parents[1] / "conf"
SECONDS = 30  # a run takes one; a hang is a failure
GROUPS = {"drafter": "prompt_lookup", "gamma": "fixed", "verifier": "speculative_sampling"}  # the usual first
FIXED = {"sampling": "default", "target": "pretrained", "prompts": "jsonl"}
VALUES = st.sampled_from(
    ["-1", "0", "1", "2", "0.5", "1.5", "-0.5", "1e30", "1e-30", "nan", "inf", "-inf", "null", "true", "false", "abc",
     "''", "'1'", "'a b'", "'x\ny'", "'[/]'", "'é'", "'../..'", "[]", "[1,2]", "[a]", "[null]", "???",
     "99999999999999999999", "-99999999999999999999"]
)  # fmt: skip
# Valid, and only a matter of patience or of the machine's network.
NOT_TRIED = re.compile(
    r"(repeats|tracker\..*)=.*|.*folder=null|((drafter\.)+model|target)\.path=(abc|1|'1'|'a b'|'é'|'')"
)


@cache
def tiny() -> tuple[Path, list[str]]:
    """A folder of tiny models and texts, and overrides that put them in the place of the embedded ones."""
    folder = Path(tempfile.mkdtemp(prefix="outrider-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for seed, name in enumerate(("target", "drafter", "drafter_large", "drafter_small"), start=1):
        save_tiny(folder / name, seed=seed, context=64)
    target = load_target(path=f"{folder}/target", dtype="float32", device="cpu", attention="sdpa", context=None)
    save_head(folder / "stop_head", AcceptanceHead(width=2, num_blocks=1), {})
    for name, save in FITTED.items():
        save(folder / name, target)
    for name, save in PUBLISHED.items():
        save(folder / name.split(".")[0], target)
    layers = LayerSet(target.model.model.config.num_hidden_layers, (0,), (0,))
    save_layer_set(folder / "layer_skip.yaml", layers, fingerprint=target.fingerprint, facts={})
    (folder / "prompts.jsonl").write_text(json.dumps({"prompt": "ab ca"}) + "\n")
    (folder / "argparse.py").write_text("Ab ca bab. " * 300)
    pairs = ["target=pretrained", "prompts=jsonl", "tracker=jsonl", "device=cpu", "target.dtype=float32",
             f"target.path={folder}/target", f"prompts.source.path={folder}/prompts.jsonl",
             "max_new_tokens=3", "repeats=1", "hugging_face=false"]  # fmt: skip
    return folder, pairs


def leaves(prefix: str, node: dict) -> Iterator[str]:
    for key, value in node.items():
        if not key.startswith("_") and key != "defaults":
            yield from leaves(f"{prefix}{key}.", value) if isinstance(value, dict) else [f"{prefix}{key}"]


def keys_of(group: str, choice: str) -> list[str]:
    return list(leaves(f"{group}.", OmegaConf.to_container(OmegaConf.load(CONF / group / f"{choice}.yaml"))))


@st.composite
def overrides(draw: Callable) -> list[str]:
    """A choice of parts and one or two keys of theirs, or of everybody's, with any value."""
    chosen = {
        group: draw(st.sampled_from(sorted((path.stem for path in (CONF / group).glob("*.yaml")), key=usual.__ne__)))
        for group, usual in GROUPS.items()
    }
    common = OmegaConf.to_container(OmegaConf.load(CONF / "common.yaml"))
    keys = list(leaves("", common)) + [key for pair in (chosen | FIXED).items() for key in keys_of(*pair)]
    wild = st.tuples(st.sampled_from(keys), VALUES).map("=".join).filter(lambda pair: not NOT_TRIED.fullmatch(pair))
    return [*map("=".join, chosen.items()), *draw(st.lists(wild, min_size=1, max_size=2, unique_by=key_of))]


def key_of(override: str) -> str:
    return override.split("=")[0]


def measured(arguments: list[str], folder: Path) -> tuple[int | str | None, list[str]]:
    """The exit code of a run in this process, None if it ended well; and what it said beside what Hydra always says."""

    def too_slow(*_: object) -> None:
        raise AssertionError(f"still running after {SECONDS} s")

    out, err, code = io.StringIO(), io.StringIO(), None
    before, num_threads = signal.signal(signal.SIGALRM, too_slow), torch.get_num_threads()
    signal.alarm(SECONDS)
    try:
        with (
            mock.patch.object(sys, "argv", ["measure", *arguments, f"hydra.run.dir={folder}"]),
            mock.patch.object(resolvers, "ZOO", tiny()[0]),
            mock.patch.object(bench, "provenance", lambda device: {}),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            resolvers.register_resolvers()  # other tests put theirs in its place
            measure.main()
    except SystemExit as stopped:
        code = stopped.code
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        torch.set_num_threads(num_threads)
    echo = ("Error executing job with overrides", "Set the environment")
    return code, [line for line in err.getvalue().splitlines() if line.strip() and not line.startswith(echo)]


@fuzz(10, few=False, wild=overrides())
def test_measure_runs_or_names_the_key(wild: list[str]) -> None:
    tiny_folder, usual = tiny()
    drafter = wild[0].removeprefix("drafter=")
    needed = []
    if drafter in ("ngram", "corpus_unigram"):
        needed = [f"drafter.corpus.folder={tiny_folder}"]
    elif drafter in ("dflash", "eagle", "mtp", "peagle"):
        needed = [f"drafter.path={tiny_folder}/{drafter}"]
    with tempfile.TemporaryDirectory() as folder:
        code, shown = measured([*usual, *wild[:1], *needed, *wild[1:]], Path(folder))
        if code is None:
            assert len(load_records(Path(folder))) == 1
            return
    assert code == 1 and len(shown) == 1, shown
    names_a_key = any(key_of(override).split(".")[-1] in shown[0] for override in wild[3:])
    assert names_a_key or shown[0].startswith("ValueError: verifier="), shown  # the parts themselves may not fit
