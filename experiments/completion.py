"""What was decoded behind a prompt: text, who produced each token, and what it took."""

import html
from dataclasses import dataclass, field
from typing import Any

from experiments.token_colours import light_look
from framework.producer import MEANINGS, Producer
from framework.tally import Tally


@dataclass(frozen=True)
class Token:
    """A committed token.

    Attributes:
        id: in the vocabulary.
        text: what it adds; nothing where a later token finishes its character, and of special tokens.
        producer: accepted (the drafter's), replaced (the target's in place of the drafter's), bonus (the target's
            behind a draft that was kept whole), or plain (the target's, where nothing was drafted).
    """

    id: int
    text: str
    producer: Producer


@dataclass
class Completion:
    """What was decoded behind a prompt, and what it took. It grows while it is streamed.

    Attributes:
        prompt: the text that was given.
        tally: counts of the rounds; reading the prompt, which gives the first token, is none.
        tokens: what was decoded.
        finish_reason: eos, stop_string, length or context; "" while it grows.
        seconds: by stage: prefill and begin read the prompt, the others make up the rounds.
    """

    prompt: str
    tally: Tally
    tokens: list[Token] = field(default_factory=list)
    finish_reason: str = ""
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """What was decoded, without special tokens."""
        return "".join(token.text for token in self.tokens)

    @property
    def target_passes(self) -> int:
        """Rounds. Plain decoding makes a pass for every token but the first."""
        return int(self.tally.num_rounds)

    @property
    def alpha(self) -> float | None:
        """Accepted over tested tokens; None where nothing was tested."""
        return self.metrics["alpha/empirical"]

    @property
    def tau(self) -> float | None:
        """Tokens per target pass; None before the first one."""
        return self.metrics["tau"]

    @property
    def tokens_per_second(self) -> float | None:
        """Without reading the prompt and the token that came of it; None before the first round."""
        seconds = sum(seconds for stage, seconds in self.seconds.items() if stage not in ("prefill", "begin"))
        return self.tally.committed / seconds if seconds else None

    @property
    def metrics(self) -> dict[str, Any]:
        """Everything that the tally says, by the names that ARCHITECTURE.md defines: alpha/position/1 and so on."""
        return self.tally.metrics()

    def __str__(self) -> str:
        return self.prompt + self.text

    def _repr_html_(self) -> str:
        """For notebooks: the text on the colours of who produced it, and a line of figures."""
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
        """One line: how many tokens in how many passes, and how fast."""
        passes, plain = self.target_passes, len(self.tokens) - 1
        words = [f"{len(self.tokens)} tokens in {passes} target passes instead of {plain}"]
        words += [f"{name} {value:.2f}" for name, value in (("α", self.alpha), ("τ", self.tau)) if value is not None]
        if self.tokens_per_second is not None:
            words.append(f"{self.tokens_per_second:.0f} tokens/s")
        if self.finish_reason:
            words.append(f"ended by {self.finish_reason}")
        return " · ".join(words)
