"""The text that each token adds, while tokens come one after another."""

from transformers import PreTrainedTokenizerBase

UNFINISHED = "\ufffd"  # what a tokenizer makes of the first bytes of a character


class TokenTexts:
    """Turns tokens into text piece by piece; never shows the first bytes of a character without the others.

    Tokens may be parts of characters: the last one of them gets the character, and the others nothing. Together the
    pieces are the text that all tokens make at once, without an unfinished character at its end. Special tokens have no
    text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        # Some tokenizers write a word without its space where a text begins: what was last given out stays before it.
        self._begin, self._given = 0, 0

    def append(self, token: int) -> str:
        """What this token adds to the text."""
        self._tokens.append(token)
        text = self._waiting()
        if text.endswith(UNFINISHED):
            return ""
        self._begin, self._given = self._given, len(self._tokens)
        return text

    def extend(self, tokens: list[int]) -> str:
        """What all of these add to the text."""
        if len(tokens) > 1:
            self._tokens += tokens
            text = self._waiting()
            if not text.endswith(UNFINISHED):
                self._begin, self._given = self._given, len(self._tokens)
                return text
            del self._tokens[-len(tokens) :]  # which of them the character begins with, only one after another shows
        return "".join(map(self.append, tokens))

    def rest(self) -> str:
        """What is still held back when no token follows, without a character that was never finished."""
        return self._waiting().rstrip(UNFINISHED)

    def _waiting(self) -> str:
        known = self._decode(self._tokens[self._begin : self._given])
        return self._decode(self._tokens[self._begin :])[len(known) :]

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
