"""engine.compile=auto: compiled where that pays and can be done, eager elsewhere."""

import pytest
import torch
from hydra import compose, initialize
from omegaconf import OmegaConf

from drafters.small_transformer import SmallTransformer
from experiments.config import builders
from experiments.config.resolvers import register_resolvers
from framework.conformance.tiny_models import tiny_model, tiny_target
from framework.core.sampling import Sampling
from framework.decoding.engine import Engine
from framework.gamma_policies.fixed import Fixed
from framework.kernels.compiled_graphs import why_not
from framework.models.pretrained import as_draft_model

register_resolvers()
DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}


@pytest.mark.skipif(why_not(torch.device("cpu")) is not None, reason="no C++ compiler")
@pytest.mark.parametrize(
    ("family", "config", "compiles"), [("llama", {}, True), ("llama", DYNAMIC, False), ("mamba", {}, False)]
)
def test_auto_is_eager_for_targets_without_graphs(family, config, compiles):
    cfg = OmegaConf.create({"engine": {"compile": "auto"}, "target": {}})
    assert builders._compiles(cfg, tiny_target(family, **config), num_tokens=10**6) == compiles


def test_a_draft_model_without_graphs_is_refused_and_auto_is_eager():
    target = tiny_target(num_hidden_layers=1)
    drafter = SmallTransformer(target, model=lambda target: as_draft_model(tiny_model(**DYNAMIC), target))
    given = {"target": target, "drafter": drafter, "sampling": Sampling(temperature=0)}
    with pytest.raises(ValueError, match="a model of SmallTransformer has dynamic rotary positions; allowed: false"):
        Engine(**given, gamma_policy=Fixed(gamma=2), compiled=True)
    with initialize(version_base="1.3", config_path="../../../conf"):
        cfg = compose("measure", ["engine.compile=auto"])
    assert not builders.build_engine(cfg, drafter, target, given["sampling"], compiled=True).compiled
