"""Local folders and hub names, with a check within seconds that the hub answers; the libraries wait half a minute."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from queue import Empty, SimpleQueue
from threading import Thread

from huggingface_hub import constants, get_session, try_to_load_from_cache
from safetensors import SafetensorError
from transformers.utils import logging

from framework.core.option_error import MissingFileError, OptionError, UnreachableError, UnreadableError

SECONDS = 3


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hide the progress bars of transformers in the block."""
    if not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


@dataclass(frozen=True)
class Place:
    """Location of a model, tokenizer or drafter, and the option that names it."""

    option: str
    path: str
    is_local: bool  # load from this machine only, without contacting a hub
    allowed: str

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Convert errors of the libraries to one line that names the option.

        Hides their warnings, because an error of ours follows if a model does not fit its files, and the progress bars
        of local files.
        """
        verbosity = logging.get_verbosity()
        logging.set_verbosity_error()
        try:
            with without_progress_bars() if self.is_local else nullcontext():
                yield
        except UnpicklingError as error:
            # The library's own message recommends running arbitrary code from the file.
            problem = "which cannot be loaded: its .bin or .pt files are damaged, or hold more than tensors"
            raise UnreadableError(self.option, self.path, "one with .safetensors files", problem) from error
        except OptionError:
            raise
        except Exception as error:  # configs, checkpoints and tokenizers may be wrong in any way
            kind = UnreadableError if isinstance(error, (OSError, EOFError, SafetensorError)) else OptionError
            reason = textwrap.shorten(str(error), 200, placeholder=" ...")
            if isinstance(error, (LookupError, ArithmeticError, TypeError)):
                reason = f"{type(error).__name__}: {reason}"
            raise kind(self.option, self.path, self.allowed, f"which cannot be loaded: {reason}") from error
        finally:
            logging.set_verbosity(verbosity)


def locate(
    path: str, *, option: str = "path", kind: str = "model", holding: tuple[str, ...] = ("config.json",)
) -> Place:
    """Find a folder, or check that the hub answers, before a library waits long for an unreachable one.

    Args:
        path: a local folder, or a hub name.
        option: name of the option, for errors.
        kind: what the folder should hold, for errors.
        holding: file names, at least one of which the folder or repository must contain.

    Raises:
        FileNotFoundError: the folder does not exist in an existing one, or contains none of these files.
        ConnectionError: the hub name is not on this machine, and the hub cannot be reached.
    """
    folder = Path(path).expanduser()
    allowed = f"a {kind} folder or a hub name"
    if any((folder / name).is_file() for name in holding):
        return Place(option, str(folder), is_local=True, allowed=allowed)
    if folder.is_file():
        raise MissingFileError(option, path, allowed, "which is a file")
    if path.startswith((".", "/", "~")) and not folder.exists():
        raise MissingFileError(option, path, allowed, "no such folder")
    if folder.exists() or path.count("/") > 1:
        raise MissingFileError(option, path, allowed, f"without {' or '.join(holding)}")
    place = Place(option, path, is_local=True, allowed=allowed)
    with place.loading():
        was_downloaded = any(isinstance(try_to_load_from_cache(path, name), str) for name in holding)
    if "/" in path and folder.parent.is_dir() and not was_downloaded:
        raise MissingFileError(option, path, allowed, f"no such folder in {folder.parent}, and not downloaded")
    reason = why_unreachable()
    if reason is not None and not was_downloaded:
        raise UnreachableError(option, path, f"a {kind} folder", f"no such folder, not downloaded yet, and {reason}")
    return replace(place, is_local=reason is not None)


def why_unreachable() -> str | None:
    """Reason why the hub cannot be reached, or None if it answers; offline mode sends no request."""
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    return None if _answers() else f"{constants.ENDPOINT} cannot be reached"


def _answers() -> bool:
    answers: SimpleQueue[bool] = SimpleQueue()
    # In a thread, because no timeout of an HTTP library covers name resolution.
    Thread(target=lambda: answers.put(_ask()), daemon=True).start()
    try:
        return answers.get(timeout=SECONDS + 1)
    except Empty:
        return False


def _ask() -> bool:
    try:
        # A proxy may answer for a hub that it cannot reach.
        return get_session().head(constants.ENDPOINT, timeout=SECONDS).status_code < 500
    except Exception:  # the type depends on the HTTP library of the hub client
        return False
