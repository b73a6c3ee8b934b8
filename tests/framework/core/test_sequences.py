"""Shapes of committed tokens."""

import torch

from framework.core.sequences import LEAST_SOURCE, Conditioned, Sequences, power_of_two

CPU = torch.device("cpu")


def test_a_power_of_two_is_the_smallest_that_is_not_smaller():
    powers = [2**exponent for exponent in range(12)]
    for number in range(1, 2049):
        assert power_of_two(number) == min(power for power in powers if power >= number)


def test_the_shape_holds_the_width_of_sources_where_there_are_any():
    texts = [[1, 2, 3], [4]]
    assert Sequences.from_prompts(texts, width=9, device=CPU).shape == (2, 9)
    for longest, width in ((1, LEAST_SOURCE), (LEAST_SOURCE, LEAST_SOURCE), (LEAST_SOURCE + 1, 2 * LEAST_SOURCE)):
        prompts = [Conditioned([7] * length, text) for length, text in zip((longest, 1), texts, strict=True)]
        sequences = Sequences.from_prompts(prompts, width=9, device=CPU)
        assert sequences.shape == (2, 9, width)
        assert sequences.sources == [[7] * longest, [7]]
