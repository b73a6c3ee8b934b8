"""Texts listed in a config: their order, pieces that are joined, and what is refused."""

import re

import pytest

from framework.core.option_error import OptionError
from framework.prompts.text_list import TextList


def test_texts_keep_their_order_and_pieces_are_joined():
    texts = list(TextList(texts=["a", ["echo $", "{HOME}"], "a"]).texts())
    assert [text.text for text in texts] == ["a", "echo ${HOME}", "a"]
    assert len({text.name for text in texts}) == 3


@pytest.mark.parametrize("wrong", [[], "a", None, [""], ["a", 1], [["a", 1]], [[]]])
def test_what_is_no_list_of_texts_is_refused(wrong):
    with pytest.raises(OptionError, match=re.escape(f"texts is {wrong!r}; allowed: a list of texts, none empty")):
        TextList(texts=wrong)
