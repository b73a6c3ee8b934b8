"""Growing a T5 without a change of its outputs."""

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from experiments.trainer.growth import differing_size, grow_into

SMALL = {
    "vocab_size": 20, "d_model": 16, "d_kv": 8, "num_heads": 2, "d_ff": 16, "num_layers": 1, "num_decoder_layers": 2,
    "feed_forward_proj": "gated-gelu", "dropout_rate": 0.0, "decoder_start_token_id": 0,
}  # fmt: skip
LARGE = {**SMALL, "d_model": 48, "num_heads": 5, "d_ff": 40, "num_layers": 3, "num_decoder_layers": 4}


def model(sizes: dict, seed: int, *, tied: bool = True) -> T5ForConditionalGeneration:
    torch.manual_seed(seed)
    made = T5ForConditionalGeneration(T5Config(**sizes, tie_word_embeddings=tied))
    for parameter in made.parameters():  # norms and biases, too, since they begin with equal values
        torch.nn.init.normal_(parameter, std=0.4)
    return made.eval()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("sizes", [SMALL, LARGE], ids=["same", "larger"])
def test_a_grown_model_has_the_same_outputs_and_can_be_trained(sizes: dict, tied: bool) -> None:
    small, large = model(SMALL, 1, tied=tied), model(sizes, 2, tied=tied)
    assert differing_size(small, large) is None
    grow_into(small, large)
    inputs = {"input_ids": torch.arange(1, 9)[None], "decoder_input_ids": torch.tensor([[0, 5, 3, 9, 2]])}
    expected, found = (each(**inputs).logits for each in (small, large))
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    found.square().mean().backward()
    copies = large.decoder.block[0].layer[0].SelfAttention.o.weight.grad.view(sizes["d_model"] // 16, 16, -1)
    assert all((copy - copies[0]).abs().max() > 1e-6 for copy in copies[1:]), "copies would stay equal"


@pytest.mark.parametrize(("size", "value"), [("d_model", 40), ("d_kv", 16), ("d_ff", 8), ("num_layers", 0)])
def test_other_sizes_are_named(size: str, value: int) -> None:
    assert differing_size(model(SMALL, 1), model({**SMALL, size: value}, 2)) == size
