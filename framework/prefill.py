"""How every decoding loop begins: check the prompts, read them, and hand out the first logits."""

from collections.abc import Sequence

from torch import Tensor

from framework.sequences import Conditioned, Prompt, Sequences, power_of_two
from framework.stopping import Finisher, Stopping
from framework.target import Target

LEAST_WIDTH = 256  # buffers are as wide as a power of two from here on: few compiled programs serve many prompts


def check_prompts(prompts: Sequence[Prompt], *, vocabulary_size: int, context: int) -> None:
    """
    Raises:
        ValueError: no prompt, an empty one, one that leaves no room in the context, or an id outside the vocabulary.
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
                f"{context} (prompts.first_tokens, prompts.too_long)"
            )
        wrong = [token for tokens in given for token in tokens if not 0 <= token < vocabulary_size]
        if wrong:
            raise ValueError(
                f"prompt {row} holds token {wrong[0]}; allowed: 0 to {vocabulary_size - 1} "
                "(was another tokenizer used?)"
            )


def prefill(
    target: Target, prompts: Sequence[Prompt], stopping: Stopping, *, max_nodes: int
) -> tuple[Sequences, Finisher, Tensor]:
    """Lay out the prompts and read them in one pass.

    Args:
        target: its model's cache is begun anew.
        prompts: per row; token ids alone are the source, if there is to be one.
        stopping: what ends a row.
        max_nodes: most tokens a draft may hold; buffers get that much room beyond the last committed token.

    Returns:
        the sequences, still without a new token; their finisher; logits [B, 1, V] of the token after each prompt.
    """
    model = target.model
    prompts = [target.as_prompt(prompt) for prompt in prompts]
    check_prompts(prompts, vocabulary_size=target.vocabulary_size, context=model.context)
    longest = max(len(prompt) for prompt in prompts)
    width = min(longest + stopping.max_new_tokens, model.context) + max_nodes + 1
    width = max(LEAST_WIDTH, power_of_two(width))
    sequences = Sequences.from_prompts(prompts, width=width, device=target.device)
    model.begin(len(prompts), width)
    model.read_sources(sequences)
    logits = model.forward(sequences.tokens[:, :longest], None, visible=longest, keep=sequences.lengths - 1)
    return sequences, Finisher(sequences, stopping, model.context), logits
