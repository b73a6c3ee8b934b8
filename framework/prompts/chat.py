"""Texts as turns of a chat, formatted by the tokenizer's chat template."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from framework.core.option_error import OptionError


def is_chat(tokenizer: PreTrainedTokenizerBase, *, chat: bool | str, system: str | None) -> bool:
    """Whether texts are formatted as turns of a chat.

    Args:
        tokenizer: may have a chat template; those of base models often have one as well.
        chat: True or False; "auto": True if the tokenizer has a chat template.
        system: system message of a chat; None: left to the template.

    Raises:
        ValueError: another `chat`, chat=True without a template, or a system message without a chat.
    """
    has_template = tokenizer.chat_template is not None
    if chat not in ("auto", True, False):
        raise OptionError("chat", chat, "auto, true, false")
    if chat is True and not has_template:
        raise OptionError("chat", chat, "auto, false", "but the target's tokenizer has no chat template")
    decided = has_template if chat == "auto" else bool(chat)
    if system is not None and not decided:
        why = "chat is false" if has_template else "the target's tokenizer has no chat template"
        raise OptionError("system", system, "null", f"but {why}")
    return decided


def chat_tokens(
    tokenizer: PreTrainedTokenizerBase, turns: Sequence[str], *, system: str | None, max_prompt_tokens: int | None
) -> list[int]:
    """Tokens of a chat up to the start of the model's answer; special tokens come from the template only.

    Args:
        tokenizer: tokenizer with a chat template.
        turns: messages of user and model, alternating; the first and the last are the user's.
        system: system message; None: left to the template.
        max_prompt_tokens: number of tokens to which the first message is cut; the template around it stays whole. The
            cut text is tokenised again within the template, so it may get a few tokens more or less. None: no cut.

    Raises:
        ValueError: the template rejects the messages, for example a system message.
    """
    text, *more = turns
    if max_prompt_tokens is not None:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        ends = [end for _, end in encoded["offset_mapping"]]
        text = text[: ends[max_prompt_tokens - 1]] if max_prompt_tokens < len(ends) else text
    return _formatted(tokenizer, [text, *more], system=system, answer_begins=True, tokenize=True)


def conversation_tokens(
    tokenizer: PreTrainedTokenizerBase, turns: Sequence[str], *, system: str | None
) -> tuple[list[int], list[bool]] | None:
    """Tokens of a whole conversation, and which of them the model wrote; None if the template changes its words.

    An answer lasts up to the special token after it, which ends the model's turn.

    Args:
        tokenizer: tokenizer with a chat template, and with the offsets of tokens.
        turns: messages of user and model, alternating; the first is the user's.
        system: system message; None: left to the template.

    Raises:
        ValueError: the template rejects the messages.
    """
    text = _formatted(tokenizer, turns, system=system, answer_begins=False, tokenize=False)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    tokens, offsets = encoded["input_ids"], encoded["offset_mapping"]
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    answers: list[tuple[int, int]] = []
    end = 0
    for place, turn in enumerate(turns):
        if place % 2:
            before = _formatted(tokenizer, turns[:place], system=system, answer_begins=True, tokenize=False)
            end = len(before) if text.startswith(before) else end  # a short answer may occur in the turn's beginning
        start = text.find(turn.strip(), end)
        if start < 0:
            return None
        end = start + len(turn.strip())
        if place % 2:
            after = next((each for each, (first, _) in enumerate(offsets) if first >= end), None)
            ends_turn = after is not None and tokens[after] in special
            answers.append((start, offsets[after][1] if ends_turn else end))
    is_answer = [any(first < end and last > start for start, end in answers) for first, last in offsets]
    return tokens, is_answer


def _formatted(
    tokenizer: PreTrainedTokenizerBase, turns: Sequence[str], *, system: str | None, answer_begins: bool, tokenize: bool
) -> Any:
    """Text or tokens of a chat; `answer_begins`: up to the start of the model's next answer."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    messages += [{"role": roles[place % 2], "content": said} for place, said in enumerate(turns)]
    try:
        return tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=answer_begins,
            tokenize=tokenize,
            return_dict=False,
            tokenizer_kwargs={"verbose": False},
        )
    except Exception as error:  # a template is a program and may raise anything
        problem = f"and the target's chat template refuses: {error}"
        raise OptionError("system", system, "null, or chat=false", problem) from error
