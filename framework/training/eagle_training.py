"""Training of EAGLE's layers on the target's states and distributions; the target stays frozen.

B rows, T tokens, L = T - 1 pairs of a state and the token after it, H hidden, V vocabulary, Vd draft vocabulary,
n windows.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig

from framework.core.option_error import OptionError
from framework.core.validation import check_whole
from framework.heads.draft_layer import HEAD_WIDTH, TargetEnds
from framework.heads.eagle_layer import EagleOneLayer, EagleThreeLayer
from framework.heads.published_eagle import save_eagle
from framework.models.attention_masks import additive
from framework.models.encoder_decoder import num_decoder_layers
from framework.models.target import Target
from framework.training.batch_shares import mean_over_processes, uniforms_per_window
from framework.training.future_tokens import WINDOWS_AT_ONCE
from framework.training.target_states import TargetStates
from framework.training.trainable import FILLER, ids_of, is_learned, texts_of

EVALUATED_DEPTHS = 4
KINDS = ("eagle", "eagle3")


class EagleTraining:
    """Minimises sum_d discount^(d-1) (a SmoothL1(f, f_d) + b CE(p, q_d)), where f_d is the state predicted at depth d.

    Depth 1 reads the target's states with noise (EAGLE; Li et al., 2024, 2401.15077: a = 1, b = 0.1, one depth). Each
    further depth reads the predictions of the depth before, as drafting does (EAGLE-3's training-time test; Li et al.,
    2025, 2503.01840). With a mask token, it reads masks instead, so that all depths are predicted at once (P-EAGLE; Hui
    et al., 2026, 2602.01469, and DART; Liu et al., 2026, 2601.19278, with a discount of 0.6). With a draft vocabulary,
    CE sums over its tokens alone.
    """

    def __init__(
        self,
        target: Target,
        *,
        kind: str,
        hidden_layers: list[int] | None,
        draft_vocabulary: int | None,
        train_output: bool,
        norm_before_residual: bool,
        mask_token: int | None = None,
        depths: int,
        discount: float,
        feature_weight: float,
        token_weight: float,
        noise: float,
    ):
        """
        Args:
            target: stays frozen.
            kind: "eagle", scored by the target's output layer, or "eagle3", by one of its own.
            hidden_layers: eagle3: layers of the target to read, by the index of transformers' `hidden_states`; None:
                the published ones, 2, L // 2 and L - 3 of L.
            draft_vocabulary: eagle3: Vd, the most frequent tokens of the training text; None: V.
            train_output: eagle3: whether the output layer, at first a copy of the target's, is trained.
            norm_before_residual: eagle3: whether the residual stream begins after the norm of the states.
            mask_token: eagle3: token read in the place of drafted ones; None: the layer reads its own predictions.
            depths: number of trained depths, >= 1.
            discount: in (0, 1], weight of a depth relative to the one before it.
            feature_weight: a >= 0; 0 for eagle3, whose predictions are no states of the target.
            token_weight: b >= 0, and > 0 if a is 0.
            noise: >= 0, amplitude of the uniform noise added to every entry of the states that are read, as a share of
                their root mean square in a window.

        Raises:
            ValueError: an option out of range.
        """
        if kind not in KINDS:
            raise OptionError("kind", kind, ", ".join(KINDS))
        check_whole("depths", depths, least=1)
        check_whole("draft_vocabulary", draft_vocabulary, least=1, most=target.vocabulary_size, or_null=True)
        check_whole("mask_token", mask_token, least=0, most=target.vocabulary_size - 1, or_null=True)
        for key, holds, value, allowed in (
            ("mask_token", kind == "eagle3" or mask_token is None, mask_token, "null for kind=eagle"),
            ("discount", 0 < discount <= 1, discount, "a number in (0, 1]"),
            ("feature_weight", feature_weight >= 0, feature_weight, "a number >= 0"),
            ("token_weight", token_weight >= 0, token_weight, "a number >= 0"),
            ("token_weight", feature_weight or token_weight, token_weight, "a number > 0, if feature_weight is 0"),
            ("feature_weight", kind == "eagle" or not feature_weight, feature_weight, "0 for kind=eagle3"),
            ("noise", noise >= 0, noise, "a number >= 0"),
        ):
            if not holds:
                raise OptionError(key, value, allowed)
        self._layer: EagleOneLayer | EagleThreeLayer
        if kind == "eagle":
            self._layer = EagleOneLayer(target, layer_config(target))
        else:
            depth = num_decoder_layers(target.model.model)
            layers = tuple([2, depth // 2, depth - 3] if hidden_layers is None else hidden_layers)
            if not all(isinstance(layer, int) and 0 <= layer <= depth for layer in layers) or not layers:
                raise OptionError("hidden_layers", hidden_layers, f"a list of whole numbers from 0 to {depth}")
            self._layer = EagleThreeLayer(
                target,
                layer_config(target),
                hidden_layers=layers,
                draft_vocabulary=draft_vocabulary,
                norm_before_residual=norm_before_residual,
                mask_token=mask_token,
            )
            if self._layer.mask_hidden is not None:
                nn.init.normal_(self._layer.mask_hidden)
            self._layer.lm_head.requires_grad_(train_output)
        self._target, self._ends = target, TargetEnds(target)
        self.states = TargetStates(target, self._layer.hidden_layers)
        self._layer.float().to(self._ends.like["device"])
        if kind == "eagle3":
            self._copy_output()
        self.module: nn.Module = self._layer
        self._depths, self._discount, self._noise = depths, discount, noise
        self._feature_weight, self._token_weight = feature_weight, token_weight

    def use_counts(self, counts: Tensor) -> None:
        """Draft from the most frequent tokens, if there is a draft vocabulary; called once, before the first step.

        Args:
            counts: [V] occurrences of every token in the training text.
        """
        layer = self._layer
        if isinstance(layer, EagleThreeLayer) and layer.d2t is not None:
            layer.draft_from(counts.argsort(descending=True, stable=True)[: len(layer.d2t)].sort().values)
            self._copy_output()

    @torch.no_grad()
    def _copy_output(self) -> None:
        layer = self._layer
        assert isinstance(layer, EagleThreeLayer)
        output = self._target.model.model.get_output_embeddings().weight
        rows = torch.arange(layer.lm_head.out_features) if layer.support is None else layer.support
        layer.lm_head.weight.copy_(output[rows.to(output.device)])

    def loss(self, tokens: Tensor) -> Tensor:
        """Scalar loss of tokens [B, T] or [B, 2, T] int64; a learned token counts where it is read with a state.

        Raises:
            ValueError: T < depths + 1, so that some depth has no label.
        """
        if tokens.shape[-1] <= self._depths:
            allowed = f"at least {self._depths + 1}, one more than trainable.depths"
            raise OptionError("window", tokens.shape[-1], allowed)
        hidden, features = self._states(tokens)
        wanted, p = hidden[:, 1:], self._p(hidden)
        known = is_learned(texts_of(tokens))[:, 1:]
        total = hidden.new_zeros(())
        if features is None:
            read = self._noisy(hidden, tokens)
        else:
            read, features = hidden, self._noisy(features, tokens)
        for depth, states in enumerate(self._predicted(read, features, tokens, self._depths)):
            each = -self._token_weight * (p[:, depth:] * self._log_q(states)).sum(-1)
            if self._feature_weight:
                apart = functional.smooth_l1_loss(states, wanted[:, depth:], reduction="none").mean(-1)
                each = each + self._feature_weight * apart
            here = known[:, depth:]
            count = mean_over_processes(here.sum())
            total = total + self._discount**depth * each.where(here, 0.0).sum() / count
        return total

    @torch.no_grad()
    def evaluate(self, tokens: Tensor) -> dict[str, float]:
        """Overlap Σ min(p, q), which is alpha at T=1, and top-1 agreement of target and layer, per depth.

        All tokens read are those of the text; the states are the layer's predictions from the start of a draft on.
        """
        depths = min(EVALUATED_DEPTHS, tokens.shape[-1] - 1)
        sums = torch.zeros(depths, 3, dtype=torch.float64)
        for windows in tokens.split(WINDOWS_AT_ONCE):
            hidden, features = self._states(windows)
            known, top = is_learned(texts_of(windows))[:, 1:], self._log_p(hidden).argmax(-1)
            p, support = self._p(hidden), self._layer.support
            for depth, states in enumerate(self._predicted(hidden, features, windows, depths)):
                q, here = self._log_q(states).exp(), known[:, depth:]
                shared = torch.minimum(p[:, depth:], q).sum(-1)
                chosen = q.argmax(-1)
                agrees = top[:, depth:] == (chosen if support is None else support[chosen])
                sums[depth] += torch.stack([(each * here).sum() for each in (shared, agrees, here)]).cpu()
        found = {}
        for depth, (shared, agrees, number) in enumerate(sums.tolist(), start=1):
            if not number:  # every text ends before this depth
                break
            found[f"depth {depth} overlap"] = shared / number
            found[f"depth {depth} top-1"] = agrees / number
        return found

    def save(self, folder: Path, held_out: Tensor) -> None:
        """Write the layer in its published layout (`framework.heads.published_eagle`)."""
        save_eagle(folder, self._layer, target=self._target)

    def _states(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """[B, T, H] input of the output layer, and [B, T, n * H] the hidden layers' states, float32."""
        hidden, features = self.states(tokens)
        return hidden.float(), None if features is None else features.float()

    def _predicted(self, hidden: Tensor, features: Tensor | None, tokens: Tensor, depths: int) -> Iterator[Tensor]:
        """Per depth d = 0, 1, ...: [B, L - d, H] states predicted at tokens d + 1, d + 2, ... of the text.

        A pair attends to pairs with the target's states up to the start of its draft, then to pairs of its own draft
        with predicted states, or to masks: one per depth, each one position further.
        """
        num_pairs = hidden.shape[1] - 1
        place = torch.arange(num_pairs, device=hidden.device)
        away = place - place.unsqueeze(1)  # [L, L]: offset from a pair to each other pair
        states, text, pairs = self._layer.known(hidden, features)[:, :-1], ids_of(texts_of(tokens))[:, 1:], _Pairs()
        for depth in range(depths):
            own = [away == deeper - depth for deeper in range(1, depth + 1)]
            mask = additive(torch.cat([away <= -depth, *own], 1).unsqueeze(0), states.dtype)
            states = self._layer(states, text, place.unsqueeze(0), pairs=pairs, mask=mask)
            yield states[:, depth:]
            if isinstance(self._layer, EagleThreeLayer) and self._layer.mask_token is not None:
                token, state = self._layer.masked_pair()
                states, text = state.expand_as(states), torch.full_like(text, token)
            else:  # a state predicted at a token is paired with the next token
                states = functional.pad(states[:, :-1], (0, 0, 1, 0))

    def _noisy(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """[B, T, H] states with uniform noise, scaled by each window's root mean square."""
        # Neither scale nor noise of a window depends on the padding that other windows of its batch need.
        read = (texts_of(tokens) != FILLER).unsqueeze(2).expand_as(hidden)
        mean_square = (hidden.square() * read).sum((1, 2), keepdim=True) / read.sum((1, 2), keepdim=True)
        uniforms = uniforms_per_window(tokens, tokens.shape[-1], hidden.shape[2])[:, : hidden.shape[1]].to(hidden)
        return hidden + self._noise * mean_square.sqrt() * (2 * uniforms - 1)

    @torch.no_grad()
    def _log_p(self, hidden: Tensor) -> Tensor:
        """[B, L, V] log-probabilities of the target after all tokens but the first."""
        return self._ends.scored(hidden[:, 1:]).float().log_softmax(-1)

    def _p(self, hidden: Tensor) -> Tensor:
        """[B, L, Vd] probabilities of the target for the draft vocabulary's tokens, after all tokens but the first."""
        p, support = self._log_p(hidden).exp(), self._layer.support
        return p if support is None else p[..., support]

    def _log_q(self, states: Tensor) -> Tensor:
        return self._layer.scored(states).float().log_softmax(-1)


class _Pairs:
    """Keys and values of all depths so far, concatenated."""

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        self._keys.append(keys)
        self._values.append(values)
        return torch.cat(self._keys, 2), torch.cat(self._values, 2)


def layer_config(target: Target) -> LlamaConfig:
    """Config of a layer to be trained for a target, as wide as its states."""
    config, hidden = target.model.model.config.get_text_config(), TargetEnds(target).hidden_size
    heads = max(hidden // HEAD_WIDTH, 1) if hidden % HEAD_WIDTH == 0 else 1
    return LlamaConfig(
        vocab_size=target.vocabulary_size,
        hidden_size=hidden,
        intermediate_size=getattr(config, "intermediate_size", None) or 4 * hidden,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        max_position_embeddings=target.model.context,
    )
