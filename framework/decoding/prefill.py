"""Prefill, shared by all decoding loops: check the prompts, read them, and return the first logits."""

from collections.abc import Sequence

import torch

from framework.core.sequences import LEAST_SOURCE, Conditioned, Prompt, Sequences, power_of_two
from framework.decoding.stopping import Finisher, Stopping
from framework.models.attention import FUSED
from framework.models.forward_output import ForwardOutput
from framework.models.target import Target

# Widths of buffers are powers of two between these sizes, and multiples of the step beyond, so that few compiled graphs
# serve many prompts and a long cache is not twice as long as needed.
LEAST_WIDTH, MOST_DOUBLED, STEP = 256, 4096, 1024
# Compiled passes on a CPU read the filled slots alone, and unused ones take no memory (`FixedBuffer.zeros`), so their
# widths are powers of two from this size on: one graph serves most texts.
LEAST_ON_CPU = 4096
LEAST_WITH_PROCESSORS = 1024  # the same for a target with logits processors, which read the whole buffer of tokens
# Least width for the source of a compiled single row, whose operator for few tokens reads the filled part alone.
LEAST_SOURCE_ON_CPU = 1024


def check_prompts(prompts: Sequence[Prompt], *, vocabulary_size: int, context: int) -> None:
    """
    Raises:
        ValueError: no prompts, an empty prompt, a prompt that leaves no room in the context, or an id outside the
            vocabulary.
    """
    if not prompts:
        raise ValueError("there are no prompts; give at least one")
    for row, prompt in enumerate(prompts):
        given = [prompt.source, prompt.text] if isinstance(prompt, Conditioned) else [prompt]
        if not all(given):
            raise ValueError(f"prompt {row} is empty; a prompt needs at least one token (prompts.source)")
        if len(prompt) >= context:
            raise ValueError(
                f"prompt {row} has {len(prompt)} tokens; at most {context - 1} leave room in the target's context of "
                f"{context} (prompts.max_prompt_tokens, prompts.overflow)"
            )
        wrong = [token for tokens in given for token in tokens if not 0 <= token < vocabulary_size]
        if wrong:
            raise ValueError(
                f"prompt {row} holds token {wrong[0]}; allowed: 0 to {vocabulary_size - 1} "
                "(was another tokenizer used?)"
            )


def prefill(
    target: Target,
    prompts: Sequence[Prompt],
    stopping: Stopping,
    *,
    max_nodes: int,
    waiting: Sequence[Prompt] = (),
    layers: Sequence[int] = (),
    compiled: bool = False,
) -> tuple[Sequences, Finisher, ForwardOutput]:
    """Lay out the prompts and read them in one pass.

    Args:
        target: model that reads the prompts; its KV cache is reset.
        prompts: one per row; for an encoder-decoder target, bare token ids are the source.
        stopping: stopping criteria of a row.
        max_nodes: largest number of nodes in a draft; buffers get that much room after the last committed token.
        waiting: prompts that finished rows take later (`prefill_rows`), for which the buffers are wide enough, too.
        layers: layers whose states become features, as for `CachedLM.forward`.
        compiled: whether the decoder runs compiled graphs.

    Returns:
        the sequences, without a new token; their finisher; the pass, with logits [B, 1, V] after each prompt.

    Raises:
        ValueError: a prompt cannot be decoded, or autocasting is on.
    """
    model = target.model
    if torch.is_autocast_enabled(target.device.type):
        raise ValueError("torch.autocast is on; decode outside it, with target.dtype=bfloat16 for a model in bfloat16")
    in_all = [target.as_prompt(prompt) for prompt in [*prompts, *waiting]]
    check_prompts(in_all, vocabulary_size=target.vocabulary_size, context=model.context)
    longest = max(len(prompt) for prompt in in_all)
    needed = min(longest + stopping.max_new_tokens, model.context) + max_nodes + 1
    in_graphs_on_cpu = compiled and target.device.type == "cpu"
    least_on_cpu = LEAST_WITH_PROCESSORS if target.processors.options else LEAST_ON_CPU
    has_wide_source = in_graphs_on_cpu and len(prompts) == 1 and model.attention == FUSED
    sequences = Sequences.from_prompts(
        in_all[: len(prompts)],
        width=buffer_width(needed, least_in_graphs=least_on_cpu if in_graphs_on_cpu else None),
        least_source=LEAST_SOURCE_ON_CPU if has_wide_source else LEAST_SOURCE,
        device=target.device,
        compiled=compiled,
    )
    return sequences, Finisher(sequences, stopping, model.context), model.read_prompts(sequences, layers)


def prefill_rows(
    target: Target,
    prompts: Sequence[Prompt],
    rows: list[int],
    beside: Finisher,
    *,
    layers: Sequence[int] = (),
    compiled: bool = False,
) -> tuple[Sequences, Finisher, ForwardOutput]:
    """Read prompts into finished rows of a generation; the cache of the other rows stays.

    Args:
        target: model in the middle of the generation.
        prompts: one per row, among those given to `prefill` as waiting.
        rows: the rows.
        beside: finisher of the generation.
        layers: as for `prefill`.
        compiled: as for `prefill`.

    Returns:
        as `prefill`, for these rows alone.
    """
    model = target.model
    prompts = [target.as_prompt(prompt) for prompt in prompts]
    sequences = Sequences.from_prompts(prompts, width=beside.width, device=target.device, compiled=compiled)
    return sequences, Finisher(sequences, beside.stopping, model.context), model.read_rows(sequences, rows, layers)


def buffer_width(needed: int, *, least_in_graphs: int | None) -> int:
    """Width of a buffer for `needed` tokens per row.

    Args:
        needed: number of tokens.
        least_in_graphs: least width for compiled graphs on a CPU; None: the buffer is for other decoders.
    """
    if least_in_graphs is not None:
        return max(least_in_graphs, power_of_two(needed))
    if needed > MOST_DOUBLED:
        return -(-needed // STEP) * STEP
    return max(LEAST_WIDTH, power_of_two(needed))
