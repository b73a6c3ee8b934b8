"""Incremental retokenisation of one row's committed text with another tokenizer."""

from transformers import PreTrainedTokenizerBase

from framework.prompts.detokenizer import Detokenizer


class Retokenizer:
    """Tokens of another tokenizer for a text that grows token by token.

    The result depends on the committed tokens only, not on the rounds that committed them: it is the other tokenizer's
    encoding of the whole text. More text may change the last tokens, such as "ret" that becomes "return", but no
    earlier ones. Therefore only the last two words are tokenised again, or the whole text if the tokenizer has no
    words. An unfinished character is left out. Special tokens are left out as well, except the end of text: the texts
    before and after it are tokenised separately.
    """

    def __init__(self, theirs: PreTrainedTokenizerBase, own: PreTrainedTokenizerBase):
        """
        Args:
            theirs: tokenizer of the committed tokens, the target's.
            own: tokenizer of the result.
        """
        self._theirs, self._own = theirs, own
        self._num_read = 0
        begin = own.bos_token_id
        adds_it = begin is not None and own("")["input_ids"][:1] == [begin]
        self._closed: list[int] = [begin] if adds_it else []
        # A model needs at least one input token; texts that it was trained on begin with this one.
        known = [each for each in (begin, own.eos_token_id) if each is not None]
        self._of_nothing = (known or [0])[:1]
        self._begin_text()

    def _begin_text(self) -> None:
        self._texts = Detokenizer(self._theirs)
        self._text = ""
        self._tokens: list[int] = []
        self._words: list[tuple[int, int]] = []  # start of each word, in the text and in the tokens

    def read(self, committed: list[int]) -> list[int]:
        """Read newly committed tokens; returns the whole text in the other tokens, at least one.

        Args:
            committed: all committed tokens of the row, those of earlier calls included.
        """
        new = committed[self._num_read :]
        self._num_read = len(committed)
        while self._theirs.eos_token_id in new:
            end = new.index(self._theirs.eos_token_id)
            self._append(new[:end])
            self._closed += self._tokens
            if self._own.eos_token_id is not None:
                self._closed.append(self._own.eos_token_id)
            self._begin_text()
            new = new[end + 1 :]
        self._append(new)
        return self._closed + self._tokens or self._of_nothing

    def _append(self, tokens: list[int]) -> None:
        more = self._texts.extend(tokens)
        if not more:
            return
        self._text += more
        if len(self._words) > 1:
            (begin, first), (_, last) = self._words[-2:]
            again, words = self._tokenised(self._text[begin:])
            # If the first of the two words keeps its tokens, the cut before it has changed nothing.
            if again[: last - first] == self._tokens[first:last]:
                self._tokens[first:] = again
                self._words[-2:] = [(begin + at, first + index) for at, index in words]
                return
        self._tokens, self._words = self._tokenised(self._text)

    def _tokenised(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Tokens of a text, and the starts of its words in the text and in the tokens."""
        if not self._own.is_fast:
            return self._own(text, add_special_tokens=False)["input_ids"], []
        encoding = self._own.backend_tokenizer.encode(text, add_special_tokens=False)
        words, before, end = [], None, 0
        for index, (word, (_, stop)) in enumerate(zip(encoding.word_ids, encoding.offsets, strict=True)):
            if word != before:
                words.append((end, index))  # some tokenizers exclude the space from a word's offsets
            before, end = word, stop
        return encoding.ids, words
