"""Stored profiles of rounds: one file per pair, setting, machine and version, in the user's cache folder."""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from experiments.config.cli_errors import announce
from experiments.results.cache_folder import FOLDER, cache_folder
from experiments.results.model_names import facts
from experiments.results.passed_checks import source_version
from experiments.results.provenance import machine, versions
from experiments.tracking.tracker import write_json
from framework import kernels
from framework.core.drafter import models_of
from framework.decoding.engine import Engine
from framework.gamma_policies.round_profile import RoundProfile

Identity = dict[str, Any]
"""Facts that the times and the acceptance of rounds depend on, as JSON values."""


def identity_of(engine: Engine, options: object, *, batch_size: int, gammas: list[int]) -> Identity:
    """Identity of a profile.

    Args:
        options: options of drafter and verifier, as JSON values.
        gammas: gammas with a time.
    """
    target, drafter = engine.target, engine.drafter
    identity = {
        "target": {"fingerprint": target.fingerprint, "attention": target.model.attention}
        | {"models": facts([target.model.model])},
        "drafter": _code_of(drafter) | {"options": options, "models": facts(models_of(drafter))},
        "verifier": _code_of(engine.verifier),
        "sampling": asdict(engine.sampling),
        "gammas": gammas,
        "batch_size": batch_size,
        "compiled": engine.compiled,
        "machine": machine(target.device),
        "versions": versions("torch", "transformers", "outrider") | {"kernels": _version_of_kernels()},
        "numbers": [each.name for each in fields(RoundProfile)],
    }
    return json.loads(json.dumps(identity))


def _code_of(part: object) -> dict[str, str | None]:
    """Class of a drafter or rule, and the version of its source file, which its author may change."""
    version = None
    with suppress(OSError, TypeError):  # no file, as in a notebook
        version = source_version(type(part))
    return {"module": type(part).__module__, "class": type(part).__name__, "source": version}


def _version_of_kernels() -> str:
    """16 hex digits that identify the sources of our kernels."""
    sources = sorted(path for path in Path(kernels.__file__).parent.iterdir() if path.suffix in (".py", ".cpp"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


def file_of(identity: Identity) -> Path:
    """File of a profile, in a folder named after the target's fingerprint."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache_folder() / "round_profiles" / identity["target"]["fingerprint"]
    return folder / f"{identity['drafter']['class']}-{digest}.json"


def load_profile(identity: Identity) -> RoundProfile | None:
    """The stored profile; None: there is none, or its file is damaged, of which a line is printed."""
    file = file_of(identity)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["of"] != identity:
            raise ValueError("it is of other models, or of another setting or machine")
        return RoundProfile.from_json(content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        announce(f"{file} is not used ({type(error).__name__}: {error}); the rounds are measured again")
        return None


def store_profile(identity: Identity, profile: RoundProfile) -> None:
    """Write a profile; if that is not possible, print a line, and later runs measure again."""
    file = file_of(identity)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, with_identity(identity, profile))
    except OSError as error:
        announce(f"{file} cannot be written ({error}); set {FOLDER} to another folder, so that runs measure once")


def with_identity(identity: Identity | None, profile: RoundProfile) -> dict[str, Any]:
    """A profile with its identity, if known, as its file and records hold it."""
    return {"of": identity, **profile.to_json()}
