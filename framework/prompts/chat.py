"""Texts as turns of a chat, formatted by the tokenizer's chat template."""

from collections.abc import Callable, Sequence
from itertools import takewhile
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
    """Tokens of a whole conversation, with a mask of the model's answers and of the special tokens that end them.

    Args:
        tokenizer: tokenizer with a chat template, and with the offsets of tokens.
        turns: messages of user and model, alternating; the first is the user's.
        system: system message; None: left to the template.

    Returns:
        Token ids and mask; None: the template changes the words of a turn.

    Raises:
        ValueError: the template rejects the messages.
    """

    def text_of(turns: Sequence[str], *, answer_begins: bool = False) -> str:
        return _formatted(tokenizer, turns, system=system, answer_begins=answer_begins, tokenize=False)

    text = text_of(turns)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    tokens, offsets = encoded["input_ids"], encoded["offset_mapping"]
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    answers: list[tuple[int, int]] = []
    end = 0
    for place, turn in enumerate(turns):
        if place % 2:
            # A short answer may occur in its turn's header, which ends where two different answers begin to differ. The
            # header of the next answer may be longer, by a thought that is begun.
            headers = (text_of(turns[:place], answer_begins=True), _shared(text_of, turns[:place]))
            end = max((len(header) for header in headers if text.startswith(header)), default=end)
        start = text.find(turn.strip(), end)
        if start < 0:
            return None
        end = start + len(turn.strip())
        if place % 2:
            answers.append((start, end))
            end += len(text[end:]) - len(text[end:].lstrip())
            after = next((number for number, (first, _) in enumerate(offsets) if first >= end), None)
            if after is not None and tokens[after] in special:
                answers.append(offsets[after])
    mask = [any(first < end and last > start for start, end in answers) for first, last in offsets]
    return tokens, mask


def _shared(text_of: Callable[[Sequence[str]], str], turns: Sequence[str]) -> str:
    """The common beginning of a chat's continuations by two answers that differ from their first character on."""
    pairs = zip(*(text_of([*turns, answer]) for answer in "01"), strict=False)
    return "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


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
