"""Hidden layers that a drafter declares: their states after every token, however the target read it."""

import pytest
import torch

from framework.conformance.test_doubles import PATTERNS, Dictated
from framework.conformance.tiny_models import tiny_model, tiny_target, tiny_tokenizer
from framework.core.draft import Draft, SamplingScheme, Shape
from framework.core.sampling import Sampling
from framework.decoding.engine import Engine
from framework.decoding.refill import Queue
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.kernels import compiled_graphs
from framework.models.cached_lm import CachedLM
from framework.models.target import Target

PROMPTS = [[5, 6, 7, 8, 5, 6], [9], [1, 2, 1, 2, 1, 2, 1, *range(20)]]
LAYERS = (2, 0, 1)


class Noting:
    """Drafts arbitrary chains, and notes the features of every committed token but pending."""

    scheme, shape = SamplingScheme.ONE_HOT, Shape.CHAIN

    def __init__(self, layers=LAYERS):
        self.hidden_layers = layers

    def num_uniforms(self, gamma):
        return 0

    def begin(self, sequences, prefill, sampling):
        self.texts, self.features = sequences, torch.zeros(*sequences.tokens.shape, prefill.features.shape[2])
        self.begin_rows(list(range(sequences.num_rows)), sequences, prefill)

    def begin_rows(self, rows, sequences, prefill):
        self.features[rows, : prefill.features.shape[1]] = prefill.features

    def propose(self, sequences, gamma, uniforms):
        return Draft.chain((sequences.pending.unsqueeze(1) + torch.arange(1, gamma + 1)) % 50, self.scheme)

    def observe(self, sequences, outcome):
        followed, rows = outcome.followed.clamp(max=outcome.features.shape[1] - 1), torch.arange(sequences.num_rows)
        places = (sequences.lengths - outcome.num_committed - 1).unsqueeze(1) + torch.arange(followed.shape[1])
        places = places.clamp(max=self.features.shape[1] - 1)
        self.features[rows.unsqueeze(1), places] = outcome.features[rows.unsqueeze(1), followed]


def expected(model, source, text):
    """[T, n, H] states of transformers' own pass: embeddings, layer 1, layer 2 after the final norm."""
    tokens = {"input_ids": torch.tensor([text])}
    if model.config.is_encoder_decoder:
        tokens = {"input_ids": torch.tensor([source]), "decoder_input_ids": tokens["input_ids"]}
    output = model(**tokens, output_hidden_states=True)
    states = output.decoder_hidden_states if model.config.is_encoder_decoder else output.hidden_states
    return torch.stack(states, 2)[0]


@pytest.mark.parametrize(
    ("family", "chunk", "rows", "is_compiled"),
    [("llama", None, 3, False), ("llama", 4, 2, False), pytest.param("llama", None, 3, True, marks=pytest.mark.slow),
     ("gpt2", None, 3, False), ("t5", None, 3, False), ("bart", None, 3, False), ("lfm2", None, 3, False)],
)  # fmt: skip
@torch.no_grad()
def test_features_are_the_states_of_these_layers(family, chunk, rows, is_compiled, monkeypatch):
    monkeypatch.setitem(compiled_graphs.BACKENDS, "cpu", "eager")
    torch._dynamo.reset()
    model = CachedLM(tiny_model(family), vocabulary_size=50, prefill_chunk=chunk)
    target, drafter = Target(model, tiny_tokenizer(), 50, ""), Noting()
    engine = Engine(
        target=target,
        drafter=drafter,
        verifier=Dictated(PATTERNS["a different number in every row"]),
        gamma_policy=Fixed(gamma=3),
        sampling=Sampling(),
        compiled=is_compiled,
    )
    engine.generate(PROMPTS, stopping=Stopping(16), seeds=[0, 1, 2], queue=Queue(len(PROMPTS), rows))
    for row, text in enumerate(drafter.texts.texts):
        wanted = expected(model.model, PROMPTS[row], text[:-1])
        last, *earlier = drafter.features[row, : len(text) - 1].unflatten(1, (3, -1)).unbind(1)
        for number, states in enumerate(earlier):
            torch.testing.assert_close(states, wanted[:, number], rtol=1e-4, atol=1e-4)
        if family == "llama":
            torch.testing.assert_close(model.model.model.norm(last), wanted[:, 2], rtol=1e-4, atol=1e-4)
    assert len(drafter.texts.texts) == rows


def test_a_layer_that_the_target_lacks_is_refused():
    with pytest.raises(
        ValueError, match=r"^Noting reads the hidden layers \[1, 3\] of Llama.*; allowed: 0, its embed.* 2, "
    ):
        Engine(target=tiny_target(), drafter=Noting((1, 3)), gamma_policy=Fixed(gamma=1), sampling=Sampling())
