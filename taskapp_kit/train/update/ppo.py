"""The part of ppo that other losses do not have: values, the advantages that follow from them, and the values' own loss.

    rows with rewards -> the policy's features -> values -> advantages and returns -> rows with these advantages
                                                        `-> steps of the value head towards the returns

The clipped ratio is that of `losses.py`. The head is one linear layer on the policy's last hidden state. Its loss changes
the head only: the weights of the policy are moved by the policy's loss alone, whatever the scale of the rewards.
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
"""Of the head's optimizer in each update, on all tokens of the batch. They cost little: the features are computed once."""

Features = Callable[[Sequence[TrainingRow]], Iterable[tuple[TrainingRow, torch.Tensor]]]
"""Gives each row, in any order, with the last hidden state after each of its tokens, (tokens, width), without a gradient."""


@dataclass(frozen=True, slots=True)
class ValueMetrics:
    """loss: before the head's first step, a mean over episodes as the policy's. explained_variance: 1 - Var(return - value)
    / Var(return) of all tokens, None where all returns are equal."""

    loss: float
    explained_variance: float | None


def generalised_advantages(
    rewards: Sequence[float], values: Sequence[float], *, after: float, discount: float, trace: float
) -> list[float]:
    """Return A_t = d_t + discount · trace · A_(t+1), with d_t = r_t + discount · V_(t+1) - V_t, for each sampled token.

    rewards: r_t, given after token t. values: V_t, before token t. after: the value after the last token, 0.0 where the
    episode has ended.
    """
    advantages: list[float] = []
    later, following = 0.0, after
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        later = reward + discount * following - value + discount * trace * later
        following = value
        advantages.append(later)
    return advantages[::-1]


def value_loss(values: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, clip: float | None) -> torch.Tensor:
    """Return for each token half the squared distance of value and return; with `clip`, never less than at the bound."""
    distances = (values - returns) ** 2
    if clip is not None:
        bounded = old + (values - old).clamp(-clip, clip)
        distances = torch.maximum(distances, (bounded - returns) ** 2)
    return distances / 2


class ValueHead:
    """Estimates the return that follows each token of a policy. At first every value is 0.

    width: of the policy's hidden state. For a checkpoint, `layer` and `optimizer` have a `state_dict` each.
    """

    def __init__(self, width: int, settings: PpoSettings, device: torch.device | str = "cpu") -> None:
        # With the policy's optimizer, a weight between rewards of any scale and log-probabilities would be needed, and an
        # adapter would be exported with the head.
        self.layer = torch.nn.Linear(width, 1, device=device)
        for parameter in self.layer.parameters():
            torch.nn.init.zeros_(parameter)
        self.optimizer = torch.optim.AdamW(self.layer.parameters(), lr=settings.value_learning_rate, weight_decay=0.0)
        self._settings = settings

    def learn(self, rows: Sequence[TrainingRow], features: Features) -> tuple[list[TrainingRow], ValueMetrics]:
        """Return the rows with advantages by the values as they are, then move the values towards the returns."""
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
        """values: of each row's trained tokens. after: of episodes that a limit ended."""
        settings = self._settings
        episodes: dict[str, list[tuple[int, int, int, float, float]]] = {}
        """For each token: its turn, its row, its position, its reward and its value."""
        for place, row in enumerate(rows):
            sampled = [(turn, at) for turn in row.turns for at in range(turn.start, turn.stop)]
            for (turn, at), value in zip(sampled, values[place], strict=True):
                reward = turn.reward if at == turn.stop - 1 else 0.0
                episodes.setdefault(row.rollout, []).append((turn.index, place, at, reward, value))
        advantages = [[0.0] * len(row.ids) for row in rows]
        for name, tokens in episodes.items():
            tokens.sort()  # by turn: branches are in different rows
            found = generalised_advantages(
                [token[3] for token in tokens],
                [token[4] for token in tokens],
                # It would also forgive a policy that goes on until its context is full.
                # undiscounted, a value that stands for itself would grow with each update
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
    """Return the states with length 1: one learning rate then suits models of any width and scale."""
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
