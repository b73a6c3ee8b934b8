"""Whether a model hub can be asked, known within seconds: the libraries themselves wait for half a minute."""

from queue import Empty, SimpleQueue
from threading import Thread

from huggingface_hub import constants, get_session

SECONDS = 3


def why_unreachable() -> str | None:
    """Why no hub can be asked, or None if one answers; offline mode asks nobody."""
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    return None if _answers() else f"{constants.ENDPOINT} cannot be reached"


def _answers() -> bool:
    answers: SimpleQueue[bool] = SimpleQueue()
    # In a thread, because no timeout of an HTTP library covers the look-up of the name.
    Thread(target=lambda: answers.put(_ask()), daemon=True).start()
    try:
        return answers.get(timeout=SECONDS + 1)
    except Empty:
        return False


def _ask() -> bool:
    try:
        # A proxy may answer in place of a hub that it cannot reach.
        return get_session().head(constants.ENDPOINT, timeout=SECONDS).status_code < 500
    except Exception:  # of whichever HTTP library the hub client uses
        return False
