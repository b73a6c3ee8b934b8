"""Stopping criteria, and the tokens kept of an ending block."""

from types import SimpleNamespace

import pytest
import torch

from framework.core.sequences import Sequences
from framework.decoding.round_summary import StepSummary
from framework.decoding.stopping import Finisher, Stopping

CPU = torch.device("cpu")
EOS, END = 0, 9
# Token i is the i-th letter; 26 is two letters, like a merged token.
LETTERS = SimpleNamespace(
    decode=lambda tokens: "".join("abcdefghijklmnopqrstuvwxyz"[t] if t < 26 else "xy" for t in tokens)
)


def start(
    prompts: list[list[int]], *, context: int = 100, max_new_tokens: int = 20, **stopping: object
) -> tuple[Sequences, Finisher]:
    sequences = Sequences.from_prompts(prompts, width=context + 10, device=CPU)
    return sequences, Finisher(sequences, Stopping(max_new_tokens=max_new_tokens, **stopping), context)


def commit(finisher: Finisher, *blocks: list[int], sick: tuple[int, ...] = ()) -> list[int]:
    """Commit one block of tokens per row; EOS pads shorter ones and must not count."""
    longest = max(len(block) for block in blocks)
    tokens = torch.tensor([block + [EOS] * (longest - len(block)) for block in blocks])
    counts = torch.tensor([len(block) for block in blocks])
    healthy = torch.tensor([row not in sick for row in range(len(blocks))])
    kept = finisher.commit(tokens, counts)
    read = finisher.read(StepSummary.unpack(StepSummary(tokens, kept, healthy).pack()))
    return read


def row(sequences: Sequences, index: int) -> list[int]:
    return sequences.tokens[index, : sequences.lengths[index]].tolist()


def test_running_rows_keep_whole_blocks() -> None:
    sequences, finisher = start([[1], [2, 3]], eos_ids=(EOS,))
    assert finisher.remaining.tolist() == [20, 20] and finisher.most_remaining == 20
    assert commit(finisher, [4, 5, 6], [7]) == [3, 1]
    assert row(sequences, 0) == [1, 4, 5, 6] and row(sequences, 1) == [2, 3, 7]
    assert finisher.new_tokens == [[4, 5, 6], [7]]
    assert finisher.finish_reasons == ["", ""]
    assert sequences.lengths.tolist() == [4, 3] and sequences.longest == 4
    assert sequences.pending.tolist() == [6, 7]
    assert finisher.remaining.tolist() == [17, 19] and finisher.most_remaining == 19
    assert sequences.active.tolist() == [True, True]
    assert sequences.prompt_lengths.tolist() == [1, 2]


def test_end_of_text_inside_a_block_is_kept_and_what_follows_is_not() -> None:
    sequences, finisher = start([[1], [1], [1], [1]], eos_ids=(EOS, END))
    assert commit(finisher, [4, EOS, 5], [END, 5, 6], [4, 5, EOS], [4, 5, 6]) == [2, 1, 3, 3]
    assert finisher.new_tokens == [[4, EOS], [END], [4, 5, EOS], [4, 5, 6]]
    assert finisher.finish_reasons == ["eos", "eos", "eos", ""]
    assert sequences.active.tolist() == [False, False, False, True]
    assert finisher.remaining.tolist() == [0, 0, 0, 17]
    assert finisher.is_eos(torch.tensor([[EOS, 1], [END, 2]])).tolist() == [[True, False], [True, False]]


def test_the_device_knows_every_end_of_text_token() -> None:
    ends = (EOS, END, 8, 7, 12)
    sequences, finisher = start([[1]] * len(ends), eos_ids=ends)
    assert commit(finisher, *([4, end, 5] for end in ends)) == [2] * len(ends)
    assert finisher.remaining.tolist() == [0] * len(ends) and not sequences.active.any()
    assert finisher.is_eos(torch.arange(14)).nonzero().flatten().tolist() == sorted(ends)


def test_without_eos_ids_no_token_ends_a_row() -> None:
    _, finisher = start([[1]])
    assert commit(finisher, [EOS, END]) == [2]
    assert finisher.finish_reasons == [""]
    assert not finisher.is_eos(torch.arange(10)).any()


def test_an_end_of_text_in_the_prompt_ends_nothing() -> None:
    _, finisher = start([[EOS, 1, EOS]], eos_ids=(EOS,))
    assert finisher.most_remaining == 20
    assert commit(finisher, [4]) == [1] and finisher.finish_reasons == [""]


def test_budget() -> None:
    sequences, finisher = start([[1], [1, 2, 3]], max_new_tokens=4)
    assert commit(finisher, [4, 5, 6], [4]) == [3, 1]
    assert commit(finisher, [7, 8, 9], [5, 6]) == [1, 2]
    assert finisher.finish_reasons == ["length", ""] and finisher.remaining.tolist() == [0, 1]
    assert row(sequences, 0) == [1, 4, 5, 6, 7]
    assert commit(finisher, [8, 8], [7, 8]) == [0, 1]
    assert finisher.finish_reasons == ["length", "length"] and finisher.most_remaining == 0
    assert finisher.new_tokens == [[4, 5, 6, 7], [4, 5, 6, 7]]


def test_context_limit_is_told_from_the_budget() -> None:
    # In a context of 8, a row of 5 may add 3, a row of 4 exactly its budget of 4; a row of 1 has room left.
    sequences, finisher = start([[1] * 5, [1] * 4, [1]], context=8, max_new_tokens=4)
    assert finisher.remaining.tolist() == [3, 4, 4]
    assert commit(finisher, [2] * 6, [2] * 6, [2] * 6) == [3, 4, 4]
    assert finisher.finish_reasons == ["context", "length", "length"]
    assert sequences.lengths.tolist() == [8, 8, 5]


def test_the_end_of_text_on_the_last_place_is_the_reason() -> None:
    _, finisher = start([[1]], max_new_tokens=2, eos_ids=(EOS,))
    assert commit(finisher, [4, EOS, 5]) == [2]
    assert finisher.finish_reasons == ["eos"]


@pytest.mark.parametrize(
    ("blocks", "kept"),
    [
        ([[1, 2, 3, 4]], [1, 2, 3]),  # inside a block
        ([[1], [2], [3]], [1, 2, 3]),  # token by token
        ([[5, 2], [1, 2], [3, 4]], [5, 2, 1, 2, 3]),  # across blocks
        ([[1, 2, 2, 3, 1, 2, 3]], [1, 2, 2, 3, 1, 2, 3]),  # after a false start
        ([[5, 26, 4]], [5, 26]),  # inside a token
    ],
)
def test_stop_strings(blocks: list[list[int]], kept: list[int]) -> None:
    sequences, finisher = start([[7]], stop_strings=("bcd", "y"), tokenizer=LETTERS)
    for block in blocks:
        assert finisher.finish_reasons == [""]
        commit(finisher, block)
    assert finisher.finish_reasons == ["stop_string"]
    assert finisher.new_tokens == [kept]
    assert row(sequences, 0) == [7, *kept]
    assert finisher.remaining.tolist() == finisher.left == [0] and not sequences.active.any()
    assert commit(finisher, [5, 6]) == [0] and row(sequences, 0) == [7, *kept]


def test_a_stop_string_must_be_new_text() -> None:
    _, finisher = start([[1, 2, 3], [1, 2]], stop_strings=("bcd",), tokenizer=LETTERS)
    assert commit(finisher, [3], [3]) == [1, 1]  # the stop string starts in the prompt
    assert finisher.finish_reasons == ["", ""]


def test_finished_rows_commit_nothing() -> None:
    sequences, finisher = start([[1], [1]], eos_ids=(EOS,))
    commit(finisher, [EOS], [4])
    before = row(sequences, 0)
    assert commit(finisher, [5, 6], [5, 6]) == [0, 2]
    assert row(sequences, 0) == before == [1, EOS]
    assert finisher.new_tokens == [[EOS], [4, 5, 6]]
    assert sequences.pending.tolist() == [EOS, 6]
    assert sequences.longest == 4 and finisher.most_remaining == 17


def test_sick_rows_raise_before_anything_is_handed_out() -> None:
    _, finisher = start([[1], [1], [1]], eos_ids=(EOS,))
    commit(finisher, [EOS], [4], [4])
    with pytest.raises(FloatingPointError, match=r"rows \[1\].*target\.dtype"):
        commit(finisher, [5], [5], [5], sick=(0, 1))
    assert finisher.new_tokens == [[EOS], [4], [4]]
    assert commit(finisher, [5], [5], [5], sick=(0,)) == [0, 1, 1]  # a finished row may have non-finite logits


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(({"max_new_tokens": value}, "max_new_tokens is .*; allowed") for value in (0, -1, 1.5, "5", True, None)),
        ({"stop_strings": ("a",)}, "stop_strings need a tokenizer"),
        ({"stop_strings": ("a", ""), "tokenizer": LETTERS}, "stop_strings holds an empty string"),
    ],
)
def test_bad_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Stopping(**{"max_new_tokens": 5, **settings})
