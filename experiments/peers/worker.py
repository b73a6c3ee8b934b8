"""Request loop of an engine's process: one line of JSON per request and per answer.

It imports the standard library only, so that an engine shares its process with no other thread pool.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol, TextIO

MAX_NGRAM = 3  # longest suffix that prompt lookups search for, as in conf/drafter/prompt_lookup.yaml


class Engine(Protocol):
    """A loaded engine.

    Attributes:
        version: version of its package.
    """

    version: str

    def generate(
        self,
        *,
        arm: str,
        gamma: int,
        prompt: list[int],
        max_new_tokens: int,
        eos_ids: list[int],
        temperature: float,
        seed: int,
    ) -> tuple[list[int], float]:
        """Decode one prompt, and keep nothing of it for later ones.

        Args:
            arm: plain, draft_model or prompt_lookup.
            gamma: tokens drafted per round, unless plain.
            prompt: token ids.
            max_new_tokens: most new tokens.
            eos_ids: tokens that end the text.
            temperature: 0: greedy.
            seed: seed of the random numbers; the engine's own generator uses it.

        Returns:
            new token ids, the end-of-text token included; seconds until the first of them.
        """
        ...


def serve(load: Callable[..., Engine]) -> None:
    """Load an engine with the settings of the first line, and answer requests until the input ends.

    An exception ends the process; its last line on standard error says why.

    Args:
        load: makes the engine from the settings of `EngineProcess`.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines print to standard output, too
    engine = load(**json.loads(sys.stdin.readline()))
    _send(answers, {"version": engine.version})
    for line in sys.stdin:
        tokens, first_seconds = engine.generate(**json.loads(line))
        _send(answers, {"tokens": tokens, "first_seconds": first_seconds})


def _send(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()
