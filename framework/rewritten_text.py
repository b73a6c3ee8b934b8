"""One row's committed text in the tokens of another tokenizer, which grows with it."""

from transformers import PreTrainedTokenizerBase

from framework.token_texts import TokenTexts


class RewrittenText:
    """What another tokenizer makes of a text that comes token by token.

    Always the same tokens for the same committed ones, whatever the rounds in which they came: those that the other
    tokenizer gives the whole text. More text may change the last of them, such as "ret" that becomes "return", but no
    others; so only the last two words are tokenised again, and all of it where a tokenizer knows no words. A character
    that is not finished yet is left out, and so are special tokens but for the end of text: what stands before one and
    what follows it are texts of their own.
    """

    def __init__(self, theirs: PreTrainedTokenizerBase, own: PreTrainedTokenizerBase):
        """
        Args:
            theirs: whose tokens are committed, the target's.
            own: whose tokens are wanted.
        """
        self._theirs, self._own = theirs, own
        self._num_read = 0
        begin = own.bos_token_id
        adds_it = begin is not None and own("")["input_ids"][:1] == [begin]
        self._closed: list[int] = [begin] if adds_it else []
        # A model needs a token to go on from, and this is what it has seen where texts begin.
        known = [each for each in (begin, own.eos_token_id) if each is not None]
        self._of_nothing = (known or [0])[:1]
        self._begin_text()

    def _begin_text(self) -> None:
        self._texts = TokenTexts(self._theirs)
        self._text = ""
        self._tokens: list[int] = []
        self._words: list[tuple[int, int]] = []  # of each: where it begins in the text, and in the tokens

    def read(self, committed: list[int]) -> list[int]:
        """Take in what was committed since the last time; returns all of it in the other tokens, at least one."""
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
            # That the first of the two words comes out as before shows that the cut has changed nothing.
            if again[: last - first] == self._tokens[first:last]:
                self._tokens[first:] = again
                self._words[-2:] = [(begin + at, first + index) for at, index in words]
                return
        self._tokens, self._words = self._tokenised(self._text)

    def _tokenised(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The tokens of a text, and where its words begin."""
        if not self._own.is_fast:
            return self._own(text, add_special_tokens=False)["input_ids"], []
        encoding = self._own.backend_tokenizer.encode(text, add_special_tokens=False)
        words, before, end = [], None, 0
        for index, (word, (_, stop)) in enumerate(zip(encoding.word_ids, encoding.offsets, strict=True)):
            if word != before:
                words.append((end, index))  # some tokenizers do not count the space as part of its word
            before, end = word, stop
        return encoding.ids, words
