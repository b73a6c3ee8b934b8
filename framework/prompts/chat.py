"""A text as the user's turn of a chat, in the form that a tokenizer's chat template gives it."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase


def is_chat(tokenizer: PreTrainedTokenizerBase, *, chat: bool | str, system: str | None) -> bool:
    """Whether texts become turns of a chat.

    Args:
        tokenizer: may have a chat template; base models often have one, too.
        chat: True or False; "auto" is True where the tokenizer has a chat template.
        system: what a chat begins with; None leaves it to the template.

    Raises:
        ValueError: another `chat`, no template where one is needed, or a system text without a chat.
    """
    has_template = tokenizer.chat_template is not None
    if chat not in ("auto", True, False):
        raise ValueError(f"prompts.chat is {chat!r}; allowed: auto, true, false")
    if chat is True and not has_template:
        raise ValueError("prompts.chat is true, but the target's tokenizer has no chat template; allowed: auto, false")
    decided = has_template if chat == "auto" else bool(chat)
    if system is not None and not decided:
        why = "prompts.chat is false" if has_template else "the target's tokenizer has no chat template"
        raise ValueError(f"prompts.system is {system!r}, but {why}; allowed: null")
    return decided


def chat_tokens(
    tokenizer: PreTrainedTokenizerBase, turns: Sequence[str], *, system: str | None, first_tokens: int | None
) -> list[int]:
    """The tokens of a chat that ends where the model is to answer; the template alone adds special tokens.

    Args:
        tokenizer: has a chat template.
        turns: what user and model say, one after the other; the user begins and ends.
        system: what the chat begins with; None leaves it to the template.
        first_tokens: cut the first text to its first so many tokens; the template around it stays whole. Read again
            between its turn's marks, the cut text may come out a few tokens longer or shorter.

    Raises:
        ValueError: the template refuses, for example a system text.
    """
    text, *more = turns
    if first_tokens is not None:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        ends = [end for _, end in encoded["offset_mapping"]]
        text = text[: ends[first_tokens - 1]] if first_tokens < len(ends) else text
    messages = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    messages += [{"role": roles[place % 2], "content": said} for place, said in enumerate([text, *more])]
    try:
        return tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=True,
            return_dict=False,
            tokenizer_kwargs={"verbose": False},
        )
    except Exception as error:  # a template is a program and may raise anything
        raise ValueError(
            f"the target's chat template refuses: {error}; prompts.system is {system!r}, null may help; or set "
            "prompts.chat=false"
        ) from error
