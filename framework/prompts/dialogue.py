"""Next turn of a dialogue: a prompt that contains the earlier turns and answers."""

from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from framework.prompts.chat import chat_tokens
from framework.prompts.prompt_set import Prompt

BETWEEN = "\n\n"  # separates turns without a chat template


def next_turn(
    prompt: Prompt, answer: list[int], tokenizer: PreTrainedTokenizerBase, *, chat: bool, system: str | None
) -> Prompt:
    """Prompt of the next turn, after a prompt and the model's answer.

    Args:
        prompt: a prompt with at least one later turn.
        answer: token ids of the model's answer.
        tokenizer: the target's tokenizer.
        chat: whether prompts are formatted by the tokenizer's chat template.
        system: system message of a chat; None: left to the template.
    """
    said, *later = prompt.next_turns
    turns = (*prompt.turns, tokenizer.decode(answer, skip_special_tokens=True), said)
    if chat:
        tokens = tuple(chat_tokens(tokenizer, turns, system=system, max_prompt_tokens=None))
    else:
        between = tokenizer(f"{BETWEEN}{said}{BETWEEN}", add_special_tokens=False)["input_ids"]
        tokens = (*prompt.tokens, *answer, *between)
    number = len(turns) // 2 + 1
    name = f"{prompt.name.removesuffix(f', turn {number - 1}')}, turn {number}"
    return replace(prompt, name=name, tokens=tokens, reference=None, next_turns=tuple(later), turns=turns)
