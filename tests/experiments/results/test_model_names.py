"""Names of models: from any kind of path, and of records with and without them."""

from dataclasses import asdict, replace

import pytest
import torch
from torch import nn

from experiments.results.model_names import ModelFacts, in_short, model_lines, short_name
from experiments.results.record import Record
from experiments.results.records import group_records

EIGHT, SMALL = ModelFacts("Qwen/Qwen3-8B", 8_190_735_360, "bfloat16"), ModelFacts("zoo/drafter", 596_049_920, "float32")


def record(target: ModelFacts, *drafter: ModelFacts, fingerprint: str = "a1") -> Record:
    models = {"target": [asdict(target)], "drafter": [asdict(each) for each in drafter]}
    point = {"drafter": "small_transformer", "target": "pretrained", "target_fingerprint": fingerprint}
    return Record(point=point, models=models)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("gpt2", "gpt2"),
        ("/gpt2", "gpt2"),
        ("/data/models/Qwen3-8B/", "models/Qwen3-8B"),
        ("/home/me/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/0123abc", "Qwen/Qwen3-8B"),
    ],
)
def test_a_name_is_the_end_of_a_path_or_the_hub_name(path: str, name: str) -> None:
    assert short_name(path) == name


@pytest.mark.parametrize(
    ("number", "words"),
    [(7, "7"), (999, "999"), (1000, "1.0k"), (295_680, "296k"), (999_499, "999k"), (999_600, "1.0M"),
     (6_001_344, "6.0M"), (9_960_000, "10M"), (8_190_735_360, "8.2B")],
)  # fmt: skip
def test_a_number_of_parameters_is_short(number: int, words: str) -> None:
    assert in_short(number) == words


def test_facts_are_those_of_the_parameters() -> None:
    layer = nn.Linear(3, 4)
    assert ModelFacts.of(layer) == ModelFacts("Linear", 16, "float32")
    mixed = nn.ModuleList([layer.to(torch.bfloat16), nn.LayerNorm(2), layer])  # a shared layer counts once
    mixed.name_or_path, mixed.quantization_method = "/x/heads/medusa", "torchao"
    assert str(ModelFacts.of(mixed)) == "heads/medusa (20, bfloat16 torchao)"


def test_lines_name_every_target_and_the_models_of_every_drafter() -> None:
    both = [record(EIGHT, SMALL), record(EIGHT, SMALL, EIGHT), record(EIGHT, SMALL)]
    assert model_lines(both) == [
        "target: Qwen/Qwen3-8B (8.2B, bfloat16)",
        "draft models: small_transformer zoo/drafter (596M, float32), "
        "zoo/drafter (596M, float32) + Qwen/Qwen3-8B (8.2B, bfloat16)",
    ]
    assert model_lines([Record(point={"target": "zoo", "dtype": "float32"})]) == ["target: zoo float32"]
    assert model_lines([Record()]) == []


def test_groups_are_told_apart_by_the_names_of_their_targets() -> None:
    two = [record(EIGHT), record(replace(EIGHT, name="Qwen/Qwen3-4B"), fingerprint="b2")]
    titles = ["T = 0, target Qwen/Qwen3-4B", "T = 0, target Qwen/Qwen3-8B"]
    assert [group.title for group in group_records(two)] == titles
    same = [record(EIGHT), record(EIGHT, fingerprint="b2")]
    titles = ["T = 0, target_fingerprint a1", "T = 0, target_fingerprint b2"]
    assert [group.title for group in group_records(same)] == titles
