"""Turns TextArena's games into ours: `app.environment("hanoi", ...)(from_textarena("TowerOfHanoi-v0"))`.

Written against TextArena 0.7.4 (PyPI; github.com/LeonGuertler/TextArena, MIT): `make(id, **options)`, `reset(num_players,
seed)`, `step(action) -> done, info`, `state.observations`, `close() -> rewards, game_info`. Needs the extra
`taskapp-kit[textarena]`. Guarantees:

- The games draw from the process's `random`; here each episode has a generator of its own, made of its seed, that the
  package's modules find in its place. So the same seed and moves give the same game, whatever else runs in the process.
- Each message of the game is shown once, in the step after which the player may read it.
- Another seat is played by a model of the operator's (`context.model`) or by a function of the author's. A model that gives
  no answer is a failure of the rollout, never a lost game.
"""

from __future__ import annotations

import random
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from pydantic import Field

from taskapp_kit.declare.marks import action
from taskapp_kit.declare.signature import finished
from taskapp_kit.errors import ConfigError, DeclarationError, InvalidAction
from taskapp_kit.interop.class_parts import ClassParts, require
from taskapp_kit.records.trajectory import Step

MAX_MOVE_CHARACTERS = 10_000
"""A longer move is refused."""
MAX_TURNS_OF_OTHERS = 1000
"""Turns of other seats between two of the player's; a game that takes more is at fault."""
OPPONENT = "opponent"
"""The role of the model that plays the other seats."""

Opponent = str | Callable[[str, random.Random], str]
Move = Annotated[str, Field(max_length=MAX_MOVE_CHARACTERS)]


def from_textarena(
    game: str,
    *,
    players: int = 1,
    seat: int = 0,
    opponent: Opponent = OPPONENT,
    sample: Callable[[random.Random], str] | None = None,
    configurable: Mapping[str, Any] | None = None,
    **options: Any,
) -> type[TextArenaEnvironment]:
    """Return a class for `app.environment(...)` that plays a game of TextArena.

        app.environment("hanoi", splits={"train": range(1000)}, isolation="process")(from_textarena("TowerOfHanoi-v0"))

    game: an id of TextArena's registry. options: those of the game, passed to `textarena.make`. configurable: options that a
    caller may set in env.config, name to default (bool, int, float, str) or to (annotation, default). sample: `fn(rng) ->
    move`, for the policy `random`.

    players: seats of the game; seat: the policy's, from 0. opponent: who plays the others, the role of a model
    (`TASKAPP_OPPONENT_URL` and so on) or `fn(observation, rng) -> move`, where rng is the episode's.

    The reward is the game's own at its end, None before. A game that does not exist, or cannot be made or begun, is a
    ConfigError when a process sets up. Raises Unavailable: TextArena is not installed.
    """
    require("from_textarena", "textarena", "TextArena", "textarena")
    parts = ClassParts("from_textarena", str(game), sys._getframe(1))
    try:
        if players < 1 or seat not in range(players):
            raise parts.wrong(f"has players={players}, seat={seat}", "a seat below the number of players", "fix them")
        configurable = configurable or {}
        members = {
            "__doc__": f"Play {game.partition('-v')[0]}. Write your move as the game asks for it.",
            "__module__": parts.module,
            "__init__": parts.constructor(configurable, TextArenaEnvironment.open),
            "move": _move(sample),
            "say": _say(sample),
            "game": game,
            "players": players,
            "seat": seat,
            "_opponent": staticmethod(opponent) if callable(opponent) else opponent,
            "auxiliary_models": () if callable(opponent) or players == 1 else (opponent,),
            "_options": options,
            "_defaults": parts.defaults(configurable),
        }
        return type(re.sub(r"\W", "_", game), (TextArenaEnvironment,), members)
    except DeclarationError as error:
        return parts.without_environment(error, TextArenaEnvironment)


class TextArenaEnvironment:
    """One game of TextArena; `from_textarena` makes the subclasses that an app declares.

    env: TextArena's environment, wrappers included. rng: the generator that the game draws from, after `reset`.
    """

    game: str
    players: int
    seat: int
    _opponent: Opponent
    _options: Mapping[str, Any]
    _defaults: Mapping[str, Any]

    @classmethod
    def setup_worker(cls) -> None:
        """Make and begin one game. Raises ConfigError."""
        try:
            with _drawing_from(random.Random(0)):
                _made(cls.game, {**cls._options, **cls._defaults}).reset(num_players=cls.players, seed=0)
        except (
            Exception
        ) as error:  # games refuse what they cannot do in many ways, a SyntaxError of their own among them
            raise ConfigError(
                f"from_textarena({cls.game!r}) cannot begin a game with {cls.players} players: "
                f"{type(error).__name__}: {str(error).strip().split(chr(10), 1)[0]}"
            ) from error

    def open(self, options: dict[str, Any]) -> None:
        """Take the options. Raises ValueError for those that the game does not take."""
        self.options = {**self._options, **options}
        try:
            with _drawing_from(random.Random(0)):
                _made(self.game, self.options)
        except (AssertionError, TypeError) as error:
            raise ValueError(f"{self.game}: {error}") from error

    def reset(self, seed: int, context: Any) -> str:
        """Make and begin the game; return what the player reads before the first move."""
        self.rng = random.Random(seed)
        self.context = context
        self._talks: dict[int, list[dict[str, str]]] = {}
        with _drawing_from(self.rng):
            # made here, because some games draw, or take the function that draws, when they are made
            self.env: Any = _made(self.game, self.options)
            self.env.reset(num_players=self.players, seed=seed)
        self.state: Any = self.env.state
        self._done = False
        self._others()
        return self._news(self.seat)

    def step(self, text: str) -> Step:
        """Make a move, then those of the other seats until it is the player's turn again, or the game is over."""
        self._take(text)
        self._others()
        reward, info = self._result() if self._done else (None, {})
        return Step(self._news(self.seat), reward, terminated=self._done, info=info)

    def _take(self, text: str) -> None:
        with _drawing_from(self.rng):
            self._done, _ = self.env.step(action=text)

    def _others(self) -> None:
        """Play the other seats. Raises what the opponent raises."""
        for _ in range(MAX_TURNS_OF_OTHERS):
            seat = self.state.current_player_id
            if self._done or seat == self.seat:
                return
            news = self._news(seat)
            if callable(self._opponent):
                self._take(finished(self._opponent(news, self.rng)))
                continue
            talk = self._talks.setdefault(seat, [])
            talk.append({"role": "user", "content": news})
            reply = self.context.model(self._opponent).ask(talk)
            said = str(reply.message.get("content") or "")
            talk.append({"role": "assistant", "content": said})
            self._take(said.rpartition("</think>")[2].strip())
        raise RuntimeError(
            f"{self.game} took {MAX_TURNS_OF_OTHERS} turns of other seats, and seat {self.seat} had none"
        )

    def _news(self, seat: int) -> str:
        """The messages for a seat that it has not read, without its own moves."""
        messages, self.state.observations[seat] = self.state.observations[seat], []
        return "\n".join(
            f"[{self.state.role_mapping.get(sender, f'Player {sender}')}] {message}"
            for sender, message, *_ in messages
            if sender != seat
        ).strip()

    def _result(self) -> tuple[float | None, dict[str, Any]]:
        """The reward of the seat, and the game's words about its end."""
        rewards, told = self.env.close()
        reward = None if rewards is None else rewards.get(self.seat)
        mine = told.get(self.seat, {})
        info = {name: mine[name] for name in ("reason", "invalid_move", "turn_count") if name in mine}
        if self.players > 1 and rewards is not None:
            info["rewards"] = {str(player): float(value) for player, value in rewards.items()}
        return reward, info


def _move(sample: Callable[[random.Random], str] | None) -> Any:
    """The tool of a class; each class has its own sampler."""

    @action(sample=None if sample is None else lambda rng: {"move": finished(sample(rng))})
    def move(self: TextArenaEnvironment, move: Move) -> Step:
        """Make a move, in the form that the game asks for."""
        return self.step(move)

    return move


def _say(sample: Callable[[random.Random], str] | None) -> Any:
    @action(text=True, sample=sample)
    def say(self: TextArenaEnvironment, text: str) -> Step:
        """Make a move: the game reads all that you write, without what comes before a </think>."""
        move = text.rpartition("</think>")[2].strip()
        if len(move) > MAX_MOVE_CHARACTERS:
            raise InvalidAction(f"Nothing was done: a move has at most {MAX_MOVE_CHARACTERS} characters.")
        return self.step(move)

    return say


# -- the package's random numbers ---------------------------------------------------------------------------------

_current = threading.local()


class EpisodeRandom:
    """Stands in for the module `random` in the package's modules: the functions of the current episode's generator."""

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(_current, "rng", random), name, None) or getattr(random, name)


_stand_in = EpisodeRandom()


@contextmanager
def _drawing_from(rng: random.Random) -> Iterator[None]:
    """In this thread, TextArena's modules draw from `rng`."""
    before = getattr(_current, "rng", random)
    _current.rng = rng
    try:
        yield
    finally:
        _current.rng = before


def _made(game: str, options: Mapping[str, Any]) -> Any:
    """A game, whose modules find the stand-in. Raises what the game raises; ValueError if there is no such game."""
    import textarena

    made = textarena.make(game, **options)
    drew = [
        module  # a game's modules load with its first instance
        for name, module in list(sys.modules.items())
        if name.startswith("textarena.") and getattr(module, "random", None) is random
    ]
    for module in drew:
        module.random = _stand_in  # type: ignore[attr-defined]
    return textarena.make(game, **options) if drew else made
