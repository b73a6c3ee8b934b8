"""Later turns of dialogues, and what is reported by kind of prompt."""

import pytest

from experiments.measurement.multi_turn import with_next_turns
from experiments.reporting.tables.by_category import by_category
from experiments.results.record import Record
from framework.conformance.tiny_models import tiny_target
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.stopping import Stopping
from framework.prompts.prompt_set import make_prompts
from framework.prompts.prompt_source import Text

TEMPLATE = (
    "{% for message in messages %}{{ message['role'][0] }}1{{ message['content'] }}2{% endfor %}"
    "{% if add_generation_prompt %}a1{% endif %}"
)


class Dialogues:
    def texts(self):
        yield Text("one", "x", "ab", next_turns=("cd", "ef"))
        yield Text("two", "y", "gh")


def prompts_of(target, chat):
    return make_prompts(
        Dialogues(), target.tokenizer, count=None, max_prompt_tokens=None, max_tokens=200, overflow="error",
        vocabulary_size=target.vocabulary_size, chat=chat, system=None,
    )  # fmt: skip


def continued(chat, room=200):
    target, stopping = tiny_target(), Stopping(max_new_tokens=5)
    if chat:
        target.tokenizer.chat_template = TEMPLATE
    prompts = prompts_of(target, chat)
    return target, with_next_turns(prompts, target, stopping, batch_size=8, system=None, room=room)


@pytest.mark.parametrize("chat", [False, True])
def test_answers_stand_between_the_turns(chat):
    target, found = continued(chat)
    assert [prompt.name for prompt in found.prompts] == ["one", "one, turn 2", "one, turn 3", "two"]
    plain = Autoregressive(target=target, sampling=Sampling(temperature=0))
    first, second = found.prompts[:2]
    [answer] = plain.generate([list(first.tokens)], stopping=Stopping(max_new_tokens=5), seeds=[0]).tokens
    said = target.tokenizer.decode(answer, skip_special_tokens=chat)
    text = target.tokenizer.decode(second.tokens)
    assert text.replace(" ", "") == (f"u1ab2a1{said}2u1cd2a1" if chat else f"ab{said}\n\ncd\n\n").replace(" ", "")
    assert second.category == "x" and not any(prompt.next_turns for prompt in found.prompts)


def test_a_dialogue_that_no_longer_fits_ends():
    _, found = continued(chat=False, room=4)
    assert [prompt.name for prompt in found.prompts] == ["one", "two"]
    assert found.num_skipped == 1


def test_figures_by_kind_of_prompt():
    rows = [
        {"category": "writing", "seconds": 1.0, "baseline_seconds": 3.0, "tau": 2.0, "new_tokens": 9},
        {"category": "stem", "seconds": 1.0, "baseline_seconds": 1.0, "tau": 4.0, "new_tokens": 9},
        {"category": "rag", "seconds": 1.0, "baseline_seconds": 0.5, "tau": None, "new_tokens": 1},
    ]
    record = Record(point={"drafter": "d", "temperature": 0}, prompts=rows)
    heading, line = by_category([record])
    assert heading[2:] == [
        f"{group} {what}" for group in ("mt_bench", "rag", "all") for what in ("speedup", "tokens per pass")
    ]
    assert line == ["d", "0", "2.00", "2.67", "0.50", "–", "1.50", "2.67"]
