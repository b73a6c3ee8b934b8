"""The command line `outrider NAME ...`, the same as `python -m experiments.NAME ...` in any folder."""

import os
import sys

from experiments.config.cli_errors import one_line_errors
from experiments.config.command import run_command
from experiments.config.help_text import commands
from experiments.config.parsed_overrides import wrong_choice


def main() -> None:
    """Run the command that the first argument names, with the other arguments."""
    sys.path.append(os.getcwd())  # last: own classes are found there, but no folder replaces an installed package
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(overview())
        return
    with one_line_errors(interrupted=None):
        if name not in commands():
            raise ValueError(wrong_choice("the command", name, list(commands())))
    sys.argv = [sys.argv[0], *arguments]
    run_command(name)


def overview() -> str:
    """Text of `outrider --help`: every command with its description."""
    width = max(map(len, commands()))
    lines = [f"  {name:{width}}  {description}" for name, description in commands().items()]
    return "\n".join(
        ["outrider COMMAND [OPTION=VALUE ...]", "", *lines, "", "Options of a command: outrider COMMAND --help"]
    )


if __name__ == "__main__":
    main()
