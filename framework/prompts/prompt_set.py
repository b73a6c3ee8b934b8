"""From texts to prompts: token ids that fit the model they are for."""

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from framework.prompts.chat import chat_tokens, is_chat
from framework.prompts.prompt_source import PromptSource
from framework.whole_numbers import check_whole

TOO_LONG = ("error", "truncate_left", "skip")


@dataclass(frozen=True)
class Prompt:
    """One text as the model reads it.

    Attributes:
        reference: what is to be answered, where that is known.
        later_turns: what the user goes on to say, of a dialogue that begins with this prompt.
        turns: what was said so far, by user and model in turn.
    """

    name: str
    category: str
    tokens: tuple[int, ...]
    reference: str | None = None
    later_turns: tuple[str, ...] = ()
    turns: tuple[str, ...] = ()


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a run.

    Attributes:
        prompts: in the order of their source.
        num_truncated: prompts that lost their beginning to fit.
        num_skipped: texts passed over because they did not fit.
        chat: whether the texts became turns of a chat.
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
    first_tokens: int | None,
    max_tokens: int,
    too_long: str,
    vocabulary_size: int,
    chat: bool | str,
    system: str | None,
) -> PromptSet:
    """Tokenise texts in order, special tokens as the tokenizer or its chat template adds them; keep those that fit.

    Args:
        source: the texts; read no further than needed.
        tokenizer: the target's.
        count: keep this many prompts, or all there are if fewer; None keeps all.
        first_tokens: cut every text to its first so many tokens, not counting a chat template around it; None keeps
            it whole.
        max_tokens: longest prompt that leaves room for what is to be generated.
        too_long: what becomes of a longer one: "error"; "truncate_left" keeps its last max_tokens tokens, so a
            leading special token is lost (not for chats, which it would behead); "skip".
        vocabulary_size: V; ids lie below it.
        chat: True makes every text the user's turn of a chat and lets the model answer; False leaves it as it is, to
            be continued; "auto" is True where the tokenizer has a chat template.
        system: what a chat begins with; None leaves it to the template.

    Raises:
        ValueError: a knob out of range, a prompt too long (under "error"), without tokens, or with an id outside
            the vocabulary, no prompt left, or a chat that the tokenizer has no template for.
    """
    for knob, value in (("count", count), ("first_tokens", first_tokens)):
        check_whole(f"prompts.{knob}", value, least=1, or_null=True)
    if too_long not in TOO_LONG:
        raise ValueError(f"prompts.too_long is {too_long!r}; allowed: {', '.join(TOO_LONG)}")
    if max_tokens < 1:
        raise ValueError(f"the context leaves {max_tokens} tokens for a prompt; allowed: >= 1. Lower max_new_tokens")
    as_chat = is_chat(tokenizer, chat=chat, system=system)
    if as_chat and too_long == "truncate_left":
        raise ValueError(
            "prompts.too_long is 'truncate_left', which would cut the chat template; allowed: error, skip. Set "
            "prompts.first_tokens to cut the texts, or prompts.chat=false"
        )
    prompts: list[Prompt] = []
    num_truncated = num_skipped = 0
    for text in source.texts():
        if as_chat:
            tokens = tuple(chat_tokens(tokenizer, [text.text], system=system, first_tokens=first_tokens))
        else:
            # Not verbose: a whole file is longer than the context, and is cut below.
            tokens = tuple(tokenizer(text.text, verbose=False)["input_ids"][:first_tokens])
        if not tokens:
            raise ValueError(f"prompt {text.name} has no tokens: its text is {text.text!r} (see prompts=)")
        if max(tokens) >= vocabulary_size:
            raise ValueError(
                f"prompt {text.name} holds token id {max(tokens)}; allowed: ids below the target's vocabulary size, "
                f"{vocabulary_size}. Is this tokenizer the target's? See target="
            )
        if len(tokens) > max_tokens:
            if too_long == "error":
                raise ValueError(
                    f"prompt {text.name} has {len(tokens)} tokens; allowed: {max_tokens}. Set prompts.first_tokens "
                    "to cut every text, or prompts.too_long to truncate_left or skip"
                )
            if too_long == "skip":
                num_skipped += 1
                continue
            num_truncated += 1
            tokens = tokens[-max_tokens:]
        turns = (text.text,) if text.later_turns else ()
        prompts.append(Prompt(text.name, text.category, tokens, text.reference, text.later_turns, turns))
        if len(prompts) == count:
            break
    if not prompts:
        raise ValueError(f"prompts= gives no prompt; skipped as longer than {max_tokens} tokens: {num_skipped} texts")
    return PromptSet(prompts=prompts, num_truncated=num_truncated, num_skipped=num_skipped, chat=as_chat)
