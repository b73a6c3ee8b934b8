"""Decoded continuation of a prompt: text, producer of each token, and cost."""

import html
from dataclasses import dataclass, field
from typing import Any

from experiments.reporting.token_colours import light_look
from framework.metrics.producer import MEANINGS, Producer
from framework.metrics.tally import Tally


@dataclass(frozen=True)
class Token:
    """A committed token.

    Attributes:
        id: index in the vocabulary.
        text: text added by the token; empty for special tokens, and if a later token completes its character.
        producer: accepted (drafted token), replaced (target's token in place of a rejected one), bonus (target's token
            after a fully accepted draft), or plain (target's token without a draft).
    """

    id: int
    text: str
    producer: Producer


@dataclass(repr=False)
class Completion:
    """Decoded continuation of a prompt and its cost. It grows while it is streamed.

    Attributes:
        prompt: text of the prompt.
        tally: counts of the rounds; the prefill, which yields the first token, is not a round.
        tokens: decoded tokens.
        finish_reason: eos, stop_string, length or context; "" while streaming.
        seconds: seconds per stage: prefill and begin process the prompt, the other stages make up the rounds.
    """

    prompt: str
    tally: Tally
    tokens: list[Token] = field(default_factory=list)
    finish_reason: str = ""
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Decoded text, without special tokens."""
        return "".join(token.text for token in self.tokens)

    @property
    def target_passes(self) -> int:
        """Number of rounds. Plain decoding takes one pass per token after the first."""
        return int(self.tally.num_rounds)

    @property
    def alpha(self) -> float | None:
        """Accepted ÷ tested tokens; None if no token was tested."""
        return self.metrics["alpha/empirical"]

    @property
    def tau(self) -> float | None:
        """Tokens per target pass; None before the first pass."""
        return self.metrics["tau"]

    @property
    def tokens_per_second(self) -> float | None:
        """Decoding speed, without the prefill and its token; None before the first round."""
        seconds = sum(seconds for stage, seconds in self.seconds.items() if stage not in ("prefill", "begin"))
        return self.tally.committed / seconds if seconds else None

    @property
    def metrics(self) -> dict[str, Any]:
        """All metrics of the tally, by the names defined in ARCHITECTURE.md: alpha/position/1 and so on."""
        return self.tally.metrics()

    def __str__(self) -> str:
        return self.prompt + self.text

    def __repr__(self) -> str:
        return f"Completion({self.text!r}: {self.in_words})"

    def _repr_html_(self) -> str:
        """HTML for notebooks: the text coloured by producer, and a line of figures."""
        spans = [
            f'<span title="{token.producer}" style="{light_look(token.producer)}">{html.escape(token.text)}</span>'
            for token in self.tokens
        ]
        legend = " ".join(f'<span style="{light_look(producer)}">{producer}</span>' for producer in MEANINGS)
        prompt = f'<span style="opacity: .6">{html.escape(self.prompt)}</span>'
        text = f'<pre style="white-space: pre-wrap">{prompt}{"".join(spans)}</pre>'
        return f"{text}<p>{html.escape(self.in_words)} <small>{legend}</small></p>"

    @property
    def in_words(self) -> str:
        """Summary in one line: tokens, target passes, α, τ, speed and finish reason."""
        passes, plain = self.target_passes, len(self.tokens) - 1
        words = [f"{len(self.tokens)} tokens in {passes} target passes instead of {plain}"]
        words += [f"{name} {value:.2f}" for name, value in (("α", self.alpha), ("τ", self.tau)) if value is not None]
        if passes and not self.tally.num_drafted:
            words.append("nothing drafted")
        if self.tokens_per_second is not None:
            words.append(f"{self.tokens_per_second:.0f} tokens/s")
        if self.finish_reason:
            words.append(f"ended by {self.finish_reason}")
        return " · ".join(words)
