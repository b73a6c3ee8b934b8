"""Heads trained jointly with a copy of their target."""

import pytest
import torch

from framework.conformance.tiny_models import tiny_target
from framework.heads.medusa_heads import load_heads
from framework.kernels.int8_linear import round_to_int8
from framework.models.pretrained import fingerprint, load_target
from framework.training.joint_medusa_training import JointMedusaTraining
from framework.training.medusa_training import MedusaTraining
from framework.training.target_states import reads_states

PAIRS = torch.tensor([[[3, 4, 5, 1, -1], [0, 6, 7, 8, 1]], [[3, 1, -1, -1, -1], [0, 9, 1, -1, -1]]])


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_the_copy_learns_and_the_target_stays(family, tmp_path):
    target = tiny_target(family)
    tokens = PAIRS if family == "t5" else PAIRS[:1, 1]
    training = JointMedusaTraining(target, num_heads=2, output="mapped", discount=0.8, ranks=5)
    frozen = MedusaTraining(target, num_heads=2, output="mapped", discount=0.8, ranks=5)
    optimizer = torch.optim.SGD(training.module.parameters(), lr=0.1)
    loss = training.loss(tokens)
    model = target.model.model
    outputs = model(
        **({"input_ids": tokens} if family == "llama" else {"input_ids": tokens[:, 0].clamp(min=0),
           "attention_mask": (tokens[:, 0] >= 0).long(), "decoder_input_ids": tokens[:, 1].clamp(min=0)})
    )  # fmt: skip
    text = tokens if family == "llama" else tokens[:, 1]
    log_p = outputs.logits[:, :-1].log_softmax(-1)
    nats = [-log_p[row, at, token] for row, ids in enumerate(text) for at, token in enumerate(ids[1:]) if token >= 0]
    torch.testing.assert_close(loss - frozen.loss(tokens), torch.stack(nats).mean())
    loss.backward()
    optimizer.step()
    assert training.loss(tokens) < loss
    assert fingerprint(model) == target.fingerprint != training.trained_target().fingerprint
    training.save(tmp_path, tokens)
    saved = load_target(path=str(tmp_path), dtype="float32", device="cpu", attention="auto", context=None)
    heads, _ = load_heads(str(tmp_path), saved)
    assert heads.num_heads == 2 and not reads_states(training)
    with pytest.raises(ValueError, match="made for the target with the fingerprint"):
        load_heads(str(tmp_path), target)


@pytest.mark.parametrize(("change", "given"), [(lambda model: model.bfloat16(), "bfloat16"),
                                               (lambda model: round_to_int8(model), "float32, int8")])  # fmt: skip
def test_a_copy_is_trained_in_float32(change, given):
    target = tiny_target("llama")
    change(target.model.model)
    with pytest.raises(ValueError, match=f"^target.dtype is '{given}'; allowed: float32"):
        JointMedusaTraining(target, num_heads=2, output="mapped", discount=0.8, ranks=5)
