"""Incremental detokenisation: the text that each token adds."""

from transformers import PreTrainedTokenizerBase

UNFINISHED = "\ufffd"  # decoded from an incomplete character


class Detokenizer:
    """Turns tokens into text piece by piece, without incomplete characters.

    If a character spans several tokens, the last one adds the character and the others add nothing. The concatenated
    pieces are the text of all tokens, without an incomplete character at its end. Special tokens have no text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        # Some tokenizers drop the space before a text's first word, so each piece is decoded after the previous one.
        self._begin, self._given = 0, 0

    def append(self, token: int) -> str:
        """The text that this token adds."""
        self._tokens.append(token)
        text = self._waiting()
        if text.endswith(UNFINISHED):
            return ""
        self._begin, self._given = self._given, len(self._tokens)
        return text

    def extend(self, tokens: list[int]) -> str:
        """The text that all of these tokens add."""
        if len(tokens) > 1:
            self._tokens += tokens
            text = self._waiting()
            if not text.endswith(UNFINISHED):
                self._begin, self._given = self._given, len(self._tokens)
                return text
            del self._tokens[-len(tokens) :]  # token by token, to find where the incomplete character begins
        return "".join(map(self.append, tokens))

    def rest(self) -> str:
        """The text still held back if no token follows, without an incomplete character."""
        return self._waiting().rstrip(UNFINISHED)

    def _waiting(self) -> str:
        known = self._decode(self._tokens[self._begin : self._given])
        return self._decode(self._tokens[self._begin :])[len(known) :]

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
