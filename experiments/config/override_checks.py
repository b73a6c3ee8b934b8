"""Checks of command-line overrides: each mistake ends in one line before anything is composed, loaded or written."""

import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.config.help_text import CONF
from experiments.config.renamed_options import check_arguments

FIXED_GAMMA = "gamma.gamma"  # given without a policy, it selects gamma=fixed
# The option that a bare number sets: gamma=4 is gamma.gamma=4.
MAIN_OPTIONS = {"gamma": FIXED_GAMMA, "sampling": "sampling.temperature", "prompts": "prompts.count"}
# Short forms of the overrides that name a user's own models.
MODEL_FLAGS = {"--target": ("target=pretrained", "target.path={}"), "--draft": ("drafter.model.path={}",)}
PLAIN = re.compile(r"[\w./:-]+")  # a value that needs no quotes
FREE_NAMES = ("drafters", "search_space", "hydra")  # mappings whose keys a user chooses
SHARED_MODEL = "drafter.model."  # sets the draft model of every drafter of a comparison
PART_KEYS = ("_target_", "_partial_", "_convert_")
OWN_PARTS = ("framework.", "drafters.", "experiments.")
SEARCH_PATH = "hydra.searchpath"
LITERAL = "prompt="  # an option whose text may hold parentheses, commas and quotes
NOTED = "paper"  # the section that +paper_task and +paper_drafter add to the records of any command
WITHOUT_CHECK = ("help", "hydra_help", "info", "shell_completion")


class OverrideError(ValueError):
    """A mistake in a command-line override; the message states the key to change."""


def checked_arguments(config_name: str, arguments: Sequence[str]) -> list[str]:
    """Check a command's arguments, and write shorthands out: gamma=4, drafters=[ngram,medusa].

    Raises:
        ValueError: an argument is misspelt, unknown, misplaced or lacks -m.
    """
    arguments = [_literal(each) if each.startswith(LITERAL) else each for each in _with_models(arguments)]
    _check_flags(arguments)
    flags = _flags(arguments)
    if any(getattr(flags, name) for name in WITHOUT_CHECK):
        return list(arguments)
    _check_places(flags)
    overrides = check_overrides(
        flags.config_name or config_name,
        flags.overrides,
        is_sweep=flags.multirun or flags.experimental_rerun is not None,
        user_folder=flags.config_dir,
    )
    return [argument for argument in arguments if argument not in flags.overrides] + overrides


def check_overrides(
    config_name: str, overrides: Sequence[str], *, is_sweep: bool = False, user_folder: str | None = None
) -> list[str]:
    """Check overrides of a config, and return them with shorthands written out.

    Args:
        is_sweep: whether values may be sweeps, such as 1,2,4.
        user_folder: an additional folder of yamls; None: none.

    Raises:
        ValueError: an override is misspelt, unknown or misplaced.
    """
    check_arguments(overrides)
    path = [f"{SEARCH_PATH}=[file://{user_folder}]"] if user_folder else []
    with hydra_apart(config_name):
        given = _Overrides(config_name, path, [_parsed(each) for each in overrides])
        return given.checked(is_sweep=is_sweep)


@contextmanager
def hydra_apart(config_name: str) -> Iterator[None]:
    """Initialise Hydra for `compose`, without changing its global state for others in this process."""
    theirs, their_version = GlobalHydra.instance().hydra, VersionBase.instance().version_base
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3", job_name=config_name):
            yield
    finally:
        GlobalHydra.instance().hydra = theirs
        VersionBase.instance().version_base = their_version


class _Overrides:
    """The parsed overrides of one command, checked against its config."""

    def __init__(self, config_name: str, path: list[str], overrides: list[Override]):
        self._config_name = config_name
        theirs = [str(each.input_line) for each in overrides if each.key_or_group == SEARCH_PATH]
        self._path = theirs or path  # further folders of yamls, whose choices only Hydra knows
        self._overrides = overrides
        self._known: dict[str, list[str]] = {}  # choices by group; Hydra takes milliseconds for each

    def checked(self, *, is_sweep: bool) -> list[str]:
        """
        Raises:
            ValueError: an override is misspelt, unknown or misplaced, or a sweep lacks -m.
        """
        self._overrides = [self._of_main_option(each) for each in self._overrides]
        self._overrides = [new for each in self._overrides for new in self._with_fixed_gamma(each)]
        self._overrides = [new for each in self._overrides for new in self._written_out(each)]
        for each in self._overrides:
            if each.is_sweep_override() and not is_sweep:
                key = each.get_key_element()
                raise OverrideError(
                    f"{each.input_line} has several values; add -m to sweep over them, set {key}=[...] for a list, or "
                    f"quote a text: {key}='\"...\"'"
                )
            if self._choices(each):
                self._check_choice(each)
            if each.key_or_group == SEARCH_PATH:
                _check_search_path(each)
        own = ("hydra.", "hydra/")
        chosen = self._composed(
            [each for each in self._overrides if self._choices(each) or each.key_or_group.startswith(own)]
        )
        self._overrides = [new for each in self._overrides for new in self._of_every_drafter(each, chosen)]
        for each in self._overrides:
            if not self._choices(each):
                self._check_key(each, chosen)
        self._check_added(chosen)
        if not is_sweep and chosen.hydra.sweeper.get("params"):
            study = next((each.input_line for each in self._overrides if each.key_or_group == "study"), "")
            raise OverrideError(f"{study or self._config_name} is a sweep; add -m: {self._command} -m {study}".rstrip())
        self._check_together()
        return [str(each.input_line) for each in self._overrides]

    def _check_together(self) -> None:
        """
        Raises:
            ValueError: an override contradicts another, or its value has another structure than the config's.
        """
        lines = [_first_value(each) for each in self._overrides]
        try:
            compose(self._config_name, [*self._path, *lines])
        except (HydraException, OmegaConfBaseException) as error:
            first = str(error).splitlines()[0]
            named = next((line for line in lines if line in first or f"'{line.partition('=')[0]}'" in first), "")
            reason = f"{first} ({str(error.__cause__).splitlines()[0]})" if error.__cause__ else first
            raise OverrideError(f"{named or ' '.join(lines)} cannot be applied: {reason}") from None

    def _check_added(self, chosen: DictConfig) -> None:
        """
        Raises:
            ValueError: a group added with + brings sections that the command does not have.
        """
        added = [str(each.input_line) for each in self._overrides if each.is_add() and self._choices(each)]
        unread = set(chosen) - set(self._composed([])) - {NOTED} if added else ()
        if unread:
            raise OverrideError(
                f"{' '.join(added)} sets {', '.join(map(str, unread))}, no option of {self._config_name}"
            )

    @property
    def _command(self) -> str:
        return f"python -m experiments.{self._config_name}"

    def _composed(self, overrides: list[Override]) -> DictConfig:
        """Config with these overrides, a sweep's first value standing for the sweep.

        Raises:
            ValueError: Hydra refuses an override.
        """
        try:
            lines = [_first_value(each) for each in overrides]
            return compose(self._config_name, [*self._path, *lines], return_hydra_config=True)
        except (HydraException, OmegaConfBaseException) as error:
            line = str(error).splitlines()[0]
            for each in overrides:
                key = _key(each)
                if f"'{key}'" in line and line.startswith(("Could not override", "Could not delete")):
                    raise OverrideError(self._no_part(key)) from None
                if line.startswith(f"Multiple values for {key}."):
                    without = str(each.input_line).lstrip("+")
                    raise OverrideError(f"{key} has a choice already; set {without} without +") from None
            raise OverrideError(f"{self._config_name} cannot be composed: {line}") from None

    def _no_part(self, key: str) -> str:
        if key.startswith("hydra."):
            return f"{key} is no option of Hydra with this launcher and sweeper; see {self._command} --cfg hydra"
        parts = [part for part in self._composed([]).hydra.runtime.choices if not part.startswith("hydra/")]
        return f"{key} is no part of {self._config_name}; allowed: {', '.join(parts)}"

    def _choices(self, override: Override) -> list[str]:
        """Choices of the config group that an override selects from; empty if its key is no group."""
        key = override.key_or_group
        if key not in self._known:
            is_option = "." in key
            self._known[key] = [] if is_option else GlobalHydra.instance().config_loader().get_group_options(key)
        return self._known[key]

    def _with_fixed_gamma(self, override: Override) -> list[Override]:
        """The override, after the choice gamma=fixed if it sets gamma where another policy is the default."""
        if override.key_or_group != FIXED_GAMMA or any(each.key_or_group == "gamma" for each in self._overrides):
            return [override]
        default = self._composed([]).get("gamma")
        is_other = OmegaConf.is_dict(default) and "gamma" not in default
        return [_parsed("gamma=fixed"), override] if is_other else [override]

    def _of_main_option(self, override: Override) -> Override:
        """The override of a group's main option if a group is set to a number: gamma.gamma=4 for gamma=4."""
        key = override.key_or_group
        is_number = key in MAIN_OPTIONS and self._choices(override) and _are_numbers(override)
        chosen_already = [each.key_or_group for each in self._overrides if each is not override]
        if is_number and (key in chosen_already or OmegaConf.is_dict(self._composed([]).get(key))):
            return _parsed(str(override.input_line).replace(key, MAIN_OPTIONS[key], 1))
        return override

    def _written_out(self, override: Override) -> list[Override]:
        """The overrides that a selection of drafters stands for; any other override alone."""
        key = override.key_or_group
        if key in ("drafter", "drafters") and override.package is None and not override.is_delete():
            others = [each for each in self._overrides if each is not override and self._choices(each)]
            plain = self._composed([each for each in others if each.key_or_group != "drafter"])
            if "drafters" in plain:
                return self._selected_drafters(override, plain)
        return [override]

    def _selected_drafters(self, override: Override, plain: DictConfig) -> list[Override]:
        """Select the drafters of a comparison by name: drafters=[ngram,medusa]."""
        known = self._choices(_parsed("drafter=ngram"))
        names = [str(name) for name in _values(override)]
        for name in names:
            if name not in known and name not in plain.drafters:
                raise OverrideError(wrong_choice("drafters", name, known))
        named = {each.package for each in self._overrides if each.key_or_group == "drafter" and each.package}
        gone = [f"~drafter@drafters.{name}" for name in plain.drafters if name not in names]
        choices = plain.hydra.runtime.choices
        new = [
            f"{part}={choices[part]}" if (part := f"drafter@drafters.{name}") in choices else f"+{part}={name}"
            for name in names
        ]
        return [_parsed(line) for line in gone + new if line.partition("@")[2].partition("=")[0] not in named]

    def _of_every_drafter(self, override: Override, chosen: DictConfig) -> list[Override]:
        """The overrides that set the draft model of every drafter of a comparison; any other override alone."""
        key = override.key_or_group
        if not key.startswith(SHARED_MODEL) or "drafters" not in chosen or override.is_delete():
            return [override]
        given = [each.key_or_group for each in self._overrides]
        models = [
            next((f"drafters.{name}.{model}" for model in ("model", "drafter.model") if _has(node, model)), None)
            for name, node in chosen.drafters.items()
        ]
        keys = [f"{model}.{key.removeprefix(SHARED_MODEL)}" for model in models if model]
        if not keys:
            with_model = "add one that has, such as drafters=[small_transformer,...]"
            raise OverrideError(f"{key} is given, and no drafter of drafters has a draft model; {with_model}")
        value = str(override.input_line).partition("=")[2]
        return [_parsed(f"{each}={value}") for each in keys if each not in given]

    def _check_choice(self, override: Override) -> None:
        """
        Raises:
            ValueError: the group has no such choice, or the command needs one.
        """
        key, choices = _key(override), self._choices(override)
        if override.is_delete():
            if override.package is None:
                raise OverrideError(f"{key} cannot be removed; set {key}=CHOICE: {', '.join(choices)}")
            return
        if isinstance(override.value(), list):
            raise OverrideError(f"{override.input_line} selects several; allowed: one of {', '.join(choices)}")
        for value in _values(override):
            if not isinstance(value, str) or (value not in choices and not self._path):
                raise OverrideError(wrong_choice(key, "null" if value is None else str(value), choices))

    def _check_key(self, override: Override, chosen: DictConfig) -> None:
        """
        Raises:
            ValueError: there is no such key, or + is given for a key that there is.
        """
        key = override.key_or_group
        if key.startswith(("hydra.", "hydra/")):
            return
        is_added = override.is_add() or override.is_force_add()
        parent, _, name = key.rpartition(".")
        if name.startswith("_") and (override.is_delete() or (is_added and name not in PART_KEYS)):
            raise OverrideError(f"{key} belongs to the yaml; to build another part, set {parent}._target_")
        is_removed = any(
            each.is_delete() and each.key_or_group == key for each in self._overrides if each is not override
        )
        there = _has(chosen, key) and not is_removed
        if override.is_add() and there and not isinstance(override.value(), dict | list):
            raise OverrideError(f"{key} has a value already; set {str(override.input_line).lstrip('+')} without +")
        is_used = any(f"${{{key}" in str(each.input_line) for each in self._overrides)  # a variable of the user's own
        if there and not is_added:
            self._check_replaced(key, override, chosen)
        if there and isinstance(override.value(), dict):
            self._check_inside(key, override, chosen)
        if there or (is_added and (is_used or _takes_more(chosen, key))):
            return
        if parent and _has(chosen, parent) and not OmegaConf.is_config(node := OmegaConf.select(chosen, parent)):
            raise OverrideError(f"{parent} is {node!r}, without options; to set some, {parent}={{{name}: ...}}")
        known = [each for each in _keys(OmegaConf.to_container(chosen, resolve=False)) if not each.startswith("hydra")]
        known += self._groups()
        near = _near(key, known)
        allowed = (
            f"did you mean {' or '.join(near)}?" if near else f"see python -m experiments.{self._config_name} --help"
        )
        raise OverrideError(f"{key} is no option of {self._config_name}; {allowed}")

    def _check_replaced(self, key: str, override: Override, chosen: DictConfig) -> None:
        """
        Raises:
            ValueError: a text, a number or a list replaces a part, and with it all its options.
        """
        parent, _, name = key.rpartition(".")
        if OmegaConf.is_interpolation(OmegaConf.select(chosen, parent) if parent else chosen, name):
            return
        node, value = OmegaConf.select(chosen, key, throw_on_missing=False), override.value()
        is_reference = value is None or "${" in str(override.input_line)
        if OmegaConf.is_dict(node) and not (isinstance(value, dict) or override.is_delete() or is_reference):
            options = ", ".join(f"{key}.{name}" for name in node if not str(name).startswith("_"))
            given = str(override.input_line).partition("=")[2]
            raise OverrideError(f"{key} is {given!r}, which has no options of its own; set one of {options}")

    def _check_inside(self, key: str, override: Override, chosen: DictConfig) -> None:
        """
        Raises:
            ValueError: a mapping as the value has keys that the mapping in the config lacks.
        """
        node = OmegaConf.select(chosen, key, throw_on_missing=False)
        if not OmegaConf.is_dict(node) or override.is_add() or override.is_force_add():
            return
        known = [str(name) for name in node]
        for name in override.value():  # type: ignore[union-attr]
            if str(name) not in known and key not in FREE_NAMES:
                near = get_close_matches(str(name), known, 1)
                advice = f"did you mean {key}.{near[0]}?" if near else f"allowed: {', '.join(known) or 'none'}"
                raise OverrideError(f"{key}.{name} is no option of {self._config_name}; {advice}")

    def _groups(self) -> list[str]:
        return sorted(
            path.name for path in CONF.iterdir() if path.is_dir() and path.name not in ("hydra", "__pycache__")
        )


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


def quoted_path(path: str) -> str:
    """A path as the value of an override, quoted if necessary."""
    return path if PLAIN.fullmatch(path) else _quoted(path)


def _literal(argument: str) -> str:
    """The argument with its text in quotes."""
    key, text = argument.split("=", 1)
    return f"{key}={_quoted(text)}"


def _quoted(text: str) -> str:
    # In Hydra's quotes a backslash is literal, except before a quote or at the end.
    return "'" + re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + found[2].replace("'", "\\'"), text) + "'"


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
        ValueError: argparse refuses the arguments, with its last line as the message.
    """
    printed = StringIO()
    try:
        with redirect_stderr(printed):
            return get_args_parser().parse_args(list(arguments))
    except SystemExit as stopped:
        if not stopped.code:
            raise
        raise OverrideError(printed.getvalue().strip().rpartition("error: ")[2]) from None


def _check_places(flags: Namespace) -> None:
    """
    Raises:
        ValueError: a flag names a yaml or a folder that does not exist.
    """
    if flags.config_path:
        raise OverrideError("--config-path would replace conf/; add a folder with --config-dir=FOLDER")
    if flags.config_dir and not Path(flags.config_dir).is_dir():
        raise OverrideError(f"--config-dir is {flags.config_dir!r}, no such folder; allowed: a folder of yamls")
    folders = {CONF, Path(flags.config_dir or CONF)}
    known = sorted(path.stem for folder in folders for path in folder.glob("*.yaml"))
    if flags.config_name and flags.config_name.removesuffix(".yaml") not in known:
        raise OverrideError(wrong_choice("--config-name", flags.config_name, known))


def _check_search_path(override: Override) -> None:
    """
    Raises:
        ValueError: a folder of yamls does not exist; Hydra would only warn.
    """
    for place in map(str, _values(override)):
        scheme, there, folder = place.partition("://")
        if (not there or scheme == "file") and not Path(folder if there else place).is_dir():
            raise OverrideError(f"{SEARCH_PATH} is {place!r}, no such folder; allowed: [file://FOLDER] of yamls")


def _parsed(line: str) -> Override:
    key, given, _ = line.lstrip("+~").partition("=")
    if not key.strip("@") or not (given or line.startswith("~")):
        raise OverrideError(f"{line!r} is no KEY=VALUE")
    try:
        return OverridesParser.create().parse_override(line)
    except HydraException:
        raise OverrideError(f"{line!r} cannot be parsed; quote its value: \"{line.partition('=')[0]}='...'\"") from None


def _values(override: Override) -> list[Any]:
    """The values of a sweep, the items of a list, or the only value."""
    value = override.value()
    if override.is_choice_sweep():
        value = value.list  # type: ignore[union-attr]
    elif override.is_sweep_override():
        return []
    return (
        [getattr(item, "text", item) for item in value] if isinstance(value, list) else [getattr(value, "text", value)]
    )


def _first_value(override: Override) -> str:
    """The override as text, with the first value of a sweep."""
    if not override.is_sweep_override():
        return str(override.input_line)
    sweep = override.value()
    prefix = str(override.input_line).partition("=")[0]
    if isinstance(sweep, IntervalSweep | RangeSweep):
        return f"{prefix}={sweep.start}"
    return f"{prefix}={next(override.sweep_string_iterator())}"


def _key(override: Override) -> str:
    """Key or group with its package, without + or ~."""
    return override.get_key_element().lstrip("+~")


def _are_numbers(override: Override) -> bool:
    """Whether all values of an override are numbers."""
    values = _values(override)
    plain = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return isinstance(override.value(), IntervalSweep | RangeSweep) or (bool(values) and plain)


def wrong_choice(group: str, value: str, choices: Sequence[str]) -> str:
    """Error message of a value that is none of the choices."""
    near = get_close_matches(value, choices, 1)
    return f"{group} is {value!r}; {f'did you mean {near[0]}? ' if near else ''}allowed: {', '.join(choices)}"


def _has(config: DictConfig, key: str) -> bool:
    """Whether a config has a dotted key; null and ??? are values."""
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent, throw_on_missing=False) if parent else config
    if OmegaConf.is_list(node):
        return name.isdecimal() and int(name) < len(node)
    return OmegaConf.is_dict(node) and name in list(node)


def _takes_more(config: DictConfig, key: str) -> bool:
    """Whether + may add a key: to a mapping of free names, or to a part, whose constructor checks its options."""
    names = key.split(".")
    for end in range(len(names) - 1, 0, -1):
        if _has(config, ".".join(names[:end])):
            node = OmegaConf.select(config, ".".join(names[:end]), throw_on_missing=False)
            if OmegaConf.is_dict(node) and "_target_" in node:
                return not _is_misspelt(names[end], node)
            break
    return names[0] in FREE_NAMES and len(names) > 1 and _has(config, names[0])


def _is_misspelt(name: str, node: DictConfig) -> bool:
    """Whether a part of this project, whose yaml spells each option, has an option or key of Hydra with a near name."""
    known = [str(each) for each in node if str(each) != name] + ["_target_", "_partial_"]
    ours = str(node.get("_target_")).startswith(OWN_PARTS)
    return (ours or name.startswith("_")) and bool(get_close_matches(name, known, 1, cutoff=0.8))


def _keys(value: Any, path: str = "") -> Iterator[str]:
    """Dotted keys of a plain config."""
    for key, item in value.items() if isinstance(value, dict) else ():
        inside = f"{path}.{key}" if path else str(key)
        yield inside
        yield from _keys(item, inside)


def _near(key: str, known: Sequence[str]) -> list[str]:
    """Known keys that resemble a key: as a whole, by its last name, or with a similar last name."""
    by_last: dict[str, list[str]] = {}
    for each in known:
        by_last.setdefault(each.rpartition(".")[2], []).append(each)
    last = key.rpartition(".")[2]
    similar = [name for match in get_close_matches(last, list(by_last), 1, cutoff=0.7) for name in by_last[match]]
    return get_close_matches(key, known, 1, cutoff=0.8) or by_last.get(last, [])[:3] or similar[:1]
