"""The next turn of a dialogue: what was said and answered before it becomes part of the prompt."""

from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from framework.prompts.chat import chat_tokens
from framework.prompts.prompt_set import Prompt

BETWEEN = "\n\n"  # turns, where no chat template says how they are told apart


def next_turn(
    prompt: Prompt, answer: list[int], tokenizer: PreTrainedTokenizerBase, *, chat: bool, system: str | None
) -> Prompt:
    """The prompt that follows another and its answer.

    Args:
        prompt: has at least one later turn.
        answer: token ids that the model gave.
        tokenizer: the target's.
        chat: whether prompts are turns of a chat in the tokenizer's template.
        system: what a chat begins with; None leaves it to the template.
    """
    said, *later = prompt.later_turns
    turns = (*prompt.turns, tokenizer.decode(answer, skip_special_tokens=True), said)
    if chat:
        tokens = tuple(chat_tokens(tokenizer, turns, system=system, first_tokens=None))
    else:
        between = tokenizer(f"{BETWEEN}{said}{BETWEEN}", add_special_tokens=False)["input_ids"]
        tokens = (*prompt.tokens, *answer, *between)
    number = len(turns) // 2 + 1
    name = f"{prompt.name.removesuffix(f', turn {number - 1}')}, turn {number}"
    return replace(prompt, name=name, tokens=tokens, reference=None, later_turns=tuple(later), turns=turns)
