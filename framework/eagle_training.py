"""EAGLE's layer is fitted to the target's states and laws, while the target stays frozen.

B rows, T tokens, L = T - 1 pairs of a state and the token behind it, H hidden, V vocabulary, n windows.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from framework.eagle_layer import EagleLayer, save_eagle
from framework.medusa_training import WINDOWS_AT_ONCE, output_layer_input
from framework.target import Target
from framework.trainable import FILLER, texts_of
from framework.whole_numbers import check_whole

EVALUATED_DEPTHS = 4


class EagleTraining:
    """Minimises sum_d discount^(d-1) (a SmoothL1(f, f_d) + b CE(p, q_d)): f_d is the state predicted d tokens deep.

    At depth 1 all states read are the target's, with noise (EAGLE; Li et al., 2024, 2401.15077: a = 1, b = 0.1, one
    depth). A deeper one reads what the last one predicted, as drafting does (EAGLE-3's training-time test; Li et al.,
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
            depths: how many tokens deep predictions are trained, >= 1.
            discount: in (0, 1], what a depth weighs of the one before it.
            feature_weight: a >= 0.
            token_weight: b >= 0.
            noise: >= 0; so much, up or down, is added to every number of the states that are read, evenly drawn, as a
                share of their root mean square.

        Raises:
            ValueError: a knob out of its range.
        """
        check_whole("training.trainable.depths", depths, least=1)
        for key, holds, value, allowed in (
            ("discount", 0 < discount <= 1, discount, "a number in (0, 1]"),
            ("feature_weight", feature_weight >= 0, feature_weight, "a number >= 0"),
            ("token_weight", token_weight >= 0, token_weight, "a number >= 0"),
            ("token_weight", feature_weight or token_weight, token_weight, "a number > 0, if feature_weight is 0"),
            ("noise", noise >= 0, noise, "a number >= 0"),
        ):
            if not holds:
                raise ValueError(f"training.trainable.{key} is {value!r}; allowed: {allowed}")
        self._layer = EagleLayer(target).float()
        self.module: nn.Module = self._layer
        self._target = target
        self._depths, self._discount, self._noise = depths, discount, noise
        self._feature_weight, self._token_weight = feature_weight, token_weight

    def loss(self, tokens: Tensor) -> Tensor:
        """Scalar; tokens [B, T] or [B, 2, T] int64.

        Raises:
            ValueError: T < depths + 1, so that some depth has nothing to predict.
        """
        if tokens.shape[-1] <= self._depths:
            raise ValueError(
                f"training.window is {tokens.shape[-1]}; allowed: at least {self._depths + 1}, one more than "
                "training.trainable.depths"
            )
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
        """Per depth: how much the two laws share, which is alpha at T=1, and how often their best token is the same.

        The tokens before are those of the text, all states since the first of the draft predicted ones.
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
            if not number:  # all texts end before
                break
            found[f"depth {depth} overlap"] = shared / number
            found[f"depth {depth} top-1"] = agrees / number
        return found

    def save(self, folder: Path, held_out: Tensor) -> None:
        """Write the layer."""
        save_eagle(folder, self._layer, target=self._target)

    def _predicted(self, hidden: Tensor, tokens: Tensor, depths: int) -> Iterator[Tensor]:
        """Per depth d = 0, 1, ...: [B, L - d, H] the states predicted at tokens d + 1, d + 2, ... of the text.

        A pair sees those of the target's states up to where its draft begins, and behind it the predictions of its own
        draft: at every depth one pair, which is as much deeper as it stands further on.
        """
        num_pairs = tokens.shape[-1] - 1
        place = torch.arange(num_pairs, device=hidden.device)
        away = place - place.unsqueeze(1)  # [L, L]: from a pair to what it may see
        states, text, pairs = hidden[:, :-1], texts_of(tokens)[:, 1:], _Pairs()
        for depth in range(depths):
            own = [away == deeper - depth for deeper in range(1, depth + 1)]
            mask = torch.cat([away <= -depth, *own], 1)
            states = self.module(states, text, place.unsqueeze(0), keep=pairs.add, mask=mask[None, None])
            yield states[:, depth:]
            states = functional.pad(
                states[:, :-1], (0, 0, 1, 0)
            )  # what was predicted at a token goes with the next one

    def _noisy(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        # The noise follows from the tokens: a step that is repeated is the same.
        dice = torch.Generator().manual_seed(int(tokens.sum()))
        scale = self._noise * hidden.square().mean().sqrt()
        return hidden + scale * (2 * torch.rand(hidden.shape, generator=dice).to(hidden) - 1)

    @torch.no_grad()
    def _log_p(self, hidden: Tensor) -> Tensor:
        """[B, L, V] of the target behind all tokens but the first."""
        return self._layer.scored(hidden[:, 1:]).float().log_softmax(-1)

    def _log_q(self, states: Tensor) -> Tensor:
        return self._layer.scored(states).float().log_softmax(-1)


class _Pairs:
    """Keys and values of all depths so far, one behind the other."""

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def add(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self._keys.append(keys)
        self._values.append(values)
        return torch.cat(self._keys, 2), torch.cat(self._values, 2)
