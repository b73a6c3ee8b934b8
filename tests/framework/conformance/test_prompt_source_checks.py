"""The check of prompt sources: those of the repository pass, and every broken example is named."""

import random
import re

import pytest
from omegaconf import OmegaConf

from experiments.config.builders import build, yamls
from experiments.config.resolvers import register_resolvers
from framework.conformance import check_prompt_source
from framework.prompts.prompt_source import Text

register_resolvers()
ELSEWHERE = {
    "cnn_dailymail",
    "hugging_face_dataset",
    "humaneval",
    "jsonl",
    "lm1b",
    "mt_bench",
    "parallel_text",
    "plain_text",
    "sharegpt",
    "speed_bench",
    "texts",
    "wmt14",
    "xsum",
}


class Numbered:
    """Honest: five numbered texts."""

    def texts(self):
        for number in range(5):
            yield Text(name=f"n:{number}", category="n", text=f"text {number}", reference="", next_turns=("more",))


class Strings(Numbered):
    def texts(self):
        return iter(["one", "two"])


class Empty(Numbered):
    def texts(self):
        return iter(())


class Blank(Numbered):
    def texts(self):
        yield from super().texts()
        yield Text(name="last", category="", text=" \n")


class NumberAsCategory(Numbered):
    def texts(self):
        yield Text(name="one", category=3, text="text")


class ListOfTurns(Numbered):
    def texts(self):
        yield Text(name="one", category="", text="text", next_turns=["more"])


class SameName(Numbered):
    def texts(self):
        for _ in range(2):
            yield from super().texts()


class Once(Numbered):
    def __init__(self):
        self.all = super().texts()

    def texts(self):
        return self.all


class Alternates(Numbered):
    forwards = False

    def texts(self):
        self.forwards = not self.forwards
        return iter(list(super().texts())[:: 1 if self.forwards else -1])


class OnePosition(Numbered):
    def texts(self):
        self.position = 0
        texts = list(super().texts())
        while self.position < len(texts):
            self.position += 1
            yield texts[self.position - 1]


class Shuffles(Numbered):
    def texts(self):
        return iter(random.sample(list(super().texts()), 5))


class Different(Numbered):
    made = 0

    def __init__(self):
        Different.made += 1
        self.number = Different.made

    def texts(self):
        yield Text(name=f"of {self.number}", category="", text="text")


BROKEN = [
    (Strings, "objects of class Text", "texts yields 'one' as number 0"),
    (Empty, "at least one", "texts yields nothing"),
    (Blank, "no text is blank", r"text of 'last' is ' \\n'; leave blank texts out"),
    (NumberAsCategory, "are strings", "category of 'one' is 3; a string is required"),
    (ListOfTurns, "are strings", r"next_turns of 'one' is \['more'\]; a tuple"),
    (SameName, "a name of its own", "2 texts are named 'n:0'; number them"),
    (Once, "every call of texts", "0 texts instead of 5 in the second call"),
    (Alternates, "every call of texts", "text 0 is 'n:4' instead of 'n:0'"),
    (OnePosition, "two iterations at the same time", "in one of two iterations at the same time"),
    (Shuffles, "objects of class Text", "texts drew from Python's global generator"),
    (Different, "another source with the same options", "in another source with the same options"),
]


@pytest.mark.parametrize(("source", "rule", "message"), BROKEN, ids=[case[0].__name__ for case in BROKEN])
def test_a_broken_source_is_named_with_its_fault(source, rule, message):
    report = check_prompt_source(source)
    shown = [finding.breach for finding in report.breaches if rule in finding.rule]
    assert shown and re.search(message, shown[0]), report


def test_an_honest_source_passes_and_only_so_many_texts_are_read():
    check_prompt_source(Numbered).require()
    report = check_prompt_source(Numbered, most=3)
    report.require()
    assert "the first 3 texts" in str(report)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in yamls("prompts") if name not in ELSEWHERE])
def test_every_source_with_a_yaml_keeps_the_contract(name):
    node = OmegaConf.merge({"seed": 0}, yamls("prompts")[name])
    check_prompt_source(lambda: build(node.source), most=100).require()
