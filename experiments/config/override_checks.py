"""Checks of command-line overrides: each mistake ends in one line before anything is composed, loaded or written."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from hydra import compose
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.version import VersionBase, setbase
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from experiments.config.help_text import CONF, command_of
from experiments.config.parsed_overrides import (
    FREE_NAMES,
    OWN_PARTS,
    OverrideError,
    are_numbers,
    as_swept,
    first_value,
    has_key,
    key_of,
    keys_of,
    near_keys,
    parsed,
    takes_more,
    values_of,
    wrong_choice,
)
from experiments.config.renamed_options import check_arguments

FIXED_GAMMA = "gamma.gamma"  # given without a policy, it selects gamma=fixed
# The option that a bare number sets: gamma=4 is gamma.gamma=4.
MAIN_OPTIONS = {"gamma": FIXED_GAMMA, "sampling": "sampling.temperature", "prompts": "prompts.count"}
SHARED_MODEL = "drafter.model."  # sets the draft model of every drafter of a comparison
PART_KEYS = ("_target_", "_partial_", "_convert_")
SEARCH_PATH = "hydra.searchpath"
UNCOMPOSABLE = (HydraException, OmegaConfBaseException, YAMLError)
NOTED = "paper"  # the section that +paper_task and +paper_drafter add to the records of any command


def check_overrides(
    config_name: str,
    overrides: Sequence[str],
    *,
    command: str | None = None,
    is_sweep: bool = False,
    user_folder: str | None = None,
) -> list[str]:
    """Check overrides of a config, and return them with shorthands written out.

    Args:
        command: the command that reads the config; None: the one of its name.
        is_sweep: whether values may be sweeps, such as 1,2,4.
        user_folder: an additional folder of yamls; None: none.

    Raises:
        ValueError: an override is misspelt, unknown or misplaced.
    """
    check_arguments(overrides)
    with hydra_apart(config_name, user_folder):
        given = _Overrides(config_name, command or config_name, [parsed(each) for each in overrides])
        return given.checked(is_sweep=is_sweep)


@contextmanager
def hydra_apart(config_name: str, user_folder: str | None = None) -> Iterator[None]:
    """Initialise Hydra for `compose`, without changing its global state for others in this process.

    Args:
        user_folder: an additional folder of yamls, the config's own among them; None: none.
    """
    theirs, their_version = GlobalHydra.instance().hydra, VersionBase.instance().version_base
    GlobalHydra.instance().clear()
    search_path = create_config_search_path(str(CONF))
    if user_folder:
        place = f"file://{Path(user_folder).absolute()}"
        search_path.prepend("command-line", place, anchor=SearchPathQuery(provider="schema"))
    try:
        setbase("1.3")
        Hydra.create_main_hydra2(config_name, search_path)
        yield
    finally:
        GlobalHydra.instance().hydra = theirs
        VersionBase.instance().version_base = their_version


class _Overrides:
    """The parsed overrides of one command, checked against its config."""

    def __init__(self, config_name: str, command: str, overrides: list[Override]):
        self._config_name, self._command_name = config_name, command
        # Further folders of yamls, whose choices only Hydra knows.
        self._path = [str(each.input_line) for each in overrides if each.key_or_group == SEARCH_PATH]
        self._overrides = overrides
        self._known: dict[str, list[str]] = {}  # choices by group; Hydra takes milliseconds for each
        self._configs: dict[tuple[str, ...], DictConfig] = {}  # by overrides; Hydra takes a tenth of a second for each

    def checked(self, *, is_sweep: bool) -> list[str]:
        """
        Raises:
            ValueError: an override is misspelt, unknown or misplaced, or a sweep lacks -m.
        """
        self._check_command_of_study()
        self._overrides = [self._of_main_option(each) for each in self._overrides]
        self._overrides = [new for each in self._overrides for new in self._with_fixed_gamma(each)]
        for each in self._overrides:
            if each.key_or_group not in ("drafter", "drafters"):
                self._check_values(each, is_sweep=is_sweep)
        self._overrides = [new for each in self._overrides for new in self._written_out(each)]
        for each in self._overrides:
            self._check_values(each, is_sweep=is_sweep)
        own = ("hydra.", "hydra/")
        selecting = [each for each in self._overrides if self._choices(each) or each.key_or_group.startswith(own)]
        chosen = self._composed(selecting)
        if not is_sweep and chosen.hydra.sweeper.get("params"):
            study = self._study()
            raise OverrideError(f"{study or self._config_name} is a sweep; add -m: {self._command} -m {study}".rstrip())
        own_selecting = selecting
        swept = self._swept_by_study(chosen) if is_sweep else []
        selecting = [*(each for each in swept if self._choices(each)), *selecting]
        chosen = self._composed(selecting) if swept else chosen
        self._check_study(swept, own_selecting, chosen)
        self._overrides = [new for each in self._overrides for new in self._of_every_drafter(each, chosen)]
        options = [each for each in self._overrides if not self._choices(each)]
        if is_sweep:
            self._check_other_choices(options, selecting, chosen)
        for each in options:
            self._check_key(each, chosen)
        self._check_added(chosen)
        self._check_together(swept)
        if is_sweep:
            plain = self._composed([each for each in own_selecting if not each.is_sweep_override()])
            return [as_swept(each, plain, chosen) for each in self._overrides]
        return [str(each.input_line) for each in self._overrides]

    def _check_values(self, override: Override, *, is_sweep: bool) -> None:
        """
        Raises:
            ValueError: there are several values without -m, or one that the group or Hydra does not have.
        """
        if override.is_sweep_override() and not is_sweep:
            key = override.get_key_element()
            raise OverrideError(
                f"{override.input_line} has several values; add -m to sweep over them, set {key}=[...] for a list, or "
                f"quote a text: {key}='\"...\"'"
            )
        if self._choices(override):
            self._check_choice(override)
        if override.key_or_group == SEARCH_PATH:
            _check_search_path(override)

    def _study(self) -> str:
        """The override that selects a study; "" if none does."""
        return next((str(each.input_line) for each in self._overrides if each.key_or_group == "study"), "")

    def _swept_by_study(self, chosen: DictConfig) -> list[Override]:
        """Overrides that the sweep of a config adds to those of its user."""
        given = [each.get_key_element() for each in self._overrides]
        params = chosen.hydra.sweeper.get("params") or {}
        return [parsed(f"{key}={values}") for key, values in params.items() if key not in given]

    def _check_command_of_study(self) -> None:
        """
        Raises:
            ValueError: the study is of another command.
        """
        study = self._study().lstrip("+")
        name = study.partition("=")[2]
        if (CONF / "study" / f"{name}.yaml").is_file() and (own := command_of(f"study/{name}")) not in (
            self._command_name,
            "",
        ):
            raise OverrideError(f"{study} is a study of {own}: python -m experiments.{own} -m {study}")

    def _check_study(self, swept: list[Override], selecting: list[Override], chosen: DictConfig) -> None:
        """
        Args:
            swept: overrides of the study's sweep.
            selecting: overrides that select parts, without those of the study's sweep.
            chosen: the config with both.

        Raises:
            ValueError: the study sweeps or sets an option that a selected part lacks.
        """
        study = self._study()
        for each in swept:
            if self._choices(each):
                self._check_choice(each)
        keys = [key_of(each) for each in swept if not self._choices(each) and not each.is_add()]
        lacking = [f"sweeps {key}" for key in keys if not has_key(chosen, key)]
        without = self._composed([each for each in selecting if each.key_or_group != "study"]) if study else chosen
        choices = chosen.hydra.runtime.choices
        for part in choices if study else ():
            if part in chosen and choices[part] == without.hydra.runtime.choices.get(part):
                node = OmegaConf.to_container(chosen[part], resolve=False)
                known = set(keys_of(OmegaConf.to_container(without[part], resolve=False)))
                if isinstance(node, dict) and str(node.get("_target_")).startswith(OWN_PARTS):
                    lacking += [f"sets {part}.{key}" for key in map(str, node) if key not in known]
        if lacking:
            part = lacking[0].split()[1].partition(".")[0]
            choice = f"{part}={choices[part]}" if part in choices else self._config_name
            raise OverrideError(f"{study} {lacking[0]}, which {choice} lacks; choose another {part}= or study=")

    def _check_other_choices(self, options: list[Override], selecting: list[Override], chosen: DictConfig) -> None:
        """
        Raises:
            ValueError: an option is one of some parts that the sweep selects, but not of all.
        """
        for selects in selecting:
            inside = [each for each in options if key_of(each).startswith(f"{selects.key_or_group}.")]
            if not (inside and selects.is_choice_sweep() and selects.package is None):
                continue
            lines = [f"{selects.key_or_group}={value}" for value in map(str, values_of(selects))]
            others = [each for each in selecting if each is not selects]
            composed = [chosen, *(self._composed([*others, parsed(line)]) for line in lines[1:])]
            for each in inside:
                has = [has_key(config, key_of(each)) for config in composed]
                if any(has) and not all(has) and not each.is_add() and not each.is_force_add():
                    lacks, takes = lines[has.index(False)], lines[has.index(True)]
                    raise OverrideError(
                        f"{key_of(each)} is an option of {takes} and not of {lacks}, and the sweep selects both; "
                        f"leave one of the three out"
                    )

    def _check_together(self, swept: list[Override]) -> None:
        """
        Args:
            swept: overrides of the config's own sweep.

        Raises:
            ValueError: an override contradicts another, or its value has another structure than the config's.
        """
        lines = [first_value(each) for each in (*swept, *self._overrides)]
        try:
            compose(self._config_name, [*self._path, *lines])
        except UNCOMPOSABLE as error:
            first = _in_a_line(error)
            named = next((line for line in lines if line in first or f"'{line.partition('=')[0]}'" in first), "")
            reason = f"{first} ({str(error.__cause__).splitlines()[0]})" if error.__cause__ else first
            named = named or " ".join(lines) or self._config_name
            raise OverrideError(f"{named} cannot be applied: {reason}") from None

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
        config = "" if self._config_name == self._command_name else f" --config-name={self._config_name}"
        return f"python -m experiments.{self._command_name}{config}"

    def _composed(self, overrides: list[Override]) -> DictConfig:
        """Config with these overrides, a sweep's first value standing for the sweep.

        Raises:
            ValueError: Hydra refuses an override.
        """
        try:
            lines = tuple(first_value(each) for each in overrides)
            if lines not in self._configs:
                self._configs[lines] = compose(self._config_name, [*self._path, *lines], return_hydra_config=True)
            return self._configs[lines]
        except UNCOMPOSABLE as error:
            line = _in_a_line(error)
            for each in overrides:
                key = key_of(each)
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
        return [parsed("gamma=fixed"), override] if is_other else [override]

    def _of_main_option(self, override: Override) -> Override:
        """The override of a group's main option if a group is set to a number: gamma.gamma=4 for gamma=4."""
        key = override.key_or_group
        is_number = key in MAIN_OPTIONS and self._choices(override) and are_numbers(override)
        chosen_already = [each.key_or_group for each in self._overrides if each is not override]
        if is_number and (key in chosen_already or OmegaConf.is_dict(self._composed([]).get(key))):
            return parsed(str(override.input_line).replace(key, MAIN_OPTIONS[key], 1))
        return override

    def _written_out(self, override: Override) -> list[Override]:
        """The overrides that a selection of drafters stands for; any other override alone."""
        key = override.key_or_group
        if key in ("drafter", "drafters") and override.package is None and not override.is_delete():
            others = [each for each in self._overrides if each is not override and self._choices(each)]
            others = [each for each in others if each.key_or_group != "drafter"]
            if "drafters" in self._composed(others):
                return self._selected_drafters(override, others)
        return [override]

    def _selected_drafters(self, override: Override, others: list[Override]) -> list[Override]:
        """Select the drafters of a comparison by name: drafters=[ngram,medusa].

        Args:
            others: the overrides that select other parts.
        """
        plain = self._composed(others)
        known = self._choices(parsed("drafter=ngram"))
        names = [str(name) for name in values_of(override)]
        if {"drafter", "drafters"} <= {each.key_or_group for each in self._overrides if each.package is None}:
            raise OverrideError(f"drafter and drafters are both set; leave out one, such as {override.input_line}")
        if not names:
            raise OverrideError(f"drafters is []; allowed: one or more of {', '.join(known)}")
        for name in names:
            if name not in known and name not in plain.drafters:
                raise OverrideError(wrong_choice("drafters", name, known))
        named = {each.package for each in self._overrides if each.key_or_group == "drafter" and each.package}
        choices = plain.hydra.runtime.choices
        gone = [f"~drafter@drafters.{name}" for name in plain.drafters if name not in names]
        without = self._composed([*others, *(parsed(line) for line in gone if line[1:] in choices)])
        gone += [f"~drafters.{name}" for name in without.get("drafters", ()) if f"~drafter@drafters.{name}" in gone]
        new = [
            f"{part}={choices[part]}" if (part := f"drafter@drafters.{name}") in choices else f"+{part}={name}"
            for name in names
        ]
        return [parsed(line) for line in gone + new if line.partition("@")[2].partition("=")[0] not in named]

    def _of_every_drafter(self, override: Override, chosen: DictConfig) -> list[Override]:
        """The overrides that set the draft model of every drafter of a comparison; any other override alone."""
        key = override.key_or_group
        if not key.startswith(SHARED_MODEL) or "drafters" not in chosen or override.is_delete():
            return [override]
        given = [each.key_or_group for each in self._overrides]
        models = [
            next((f"drafters.{name}.{model}" for model in ("model", "drafter.model") if has_key(node, model)), None)
            for name, node in chosen.drafters.items()
        ]
        keys = [f"{model}.{key.removeprefix(SHARED_MODEL)}" for model in models if model]
        if not keys:
            with_model = "add one that has, such as drafters=[small_transformer,...]"
            raise OverrideError(f"{key} is given, and no drafter of drafters has a draft model; {with_model}")
        value = str(override.input_line).partition("=")[2]
        return [parsed(f"{each}={value}") for each in keys if each not in given]

    def _check_choice(self, override: Override) -> None:
        """
        Raises:
            ValueError: the group has no such choice, or the command needs one.
        """
        key, choices = key_of(override), self._choices(override)
        if override.is_delete():
            if override.package is None:
                raise OverrideError(f"{key} cannot be removed; set {key}=CHOICE: {', '.join(choices)}")
            return
        if isinstance(override.value(), list):
            raise OverrideError(f"{override.input_line} selects several; allowed: one of {', '.join(choices)}")
        for value in values_of(override):
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
        there = has_key(chosen, key) and not is_removed
        if override.is_add() and there and not isinstance(override.value(), dict | list):
            raise OverrideError(f"{key} has a value already; set {str(override.input_line).lstrip('+')} without +")
        is_used = any(f"${{{key}" in str(each.input_line) for each in self._overrides)  # a variable of the user's own
        if there and not is_added:
            self._check_replaced(key, override, chosen)
        if there and isinstance(override.value(), dict):
            self._check_inside(key, override, chosen)
        if there or (is_added and (is_used or takes_more(chosen, key))):
            return
        if parent and has_key(chosen, parent) and not OmegaConf.is_config(node := OmegaConf.select(chosen, parent)):
            raise OverrideError(f"{parent} is {node!r}, without options; to set some, {parent}={{{name}: ...}}")
        raise OverrideError(self._unknown(key, chosen))

    def _unknown(self, key: str, chosen: DictConfig) -> str:
        """Error message of a key that the config lacks."""
        group, _, rest = key.partition(".")
        name = rest.partition(".")[0]
        is_left_out = group == "drafters" and group in chosen and name not in chosen.drafters
        if is_left_out and name in self._choices(parsed("drafter=ngram")):
            return f"{key} is set, and {name} is none of drafters={list(chosen.drafters)}; add it there"
        allowed = f"see {self._command} --help"
        present = keys_of(OmegaConf.to_container(chosen, resolve=False))
        others = self._choices_with(group, rest, chosen)
        near = near_keys(key, [*(each for each in present if not each.startswith("hydra")), *self._groups()])
        if group == "search_space" and group in chosen:
            allowed = "allowed: '+search_space={KEY: {low: 1, high: 8}}'"
        elif near or others:
            advice = [f"did you mean {' or '.join(near)}?"] if near else []
            advice += [f"select {' or '.join(others)}"] if others else []
            allowed = " Or ".join(advice)
        elif group not in chosen and (choices := self._choices(parsed(f"{group}=x"))):
            allowed = f"no {group} is selected; add {group}=CHOICE: {', '.join(choices)}"
        owner = f"{group}={chosen.hydra.runtime.choices[group]}" if others else self._config_name
        return f"{key} is no option of {owner}; {allowed}"

    def _choices_with(self, group: str, option: str, chosen: DictConfig) -> list[str]:
        """Other choices of a selected group, of this repository, whose yaml has this option: gamma=auto."""
        current = chosen.hydra.runtime.choices.get(group) if group in chosen else None
        choices = self._choices(parsed(f"{group}=x")) if option and current else []
        yamls = [CONF / group / f"{each}.yaml" for each in choices if each != current]
        nodes = {path.stem: OmegaConf.load(path) for path in yamls if path.is_file()}
        having = [name for name, node in nodes.items() if isinstance(node, DictConfig) and has_key(node, option)]
        return [f"{group}={name}" for name in having]

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


def _in_a_line(error: Exception) -> str:
    """First line of an error's message, or all lines of one that names a place in a yaml."""
    return " ".join(str(error).split()) if isinstance(error, YAMLError) else str(error).splitlines()[0]


def _check_search_path(override: Override) -> None:
    """
    Raises:
        ValueError: a folder of yamls does not exist; Hydra would only warn.
    """
    for place in map(str, values_of(override)):
        scheme, there, folder = place.partition("://")
        if (not there or scheme == "file") and not Path(folder if there else place).is_dir():
            raise OverrideError(f"{SEARCH_PATH} is {place!r}, no such folder; allowed: [file://FOLDER] of yamls")
