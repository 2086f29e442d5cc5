"""`from_textarena`: a game of TextArena as an environment of an app.

Written against TextArena 0.7.4 (PyPI; github.com/LeonGuertler/TextArena, MIT): `make(id, **options)`, `reset(num_players,
seed)`, `step(action) -> done, info`, `state.observations`, `close() -> rewards, game_info`. Needs the extra
`taskapp-kit[textarena]`. Guarantees:

- The games draw from the process's `random`. Here the package's modules get a generator per episode instead, made from its
  seed, so the same seed and moves give the same game, independent of the rest of the process.
- Each message of the game is shown once, in the step after which the player may read it.
- Other seats are played by a model of the operator (`context.model`) or by a function of the author. A model that does not
  answer is a failure of the rollout, never a lost game.
"""

from __future__ import annotations

import random
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
"""The maximum number of other seats' turns between two turns of the player. More is an error of the game."""
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

    The reward is the game's own at its end, and None before. A game that does not exist, or cannot be made or begun, is a
    ConfigError when a process sets up.

    Args:
        game: An id of TextArena's registry.
        players: The number of seats.
        seat: The policy's seat, from 0.
        opponent: Who plays the other seats: the role of a model (`TASKAPP_OPPONENT_URL` and so on), or
            `fn(observation, rng) -> move` with the episode's rng.
        sample: `fn(rng) -> move`, for the policy `random`.
        configurable: Options that a caller may set in env.config: name to default (bool, int, float, str) or to
            (annotation, default).
        **options: Options of the game, passed to `textarena.make`.

    Returns:
        A subclass of `TextArenaEnvironment`.

    Raises:
        Unavailable: TextArena is not installed.
    """
    require("from_textarena", "textarena", "TextArena", "textarena")
    parts = ClassParts("from_textarena", str(game), sys._getframe(1))
    try:
        if players < 1 or seat not in range(players):
            raise parts.wrong(f"has players={players}, seat={seat}", "a seat below the number of players", "fix them")
        configurable = configurable or {}
        members = {
            "__doc__": f"Play {game.partition('-v')[0]}. Write your move as the game asks for it.",
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
        return parts.made(TextArenaEnvironment, game, members)
    except DeclarationError as error:
        return parts.without_environment(error, TextArenaEnvironment)


class TextArenaEnvironment:
    """A game of TextArena. `from_textarena` makes the subclasses that an app declares.

    Attributes:
        env: TextArena's environment with its wrappers.
        rng: The generator that the game draws from, after `reset`.
    """

    game: str
    players: int
    seat: int
    _opponent: Opponent
    _options: Mapping[str, Any]
    _defaults: Mapping[str, Any]

    @classmethod
    def setup_worker(cls) -> None:
        """Make and begin a game. Raises ConfigError."""
        try:
            with _drawing_from(random.Random(0)):
                _made(cls.game, {**cls._options, **cls._defaults}).reset(num_players=cls.players, seed=0)
        except Exception as error:  # games raise any exception, including their own SyntaxError
            raise ConfigError(
                f"from_textarena({cls.game!r}) cannot begin a game with {cls.players} players: "
                f"{type(error).__name__}: {str(error).strip().split(chr(10), 1)[0]}"
            ) from error

    def open(self, options: dict[str, Any]) -> None:
        """Store the options. Raises ValueError if the game rejects them."""
        self.options = {**self._options, **options}
        try:
            with _drawing_from(random.Random(0)):
                _made(self.game, self.options)
        except (AssertionError, TypeError) as error:
            raise ValueError(f"{self.game}: {error}") from error

    def reset(self, seed: int, context: Any) -> str:
        """Make and begin the game, and return what the player reads before the first move."""
        self.rng = random.Random(seed)
        self.context = context
        self._talks: dict[int, list[dict[str, str]]] = {}
        with _drawing_from(self.rng):
            # made here, because some games draw, or store the drawing function, when they are made
            self.env: Any = _made(self.game, self.options)
            self.env.reset(num_players=self.players, seed=seed)
        self.state: Any = self.env.state
        self._done = False
        self._others()
        return self._news(self.seat)

    def step(self, text: str) -> Step:
        """Make a move, then the other seats' moves until the player's next turn or the end of the game."""
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
            answer = str(reply.message.get("content") or "")
            talk.append({"role": "assistant", "content": answer})
            self._take(answer.rpartition("</think>")[2].strip())
        raise RuntimeError(
            f"{self.game} took {MAX_TURNS_OF_OTHERS} turns of other seats without a turn of seat {self.seat}"
        )

    def _news(self, seat: int) -> str:
        """Return a seat's unread messages, without its own moves."""
        messages, self.state.observations[seat] = self.state.observations[seat], []
        return "\n".join(
            f"[{self.state.role_mapping.get(sender, f'Player {sender}')}] {message}"
            for sender, message, *_ in messages
            if sender != seat
        ).strip()

    def _result(self) -> tuple[float | None, dict[str, Any]]:
        """Return the seat's reward, and the game's description of the end."""
        rewards, game_info = self.env.close()
        reward = None if rewards is None else rewards.get(self.seat)
        own = game_info.get(self.seat, {})
        info = {name: own[name] for name in ("reason", "invalid_move", "turn_count") if name in own}
        if self.players > 1 and rewards is not None:
            info["rewards"] = {str(player): float(value) for player, value in rewards.items()}
        return reward, info


def _move(sample: Callable[[random.Random], str] | None) -> Any:
    """Return the tool of a class, with its own sampler."""

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
    """A replacement for the module `random` in the package's modules, with the current episode's generator."""

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(_current, "rng", random), name, None) or getattr(random, name)


_replacement = EpisodeRandom()


@contextmanager
def _drawing_from(rng: random.Random) -> Iterator[None]:
    """Let TextArena's modules draw from `rng` in this thread."""
    before = getattr(_current, "rng", random)
    _current.rng = rng
    try:
        yield
    finally:
        _current.rng = before


def _made(game: str, options: Mapping[str, Any]) -> Any:
    """Return a game whose modules use the replacement. Raises what the game raises; ValueError if it does not exist."""
    import textarena

    made = textarena.make(game, **options)
    drew = [
        module  # a game's modules load with its first instance
        for name, module in list(sys.modules.items())
        if name.startswith("textarena.") and getattr(module, "random", None) is random
    ]
    for module in drew:
        module.random = _replacement  # type: ignore[attr-defined]
    return textarena.make(game, **options) if drew else made
