"""An engine in a process of its own, and decoders that ask it for generations."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from framework.core.sampling import Sampling
from framework.core.sequences import Prompt, text_of
from framework.decoding.generation import Generation
from framework.decoding.stopping import Stopping
from framework.metrics.stopwatch import Stopwatch

ROOT = Path(__file__).parents[2]
SECONDS_TO_END = 5.0


class EngineProcess:
    """This end of the pipes to an engine's process.

    Attributes:
        name: name of the engine.
        version: version of its package.
    """

    def __init__(self, name: str, module: str, settings: Mapping[str, Any]):
        """Start the process and wait until the engine is loaded.

        Args:
            name: name of the engine, for errors.
            module: module of the process, which ends in `serve`.
            settings: settings of loading: `target` and `drafter` (paths; None: no draft model), `threads`,
                `most_drafted` (tokens per round), and `context` (most tokens of a prompt and its continuation).

        Raises:
            ConnectionError: the process ends; the message holds its last line.
        """
        self.name = name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self.version: str = self.ask(dict(settings))["version"]

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Raises:
            ConnectionError: the process has ended; the message holds its last line.
        """
        answer = ""
        with suppress(BrokenPipeError):
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
            answer = self._answers.readline()
        if not answer:
            self._errors.seek(0)
            lines = self._errors.read().strip().splitlines()
            raise ConnectionError(f"the process of {self.name} has ended: {lines[-1] if lines else 'without a word'}")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        try:
            self._requests.close()
            self._process.wait(SECONDS_TO_END)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._answers.close()
        self._errors.close()


class EngineDecoder:
    """One arm of an engine behind the `Decoder` interface, one prompt at a time."""

    def __init__(self, process: EngineProcess, arm: str, sampling: Sampling, *, gamma: int = 0):
        """
        Args:
            process: process of the engine.
            arm: plain, draft_model or prompt_lookup.
            sampling: its temperature is used alone.
            gamma: tokens drafted per round, unless plain.
        """
        self._process, self._arm, self._sampling, self._gamma = process, arm, sampling, gamma

    def generate(
        self, prompts: Sequence[Prompt], *, stopping: Stopping, seeds: list[int], stopwatch: Stopwatch | None = None
    ) -> Generation:
        """Decode a batch of one prompt; above temperature 0 the engine draws its own random numbers."""
        (prompt,), (seed,) = prompts, seeds
        request = {
            "arm": self._arm,
            "gamma": self._gamma,
            "prompt": text_of(prompt),
            "max_new_tokens": stopping.max_new_tokens,
            "eos_ids": list(stopping.eos_ids),
            "temperature": self._sampling.temperature,
            "seed": seed,
        }
        answer = self._process.ask(request)
        if stopwatch is not None:
            stopwatch.add("prefill", answer["first_seconds"])
        return Generation(tokens=[answer["tokens"]], finish_reasons=[""])
