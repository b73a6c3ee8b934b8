"""Training of EAGLE's layer on the target's states and distributions; the target stays frozen.

B rows, T tokens, L = T - 1 pairs of a state and the token after it, H hidden, V vocabulary, n windows.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from framework.core.option_error import OptionError
from framework.core.validation import check_whole
from framework.heads.eagle_layer import EagleLayer, save_eagle
from framework.models.target import Target
from framework.training.future_tokens import WINDOWS_AT_ONCE, output_layer_input
from framework.training.trainable import FILLER, texts_of

EVALUATED_DEPTHS = 4


class EagleTraining:
    """Minimises sum_d discount^(d-1) (a SmoothL1(f, f_d) + b CE(p, q_d)), where f_d is the state predicted at depth d.

    Depth 1 reads the target's states with noise (EAGLE; Li et al., 2024, 2401.15077: a = 1, b = 0.1, one depth). Each
    further depth reads the predictions of the depth before, as drafting does (EAGLE-3's training-time test; Li et al.,
    2025, 2503.01840).
    """

    def __init__(
        self,
        target: Target,
        *,
        depths: int,
        discount: float,
        feature_weight: float,
        token_weight: float,
        noise: float,
    ):
        """
        Args:
            target: stays frozen.
            depths: number of trained depths, >= 1.
            discount: in (0, 1], weight of a depth relative to the one before it.
            feature_weight: a >= 0.
            token_weight: b >= 0, and > 0 if a is 0.
            noise: >= 0, amplitude of the uniform noise added to every entry of the target's states that are read, as a
                share of the states' root mean square.

        Raises:
            ValueError: an option out of range.
        """
        check_whole("depths", depths, least=1)
        for key, holds, value, allowed in (
            ("discount", 0 < discount <= 1, discount, "a number in (0, 1]"),
            ("feature_weight", feature_weight >= 0, feature_weight, "a number >= 0"),
            ("token_weight", token_weight >= 0, token_weight, "a number >= 0"),
            ("token_weight", feature_weight or token_weight, token_weight, "a number > 0, if feature_weight is 0"),
            ("noise", noise >= 0, noise, "a number >= 0"),
        ):
            if not holds:
                raise OptionError(key, value, allowed)
        self._layer = EagleLayer(target).float()
        self.module: nn.Module = self._layer
        self._target = target
        self._depths, self._discount, self._noise = depths, discount, noise
        self._feature_weight, self._token_weight = feature_weight, token_weight

    def loss(self, tokens: Tensor) -> Tensor:
        """Scalar loss of tokens [B, T] or [B, 2, T] int64.

        Raises:
            ValueError: T < depths + 1, so that some depth has no label.
        """
        if tokens.shape[-1] <= self._depths:
            allowed = f"at least {self._depths + 1}, one more than trainable.depths"
            raise OptionError("window", tokens.shape[-1], allowed)
        hidden = output_layer_input(self._target.model.model, tokens).float()
        wanted, log_p = hidden[:, 1:], self._log_p(hidden)
        known = texts_of(tokens)[:, 1:] != FILLER
        total = hidden.new_zeros(())
        for depth, states in enumerate(self._predicted(self._noisy(hidden, tokens), tokens, self._depths)):
            features = functional.smooth_l1_loss(states, wanted[:, depth:], reduction="none").mean(-1)
            nats = -(log_p[:, depth:].exp() * self._log_q(states)).sum(-1)
            each = self._feature_weight * features + self._token_weight * nats
            here = known[:, depth:]
            total = total + self._discount**depth * each.where(here, 0.0).sum() / here.sum().clamp(min=1)
        return total

    @torch.no_grad()
    def evaluate(self, tokens: Tensor) -> dict[str, float]:
        """Overlap Σ min(p, q), which is alpha at T=1, and top-1 agreement of target and layer, per depth.

        All tokens read are those of the text; the states are the layer's predictions from the start of a draft on.
        """
        depths = min(EVALUATED_DEPTHS, tokens.shape[-1] - 1)
        sums = torch.zeros(depths, 3, dtype=torch.float64)
        for windows in tokens.split(WINDOWS_AT_ONCE):
            hidden = output_layer_input(self._target.model.model, windows).float()
            p, known = self._log_p(hidden).exp(), texts_of(windows)[:, 1:] != FILLER
            for depth, states in enumerate(self._predicted(hidden, windows, depths)):
                q, here = self._log_q(states).exp(), known[:, depth:]
                shared = torch.minimum(p[:, depth:], q).sum(-1)
                agrees = p[:, depth:].argmax(-1) == q.argmax(-1)
                sums[depth] += torch.stack([(each * here).sum() for each in (shared, agrees, here)]).cpu()
        found = {}
        for depth, (shared, agrees, number) in enumerate(sums.tolist(), start=1):
            if not number:  # every text ends before this depth
                break
            found[f"depth {depth} overlap"] = shared / number
            found[f"depth {depth} top-1"] = agrees / number
        return found

    def save(self, folder: Path, held_out: Tensor) -> None:
        """Write the layer."""
        save_eagle(folder, self._layer, target=self._target)

    def _predicted(self, hidden: Tensor, tokens: Tensor, depths: int) -> Iterator[Tensor]:
        """Per depth d = 0, 1, ...: [B, L - d, H] states predicted at tokens d + 1, d + 2, ... of the text.

        A pair attends to pairs with the target's states up to the start of its draft, then to pairs of its own draft
        with predicted states: one per depth, each one position further.
        """
        num_pairs = tokens.shape[-1] - 1
        place = torch.arange(num_pairs, device=hidden.device)
        away = place - place.unsqueeze(1)  # [L, L]: offset from a pair to each other pair
        states, text, pairs = hidden[:, :-1], texts_of(tokens)[:, 1:], _Pairs()
        for depth in range(depths):
            own = [away == deeper - depth for deeper in range(1, depth + 1)]
            mask = torch.cat([away <= -depth, *own], 1)
            states = self.module(states, text, place.unsqueeze(0), keep=pairs.add, mask=mask[None, None])
            yield states[:, depth:]
            states = functional.pad(
                states[:, :-1], (0, 0, 1, 0)
            )  # a state predicted at a token is paired with the next token

    def _noisy(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        # The noise is a function of the tokens, so that a repeated step is identical.
        dice = torch.Generator().manual_seed(int(tokens.sum()))
        scale = self._noise * hidden.square().mean().sqrt()
        return hidden + scale * (2 * torch.rand(hidden.shape, generator=dice).to(hidden) - 1)

    @torch.no_grad()
    def _log_p(self, hidden: Tensor) -> Tensor:
        """[B, L, V] log-probabilities of the target after all tokens but the first."""
        return self._layer.scored(hidden[:, 1:]).float().log_softmax(-1)

    def _log_q(self, states: Tensor) -> Tensor:
        return self._layer.scored(states).float().log_softmax(-1)


class _Pairs:
    """Keys and values of all depths so far, concatenated."""

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def add(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self._keys.append(keys)
        self._values.append(values)
        return torch.cat(self._keys, 2), torch.cat(self._values, 2)
