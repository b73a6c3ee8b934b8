"""Errors of options: their words, the paths that callers add, and their types."""

import pickle

import pytest

from framework.core.option_error import (
    MissingFileError,
    OptionError,
    OtherTargetError,
    UnreachableError,
    UnreadableError,
    options_under,
)


def test_it_names_the_option_the_value_and_what_is_allowed():
    assert str(OptionError("top_k", 0, "a whole number >= 1")) == "top_k is 0; allowed: a whole number >= 1"
    found = OptionError("path", "x", "a folder", "which is empty")
    assert str(found) == "path is 'x', which is empty; allowed: a folder"


def test_callers_add_the_path_from_the_inside_out():
    with pytest.raises(OptionError) as raised, options_under("drafters.small"), options_under("model"):
        raise MissingFileError("path", "x", "a folder", "which does not exist")
    error = raised.value
    assert str(error) == "drafters.small.model.path is 'x', which does not exist; allowed: a folder"
    assert (error.option, error.given, error.allowed) == ("drafters.small.model.path", "x", "a folder")
    assert type(error) is MissingFileError


def test_a_part_of_another_target_keeps_the_command_that_makes_one():
    with pytest.raises(OtherTargetError) as raised, options_under("drafters.medusa"):
        raise OtherTargetError("path", "x", "a part for this one", made_by="train drafter=medusa")
    error = pickle.loads(pickle.dumps(raised.value))
    assert str(error) == "drafters.medusa.path is 'x'; allowed: a part for this one"
    assert (error.option, error.made_by) == ("drafters.medusa.path", "train drafter=medusa")


def test_an_empty_path_and_other_errors_stay_as_they_are():
    with pytest.raises(OptionError, match=r"^top_k is 0; "), options_under(""):
        raise OptionError("top_k", 0, "more")
    with pytest.raises(ValueError, match=r"^drafter\.top_k is odd$"), options_under("drafters.small"):
        raise ValueError("drafter.top_k is odd")


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (OptionError, ValueError),
        (UnreadableError, OSError),
        (MissingFileError, FileNotFoundError),
        (UnreachableError, ConnectionError),
    ],
)
def test_it_is_the_builtin_error_as_well_and_can_be_sent(kind, builtin):
    error = pickle.loads(pickle.dumps(kind("path", "x", "a folder", "which is not there")))
    assert isinstance(error, ValueError) and isinstance(error, builtin) and type(error) is kind
    assert str(error) == "path is 'x', which is not there; allowed: a folder"
