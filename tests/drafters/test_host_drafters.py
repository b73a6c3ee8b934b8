"""Host drafters read every committed token once and never wait for the device."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from drafters.ngram import NGram
from drafters.prompt_lookup import PromptLookup
from drafters.suffix_lookup import SuffixLookup
from framework.core.drafter import drafts_on_host
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences

CPU = torch.device("cpu")
TARGET = SimpleNamespace(vocabulary_size=9, device=CPU)
CONTEXT = 3  # context of either drafter, in tokens
DRAFTERS = {
    "ngram": lambda: NGram(TARGET, order=CONTEXT + 1, smoothing="witten_bell", learn_from_context=True, corpus=None),
    "prompt_lookup": lambda: PromptLookup(TARGET, max_ngram=CONTEXT, min_ngram=1, match="last"),
    "suffix_lookup": lambda: SuffixLookup(TARGET, min_match=1, factor=None, history=0, corpus=None),
}


class ReadOnce(list):
    """A text that fails on repeated reads, except of the few tokens of a context."""

    sealed = 0

    def __getitem__(self, index):
        begin = index.indices(len(self))[0] if isinstance(index, slice) else index % len(self)
        assert begin >= self.sealed - CONTEXT, f"token {begin} of {len(self)} was read again"
        return super().__getitem__(index)

    def __iter__(self):
        raise AssertionError("the whole text was read")


class NoDeviceTensors(TorchDispatchMode):
    """Fails on use of given tensors, which stand for reads from a device."""

    def __init__(self, *tensors):
        super().__init__()
        self.tensors = tensors

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert not any(each is tensor for each in args for tensor in self.tensors), f"{function} reads the device"
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", DRAFTERS)
def test_committed_tokens_are_taken_in_once(name):
    """A round after 100k tokens takes no longer than one after a thousand."""
    drafter, text = DRAFTERS[name](), [1, 2, 3, 4] * 50
    assert drafts_on_host(drafter)
    sequences = Sequences.from_prompts([text], width=400, device=CPU)
    drafter.begin(sequences, None, Sampling())
    drafter.propose(sequences, 3, torch.full((1, 3), 0.3, dtype=torch.float64))
    sequences.texts = [ReadOnce(text)]
    for _ in range(20):
        sequences.texts[0].sealed = len(sequences.texts[0])
        sequences.commit(torch.tensor([[1, 2, 3]]), torch.tensor([2]))
        with NoDeviceTensors(sequences.tokens, sequences.lengths, sequences.active):
            draft = drafter.propose(sequences, 3, torch.full((1, 3), 0.3, dtype=torch.float64))
    again = DRAFTERS[name]()
    fresh = Sequences.from_prompts([list.__getitem__(sequences.texts[0], slice(None))], width=400, device=CPU)
    again.begin(fresh, None, Sampling())
    expected = again.propose(fresh, 3, torch.full((1, 3), 0.3, dtype=torch.float64))
    assert draft.tokens.tolist() == expected.tokens.tolist() and draft.num_nodes
    if draft.probs is not None:
        assert torch.equal(draft.probs, expected.probs)
