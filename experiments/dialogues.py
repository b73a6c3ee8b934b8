"""Dialogues: later turns become prompts of their own, behind what the target answered to the earlier ones."""

from dataclasses import replace

from framework.autoregressive import Autoregressive
from framework.prompts.dialogue import next_turn
from framework.prompts.prompt_set import Prompt, PromptSet
from framework.sampling import Sampling
from framework.stopping import Stopping
from framework.target import Target


def with_later_turns(
    prompts: PromptSet, target: Target, stopping: Stopping, *, batch_size: int, system: str | None, room: int
) -> PromptSet:
    """The prompts, and behind each one those of its later turns.

    Answers are the target's likeliest ones, so that every drafter at every temperature is given the same prompts.

    Args:
        prompts: some with later turns.
        target: answers.
        stopping: ends an answer.
        batch_size: prompts answered at once.
        system: what a chat begins with; None leaves it to the template.
        room: most tokens of a prompt; a dialogue that has grown longer is not gone on with, and counted as skipped.
    """
    plain = Autoregressive(target=target, sampling=Sampling(temperature=0))
    dialogues: list[list[Prompt]] = [[prompt] for prompt in prompts.prompts]
    num_skipped = prompts.num_skipped
    while going_on := [dialogue for dialogue in dialogues if dialogue[-1].later_turns]:
        for start in range(0, len(going_on), batch_size):
            some = going_on[start : start + batch_size]
            asked = [list(dialogue[-1].tokens) for dialogue in some]
            answers = plain.generate(asked, stopping=stopping, seeds=[0] * len(some)).tokens
            for dialogue, answer in zip(some, answers, strict=True):
                following = next_turn(dialogue[-1], answer, target.tokenizer, chat=prompts.chat, system=system)
                dialogue[-1] = replace(dialogue[-1], later_turns=())  # its answer is known
                if len(following.tokens) <= room:
                    dialogue.append(following)
                else:
                    num_skipped += 1
    return replace(prompts, prompts=[turn for dialogue in dialogues for turn in dialogue], num_skipped=num_skipped)
