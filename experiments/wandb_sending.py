"""Sends a closed offline run to the W&B server, in a process and a time of its own."""

import os
import re
import socket
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


def probe(address: str, seconds: float) -> None:
    """Raise OSError if nobody accepts a connection at this URL: W&B's own programs would go on trying."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    if parts.scheme in getproxies() and not proxy_bypass(host):
        return  # only the proxy can tell
    port = parts.port or (80 if parts.scheme == "http" else 443)
    answer: Future[None] = Future()

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=seconds).close()
            answer.set_result(None)
        except Exception as error:
            answer.set_exception(error)

    # A thread, because create_connection's own timeout holds for neither the name's look-up nor the addresses together.
    Thread(target=connect, daemon=True).start()
    try:
        answer.result(timeout=seconds)
    except TimeoutError:
        raise TimeoutError(f"no connection within {seconds:g} s") from None


def send(folder: Path, seconds: float) -> str:
    """Send an offline run.

    Returns:
        where it can be seen.

    Raises:
        ConnectionError: it was not sent, with W&B's last words.
        TimeoutError: it was not sent in time.
    """
    command = [sys.executable, "-m", "wandb", "sync", str(folder)]
    # Its own log files belong to the run's, and a silent one would not say where the run can be seen.
    environment = {**os.environ, "WANDB_DIR": str(folder.parent.parent), "WANDB_SILENT": "false"}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"not sent within {seconds:g} s") from None
    errors = re.findall(r"^(?:wandb: ERROR|Error:) (.*)$", done.stderr, re.MULTILINE)
    markers = list(folder.glob("*.wandb.synced"))
    # The exit status is 0 also where the server refused, and the marker is set also where rows were refused.
    if errors or not markers:
        for marker in markers:
            marker.unlink()  # or the next `wandb sync` would pass the run by
        raise ConnectionError(errors[-1] if errors else "wandb sync broke off")
    address = re.search(r" at (https?://\S+)", done.stderr)
    return address[1] if address else f"{folder} is sent"
