"""Dialogues: later turns become separate prompts that contain the target's answers to earlier turns."""

from dataclasses import replace

from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.stopping import Stopping
from framework.models.target import Target
from framework.prompts.dialogue import next_turn
from framework.prompts.prompt_set import Prompt, PromptSet


def with_next_turns(
    prompts: PromptSet, target: Target, stopping: Stopping, *, batch_size: int, system: str | None, room: int
) -> PromptSet:
    """Insert after each prompt the prompts of its later turns.

    The target answers greedily, so that all drafters and temperatures get the same prompts.

    Args:
        prompts: prompts, some with later turns.
        target: model that answers.
        stopping: stopping criteria of an answer.
        batch_size: prompts answered per batch.
        system: system message of a chat; None: the template's own.
        room: maximum tokens of a prompt; a dialogue that exceeds it ends there and is counted as skipped.
    """
    plain = Autoregressive(target=target, sampling=Sampling(temperature=0))
    dialogues: list[list[Prompt]] = [[prompt] for prompt in prompts.prompts]
    num_skipped = prompts.num_skipped
    while going_on := [dialogue for dialogue in dialogues if dialogue[-1].next_turns]:
        for start in range(0, len(going_on), batch_size):
            some = going_on[start : start + batch_size]
            asked = [list(dialogue[-1].tokens) for dialogue in some]
            answers = plain.generate(asked, stopping=stopping, seeds=[0] * len(some)).tokens
            for dialogue, answer in zip(some, answers, strict=True):
                following = next_turn(dialogue[-1], answer, target.tokenizer, chat=prompts.chat, system=system)
                dialogue[-1] = replace(dialogue[-1], next_turns=())  # already answered
                if len(following.tokens) <= room:
                    dialogue.append(following)
                else:
                    num_skipped += 1
    return replace(prompts, prompts=[turn for dialogue in dialogues for turn in dialogue], num_skipped=num_skipped)
