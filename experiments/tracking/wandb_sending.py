"""Send a closed offline run to the W&B server in a process with a timeout, and the command that does it by hand."""

import os
import re
import shlex
import socket
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from experiments.config.cli_errors import relative

SENT = "*.wandb.synced"  # in the folder of a run that was sent


def probe(address: str, seconds: float) -> None:
    """Raise OSError if no server accepts a connection at this URL; W&B's own commands would keep retrying."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    if parts.scheme in getproxies() and not proxy_bypass(host):
        return  # only the proxy can reach the server
    port = parts.port or (80 if parts.scheme == "http" else 443)
    answer: Future[None] = Future()

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=seconds).close()
            answer.set_result(None)
        except Exception as error:
            answer.set_exception(error)

    # A thread, because create_connection's timeout excludes the DNS look-up and applies to each address separately.
    Thread(target=connect, daemon=True).start()
    try:
        answer.result(timeout=seconds)
    except TimeoutError:
        raise TimeoutError(f"no connection within {seconds:g} s") from None


def send(folder: Path, seconds: float) -> str:
    """Send an offline run.

    Returns:
        the URL of the run; without one in W&B's output, a line that says the folder is sent.

    Raises:
        ConnectionError: sending failed, with the last error of W&B.
        TimeoutError: sending took longer than `seconds`.
    """
    command = [sys.executable, "-m", "wandb", "sync", str(folder)]
    # Its log files go to the folder of the run; WANDB_SILENT would suppress the URL.
    environment = {**os.environ, "WANDB_DIR": str(folder.parent.parent), "WANDB_SILENT": "false"}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"not sent within {seconds:g} s") from None
    errors = re.findall(r"^(?:wandb: ERROR|Error:) (.*)$", done.stderr, re.MULTILINE)
    markers = list(folder.glob(SENT))
    # The exit status is 0 even if the server refused the run, and the marker is set even if it refused rows.
    if errors or not markers:
        for marker in markers:
            marker.unlink()  # or the next `wandb sync` would skip the run
        raise ConnectionError(errors[-1] if errors else "wandb sync broke off")
    address = re.search(r" at (https?://\S+)", done.stderr)
    return address[1] if address else f"{folder} is sent"


def sync_command(folder: Path, *patterns: str) -> str:
    """Shell command that sends offline runs, to be typed in the current folder.

    This Python runs it, since `wandb` is not on the path where no environment is activated.

    Args:
        folder: folder of runs.
        patterns: paths of runs below the folder, with wildcards; none: all runs of the folder.
    """
    python, place = (shlex.quote(str(relative(path))) for path in (Path(sys.executable), folder))
    return " ".join([python, "-m wandb sync", *([f"{place}/{pattern}" for pattern in patterns] or [place])])


def command_for_unsent(folder: Path) -> str | None:
    """Shell command that sends every unsent offline run below a folder; None if there is none."""
    unsent = sorted(run for run in folder.rglob("offline-run-*") if not any(run.glob(SENT)))
    depths = {len(run.relative_to(folder).parts) for run in unsent}
    # Runs lie in the folders wandb/ of points, of a sweep, or of several sweeps.
    patterns = ["/".join([*["*"] * (depth - 2), "wandb", "offline-run-*"][-depth:]) for depth in sorted(depths)]
    return sync_command(folder, *patterns) if patterns else None
