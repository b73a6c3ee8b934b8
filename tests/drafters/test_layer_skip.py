"""layer_skip against a target whose skipped sub-layers have zeroed outputs, and its side effects."""

import copy
import gc
import itertools
import json
import random
import re
import weakref
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from drafters.layer_skip import LayerSkip
from framework.conformance import check_drafter
from framework.conformance.tiny_models import FAMILIES, tiny_model, tiny_target
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.drafting.layer_set import LayerSet, load_layer_set, save_layer_set
from framework.drafting.layer_skip_model import SubLayers
from framework.gamma_policies.confidence_threshold import ConfidenceThreshold
from framework.gamma_policies.fixed import Fixed
from framework.metrics.stopwatch import Stopwatch
from framework.models.cached_lm import CachedLM
from framework.models.forward_output import ForwardOutput
from framework.models.pretrained import fingerprint
from framework.models.target import Target
from framework.verifiers.speculative_sampling import SpeculativeSampling

CONF = Path(__file__).parents[2] / "conf" / "drafter" / "layer_skip.yaml"
GREEDY = Sampling(temperature=0)
RAGGED = [[5, 6, 7, 8, 5, 6], [9], [3, 4], [1, 2, 1, 2, 1, 2, 1], [30], [7] * 20, [11, 12, 13], [2, 40, 2, 40]]
# Names of sub-layers other than self_attn and mlp, and the sub-layer before each norm on the residual stream.
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
NAMES = {
    "bart": (("self_attn", "encoder_attn"), ("fc2",)),
    "codegen": (("attn",), ("mlp",)),
    "falcon": (("self_attention",), ("mlp",)),
    "gpt2": (("attn",), ("mlp",)),
    "gpt_neox": (("attention",), ("mlp",)),
    "gptj": (("attn",), ("mlp",)),
    "granitemoe": (("self_attn",), ("block_sparse_moe",)),
    "jetmoe": (("self_attention",), ("mlp",)),
    "marian": (("self_attn", "encoder_attn"), ("fc2",)),
    "mbart": (("self_attn", "encoder_attn"), ("fc2",)),
    "opt": (("self_attn",), ("fc2",)),
    "pegasus": (("self_attn", "encoder_attn"), ("fc2",)),
    "xglm": (("self_attn",), ("fc2",)),
}
NORMS_OF = {"self_attn": "self_attn_layer_norm", "encoder_attn": "encoder_attn_layer_norm", "fc2": "final_layer_norm"}
GPTJ = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128, "rotary_dim": 4, "attention": "eager"}
OPT = {"ffn_dim": 48, "word_embed_proj_dim": 32}
# Sub-layers in sequence or in parallel, norms before or after, experts, cross-attention, outputs in tuples.
BLOCKS = {
    "llama": ("llama", {}),
    "gpt2": ("gpt2", {}),
    "gpt_neox, at once": ("gpt_neox", {}),
    "opt, norms on the stream": ("opt", OPT | {"do_layer_norm_before": False}),
    "falcon, at once": ("falcon", {"ffn_hidden_size": 48}),
    "gptj": ("gptj", GPTJ),
    "gpt_oss": ("gpt_oss", {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "attention": "eager"}),
    "gemma3, four norms": ("gemma3_text", {}),
    "granite, multipliers": ("granite", {"residual_multiplier": 0.3}),
    "qwen3_moe": ("qwen3_moe", MOE),
    "bart": ("bart", {"decoder_layers": 3}),
}
MORE_BLOCKS = {
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "mistral": ("mistral", {}),
    "gpt_neox, in turn": ("gpt_neox", {"use_parallel_residual": False}),
    "opt": ("opt", OPT),
    "falcon, in turn": ("falcon", {"ffn_hidden_size": 48, "parallel_attn": False, "multi_query": False}),
    "falcon, two norms": ("falcon", {"ffn_hidden_size": 48, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "codegen": ("codegen", GPTJ),
    "phi": ("phi", {}),
    "phi3": ("phi3", {}),
    "cohere": ("cohere", {}),
    "cohere2": ("cohere2", {}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {}),
    "gemma2": ("gemma2", {"attention": "eager"}),
    "stablelm": ("stablelm", {}),
    "stablelm, at once": ("stablelm", {"use_parallel_residual": True}),
    "starcoder2": ("starcoder2", {}),
    "granitemoe": ("granitemoe", {"residual_multiplier": 0.3, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "olmoe": ("olmoe", MOE),
    "jetmoe": ("jetmoe", {"num_local_experts": 4, "kv_channels": 8}),
    "xglm": ("xglm", {"d_model": 32, "num_layers": 3, "attention_heads": 4, "ffn_dim": 48, "attention": "eager"}),
    "marian": ("marian", {"decoder_layers": 3, "pad_token_id": 3}),
    "mbart": ("mbart", {"decoder_layers": 3}),
    "pegasus": (
        "pegasus",
        {
            "d_model": 32,
            "decoder_layers": 3,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "decoder_start_token_id": 1,
        },
    ),
}
KINDS = [*BLOCKS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in MORE_BLOCKS)]
# Their rotary positions, scores, masks or experts are float32 in every dtype.
FLOAT32_INSIDE = (
    "gptj",
    "codegen",
    "gemma2",
    "gpt_oss",
    "granitemoe",
    "jetmoe",
    "mixtral",
    "olmoe",
    "qwen3_moe",
    "xglm",
)
# Each block skips a different part: attention, the MLP, both or none.
SETS = [LayerSet(3, (0, 2), (1, 2)), LayerSet(3, (1,), (0, 1))]


def target_of_three(kind: str, **settings: object) -> Target:
    family, config = (BLOCKS | MORE_BLOCKS)[kind]
    return tiny_target(family, **({"num_hidden_layers": 3} | config | settings))


def layer_skip(target: Target, **options: object) -> LayerSkip:
    nothing = {"layers": None, "skip_attention": None, "skip_mlp": None, "exit_after": None}
    return LayerSkip(target, **(nothing | options))


def random_sets(num_layers: int, count: int, seed: int = 0) -> list[LayerSet]:
    dice = random.Random(seed)
    drawn = [[dice.randint(0, 1) for _ in range(2 * num_layers)] for _ in range(count)]
    return [LayerSet.from_bits(bits) for bits in drawn if not all(bits)]


def options_of(layer_set: LayerSet) -> dict[str, list[int]]:
    return {"skip_attention": list(layer_set.skip_attention), "skip_mlp": list(layer_set.skip_mlp)}


def engine(target: Target, drafter: LayerSkip, *, gamma_policy=None, sampling: Sampling = GREEDY) -> Engine:
    return Engine(
        target=target,
        drafter=drafter,
        verifier=SpeculativeSampling(),
        gamma_policy=gamma_policy or Fixed(gamma=3),
        sampling=sampling,
    )


def silenced(model: torch.nn.Module, skip: LayerSet) -> torch.nn.Module:
    """Copy a model; its skipped sub-layers compute their outputs and return zeros.

    Norms on the residual stream after skipped sub-layers return their input.
    """
    model = copy.deepcopy(model)
    attention, mlp = NAMES.get(model.config.model_type, (("self_attn",), ("mlp",)))
    decoder = model.get_decoder()
    blocks = decoder.h if hasattr(decoder, "h") else decoder.layers
    on_the_stream = model.config.model_type in ("bart", "marian") or not getattr(
        model.config, "do_layer_norm_before", True
    )
    for names, skipped in ((attention, skip.skip_attention), (mlp, skip.skip_mlp)):
        for block, name in itertools.product([blocks[layer] for layer in skipped], names):
            getattr(block, name).register_forward_hook(hand_out_zeros)
            if on_the_stream:
                getattr(block, NORMS_OF[name]).register_forward_hook(lambda module, given, made: given[0])
    return model


def hand_out_zeros(module: torch.nn.Module, given: object, made: Tensor | tuple) -> Tensor | tuple:
    return (torch.zeros_like(made[0]), *made[1:]) if isinstance(made, tuple) else torch.zeros_like(made)


# Drafts


@pytest.mark.parametrize("kind", KINDS)
def test_it_drafts_like_the_target_with_silenced_sub_layers_after_a_prefix_that_the_target_read(kind: str) -> None:
    """Drafter and silenced copy continue the same prefix; in float64 where the model allows.

    The reference has its own cache: the target fills it with the prefix, the silenced copy with drafted tokens.
    """
    dtype, close = (torch.float32, 1e-5) if kind in FLOAT32_INSIDE else (torch.float64, 1e-9)
    target = target_of_three(kind, dtype=dtype)
    model = target.model.model
    for skip in SETS:
        drafter = layer_skip(target, **options_of(skip))
        decoding = engine(target, drafter, sampling=Sampling()).begin(
            RAGGED, stopping=Stopping(30), seeds=list(range(8)), detailed=False, stopwatch=Stopwatch(target.device)
        )
        uniforms = torch.rand(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        draft = drafter.propose(decoding.sequences, 3, uniforms)
        without = silenced(model, skip)
        for row, length in enumerate(decoding.sequences.lengths.tolist()):
            committed = decoding.sequences.tokens[row : row + 1, :length]
            read = torch.cat([committed[:, -1:], draft.tokens[row : row + 1, :-1]], 1)
            given, name = {}, "input_ids"
            if model.config.is_encoder_decoder:
                given, name = {"encoder_outputs": model.get_encoder()(torch.tensor([RAGGED[row]]))}, "decoder_input_ids"
            cache = model(**given | {name: committed[:, :-1]}, use_cache=True).past_key_values
            logits = without(**given | {name: read}, past_key_values=cache, use_cache=True).logits[0, :, :50]
            assert torch.allclose(draft.probs[row].double(), logits.double().softmax(-1), rtol=0, atol=close), skip


def test_skipping_nothing_is_the_target_itself() -> None:
    target = tiny_target()
    decoder = engine(target, layer_skip(target, skip_attention=[]), sampling=Sampling())
    tally = decoder.generate(RAGGED, stopping=Stopping(20), seeds=list(range(8)), detailed=True).tally
    assert tally.metrics()["alpha/overlap"] == pytest.approx(1, abs=1e-5)


def test_early_exit_is_the_first_layers_alone() -> None:
    """A two-layer model cut after its first layer equals a model of one layer."""
    target = tiny_target(num_hidden_layers=2)
    shallow = tiny_model(num_hidden_layers=1)
    shallow.load_state_dict(target.model.model.state_dict(), strict=False)
    clone = SubLayers(target.model.model).without(LayerSet.exit_after(1, 2))
    tokens = torch.tensor([[4, 5, 6, 7]])
    assert torch.equal(clone(input_ids=tokens).logits, shallow(input_ids=tokens).logits)


@pytest.mark.parametrize(
    ("family", "attentions", "mlps", "norms"),
    [
        ("llama", ("self_attn",), ("mlp",), ("input_layernorm", "post_attention_layernorm")),
        ("gpt2", ("attn",), ("mlp",), ("ln_1", "ln_2")),
        ("gpt_neox", ("attention",), ("mlp",), ("input_layernorm", "post_attention_layernorm")),
    ],
)
def test_skipped_sub_layers_and_their_norms_are_not_computed(family, attentions, mlps, norms) -> None:
    model = tiny_model(family, num_hidden_layers=5)
    kept = {"attention": attentions, "mlp": mlps, "norm": norms}
    clone = SubLayers(model).without(LayerSet(5, (0, 2, 3), (0, 4)))
    types = {type(module) for name, module in model.named_modules() if name.split(".")[-1] in sum(kept.values(), ())}

    def computed(of: torch.nn.Module, names: tuple[str, ...]) -> int:
        ran: list[type] = []
        found = {id(m): m for name, m in of.named_modules() if name.split(".")[-1] in names}
        hooks = [m.register_forward_hook(lambda m, *_: ran.append(type(m))) for m in found.values()]
        of(input_ids=torch.tensor([[4, 5]]))
        for hook in hooks:
            hook.remove()
        return sum(each in types for each in ran)

    assert {name: computed(model, names) for name, names in kept.items()} == {"attention": 5, "mlp": 5, "norm": 10}
    # Block 0 is skipped as a whole, though its modules are still there.
    assert {name: computed(clone, names) for name, names in kept.items()} == {"attention": 2, "mlp": 3, "norm": 5}


# Output


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_equal_plain_decoding_whatever_the_set(kind: str) -> None:
    target, stopping, seeds = target_of_three(kind), Stopping(20, eos_ids=(0,)), list(range(8))
    expected = Autoregressive(target=target, sampling=GREEDY).generate(RAGGED, stopping=stopping, seeds=seeds)
    for skip, policy in zip(SETS, (None, ConfidenceThreshold(max_gamma=4, threshold=0.3)), strict=True):
        decoder = engine(target, layer_skip(target, **options_of(skip)), gamma_policy=policy)
        assert decoder.generate(RAGGED, stopping=stopping, seeds=seeds).tokens == expected.tokens, skip
        assert decoder.generate(RAGGED[3:4], stopping=stopping, seeds=[3]).tokens[0] == expected.tokens[3], skip


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_targets_logits_are_as_if_nobody_had_drafted(family: str) -> None:
    """Every pass over [pending, nodes] after drafting against uncached passes, in float64, over many rounds."""
    target = tiny_target(family, dtype=torch.float64, num_hidden_layers=3)
    for skip in random_sets(3, 4, seed=2):
        decoder = engine(target, layer_skip(target, **options_of(skip)), sampling=Sampling())
        decoding = decoder.begin(
            RAGGED, stopping=Stopping(40), seeds=list(range(8)), detailed=False, stopwatch=Stopwatch(target.device)
        )
        forward, seen = target.model.forward, []

        def spy(tokens: Tensor, start: Tensor, forward=forward, seen=seen, **rest: object) -> ForwardOutput:
            output = forward(tokens, start, **rest)
            seen.append((tokens.clone(), start.clone(), output.logits))
            return output

        target.model.forward = spy  # the drafter's own passes use another CachedLM
        try:
            for _ in range(6):
                before = decoding.sequences.tokens.clone()
                decoder.round(decoding)
                tokens, start, logits = seen[-1]
                for row, first in enumerate(start.tolist()):
                    whole = torch.cat([before[row, :first], tokens[row]]).unsqueeze(0)
                    expected = target.model.model(input_ids=whole, use_cache=False).logits[0, first:]
                    assert torch.allclose(logits[row], expected, rtol=0, atol=1e-9)
        finally:
            del target.model.forward
        assert len(seen) == 6


def test_slots_that_the_target_does_not_rewrite_would_be_seen() -> None:
    """Negative control: one drafted node beyond the rewritten slots spoils the target's cache."""
    target = tiny_target(dtype=torch.float64)
    drafter = layer_skip(target, skip_attention=[0])
    decoding = engine(target, drafter, sampling=Sampling()).begin(
        [[5, 6, 7]], stopping=Stopping(20), seeds=[0], detailed=False, stopwatch=Stopwatch(target.device)
    )
    sequences, forward = decoding.sequences, target.model.forward
    drafter.propose(sequences, 3, torch.full((1, 3), 0.5, dtype=torch.float64))
    pending = sequences.pending.unsqueeze(1)
    unread = forward(pending + 1, sequences.lengths, visible=4 + 1).logits  # pending's slot is still the drafter's
    forward(pending, sequences.lengths - 1, visible=4)
    read = forward(pending + 1, sequences.lengths, visible=4 + 1).logits
    assert not torch.allclose(unread, read, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_no_batch_is_kept_alive_by_the_next_one() -> None:
    """The clone reads the target's current rows and slots."""
    target = tiny_target()
    drafter = layer_skip(target, skip_attention=[0])
    decoder, stopping = engine(target, drafter), Stopping(8)
    alone = [decoder.generate([prompt], stopping=stopping, seeds=[0]).tokens[0] for prompt in RAGGED]
    assert decoder.generate(RAGGED, stopping=stopping, seeds=[0] * 8).tokens == alone
    slots = [weakref.ref(layer.keys) for layer in target.model._slots.cache.layers]
    target.model.begin(2, 30)
    gc.collect()
    assert all(kept() is None for kept in slots)


CONTRACTS = [
    ("llama", {"skip_attention": [1], "skip_mlp": [0]}),
    ("gpt2", {"exit_after": 1}),
    *((family, {"skip_attention": [0]}) for family in FAMILIES),
]


@pytest.mark.slow
@pytest.mark.usefixtures("narrow_buffers")
@pytest.mark.parametrize(("family", "options"), CONTRACTS, ids=str)
def test_it_keeps_the_contract(family: str, options: dict) -> None:
    target = tiny_target(family, vocabulary=5)
    check_drafter(lambda target: layer_skip(target, **options), target=target, samples=2000).require()


def test_clones_share_every_parameter_and_leave_the_model_alone() -> None:
    model = tiny_model(num_hidden_layers=3)
    before, print_before = dict(model.named_modules()), fingerprint(model)
    clone = SubLayers(model).without(LayerSet(3, (0, 1), (1,)))
    ours = {id(parameter) for parameter in model.parameters()}
    assert {id(parameter) for parameter in clone.parameters()} <= ours
    after = dict(model.named_modules())
    assert after.keys() == before.keys() and all(after[name] is module for name, module in before.items())
    assert all("forward" not in vars(module) for module in model.modules())
    assert fingerprint(model) == print_before
    assert clone(input_ids=torch.tensor([[3, 4]])).logits.shape == (1, 2, 50)


# Bad input


WRONG = [
    ({}, r"^layers is None, and no set of layers is given; allowed: one of layers, exit_after"),
    (
        {"exit_after": 1, "skip_mlp": [0]},
        r"exit_after and skip_attention or skip_mlp are given",
    ),
    ({"exit_after": 1, "layers": "found.yaml"}, r"^layers is .*, and layers and exit_after are given"),
    ({"exit_after": 0}, r"^exit_after is 0; allowed: a whole number from 1 to 2"),
    ({"exit_after": 3}, r"^exit_after is 3; allowed: a whole number from 1 to 2"),
    ({"exit_after": "half"}, r"^exit_after is 'half'"),
    ({"skip_attention": [0, 2]}, r"^skip_attention is \[0, 2\]; allowed: .* from 0 to 1"),
    ({"skip_mlp": [-1]}, r"^skip_mlp is \[-1\]"),
    ({"skip_mlp": ["mlp"]}, r"^skip_mlp is \['mlp'\]"),
    ({"skip_mlp": 1}, r"^skip_mlp is 1; allowed: a list"),
    ({"skip_mlp": 1.5}, r"^skip_mlp is 1\.5; allowed: .* a share of them from 0\.0 to 1\.0"),
    ({"skip_attention": 1.0, "skip_mlp": 1.0}, r"skips all of the target's 2 layers"),
    ({"skip_mlp": "all"}, r"^skip_mlp is 'all'; allowed: a list"),
    ({"skip_attention": [1, 1]}, r"names a layer twice"),
    ({"skip_attention": [0, 1], "skip_mlp": [0, 1]}, r"skips all of the target's 2 layers"),
    ({"layers": "nowhere.yaml"}, r"^layers is 'nowhere\.yaml', no such file"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=str)
def test_a_wrong_set_is_named(options: dict, message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        layer_skip(tiny_target(), **options)


class Renamed(torch.nn.Module):
    def __init__(self, block: torch.nn.Module):
        super().__init__()
        self.block = block

    def forward(self, *given: object, **named: object) -> Tensor:
        return self.block(*given, **named)


def test_a_target_that_cannot_be_taken_apart_is_refused() -> None:
    model = tiny_model()
    model.model.layers = torch.nn.ModuleList(map(Renamed, model.model.layers))
    with pytest.raises(
        ValueError, match=r"LlamaForCausalLM\) apart: it has no list of 2 blocks .* choose another drafter"
    ):
        SubLayers(model)


class Doubles(torch.nn.Module):
    """A block that changes its input beyond adding its sub-layers."""

    def __init__(self, block: torch.nn.Module):
        super().__init__()
        self.self_attn, self.mlp, self.input_layernorm = block.self_attn, block.mlp, block.input_layernorm

    def forward(self, hidden_states: Tensor, **rest: object) -> Tensor:
        return 2 * hidden_states + self.mlp(self.input_layernorm(hidden_states))


class Multiplies(torch.nn.Module):
    """A block that multiplies its sub-layers; without either it is the identity."""

    def __init__(self, block: torch.nn.Module):
        super().__init__()
        self.self_attn, self.mlp = block.self_attn, block.mlp

    def forward(self, hidden_states: Tensor, **rest: object) -> Tensor:
        attended = self.self_attn(hidden_states=hidden_states, **rest)[0]
        return hidden_states + attended + (1 + attended) * self.mlp(hidden_states)


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (Doubles, "do more to their input than to add attention and MLP"),
        (Multiplies, "one after the other or summed, do not make up the whole block"),
    ],
)
def test_blocks_that_do_more_than_add_are_refused(block: type, reason: str) -> None:
    model = tiny_model()
    model.model.layers = torch.nn.ModuleList(map(block, model.model.layers))
    with pytest.raises(ValueError, match=rf"apart: .*{reason}; choose another drafter="):
        SubLayers(model)


# Files


def test_a_file_gives_the_set_back(tmp_path: Path) -> None:
    target = tiny_target(num_hidden_layers=4)
    found = LayerSet(4, (0, 3), (2,))
    save_layer_set(tmp_path / "found.yaml", found, fingerprint=target.fingerprint, facts={"alpha": 0.75})
    assert load_layer_set(str(tmp_path / "found.yaml"), target, 4) == found
    assert layer_skip(target, layers=str(tmp_path / "found.yaml")).skip == found
    as_yaml = OmegaConf.to_container(OmegaConf.load(tmp_path / "found.yaml"))
    assert as_yaml["skip_attention"] == [0, 3] and as_yaml["skip_mlp"] == [2] and as_yaml["alpha"] == 0.75


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"target_fingerprint": "0" * 16},
            r"found for a target of 2 layers with fingerprint 0{16}, and this one has 2",
        ),
        ({"num_layers": 12}, r"found for a target of 12 layers .*or null"),
        ({"skip_attention": [7]}, r"skip_attention is \[7\]"),
        ({"skip_attention": None}, r"did not write \(TypeError"),
        ({"skip_norm": [1]}, r"holds skip_norm; allowed: skip_attention, skip_mlp"),
    ],
    ids=str,
)
def test_a_file_for_something_else_is_refused(change: dict, message: str, tmp_path: Path) -> None:
    target, path = tiny_target(), tmp_path / "found.yaml"
    save_layer_set(path, LayerSet(2, (0,), ()), fingerprint=target.fingerprint, facts={})
    entries = OmegaConf.to_container(OmegaConf.load(path)) | change
    path.write_text("# a comment\n" + json.dumps(entries))
    with pytest.raises(ValueError, match=message):
        layer_skip(target, layers=str(path))


def test_a_file_that_is_no_such_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("layers:\n  - 1\n")
    with pytest.raises(ValueError, match="`search_layers` did not write"):
        layer_skip(tiny_target(), layers=str(tmp_path / "other.yaml"))


# Layer sets


def test_bits_and_back() -> None:
    for layer_set in random_sets(5, 20):
        assert LayerSet.from_bits(layer_set.bits) == layer_set
    assert LayerSet(3, (2, 0), (1,)).bits == (1, 0, 1, 0, 1, 0)
    assert LayerSet(3, (2, 0), (1,)).skip_attention == (0, 2)


def test_uniform_sets_are_spread_evenly() -> None:
    for num_layers in (2, 7, 12, 40):
        for count in range(1, num_layers):
            skipped = LayerSet.uniform(num_layers, attention=count, mlp=0).skip_attention
            gaps = [after - before for before, after in itertools.pairwise(skipped)]
            assert len(skipped) == count and (not gaps or max(gaps) - min(gaps) <= 1)
    assert LayerSet.uniform(12, attention=3, mlp=2) == LayerSet(12, (2, 6, 10), (3, 9))


def test_a_share_is_spread_evenly() -> None:
    target = tiny_target(num_hidden_layers=8)
    assert layer_skip(target, skip_attention=0.25, skip_mlp=0.5).skip == LayerSet.uniform(8, attention=2, mlp=4)
    assert layer_skip(target, skip_attention=0.0, skip_mlp=[3]).skip == LayerSet(8, (), (3,))
    assert layer_skip(target, skip_attention=1.0).skip.skip_attention == tuple(range(8))


# The yaml


def test_every_option_is_in_the_yaml() -> None:
    node = OmegaConf.load(CONF)
    options = {key for key in node if not key.startswith("_")}
    assert options == {"layers", "skip_attention", "skip_mlp", "exit_after"}
    assert re.match(r"# .+\n# python -m experiments\.\w+ ", CONF.read_text())


def test_the_shipped_set_belongs_to_the_embedded_target() -> None:
    from experiments.config.resolvers import ZOO
    from framework.models.pretrained import load_target

    target = load_target(path=str(ZOO / "target"), dtype="float32", device="cpu", attention="sdpa", context=256)
    assert isinstance(target.model, CachedLM)
    skip = layer_skip(target, layers=str(ZOO / "layer_skip.yaml")).skip
    assert skip.num_layers == 12 and skip.num_skipped > 0
