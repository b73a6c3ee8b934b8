"""Decode one prompt and colour its tokens by producer: `python -m experiments.generate prompt="def quicksort("`."""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("generate")
    raise SystemExit

import sys
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from experiments.api import build_decoder
from experiments.config.cli_errors import one_line_errors
from experiments.config.command import command
from experiments.config.loaded_models import NO_MODELS
from experiments.config.option_checks import check_kind
from experiments.measurement.resource_cache import ResourceCache
from experiments.reporting.completion import Completion
from framework.metrics.producer import Producer

# Replaced tokens are also underlined, to be visible without colours.
STYLES: dict[Producer, str] = {"accepted": "green", "replaced": "red underline", "bonus": "cyan", "plain": ""}
LEGEND = Text(" · ").join(Text(producer, style) for producer, style in STYLES.items() if style)
# Control characters in a model's output must not reach the terminal.
VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
VISIBLE |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


@command("generate")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="the text decoded so far is above"):
        prompt = prompt_of(cfg)
        decoder = build_decoder(cfg, NO_MODELS, ResourceCache())
        completions = (completion for (completion,) in decoder.stream([prompt]))
        console = Console(highlight=False)
        on_terminal = sys.stdout.isatty() and not console.is_dumb_terminal
        completion = show_live(completions, console) if on_terminal else write(completions)
        note = Console(stderr=True, highlight=False)
        note.print(Text(completion.in_words, "dim"), soft_wrap=True)


def prompt_of(cfg: DictConfig) -> str:
    """Read the prompt from the config, a file or standard input.

    Raises:
        ValueError, OSError: there is no prompt, there are two, or the file cannot be read.
    """
    given = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(given, dict)  # unresolved: a ${ in the prompt is no interpolation
    prompt = given["prompt"]
    check_kind("prompt", prompt, [str, type(None)])
    check_kind("prompt_file", cfg.prompt_file, [str, type(None)])
    if prompt is not None and cfg.prompt_file is not None:
        raise ValueError("prompt and prompt_file are both set; allowed: one of them")
    if prompt is None and cfg.prompt_file is not None:
        prompt = _read(Path(cfg.prompt_file).expanduser())
    elif prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read()
    if not prompt:
        raise ValueError('there is no prompt; set prompt="..." or prompt_file=FILE, or pipe a text in')
    return prompt


def _read(file: Path) -> str:
    """
    Raises:
        ValueError, OSError: the file is missing, a folder, or no text.
    """
    allowed = "allowed: a text file in UTF-8"
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise type(error)(f"prompt_file is {str(file)!r}: {error.strerror}; {allowed}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"prompt_file is {str(file)!r}, which is no text ({error.reason}); {allowed}") from None


def write(completions: Iterator[Completion]) -> Completion:
    """Stream only the decoded text to standard output, for files and other programs."""
    written = 0
    for completion in completions:
        print("".join(token.text for token in completion.tokens[written:]), end="", flush=True)
        written = len(completion.tokens)
    print()
    return completion


def show_live(completions: Iterator[Completion], console: Console) -> Completion:
    """Show prompt and text in colours on a terminal, with a status line below while decoding."""
    line, shown = Text(), 0  # the unfinished last line; the number of tokens shown so far
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            for completion in completions:
                if not shown:
                    line.append(_visible(completion.prompt), "dim")
                for token in completion.tokens[shown:]:
                    line.append(_visible(token.text), STYLES[token.producer])
                shown = len(completion.tokens)
                *finished, line = line.split("\n", allow_blank=True)
                if finished:
                    live.console.print(Text("\n").join(finished), soft_wrap=True)
                live.update(Group(line, Text(), _standing(completion)), refresh=True)
            live.update(Text())  # Live erases line by line, and its content must not exceed the terminal's height
    finally:  # after an interrupt too
        console.print(line, soft_wrap=True)
    return completion


def _standing(completion: Completion) -> Text:
    tau, speed = completion.tau, completion.tokens_per_second
    words = f"τ {tau:.2f} · {speed:.0f} tokens/s · " if tau is not None and speed is not None else ""
    return Text.assemble((f"{words}{len(completion.tokens)} tokens · ", "dim"), LEGEND)


def _visible(text: str) -> str:
    return text.translate(VISIBLE)
