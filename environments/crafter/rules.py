# Follows env.py of the package crafter 1.8.3. Copyright (c) 2021 Danijar Hafner, MIT License: see THIRD_PARTY.md.
"""One episode of Crafter: reproducible, fast, and rendered only on request.

It follows the rules of the `crafter` package 1.8.3 (Danijar Hafner, MIT), which is not modified. Two
differences from its `Env` do not change the game. Collections that stock Crafter iterates in the order of
memory addresses have a fixed order here. The noise at night, which stock Crafter draws from the world's
random stream while rendering, is drawn once per step, regardless of how often the step is rendered.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import picture, view
from .names import ACTIONS, DEFAULT_LENGTH, MAX_ACTIONS_PER_CALL
from .randomness import RandomStream
from .terrain import generate
from .world import Cow, Player, Skeleton, World, Zombie, balance
from .worlds import WORLDS, WorldCache

UPDATE_DISTANCE = 18
"""Only things that are nearer to the player than this distance (in city blocks) act. The others are paused."""

_ACTIONS = frozenset(ACTIONS)


class UnknownActionError(ValueError):
    """The action is not one of the 17 names; nothing was done."""


class EpisodeOverError(RuntimeError):
    """An action came after the end of the episode; nothing was done."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one game step.

    `reward`: 1.0 if anything was unlocked for the first time, plus a tenth of the change in health.
    `unlocked`: the achievements unlocked for the first time. `terminated`: the player died. `truncated`:
    the limit of steps was reached alive. `step`: steps done so far.
    """

    reward: float
    unlocked: tuple[str, ...]
    terminated: bool
    truncated: bool
    step: int


@dataclass(frozen=True, slots=True)
class Interaction:
    """The result of one call with several actions; `rewards` and `actions` list only what was done."""

    reward: float
    rewards: tuple[float, ...]
    actions: tuple[str, ...]
    unlocked: tuple[str, ...]
    terminated: bool
    truncated: bool
    step: int


class CrafterGame:
    """One episode; a new object for each. Can be pickled and deep-copied, which branches the episode."""

    def __init__(
        self,
        seed: int,
        *,
        length: int = DEFAULT_LENGTH,
        area: tuple[int, int] = (64, 64),
        initial_episode: int = 1,
        worlds: WorldCache | None = None,
    ) -> None:
        """Start the episode that `crafter.Env(seed=seed)` starts at its `initial_episode`-th reset.

        `length`: steps until truncation, at least 1. `area`: width and height of the world in cells, 9 to
        256 each. `worlds`: the cache of worlds; default the one of this process. Raises ValueError.
        """
        self.seed = _whole("seed", seed, 0, 2**63 - 1)
        self.length = _whole("length", length, 1, 10**9)
        episode = _whole("initial_episode", initial_episode, 1, 2**31)
        width, height = (_whole("area", side, 9, 256) for side in area)
        blueprint = (WORLDS if worlds is None else worlds).get(self.seed, episode, (width, height))
        self._world = World((width, height), blueprint.terrain, RandomStream.restore(blueprint.random))
        self._world.daylight = daylight(0)
        self._player: Any = Player(self._world, (width // 2, height // 2))
        self._world.add(self._player)
        for kind, x, y in blueprint.creatures:
            if kind == "cow":
                self._world.add(Cow(self._world, (x, y)))
            else:
                creature = Zombie if kind == "zombie" else Skeleton
                self._world.add(creature(self._world, (x, y), self._player))
        self._step = 0
        self._last_health = 9
        self._unlocked: dict[str, None] = {}
        self._night: NDArray[np.float64] | None = None
        self._terminated = self._truncated = False

    def step(self, action: str) -> Outcome:
        """Do one of the 17 actions. Raises UnknownActionError or EpisodeOverError, changing nothing."""
        self._check_running()
        self._check_action(action)
        world, player = self._world, self._player
        self._step += 1
        world.daylight = light = daylight(self._step)
        player.action = action
        for thing in world.objects:
            x, y = player.pos  # read again for each thing, because the player acts first and may have moved
            pos = thing.pos
            if abs(x - pos[0]) + abs(y - pos[1]) < UPDATE_DISTANCE:
                thing.update()
        if self._step % 10 == 0:
            balance(world, player)
        self._night = world.random.uniform(picture.NIGHT_DRAWS) if light < 0.5 else None

        health = int(player.health)
        reward = (health - self._last_health) / 10
        self._last_health = health
        unlocked: tuple[str, ...] = ()
        achievements = player.achievements
        if sum(map(bool, achievements.values())) > len(self._unlocked):
            unlocked = tuple(name for name, count in achievements.items() if count and name not in self._unlocked)
            self._unlocked.update(dict.fromkeys(unlocked))
            reward += 1.0
        self._terminated = health <= 0
        self._truncated = self._step >= self.length and not self._terminated
        return Outcome(reward, unlocked, self._terminated, self._truncated, self._step)

    def interact(self, actions: Sequence[str]) -> Interaction:
        """Do 1 to 8 actions in order, stopping at the end of the episode.

        Every name is checked before anything is done. Raises ValueError for another number of actions,
        UnknownActionError or EpisodeOverError; then nothing has changed.
        """
        self._check_running()
        if isinstance(actions, str) or not 1 <= len(actions) <= MAX_ACTIONS_PER_CALL:
            raise ValueError(f"interact takes a list of 1 to {MAX_ACTIONS_PER_CALL} action names, not {actions!r}")
        for action in actions:
            self._check_action(action)
        outcomes = []
        for action in actions:
            outcomes.append(self.step(action))
            if self.over:
                break
        rewards = tuple(outcome.reward for outcome in outcomes)
        return Interaction(
            reward=sum(rewards),
            rewards=rewards,
            actions=tuple(actions[: len(outcomes)]),
            unlocked=tuple(name for outcome in outcomes for name in outcome.unlocked),
            terminated=self._terminated,
            truncated=self._truncated,
            step=self._step,
        )

    @property
    def over(self) -> bool:
        """Whether the episode has ended, by death or by the limit of steps."""
        return self._terminated or self._truncated

    @property
    def steps(self) -> int:
        """Game steps done so far."""
        return self._step

    @property
    def inventory(self) -> dict[str, int]:
        """Vitals and items, each 0 to 9; a copy."""
        return {name: int(amount) for name, amount in self._player.inventory.items()}

    @property
    def achievements(self) -> dict[str, int]:
        """How often each of the 22 was done in this episode; a copy."""
        return {name: int(count) for name, count in self._player.achievements.items()}

    @property
    def unlocked(self) -> tuple[str, ...]:
        """The achievements done at least once, in the order in which they were unlocked."""
        return tuple(self._unlocked)

    @property
    def position(self) -> tuple[int, int]:
        """The player's position, (x, y) in cells from the upper left corner. Never shown to an agent."""
        x, y = self._player.pos
        return x, y

    @property
    def sleeping(self) -> bool:
        """Whether the player sleeps; then every action counts as `sleep`."""
        return bool(self._player.sleeping)

    def observe(self) -> str:
        """Return the text that an agent may see (see `view`): about 400 characters."""
        return view.describe(self._world, self._player, self._step, self.length, self._unlocked)

    def render(self, size: int | tuple[int, int] = 64) -> NDArray[np.uint8]:
        """Return the image of stock Crafter: height x width x 3, uint8; `size` is a side or (w, h).

        The 9 x 9 grid of the paper: 9 x 7 cells of the world, below it the inventory. Painting never
        changes the episode, at any size, however often. Raises ValueError unless each side is 18 to 2048
        pixels.
        """
        return picture.paint(self._world, self._player, self._night, size)

    def _check_running(self) -> None:
        if self.over:
            how = "the player died" if self._terminated else f"the limit of {self.length} steps was reached"
            raise EpisodeOverError(f"the episode ended at step {self._step}: {how}; start a new one to continue")

    @staticmethod
    def _check_action(action: object) -> None:
        if not isinstance(action, str) or action not in _ACTIONS:
            raise UnknownActionError(f"{action!r} is not an action of Crafter; the 17 names are: {', '.join(ACTIONS)}")


def warm_up(*, images: bool = False) -> None:
    """Do a process's one-time work now: compiles world generation; loads textures if `images`."""
    generate(0, 1, (64, 64))
    if images:
        picture.textures()


@lru_cache(maxsize=65_536)
def daylight(step: int) -> float:
    """Daylight at a step, 0 (midnight) to 1; a day has 300 steps. Below 0.5 it is night."""
    progress = (step / 300) % 1 + 0.3
    return float(1 - np.abs(np.cos(np.pi * progress)) ** 3)


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
        raise ValueError(f"{name} must be an integer from {least} to {most}, not {value!r}")
    return int(value)
