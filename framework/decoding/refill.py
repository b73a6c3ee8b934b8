"""Continuous batching: a finished row takes the next prompt at once (Orca; Yu et al., OSDI 2022)."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from framework.core.sequences import Prompt
from framework.core.uniforms import check_seeds
from framework.core.validation import check_whole
from framework.decoding.stopping import Finisher


class Queue:
    """Numbers of the prompts of a generation, in the order in which rows take them.

    Attributes:
        in_row: per row, the number of the prompt that it decodes or has decoded last.
    """

    def __init__(self, num_prompts: int, num_rows: int | None = None):
        """
        Args:
            num_prompts: prompts in all.
            num_rows: rows that decode at the same time, which begin with the first prompts; None: one per prompt.
        """
        check_whole("batch_size", num_rows, least=1, or_null=True)
        num_rows = min(num_rows or num_prompts, num_prompts)
        self.in_row = list(range(num_rows))
        self._waiting = deque(range(num_rows, num_prompts))

    @property
    def num_waiting(self) -> int:
        """Prompts that no row has taken yet."""
        return len(self._waiting)

    def finish(self, number: int) -> None:
        """Note that a prompt is finished; for subclasses that read a clock."""

    def wait(self) -> None:
        """Wait until the next prompt can be taken; for subclasses whose prompts arrive."""

    def take(self, row: int) -> bool:
        """Give a finished row the next prompt; returns whether one can be taken now."""
        if not self._waiting:
            return False
        self.in_row[row] = self._waiting.popleft()
        return True


@dataclass(frozen=True)
class Newcomers:
    """Prompts that begin in finished rows.

    Attributes:
        rows: the R rows.
        prompts: one per row.
        seeds: one per row.
    """

    rows: list[int]
    prompts: list[Prompt]
    seeds: list[int]


class Refill:
    """Prompts and seeds of a generation, its queue, and the results of finished prompts.

    Attributes:
        first: the prompts with which the generation begins.
    """

    def __init__(self, prompts: Sequence[Prompt], seeds: Sequence[int], queue: Queue | None):
        """
        Args:
            prompts: all prompts.
            seeds: one per prompt.
            queue: order of the prompts; None: each has a row from the beginning.

        Raises:
            ValueError: there is not one whole number per prompt among the seeds.
        """
        check_seeds(seeds, len(prompts))
        self._prompts, self._seeds, self._queue = prompts, seeds, queue or Queue(len(prompts))
        self._results: dict[int, tuple[list[int], str]] = {}
        self.first = self._of(list(range(len(self._queue.in_row))))

    @property
    def waiting(self) -> Sequence[Prompt]:
        """The prompts that do not begin at once."""
        return self._prompts[len(self.first.rows) :]

    def newcomers(self, finisher: Finisher) -> Newcomers | None:
        """Keep the results of finished rows, and give these rows the next prompts; None: no prompt begins."""
        finished = [row for row, left in enumerate(finisher.left) if not left]
        for row in finished:
            number = self._queue.in_row[row]
            if number not in self._results:
                self._results[number] = finisher.new_tokens_of(row), finisher.finish_reasons[row]
                self._queue.finish(number)
        while not (taken := [row for row in finished if self._queue.take(row)]):
            if len(finished) < len(finisher.left) or not self._queue.num_waiting:
                return None
            self._queue.wait()  # no row decodes
        return self._of(taken)

    @property
    def tokens(self) -> list[list[int]]:
        """New tokens of every prompt, once all are finished."""
        return [self._results[number][0] for number in range(len(self._prompts))]

    @property
    def finish_reasons(self) -> list[str]:
        """Finish reason of every prompt, once all are finished."""
        return [self._results[number][1] for number in range(len(self._prompts))]

    def _of(self, rows: list[int]) -> Newcomers:
        numbers = [self._queue.in_row[row] for row in rows]
        return Newcomers(rows, [self._prompts[n] for n in numbers], [self._seeds[n] for n in numbers])
