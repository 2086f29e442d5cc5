"""Crafter without a server, for comparison: replays given episodes and prints their cost as one JSON object.

    echo '[{"seed": 1, "actions": ["noop", "do"]}]' | python -m bench.crafter_loops environment

`environment`: our declared environment, with the text observations; `rules`: our game alone; `stock`: the `crafter`
package as pip installs it (noise in pure Python, an image at every step); `stock-numba`: that with numba.
Printed: `{"steps": game steps, "cpu_seconds": of resets and steps}`; imports, compiling and textures are not counted.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Loop = tuple[Callable[[], Any], Callable[[str], bool]]
"""`reset()`, and `step(action) -> whether the episode is over`, of one episode."""


def environment(seed: int) -> Loop:
    """Our environment class, called as plain Python: one `interact` for each action."""
    from environments.crafter.app import Crafter

    game: Any = Crafter()

    def step(action: str) -> bool:
        seen = game.interact([action])
        return bool(seen.terminated or seen.truncated)

    return lambda: game.reset(seed=seed), step


def rules(seed: int) -> Loop:
    """Our game, without observations; creating the object is its reset."""
    from environments.crafter.rules import CrafterGame

    games: list[CrafterGame] = []

    def step(action: str) -> bool:
        outcome = games[0].step(action)
        return outcome.terminated or outcome.truncated

    return lambda: games.append(CrafterGame(seed)), step


def stock(seed: int) -> Loop:
    """The published package."""
    import crafter

    game = crafter.Env(seed=seed)
    numbers = {name: number for number, name in enumerate(game.action_names)}
    return game.reset, lambda action: bool(game.step(numbers[action])[2])


LOOPS: dict[str, Callable[[int], Loop]] = {
    "environment": environment,
    "rules": rules,
    "stock": stock,
    "stock-numba": stock,
}


def play(make: Callable[[int], Loop], episodes: list[dict[str, Any]]) -> tuple[int, float]:
    """Replays `episodes`, each until its actions run out or the game ends; returns (game steps, CPU seconds)."""
    steps, cpu_seconds = 0, 0.0
    for episode in episodes:
        reset, step = make(episode["seed"])
        begun = time.process_time()
        reset()
        for action in episode["actions"]:
            steps += 1
            if step(action):
                break
        cpu_seconds += time.process_time() - begun
    return steps, cpu_seconds


def main() -> None:
    """Reads episodes from stdin; the first is played once in advance, on another seed, to compile."""
    name, episodes = sys.argv[1], json.load(sys.stdin)
    if name == "stock":
        sys.modules["numba"] = None  # type: ignore[assignment]  # as if it were not installed
    play(LOOPS[name], [{**episodes[0], "seed": episodes[0]["seed"] + 10_000_000}])
    steps, cpu_seconds = play(LOOPS[name], episodes)
    print(json.dumps({"steps": steps, "cpu_seconds": cpu_seconds}))


if __name__ == "__main__":
    main()
