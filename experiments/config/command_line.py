"""Arguments of a command: flags, and shorthands of overrides."""

from argparse import Namespace
from collections.abc import Sequence
from contextlib import redirect_stderr
from difflib import get_close_matches
from io import StringIO
from pathlib import Path

from hydra._internal.utils import get_args_parser

from experiments.config.help_text import CONF, command_of
from experiments.config.override_checks import check_overrides
from experiments.config.parsed_overrides import OverrideError, quoted, quoted_path, wrong_choice

# Short forms of the overrides that name a user's own models.
MODEL_FLAGS = {"--target": ("target=pretrained", "target.path={}"), "--draft": ("drafter.model.path={}",)}
LITERAL = "prompt="  # an option whose text may hold parentheses, commas and quotes
EXCLUSIVE = ("run", "multirun", "cfg", "info", "shell_completion")  # flags of which Hydra takes one
SHARED = ("common", "help", "training_text")  # yamls that others include
WITHOUT_CHECK = ("help", "hydra_help", "info", "shell_completion")


def checked_arguments(config_name: str, arguments: Sequence[str]) -> list[str]:
    """Check a command's arguments, and write shorthands out: gamma=4, drafters=[ngram,medusa].

    Raises:
        ValueError: an argument is misspelt, unknown, misplaced or lacks -m.
    """
    arguments = [literal(each) if each.startswith(LITERAL) else each for each in _with_models(arguments)]
    _check_flags(arguments)
    flags = _flags(arguments)
    if any(getattr(flags, name) for name in WITHOUT_CHECK):
        return list(arguments)
    _check_places(flags, config_name)
    overrides = check_overrides(
        (flags.config_name or config_name).removesuffix(".yaml"),
        flags.overrides,
        command=config_name,
        is_sweep=flags.multirun or flags.experimental_rerun is not None,
        user_folder=flags.config_dir,
    )
    return [argument for argument in arguments if argument not in flags.overrides] + overrides


def _with_models(arguments: Sequence[str]) -> list[str]:
    """Arguments with the models' short forms written out: --target PATH and --draft PATH.

    Raises:
        ValueError: a path is missing.
    """
    left, found = list(arguments), []
    while left:
        flag, given, path = left.pop(0).partition("=")
        if flag not in MODEL_FLAGS:
            found.append(flag + given + path)
            continue
        path = path if given else (left.pop(0) if left else "")
        if not path or path.startswith("-"):
            raise OverrideError(f"{flag} has no path; allowed: {flag} FOLDER, or a hub name")
        found += [override.format(quoted_path(path)) for override in MODEL_FLAGS[flag]]
    return found


def literal(argument: str) -> str:
    """The argument with its text in quotes."""
    key, text = argument.split("=", 1)
    return f"{key}={quoted(text)}"


def _check_flags(arguments: Sequence[str]) -> None:
    """
    Raises:
        ValueError: an argument looks like a flag of another program, such as --gamma=4, or is no KEY=VALUE.
    """
    known = [flag for action in get_args_parser()._actions for flag in action.option_strings]
    for argument in arguments:
        flag = argument.partition("=")[0]
        if flag.startswith("--") and flag not in known:
            near = get_close_matches(flag, [*known, *MODEL_FLAGS], 1, cutoff=0.7)
            advice = f"did you mean {near[0]}?" if near else f"set an option without dashes: {argument.lstrip('-')}"
            raise OverrideError(f"{flag} is no flag; {advice}")


def _flags(arguments: Sequence[str]) -> Namespace:
    """
    Raises:
        ValueError: argparse refuses the arguments, with its last line as the message; or two flags exclude each other.
    """
    printed = StringIO()
    try:
        with redirect_stderr(printed):
            flags = get_args_parser().parse_args(list(arguments))
    except SystemExit as stopped:
        if not stopped.code:
            raise
        raise OverrideError(printed.getvalue().strip().rpartition("error: ")[2]) from None
    given = [f"--{name.replace('_', '-')}" for name in EXCLUSIVE if getattr(flags, name)]
    if len(given) > 1:
        raise OverrideError(f"{' and '.join(given)} exclude each other; leave one out")
    return flags


def _check_places(flags: Namespace, name: str) -> None:
    """
    Args:
        name: the command.

    Raises:
        ValueError: a flag names a folder that does not exist, or a yaml that does not exist or is another command's.
    """
    if flags.config_path:
        raise OverrideError("--config-path would replace conf/; add a folder with --config-dir=FOLDER")
    if flags.config_dir is not None and not (flags.config_dir and Path(flags.config_dir).is_dir()):
        raise OverrideError(f"--config-dir is {flags.config_dir!r}, no such folder; allowed: a folder of yamls")
    if not flags.config_name:
        return
    own = [path.stem for path in CONF.glob("*.yaml") if path.stem not in SHARED]
    known = {each for each in own if command_of(each) in (name, "")}
    if flags.config_dir:
        known |= {path.stem for path in Path(flags.config_dir).glob("*.yaml")}
    if flags.config_name.removesuffix(".yaml") not in known:
        raise OverrideError(wrong_choice("--config-name", flags.config_name, sorted(known)))
