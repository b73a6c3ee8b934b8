"""Reachability of the model hub, determined within seconds: the libraries themselves wait for half a minute."""

from queue import Empty, SimpleQueue
from threading import Thread

from huggingface_hub import constants, get_session

SECONDS = 3


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
