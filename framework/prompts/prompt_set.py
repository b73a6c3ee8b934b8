"""Prompts from texts: token ids that fit the context of the target."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from framework.core.option_error import OptionError, options_under
from framework.core.validation import check_whole
from framework.prompts.chat import chat_tokens, is_chat
from framework.prompts.prompt_source import PromptSource, Text
from framework.prompts.truncation import leading_tokens

LOG = logging.getLogger(__name__)
OVERFLOW = ("error", "truncate_left", "skip")


@dataclass(frozen=True)
class Prompt:
    """One text as token ids.

    Attributes:
        name: name of the text.
        category: category of the text.
        tokens: token ids, special tokens included.
        reference: reference answer; None: unknown.
        next_turns: later user turns of a dialogue that begins with this prompt.
        turns: turns of the dialogue so far, of user and model alternately; empty for a text that is no dialogue.
        tests: Python code that raises an error unless the text, completed, is right; None: unknown.
    """

    name: str
    category: str
    tokens: tuple[int, ...]
    reference: str | None = None
    next_turns: tuple[str, ...] = ()
    turns: tuple[str, ...] = ()
    tests: str | None = None


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a run.

    Attributes:
        prompts: prompts in the order of their source.
        num_truncated: number of prompts that were cut on the left to fit.
        num_skipped: number of texts that were skipped because they did not fit.
        chat: whether the texts are formatted as turns of a chat.
    """

    prompts: list[Prompt]
    num_truncated: int
    num_skipped: int
    chat: bool


def make_prompts(
    source: PromptSource,
    tokenizer: PreTrainedTokenizerBase,
    *,
    count: int | None,
    max_prompt_tokens: int | None,
    max_tokens: int,
    overflow: str,
    vocabulary_size: int,
    chat: bool | str,
    system: str | None,
) -> PromptSet:
    """Tokenise texts in order and keep the prompts that fit.

    The tokenizer, or its chat template, adds special tokens.

    Args:
        source: source of the texts, read no further than needed.
        tokenizer: the target's tokenizer.
        count: number of prompts, or, with a message, all texts if there are fewer; None: all texts.
        max_prompt_tokens: number of tokens to which every text is cut, without a chat template around it; None: texts
            stay whole.
        max_tokens: length of the longest prompt that leaves room for generation.
        overflow: treatment of longer prompts: "error"; "truncate_left", which keeps the last max_tokens tokens and
            loses a leading special token (not allowed for chats, whose template it would cut); or "skip".
        vocabulary_size: V; all ids are below it.
        chat: True: every text is the user's turn of a chat, which the model answers; False: the model continues the
            text; "auto": True if the tokenizer has a chat template.
        system: system message of a chat; None: left to the template.

    Raises:
        ValueError: an option out of range; a prompt that is too long (with "error"), empty, or holds an id outside the
            vocabulary; no prompt left; or a chat without a chat template.
    """
    for option, value in (("count", count), ("max_prompt_tokens", max_prompt_tokens)):
        check_whole(option, value, least=1, or_null=True)
    if overflow not in OVERFLOW:
        raise OptionError("overflow", overflow, ", ".join(OVERFLOW))
    if max_tokens < 1:
        raise ValueError(f"the context leaves {max_tokens} tokens for a prompt; allowed: >= 1. Lower max_new_tokens")
    as_chat = is_chat(tokenizer, chat=chat, system=system)
    if as_chat and overflow == "truncate_left":
        allowed = "error, skip, or max_prompt_tokens to cut the texts, or chat=false"
        raise OptionError("overflow", overflow, allowed, "which would cut the chat template")
    prompts: list[Prompt] = []
    num_truncated = num_skipped = 0
    for text in _texts_of(source):
        if as_chat:
            tokens = tuple(chat_tokens(tokenizer, [text.text], system=system, max_prompt_tokens=max_prompt_tokens))
        else:
            tokens = tuple(leading_tokens(tokenizer, [text.text], max_prompt_tokens)[0])
        if not tokens:
            raise ValueError(f"prompt {text.name} has no tokens: its text is {text.text!r} (see prompts=)")
        if max(tokens) >= vocabulary_size:
            raise ValueError(
                f"prompt {text.name} holds token id {max(tokens)}; allowed: ids below the target's vocabulary size, "
                f"{vocabulary_size}. Is this tokenizer the target's? See target="
            )
        if len(tokens) > max_tokens:
            if overflow == "error":
                raise ValueError(
                    f"prompt {text.name} has {len(tokens)} tokens; allowed: {max_tokens}. Set "
                    "prompts.max_prompt_tokens "
                    "to cut every text, or prompts.overflow to truncate_left or skip"
                )
            if overflow == "skip":
                num_skipped += 1
                continue
            num_truncated += 1
            tokens = tokens[-max_tokens:]
        turns = (text.text,) if text.next_turns else ()
        prompts.append(Prompt(text.name, text.category, tokens, text.reference, text.next_turns, turns, text.tests))
        if len(prompts) == count:
            break
    if not prompts:
        raise ValueError(f"prompts= gives no prompt; skipped as longer than {max_tokens} tokens: {num_skipped} texts")
    if count is not None and len(prompts) < count:
        LOG.info("count is %d, and the source of prompts has %d that fit; these are used", count, len(prompts))
    return PromptSet(prompts=prompts, num_truncated=num_truncated, num_skipped=num_skipped, chat=as_chat)


def _texts_of(source: PromptSource) -> Iterator[Text]:
    with options_under("source"):
        yield from source.texts()
