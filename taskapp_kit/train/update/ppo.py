"""The parts of ppo that other losses do not have: values, advantages computed from values, and the loss of the values.

    rows with rewards -> the policy's features -> values -> advantages and returns -> rows with these advantages
                                                        `-> steps of the value head towards the returns

`losses.py` computes the clipped ratio. The value head is one linear layer on the policy's last hidden state. The loss
of the values only changes the head, so the scale of the rewards does not affect the policy's weights through this loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from taskapp_kit.train.advantages import EPSILON
from taskapp_kit.train.turns import TrainingRow
from taskapp_kit.train.update.losses import mean
from taskapp_kit.train.update.update_settings import PpoSettings

VALUE_STEPS = 8
"""Number of optimizer steps of the head in each update. They are cheap, because features are computed only once."""

Features = Callable[[Sequence[TrainingRow]], Iterable[tuple[TrainingRow, torch.Tensor]]]
"""A function that returns the rows in any order, with the last hidden states (tokens, width) without a gradient."""


@dataclass(frozen=True, slots=True)
class ValueMetrics:
    """The metrics of the value head.

    Attributes:
        loss: The loss before the head's first step, as a mean over episodes.
        explained_variance: 1 - Var(return - value) / Var(return) over all tokens, or None if all returns are equal.
    """

    loss: float
    explained_variance: float | None


def generalised_advantages(
    rewards: Sequence[float], values: Sequence[float], *, after: float, discount: float, trace: float
) -> list[float]:
    """Return A_t = d_t + discount · trace · A_(t+1), with d_t = r_t + discount · V_(t+1) - V_t, for each sampled token.

    Args:
        rewards: r_t, the reward after token t.
        values: V_t, the value before token t.
        after: The value after the last token, or 0.0 if the episode has ended.
        discount: The discount per token.
        trace: The decay of later differences per token.
    """
    advantages: list[float] = []
    later, following = 0.0, after
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        later = reward + discount * following - value + discount * trace * later
        following = value
        advantages.append(later)
    return advantages[::-1]


def value_loss(values: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, clip: float | None) -> torch.Tensor:
    """Return half the squared distance between value and return for each token.

    With `clip`, the result is at least the loss of the value clipped to `old` ± `clip`.
    """
    distances = (values - returns) ** 2
    if clip is not None:
        bounded = old + (values - old).clamp(-clip, clip)
        distances = torch.maximum(distances, (bounded - returns) ** 2)
    return distances / 2


class ValueHead:
    """Estimates the return after each token of a policy.

    All initial values are 0. `width` is the size of the policy's hidden state.
    """

    def __init__(self, width: int, settings: PpoSettings, device: torch.device | str = "cpu") -> None:
        # With a shared optimizer, the two losses would need relative weights, and exported adapters would contain the head.
        self.layer = torch.nn.Linear(width, 1, device=device)
        for parameter in self.layer.parameters():
            torch.nn.init.zeros_(parameter)
        self.optimizer = torch.optim.AdamW(self.layer.parameters(), lr=settings.value_learning_rate, weight_decay=0.0)
        self._settings = settings

    def learn(self, rows: Sequence[TrainingRow], features: Features) -> tuple[list[TrainingRow], ValueMetrics]:
        """Return the rows with advantages from the current values, and train the values on the returns."""
        inputs: list[torch.Tensor] = []
        weights: list[float] = []
        ends: dict[str, torch.Tensor] = {}
        episodes = len({row.rollout for row in rows})
        found: list[TrainingRow] = []
        for row, states in features(rows):
            found.append(row)
            states = normalised(states)
            inputs.append(states[[at - 1 for at, on in enumerate(row.mask) if on]])
            weights += [row.weight / max(row.trained, 1) / episodes] * row.trained
            if row.truncated and row.turns[-1].last:
                ends[row.rollout] = states[row.turns[-1].stop - 1]
        tokens = torch.cat(inputs)
        with torch.no_grad():
            old = self._values(tokens)
            after = {name: float(self._values(state)) for name, state in ends.items()}
        values = old.split([row.trained for row in found])
        made = self._with_advantages(found, [each.tolist() for each in values], after)
        gains = [gain for row in made for gain, on in zip(row.advantages, row.mask, strict=True) if on]
        returns = old + torch.tensor(gains, device=old.device)
        metrics = self._step(tokens, old, returns, torch.tensor(weights, device=old.device))
        return (whitened(made) if self._settings.whitened else made), metrics

    def _values(self, states: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.layer(states).squeeze(-1)
        return values

    def _with_advantages(
        self, rows: Sequence[TrainingRow], values: Sequence[Sequence[float]], after: dict[str, float]
    ) -> list[TrainingRow]:
        """Return the rows with advantages.

        `values` contains the values of the trained tokens of each row. `after` maps each rollout that a limit ended to
        the value after its last token.
        """
        settings = self._settings
        episodes: dict[str, list[tuple[int, int, int, float, float]]] = {}
        """The turn, row, position, reward and value of each token."""
        for place, row in enumerate(rows):
            sampled = [(turn, at) for turn in row.turns for at in range(turn.start, turn.stop)]
            for (turn, at), value in zip(sampled, values[place], strict=True):
                reward = turn.reward if at == turn.stop - 1 else 0.0
                episodes.setdefault(row.rollout, []).append((turn.index, place, at, reward, value))
        advantages = [[0.0] * len(row.ids) for row in rows]
        for name, tokens in episodes.items():
            tokens.sort()  # sorted by turn, because branches are in different rows
            found = generalised_advantages(
                [token[3] for token in tokens],
                [token[4] for token in tokens],
                # Without a discount, a value that is its own target would grow with each update, and the policy would not be
                # penalized for continuing until its context is full.
                after=after.get(name, 0.0) if settings.discount < 1 else 0.0,
                discount=settings.discount,
                trace=settings.gae_lambda,
            )
            for (_, place, at, _, _), advantage in zip(tokens, found, strict=True):
                advantages[place][at] = advantage
        return [replace(row, advantages=tuple(each)) for row, each in zip(rows, advantages, strict=True)]

    def _step(
        self, tokens: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, weights: torch.Tensor
    ) -> ValueMetrics:
        first = None
        for _ in range(VALUE_STEPS):
            self.optimizer.zero_grad(set_to_none=True)
            loss = (value_loss(self._values(tokens), old, returns, self._settings.value_clip) * weights).sum()
            first = float(loss.detach()) if first is None else first
            loss.backward()
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        spread = float(returns.var(correction=0))
        explained = 1 - float((returns - old).var(correction=0)) / spread if spread > 0 else None
        return ValueMetrics(first or 0.0, explained)


def normalised(states: torch.Tensor) -> torch.Tensor:
    """Return the states scaled to length 1, so that one learning rate suits models of any width and scale."""
    return torch.nn.functional.normalize(states.float(), dim=-1)


def whitened(rows: Sequence[TrainingRow]) -> list[TrainingRow]:
    """Return the rows with their advantages shifted and scaled to mean 0 and deviation 1 over all trained tokens."""
    values = torch.tensor(
        [value for row in rows for value, on in zip(row.advantages, row.mask, strict=True) if on], dtype=torch.float64
    )
    middle, deviation = mean(values) or 0.0, float(values.std()) if len(values) > 1 else 0.0
    return [
        replace(
            row,
            advantages=tuple(
                (value - middle) / (deviation + EPSILON) if on else 0.0
                for value, on in zip(row.advantages, row.mask, strict=True)
            ),
        )
        for row in rows
    ]
