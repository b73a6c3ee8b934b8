"""CachedLM: after any reads and rollbacks, its logits are those of an uncached pass."""

import gc
from types import SimpleNamespace

import pytest
import torch
from transformers import BartConfig, BartForCausalLM, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from framework.conformance.tiny_models import FAMILIES, tiny_cached_lm, tiny_model
from framework.core.draft import Draft, SamplingScheme, Shape
from framework.core.sequences import Sequences
from framework.core.tree import Chain, Tree
from framework.drafting.drafter_cache import DrafterCache
from framework.models.attention import FLEX, FUSED, OURS, own_attention, running_with
from framework.models.cached_lm import FEW_TOKENS, CachedLM

GPT_NEO = {"num_layers": 2, "num_heads": 4}
GPT_OSS = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
LLAMA4 = {
    "num_local_experts": 2, "intermediate_size_mlp": 48, "head_dim": 8,
    "layer_types": ["chunked_attention", "full_attention"],
}  # fmt: skip
GEMMA4 = {
    "num_hidden_layers": 4, "head_dim": 8, "global_head_dim": 8, "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 50,
}  # fmt: skip
DEEPSEEK = {
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6,
    "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "first_k_dense_replace": 1,
}  # fmt: skip

# What flex attention lacks: attention sinks, and masks of which Gemma 4 takes a part.
WITHOUT_FLEX = {"gpt_oss": "does not implement s_aux", "gemma4_text": "sliced BlockMask"}

# Largest rounding error, as a share of 1 + the largest logit.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 4e-6, torch.float16: 1e-2, torch.bfloat16: 5e-2}
PROMPT_LENGTHS = (7, 1, 20, 3)


def tolerance(lm: CachedLM) -> float:
    # transformers' eager attention computes its softmax in float32 in every dtype.
    in_float32 = lm.model.dtype == torch.float64 and "eager" in (lm.attention, own_attention(lm.model))
    return TOLERANCE[torch.float32 if in_float32 else lm.model.dtype]


def assert_as_uncached(lm: CachedLM, logits: torch.Tensor, tokens: torch.Tensor) -> None:
    """Compare logits [M, V] after the last M of tokens [T] with an uncached pass."""
    with running_with(lm.model, own_attention(lm.model)):
        expected = lm.model(input_ids=tokens.unsqueeze(0), use_cache=False).logits[0, -len(logits) :]
    error = (expected - logits).abs().max() / (1 + expected.abs().max())
    assert error.item() <= tolerance(lm)


class Rounds:
    """A batch that decodes at random: random prompts, drafts and acceptance, every logit checked."""

    def __init__(
        self, lm: CachedLM, prompt_lengths: tuple[int, ...] = PROMPT_LENGTHS, *, seed: int = 0, width: int = 60
    ):
        self.lm = lm
        self.random = torch.Generator().manual_seed(seed)
        prompts = [self.draw(length).tolist() for length in prompt_lengths]
        self.sequences = Sequences.from_prompts(prompts, width=width, device=lm.device)
        lm.begin(len(prompts), width)

    def draw(self, *shape: int) -> torch.Tensor:
        return torch.randint(0, self.lm.vocabulary_size, shape, generator=self.random)

    def committed(self, row: int) -> torch.Tensor:
        return self.sequences.tokens[row, : self.sequences.lengths[row]]

    def commit(self, tokens: torch.Tensor, counts: torch.Tensor) -> None:
        self.sequences.commit(tokens, counts)

    def prefill(self) -> "Rounds":
        sequences = self.sequences
        prompts = sequences.tokens[:, : sequences.longest]
        logits = self.lm.forward(prompts, None, visible=sequences.longest, keep=sequences.lengths - 1).logits
        for row in range(sequences.num_rows):
            assert_as_uncached(self.lm, logits[row], self.committed(row))
        self.commit(self.draw(sequences.num_rows, 1), torch.ones(sequences.num_rows, dtype=torch.int64))
        return self

    def round(self, gamma: int, *, frozen: tuple[int, ...] = ()) -> None:
        sequences, num_rows = self.sequences, self.sequences.num_rows
        draft = self.draw(num_rows, gamma)
        fed = torch.cat([sequences.pending.unsqueeze(1), draft], 1)
        logits = self.lm.forward(fed, sequences.lengths - 1, visible=sequences.longest + gamma).logits
        for row in range(num_rows):
            assert_as_uncached(self.lm, logits[row], torch.cat([self.committed(row), draft[row]]))
        num_accepted = torch.randint(0, gamma + 1, (num_rows,), generator=self.random)
        block = torch.cat([draft, self.draw(num_rows, 1)], 1)
        block.scatter_(1, num_accepted.unsqueeze(1), self.draw(num_rows, 1))
        num_accepted[list(frozen)] = -1
        self.commit(block, num_accepted + 1)

    def tree_round(self, parents: tuple[int, ...]) -> None:
        sequences, num_rows = self.sequences, self.sequences.num_rows
        tree, nodes = Tree.shared(parents, num_rows, self.lm.device), self.draw(num_rows, len(parents))
        fed = torch.cat([sequences.pending.unsqueeze(1), nodes], 1)
        visible = sequences.longest + len(parents)
        logits = self.lm.forward(fed, sequences.lengths - 1, visible=visible, tree=tree).logits
        for row in range(num_rows):
            for read in range(len(fed[row])):
                path = tree.path(torch.full((num_rows,), read))[row, : tree.depth[row, read]]
                text = torch.cat([self.committed(row), nodes[row, path]])
                assert_as_uncached(self.lm, logits[row, read : read + 1], text)
        stop = torch.randint(0, len(parents) + 1, (num_rows,), generator=self.random)
        path, num_accepted = tree.path(stop), tree.depth.gather(1, stop.unsqueeze(1)).squeeze(1)
        self.lm.keep_path(tree, path, after=sequences.lengths)
        block = torch.cat([nodes.gather(1, path), self.draw(num_rows, 1)], 1)
        block.scatter_(1, num_accepted.unsqueeze(1), self.draw(num_rows, 1))
        self.commit(block, num_accepted + 1)


def play(
    lm: CachedLM, prompt_lengths: tuple[int, ...] = PROMPT_LENGTHS, gammas: tuple[int, ...] = (3, 0, 4, 1, 4)
) -> None:
    rounds = Rounds(lm, prompt_lengths).prefill()
    for gamma in gammas:
        rounds.round(gamma)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_round_is_exact(family, attention, dtype):
    play(tiny_cached_lm(family, attention=attention, dtype=dtype))


@pytest.mark.parametrize("attention", [FUSED, "sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_half_precision_is_close(family, dtype, attention):
    play(tiny_cached_lm(family, attention=attention, dtype=dtype))


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("llama", {"num_key_value_heads": 1}),
        ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
        ("gpt2", {"tie_word_embeddings": False, "scale_attn_by_inverse_layer_idx": True}),
        ("gpt_neox", {"use_parallel_residual": False, "tie_word_embeddings": True}),
        ("mistral", {"sliding_window": 128}),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}),
        ("gemma2", {"attention": "eager", "sliding_window": 128}),  # softcapped scores and logits
        ("gemma3_text", {"sliding_window": 128}),  # rotary positions differ between layers
        ("granite", {"logits_scaling": 3.0, "attention_multiplier": 0.5}),
        ("phi", {}),
        ("olmo2", {}),
        ("falcon", {}),
        ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}),  # positions begin at 2 in its table
        ("mixtral", {"num_local_experts": 4}),
    ],
)
def test_further_architectures_are_exact(family, config):
    play(tiny_cached_lm(family, **config))


@pytest.mark.slow
@pytest.mark.parametrize("attention", [*OURS, None], ids=[*OURS, "own"])
@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("mistral", {"sliding_window": 4}),
        ("mistral", {"sliding_window": 24}),  # the first rounds are within the window
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
        ("gemma2", {"sliding_window": 4}),  # softcapped scores and logits
        ("gemma3_text", {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}),
        ("gpt_oss", GPT_OSS | {"sliding_window": 4}),  # attention sinks
        ("llama4_text", LLAMA4 | {"attention_chunk_size": 4}),
        ("gemma4_text", GEMMA4 | {"sliding_window": 4}),  # layers that share keys and values
        ("deepseek_v3", DEEPSEEK),  # keys wider than values
    ],
)
def test_windows_chunks_sinks_and_shared_keys_are_exact(family, config, attention):
    if attention == FLEX and family in WITHOUT_FLEX:
        with pytest.raises(ValueError, match=WITHOUT_FLEX[family]):
            tiny_cached_lm(family, attention=attention, **config)
        return
    lm = tiny_cached_lm(family, attention=attention, **config)
    play(lm)
    rounds = Rounds(lm).prefill()
    for parents in ((-1, -1, 0, 1, 1), (-1, 0, 0, 2, 2), (-1, 0)):
        rounds.tree_round(parents)


@pytest.mark.parametrize("attention", [FUSED, None], ids=["fused", "own"])
@pytest.mark.parametrize(
    ("family", "config"), [("mistral", {"sliding_window": 4}), ("llama4_text", LLAMA4 | {"attention_chunk_size": 4})]
)
def test_a_first_pass_longer_than_a_window_is_exact(family, config, attention):
    lm = tiny_cached_lm(family, attention=attention, **config)
    lm.begin(1, 16)
    tokens = torch.arange(1, 12).unsqueeze(0)
    assert_as_uncached(lm, lm.forward(tokens, None, visible=11).logits[0], tokens[0])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("prompt_lengths", [(5,), (1,), (1, 1, 1), (FEW_TOKENS + 9, 2, FEW_TOKENS + 9)])
def test_batches_of_any_shape(prompt_lengths, attention):
    play(tiny_cached_lm("llama", attention=attention), prompt_lengths, gammas=(0, 3, 0))


@pytest.mark.parametrize("chunk", [1, 3, 7, 19])
@pytest.mark.parametrize(("family", "config"), [("llama", {}), ("gpt2", {}), ("mistral", {"sliding_window": 4})])
def test_prompts_are_read_in_chunks(monkeypatch, family, config, chunk):
    lm = CachedLM(tiny_model(family, **config), vocabulary_size=50, prefill_chunk=chunk)
    widths, honest = [], lm._pass

    def noted(tokens, *rest, **options):
        widths.append(tokens.shape[1])
        return honest(tokens, *rest, **options)

    monkeypatch.setattr(lm, "_pass", noted)
    rounds = Rounds(lm).prefill()
    assert widths == [chunk] * (20 // chunk) + [20 % chunk] * (20 % chunk > 0)
    for gamma in (3, 0, 4):
        rounds.round(gamma)


def test_recurrent_layers_do_not_read_in_chunks():
    with pytest.raises(ValueError, match=r"target.prefill_chunk is 32, and .* has recurrent layers; allowed: null"):
        CachedLM(tiny_model("mamba"), vocabulary_size=50, prefill_chunk=32)


def test_finished_rows_read_on_without_harm():
    rounds = Rounds(tiny_cached_lm()).prefill()
    assert rounds.sequences.lengths[1] == 2
    for gamma in (2, 3, 0, 3):
        rounds.round(gamma, frozen=(1, 2))
    assert rounds.sequences.lengths[1] == 2


def test_a_row_that_runs_past_its_end_leaves_the_next_row_alone():
    lm = tiny_cached_lm()
    rounds = Rounds(lm, (9, 4), width=11).prefill()
    # Row 0 needs one token and has no room for more; the pass feeds both rows as many as row 1 needs.
    fed = torch.cat([rounds.sequences.pending.unsqueeze(1), rounds.draw(2, 3)], 1)
    logits = lm.forward(fed, rounds.sequences.lengths - 1, visible=10).logits
    assert_as_uncached(lm, logits[0, :1], rounds.committed(0))
    assert_as_uncached(lm, logits[1], torch.cat([rounds.committed(1), fed[1, 1:]]))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_drafts_may_reach_past_the_context(family):
    lm = tiny_cached_lm(family, context=24)
    rounds = Rounds(lm, (22, 5), width=30).prefill()
    draft = rounds.draw(2, 4)
    fed = torch.cat([rounds.sequences.pending.unsqueeze(1), draft], 1)
    logits = lm.forward(fed, rounds.sequences.lengths - 1, visible=rounds.sequences.longest + 4).logits
    assert_as_uncached(lm, logits[0, :2], torch.cat([rounds.committed(0), draft[0, :1]]))
    assert_as_uncached(lm, logits[1], torch.cat([rounds.committed(1), draft[1]]))


@pytest.mark.parametrize("num_new", [1, 2, 25])
@pytest.mark.parametrize("roll_back", [0, 3])
def test_catching_up(num_new, roll_back):
    lm = tiny_cached_lm()
    rounds, cache = Rounds(lm, width=100), DrafterCache(lm)
    cache.begin(*rounds.sequences.tokens.shape)

    def caught_up() -> None:
        logits = cache.catch_up(rounds.sequences)
        for row in range(rounds.sequences.num_rows):
            assert_as_uncached(lm, logits[row : row + 1], rounds.committed(row))
        assert cache.cached.equal(rounds.sequences.lengths)

    caught_up()
    caught_up()  # without new tokens, pending is read again
    for counts in ([num_new] * 4, [num_new, 1, 0, num_new]):
        rounds.commit(rounds.draw(4, num_new), torch.tensor(counts))
        cache.cached = (cache.cached - roll_back).clamp(min=0)
        caught_up()


@pytest.mark.parametrize("parents", [[-1, 0, 1, 2], [-1, -1, 0, 1, 1, 2, 2, 2], [-1, -1]], ids=str)
def test_what_was_accepted_of_its_own_draft_needs_no_second_reading(monkeypatch, parents):
    """After the first round the host knows the backlog without waiting for the device."""
    lm, random = tiny_cached_lm(dtype=torch.float64), torch.Generator().manual_seed(0)
    rounds, num_rows = Rounds(lm, width=100), len(PROMPT_LENGTHS)
    cache = DrafterCache(lm)
    cache.begin(*rounds.sequences.tokens.shape)
    sequences, kind = rounds.sequences, Chain if parents == list(range(-1, 3)) else Tree
    tree = kind.shared(parents, num_rows, lm.device)
    nodes_read = int((tree.depth[0, 1:] < tree.deepest).sum())
    for number in range(12):
        with monkeypatch.context() as patch:
            if number:
                patch.setattr(torch.Tensor, "tolist", None)
            logits = cache.catch_up(sequences)
        for row in range(num_rows):
            assert_as_uncached(lm, logits[row : row + 1], rounds.committed(row))
        tokens = rounds.draw(num_rows, len(parents))
        if nodes_read:
            visible = sequences.longest + nodes_read
            lm.forward(tokens[:, :nodes_read], sequences.lengths - 1, visible=visible, tree=tree, first=1)
        draft = Draft.of_tree(tree, tokens, SamplingScheme.ONE_HOT, shape=Shape.CHAIN if tree.is_chain else Shape.TREE)
        for each in (draft, Draft.empty(num_rows, lm.device))[: 1 + number % 3]:
            stop = torch.randint(0, each.num_nodes + 1, (num_rows,), generator=random)
            path, num_accepted = each.tree.path(stop), each.tree.depth.gather(1, stop.unsqueeze(1)).squeeze(1)
            emitted = torch.cat([each.tokens.gather(1, path), rounds.draw(num_rows, 1)], 1)
            counts = (num_accepted + 1).where(torch.arange(num_rows) != number % 5, 0)  # some row has finished
            num_accepted = torch.minimum(num_accepted, counts)
            rounds.commit(emitted, counts)
            outcome = SimpleNamespace(draft=each, stop=stop, num_accepted=num_accepted, num_committed=counts)
            before = cache.cached.clone()
            with monkeypatch.context() as patch:
                patch.setattr(torch.Tensor, "tolist", None)
                cache.keep_accepted(sequences, outcome)
            is_kept = (path < nodes_read) & (torch.arange(path.shape[1]) < num_accepted.unsqueeze(1))
            assert cache.cached.equal(before + is_kept.sum(1))  # pending and the path but for its last node


@pytest.mark.parametrize("chunk", [None, 6])
@pytest.mark.parametrize("longest", [FEW_TOKENS - 1, FEW_TOKENS + 20])
def test_kept_logits_are_a_choice_of_all_logits(longest, chunk):
    lm = CachedLM(tiny_model(), vocabulary_size=50, prefill_chunk=chunk)
    tokens = torch.randint(0, 50, (4, longest), generator=torch.Generator().manual_seed(0))
    keep = torch.tensor([longest - 1, 0, 5, 5])
    lm.begin(4, longest + 1)
    whole = lm.forward(tokens, None, visible=longest)
    every, states = whole.logits, whole.hidden_states
    assert whole.scored_states is states and states.shape == (4, longest, 32)
    output = lm.forward(tokens, None, visible=longest, keep=keep)
    kept = output.logits
    assert every.shape == (4, longest, 50)
    assert kept.shape == (4, 1, 50)
    torch.testing.assert_close(kept[:, 0], every[torch.arange(4), keep], rtol=0, atol=1e-5)
    torch.testing.assert_close(output.hidden_states, states, rtol=0, atol=1e-5)  # of all tokens, however few logits
    torch.testing.assert_close(output.scored_states[:, 0], states[torch.arange(4), keep], rtol=0, atol=1e-5)


def test_beginning_anew_forgets():
    lm = tiny_cached_lm()
    for prompt_lengths, width in (((5, 9), 30), ((5, 9), 30), ((2, 2, 3), 30), ((4,), 12), ((6, 1), 40)):
        Rounds(lm, prompt_lengths, width=width).prefill().round(4)


def test_not_even_nan_survives_beginning_anew():
    lm = tiny_cached_lm()
    embedding = lm.model.get_input_embeddings().weight
    sound = embedding.clone()
    lm.begin(4, 60)
    embedding.fill_(torch.nan)
    assert lm.forward(torch.zeros(4, 60, dtype=torch.int64), None, visible=60).logits.isnan().all()
    embedding.copy_(sound)
    play(lm)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(("dtype", "huge"), [(torch.float32, 1e5), (torch.float16, 1e3)], ids=str)
def test_stale_slots_are_not_seen_at_all(dtype, huge, attention):
    lm = tiny_cached_lm(dtype=dtype, attention=attention)
    attend = lm.model.model.layers[1].self_attn
    weights = attend.k_proj.weight, attend.v_proj.weight
    tokens = torch.randint(0, 50, (3, 12), generator=torch.Generator().manual_seed(1))
    start = torch.tensor([2, 5, 0])

    def logits_over_stale_values(scale: float) -> torch.Tensor:
        sound = [weight.clone() for weight in weights]
        lm.begin(3, 12)
        for weight in weights:
            weight.mul_(scale)
        lm.forward(tokens.flip(1), None, visible=12)
        for weight, kept in zip(weights, sound, strict=True):
            weight.copy_(kept)
        lm.forward(tokens[:, :5], None, visible=5)
        return lm.forward(tokens[:, :4], start, visible=9).logits

    assert logits_over_stale_values(1.0).equal(logits_over_stale_values(huge))


def test_passes_without_need_of_a_mask_have_none(monkeypatch):
    lm = tiny_cached_lm()
    forward, has_mask = lm.model.forward, []

    def spy(**inputs):
        has_mask.append(inputs["attention_mask"] is not None)
        return forward(**inputs)

    monkeypatch.setattr(lm.model, "forward", spy)
    sequences = Sequences.from_prompts([[1, 2, 3], [4]], width=8, device=lm.device)
    cache = DrafterCache(lm)
    cache.begin(2, 8)
    cache.catch_up(sequences)  # from the start of every row
    cache.catch_up(sequences)
    lm.begin(1, 8)
    lm.forward(torch.tensor([[1, 2, 3]]), None, visible=3)
    lm.forward(torch.tensor([[4]]), torch.tensor([3]), visible=4)  # one token of one row
    lm.forward(torch.tensor([[4, 5]]), torch.tensor([3]), visible=5)
    assert has_mask == [False, True, False, False, True]


def test_a_model_wider_than_the_vocabulary_is_cut():
    model = tiny_model(vocabulary=64)
    lm = CachedLM(model, vocabulary_size=50)
    lm.begin(1, 8)
    tokens = torch.tensor([[1, 49, 3]])
    assert lm.forward(tokens, None, visible=3).logits.equal(model(input_ids=tokens).logits[..., :50])


def test_a_model_narrower_than_the_vocabulary_is_filled():
    model = tiny_model(vocabulary=40)
    lm = CachedLM(model, vocabulary_size=50)
    lm.begin(1, 8)
    logits = lm.forward(torch.tensor([[1, 49, 3]]), None, visible=3).logits  # 49 is outside the model's vocabulary
    assert logits.shape == (1, 3, 50)
    assert logits[..., 40:].isneginf().all()
    assert_as_uncached(lm, logits[0, :1, :40], torch.tensor([1]))
    assert logits[..., :40].isfinite().all()


@pytest.mark.parametrize(
    ("family", "config", "reason"),
    [
        ("mamba", {"max_position_embeddings": None}, "set target.context"),
        ("rwkv", {"attention": "eager"}, "recurrent state outside of transformers' cache layers"),
        ("llama4_text", LLAMA4 | {"floor_scale": 100}, "from position 99 on, .*; set target.context=99"),
        ("bloom", {"attention": "eager"}, "takes no position_ids"),
        ("mpt", {"attention": "eager", "d_model": 32, "n_heads": 4, "n_layers": 2}, "takes no position_ids"),
        ("falcon", {"alibi": True}, "it takes distances .ALiBi. from a padding mask"),
        ("gpt_neo", GPT_NEO | {"attention_types": [[["global", "local"], 1]]}, "local layers cut their masks"),
        ("bert", {}, "not causal"),
    ],
)
def test_what_cannot_be_served_exactly_is_refused(family, config, reason):
    model = tiny_model(family, **config)
    with pytest.raises(ValueError, match=f"{type(model).__name__}.* cannot be served: .*{reason}"):
        CachedLM(model, vocabulary_size=50)


def test_a_model_that_cannot_be_told_positions_is_refused():
    config = BartConfig(vocab_size=50, d_model=32, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=16)
    with pytest.raises(ValueError, match="takes no position_ids"):
        CachedLM(BartForCausalLM(config), vocabulary_size=50)


def test_an_encoder_decoder_model_that_does_not_say_how_texts_begin_is_refused():
    config = T5Config(vocab_size=50, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match="set decoder_start_token_id in its config"):
        CachedLM(T5ForConditionalGeneration(config), vocabulary_size=50)


def test_a_model_that_counts_slots_instead_of_being_told_positions_is_refused():
    class CountsSlots(LlamaForCausalLM):
        def forward(self, position_ids=None, **inputs):
            return super().forward(**inputs)

    model = CountsSlots._from_config(tiny_model().config).requires_grad_(False)
    with pytest.raises(ValueError, match="takes positions from cache slots"):
        CachedLM(model, vocabulary_size=50)


def test_an_output_layer_that_looks_at_more_than_one_token_is_refused():
    class Doubles(torch.nn.Linear):
        def forward(self, states):
            return super().forward(states) * (2 if states.shape[1] == 1 else 1)

    model = tiny_model()
    model.set_output_embeddings(Doubles(32, 50, bias=False))
    with pytest.raises(ValueError, match="its output layer looks at more than one token"):
        CachedLM(model, vocabulary_size=50)


@pytest.mark.slow
def test_flex_attention_is_not_compiled_for_a_cpu():
    with pytest.raises(ValueError, match="attention is 'flex', which PyTorch does not compile for a CPU; allowed: "):
        tiny_cached_lm("llama", attention=FLEX).refuse_compiling()


def test_attention_that_takes_no_mask_is_refused():
    model = tiny_model()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match=r"target.attention is 'flash_attention_2'; allowed: fused, flex, sdpa, eager"):
        CachedLM(model, vocabulary_size=50)


def test_long_rotary_positions_are_exact_up_to_where_they_change():
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "original_max_position_embeddings": 64}
    model = tiny_model("llama", rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0, **factors})
    with pytest.raises(ValueError, match=r"change beyond 64; set target.context=64"):
        CachedLM(model, vocabulary_size=50)
    play(CachedLM(model, vocabulary_size=50, context=64))


@pytest.mark.parametrize("context", [0, -1, 129])
def test_a_context_the_model_does_not_have_is_refused(context):
    with pytest.raises(ValueError, match=f"target.context is {context}; allowed: 1 to 128"):
        CachedLM(tiny_model(), vocabulary_size=50, context=context)


def test_a_context_too_short_to_be_probed():
    lm = CachedLM(tiny_model(), vocabulary_size=50, context=3)
    lm.begin(1, 4)
    assert_as_uncached(lm, lm.forward(torch.tensor([[5, 6]]), None, visible=2).logits[0], torch.tensor([5, 6]))


def test_the_model_is_left_as_found():
    model = tiny_model().requires_grad_(True)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = model.config.to_dict()
    play(CachedLM(model, vocabulary_size=50))
    assert all(tensor.equal(weights[name]) for name, tensor in model.state_dict().items())
    assert model.config.to_dict() == config
    assert not model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("keep", [None, torch.tensor([1])], ids=["all", "one"])
def test_logits_can_be_trained_on(keep):
    lm = tiny_cached_lm()
    lm.begin(1, 8)
    output = lm.forward(torch.tensor([[1, 2]]), None, visible=2, keep=keep)
    logits = output.logits
    weight = torch.ones(50, requires_grad=True)
    (logits * weight).sum().backward()
    assert weight.grad is not None and weight.grad.equal(logits.sum((0, 1)))
    assert not output.hidden_states.is_inference()


def test_its_hook_lives_as_long_as_it_does():
    model = tiny_model()
    lm = CachedLM(model, vocabulary_size=50)
    assert len(model.get_output_embeddings()._forward_pre_hooks) == 1
    del lm
    gc.collect()
    assert not model.get_output_embeddings()._forward_pre_hooks
