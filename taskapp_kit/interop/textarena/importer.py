"""`from_textarena` declares a game of TextArena as an environment of an app.

Written against TextArena 0.7.4 (PyPI; github.com/LeonGuertler/TextArena, MIT): `make(id, **options)`,
`reset(num_players, seed)`, `step(action) -> done, info`, `state.observations`, `close() -> rewards, game_info`. It
needs the extra `taskapp-kit[textarena]`. Guarantees:

- TextArena's games draw from the process's `random`. This adapter replaces it with a generator that is seeded for each
  episode, so that the same seed and moves produce the same game, independent of the rest of the process.
- Each message of the game is shown once, as soon as the player may read it.
- A model that the operator configures (`context.model`) or a function of the author plays the other seats. If the model
  does not respond, the rollout fails, and the game does not count as lost.
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
"""The maximum length of a move. Longer moves are rejected."""
MAX_TURNS_OF_OTHERS = 1000
"""The maximum number of turns of other seats between two turns of the player. More turns are an error of the game."""
OPPONENT = "opponent"
"""The default role of the model that plays the other seats."""

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

    The last step has the game's reward, and earlier steps have the reward None. If the game does not exist or cannot be
    started, the setup of each worker process raises ConfigError.

    Args:
        game: An id of TextArena's registry.
        players: The number of seats.
        seat: The policy's seat. The first seat is 0.
        opponent: The player of the other seats. A string is the role of a model: the variable `TASKAPP_OPPONENT_URL`,
            for example, contains the URL of the model in the role `opponent`. A function has the signature
            `fn(observation, rng) -> move`, where rng is the episode's random generator.
        sample: `fn(rng) -> move`, for the policy `random`.
        configurable: Options that a caller may set in env.config. It maps each name to a default (bool, int, float or
            str) or to (annotation, default).
        **options: Options of the game, which are passed to `textarena.make`.

    Returns:
        A subclass of `TextArenaEnvironment`.

    Raises:
        Unavailable: TextArena is not installed.
    """
    require("from_textarena", "textarena", "TextArena", "textarena")
    parts = ClassParts("from_textarena", str(game), sys._getframe(1))
    try:
        if players < 1 or seat not in range(players):
            raise parts.wrong(
                f"has players={players}, seat={seat}", "a seat from 0 to players - 1", "change players= or seat="
            )
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
    """A game of TextArena. `from_textarena` creates the subclasses that an app declares.

    Attributes:
        env: TextArena's environment, including its wrappers.
        rng: The random generator for the game. It is set by `reset`.
    """

    game: str
    players: int
    seat: int
    _opponent: Opponent
    _options: Mapping[str, Any]
    _defaults: Mapping[str, Any]

    @classmethod
    def setup_worker(cls) -> None:
        """Start a game to test it. Raises ConfigError if the game does not exist or cannot be started."""
        try:
            with _drawing_from(random.Random(0)):
                _made(cls.game, {**cls._options, **cls._defaults}).reset(num_players=cls.players, seed=0)
        except Exception as error:  # games raise exceptions of any class, even SyntaxError
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
        """Start the game, and return the messages for the player before the first move."""
        self.rng = random.Random(seed)
        self.context = context
        self._talks: dict[int, list[dict[str, str]]] = {}
        with _drawing_from(self.rng):
            # made with this generator, because some games draw, or store a function that draws, when they are made
            self.env: Any = _made(self.game, self.options)
            self.env.reset(num_players=self.players, seed=seed)
        self.state: Any = self.env.state
        self._done = False
        self._others()
        return self._news(self.seat)

    def step(self, text: str) -> Step:
        """Make a move. Then play the other seats until the player's next turn or the end of the game."""
        self._take(text)
        self._others()
        reward, info = self._result() if self._done else (None, {})
        return Step(self._news(self.seat), reward, terminated=self._done, info=info)

    def _take(self, text: str) -> None:
        with _drawing_from(self.rng):
            self._done, _ = self.env.step(action=text)

    def _others(self) -> None:
        """Play the turns of the other seats. Exceptions of the opponent are not caught."""
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
            f"{self.game} played {MAX_TURNS_OF_OTHERS} turns of other seats without a turn of seat {self.seat}"
        )

    def _news(self, seat: int) -> str:
        """Return the unread messages for a seat, without the seat's own moves."""
        messages, self.state.observations[seat] = self.state.observations[seat], []
        return "\n".join(
            f"[{self.state.role_mapping.get(sender, f'Player {sender}')}] {message}"
            for sender, message, *_ in messages
            if sender != seat
        ).strip()

    def _result(self) -> tuple[float | None, dict[str, Any]]:
        """Return the reward of the policy's seat, and the game's information about the end."""
        rewards, game_info = self.env.close()
        reward = None if rewards is None else rewards.get(self.seat)
        own = game_info.get(self.seat, {})
        info = {name: own[name] for name in ("reason", "invalid_move", "turn_count") if name in own}
        if self.players > 1 and rewards is not None:
            info["rewards"] = {str(player): float(value) for player, value in rewards.items()}
        return reward, info


def _move(sample: Callable[[random.Random], str] | None) -> Any:
    """Return the action `move` for a class. sample: the sampler of moves, or None."""

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
    """Replaces the module `random` in TextArena's modules, and uses the generator of the current episode."""

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(_current, "rng", random), name, None) or getattr(random, name)


_replacement = EpisodeRandom()


@contextmanager
def _drawing_from(rng: random.Random) -> Iterator[None]:
    """Make TextArena's modules draw from `rng` in this thread, inside the `with` block."""
    before = getattr(_current, "rng", random)
    _current.rng = rng
    try:
        yield
    finally:
        _current.rng = before


def _made(game: str, options: Mapping[str, Any]) -> Any:
    """Return a game whose modules use EpisodeRandom.

    Raises the game's exceptions, or ValueError if the game does not exist.
    """
    import textarena

    made = textarena.make(game, **options)
    drew = [
        module  # a game's modules are imported when its first instance is made
        for name, module in list(sys.modules.items())
        if name.startswith("textarena.") and getattr(module, "random", None) is random
    ]
    for module in drew:
        module.random = _replacement  # type: ignore[attr-defined]
    return textarena.make(game, **options) if drew else made
