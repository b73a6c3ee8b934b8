"""Input copying against a search of the whole input after every token."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from drafters.input_copy import InputCopy
from experiments.corpora.typos import LETTERS, Typos
from framework.core.draft import SamplingScheme
from framework.core.sampling import Sampling
from framework.core.sequences import Conditioned, Sequences

CPU = torch.device("cpu")
WITH_ENCODER, DECODER_ONLY = (SimpleNamespace(model=SimpleNamespace(text_start=start)) for start in ([99], []))


def propose(drafter: InputCopy, sequences: Sequences, gamma: int) -> list[list[int]]:
    """Offered tokens of every row."""
    draft = drafter.propose(sequences, gamma, torch.empty(sequences.num_rows, 0, dtype=torch.float64))
    assert draft.scheme is SamplingScheme.ONE_HOT and (draft.valid.long().diff(dim=1) <= 0).all()
    return [draft.tokens[row, : draft.offered_depth[row]].tolist() for row in range(sequences.num_rows)]


def begun(drafter: InputCopy, *prompts) -> Sequences:
    sequences = Sequences.from_prompts(list(prompts), width=60, device=CPU)
    drafter.begin(sequences, None, Sampling())
    return sequences


def offered_after(source: list[int], output: list[int], gamma: int = 3, max_ngram: int = 3) -> list[int]:
    drafter = InputCopy(WITH_ENCODER, max_ngram=max_ngram)
    sequences = begun(drafter, Conditioned(source, [99]))
    if output:
        sequences.commit(torch.tensor([output]), torch.tensor([len(output)]))
    return propose(drafter, sequences, gamma)[0]


def expected(source: list[int], text: list[int], gamma: int, max_ngram: int) -> list[int]:
    """Continue a correct copy, or the shortest n-gram that is unique in the input.

    Without a source, the input of every token is the text before it.
    """
    place = 0 if source else None
    for number, token in enumerate(text, start=1):
        given = source or text[: number - 1]
        if place is not None and given[place : place + 1] == [token]:
            place += 1
            continue
        place = None
        for size in range(1, min(max_ngram, number) + 1):
            suffix = text[number - size : number]
            ends = [end for end in range(size, len(given) + 1) if given[end - size : end] == suffix]
            if len(ends) == 1:
                place = ends[0]
                break
    return [] if place is None else (source or text)[place : place + gamma]


@pytest.mark.parametrize("vocabulary", [3, 6, 12])
def test_drafts_equal_those_of_a_search_of_the_input(vocabulary: int) -> None:
    dice = np.random.default_rng(vocabulary)
    offered = 0
    for _ in range(60):
        source, text = (dice.integers(0, vocabulary, size=size).tolist() for size in (10, int(dice.integers(1, 12))))
        for max_ngram in (1, 3):
            got = offered_after(source, text, max_ngram=max_ngram)
            assert got == expected(source, text, 3, max_ngram), (source, text, max_ngram)
            drafter = InputCopy(DECODER_ONLY, max_ngram=max_ngram)
            (alone,) = propose(drafter, begun(drafter, text), 3)
            assert alone == expected([], text, 3, max_ngram), (text, max_ngram)
            offered += len(got) + len(alone)
    assert offered


def test_it_goes_on_behind_the_shortest_ngram_that_is_there_once() -> None:
    given = [5, 6, 7, 5, 8, 7, 9]
    assert offered_after(given, []) == [5, 6, 7]  # copies an encoder's input from its start
    assert offered_after(given, [5, 6]) == [7, 5, 8]
    assert offered_after(given, [5, 1]) == []  # not in the input
    assert offered_after(given, [5, 1, 7]) == []  # twice in the input
    assert offered_after(given, [5, 1, 8, 7]) == [9]  # 8 is unique, and 7 follows it
    assert offered_after(given, [1, 5, 8]) == [7, 9]
    assert offered_after(given, [1, 9]) == []  # 9 ends the input


def test_what_changes_some_of_its_input_is_followed_from_change_to_change() -> None:
    """Two replaced tokens: each rejects a draft, the next round has none, then copying resumes."""
    given = list(range(3, 23))
    wanted = [*given[:7], 40, *given[8:13], 41, *given[14:]]
    drafter, done, accepted = InputCopy(WITH_ENCODER, max_ngram=3), 1, []
    sequences = begun(drafter, Conditioned(given, [99]))
    sequences.commit(torch.tensor([wanted[:1]]), torch.tensor([1]))
    while done < len(wanted):
        draft = propose(drafter, sequences, 30)[0]
        kept = next((place for place, token in enumerate(draft) if token != wanted[done + place]), len(draft))
        accepted.append(kept)
        new = wanted[done : done + kept + 1]
        sequences.commit(torch.tensor([new]), torch.tensor([len(new)]))
        done += len(new)
    assert accepted == [6, 0, 4, 0, 5]


def test_typos_leave_the_words_alike_and_are_the_same_every_time(tmp_path) -> None:
    (tmp_path / "argparse.py").write_text("".join(f"something_{number} = otherwise\n\n" for number in range(200)))
    source = Typos(split="train", lines=6, rate=0.5, seed=0, folder=str(tmp_path))
    held_out = Typos(split="held_out", lines=6, rate=0.5, seed=0, folder=str(tmp_path))
    (text,) = [*source.texts(), *held_out.texts()]
    assert [*source.texts(), *held_out.texts()] == [text]
    head, wrong, again = (
        text.text.partition("\n\n# corrected\n")[0],
        text.text.splitlines()[1:7],
        text.text.splitlines(),
    )
    passage = [f"something_{number} = otherwise" for number in range(6)]
    assert head.startswith("# with typos\n") and again[-1] == passage[0] and text.reference == "\n".join(passage[1:])
    words = [word for line in wrong for word in (line.split("_")[0], line.split()[-1])]
    changed = [word for word in words if word not in ("something", "otherwise")]
    assert 2 <= len(changed) <= 10
    assert all(abs(len(word) - 9) <= 1 and word[0] in "so" and set(word) <= set(LETTERS) for word in changed)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"lines": 1}, r"^lines is 1; allowed"), ({"rate": 1.5}, r"^rate is 1\.5")],
)
def test_a_wrong_option_of_the_typos_is_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Typos(**({"split": "train", "lines": 4, "rate": 0.1, "seed": 0} | options))


def test_a_wrong_option_is_named() -> None:
    with pytest.raises(ValueError, match=r"^max_ngram is 0; allowed: a whole number >= 1"):
        InputCopy(DECODER_ONLY, max_ngram=0)
