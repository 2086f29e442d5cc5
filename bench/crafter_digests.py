"""The same episodes from two server processes: `python -m bench.crafter_digests` exits with 1 when any of them differ.

One process has PYTHONHASHSEED 1 and returns text, the other has 2, receives the requests in the opposite order and
renders an image at every step. Compared are digests and, step by step, observations, actions, rewards and info.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.crafter_server import crafter_server, played, request
from bench.processes import BenchFailed
from bench.tables import Table

POLICIES = ("random", "scripted")
FIRST_SEED = 1_009_000  # of the test split
NOT_COMPARED = ("meta", "initial_observation")
"""Members of a step's info: addresses, and the first observation, which is compared by itself."""


@dataclass
class Comparison:
    """The episodes of one policy, from both processes. `differences` are sentences; none means that all are equal."""

    policy: str
    episodes: int = 0
    calls: int = 0
    game_steps: int = 0
    pictures: int = 0
    equal_digests: int = 0
    differences: list[str] = field(default_factory=list)

    def add(self, name: str, plain: dict[str, Any], pictured: dict[str, Any]) -> None:
        """Compares two answers to the same request."""
        steps = plain["trajectories"][0]["steps"]
        self.episodes += 1
        self.calls += len(steps)
        self.game_steps += int(plain["metrics"]["details"]["game_steps"])
        self.pictures += sum(_pictures(step["obs"]) for step in pictured["trajectories"][0]["steps"])
        self.equal_digests += plain["digest"] == pictured["digest"]
        found = difference(plain, pictured)
        if found is not None:
            self.differences.append(f"{name}: {found}")


def difference(plain: dict[str, Any], pictured: dict[str, Any]) -> str | None:
    """The first difference between two answers' episodes; None when they are equal."""
    for call, (ours, theirs) in enumerate(itertools.zip_longest(_compared(plain), _compared(pictured))):
        if ours != theirs:
            return f"differs at {f'call {call}' if call else 'the first observation'}: {ours!r} and {theirs!r}"
    for name in ("digest", "status", "stop_reason", "reward"):
        if plain[name] != pictured[name]:
            return f"{name} is {plain[name]!r} and {pictured[name]!r}"
    return None


def _compared(answer: dict[str, Any]) -> list[Any]:
    """The first observation, then for each call: text, action, reward, end, info."""
    trajectory = answer["trajectories"][0]
    return [
        _words(trajectory["trace"]["initial_observation"]),
        *(
            (
                _words(step["obs"]),
                step["tool_calls"],
                step["reward"],
                step["done"],
                step["truncated"],
                {name: value for name, value in step["info"].items() if name not in NOT_COMPARED},
            )
            for step in trajectory["steps"]
        ),
    ]


def _words(observation: dict[str, Any]) -> list[str]:
    if "text" in observation:
        return [observation["text"]]
    return [block["text"] for block in observation["content"] if block["type"] == "text"]


def _pictures(observation: dict[str, Any]) -> int:
    return sum(block["type"] == "image_url" for block in observation.get("content", ()))


def compare(first_seed: int, seeds: int, in_flight: int, image_size: int, scratch: Path) -> list[Comparison]:
    """Plays all episodes in both processes. Raises BenchFailed when a server does not answer."""
    wanted = [(policy, seed) for policy in POLICIES for seed in range(first_seed, first_seed + seeds)]
    with crafter_server("text", scratch / "text", "1") as server:
        plain = played(server, [request(seed, policy) for policy, seed in wanted], in_flight)
    with crafter_server("pictures", scratch / "pictures", "2") as server:
        config = {"image": True, "image_size": image_size}
        pictured = played(server, [request(seed, policy, config) for policy, seed in reversed(wanted)], in_flight)
    found = {policy: Comparison(policy) for policy in POLICIES}
    for policy, seed in wanted:
        found[policy].add(f"{policy}, seed {seed}", plain[f"{policy}-{seed}"], pictured[f"{policy}-{seed}"])
    return list(found.values())


def table(comparisons: list[Comparison], note: str) -> Table:
    """The table, one row for each policy."""
    return Table(
        title="Crafter from two server processes",
        header=["policy", "episodes", "calls", "game steps", "pictures", "equal digests", "equal step by step"],
        rows=[
            [
                item.policy,
                str(item.episodes),
                str(item.calls),
                str(item.game_steps),
                str(item.pictures),
                str(item.equal_digests),
                str(item.episodes - len(item.differences)),
            ]
            for item in comparisons
        ],
        notes=[note, *(found for item in comparisons for found in item.differences)],
    )


def main() -> int:
    """Returns the exit status: 0 all equal, 1 a difference or no answer."""
    parser = argparse.ArgumentParser(prog="python -m bench.crafter_digests", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--image-size", type=int, default=144)
    given = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="taskapp-bench-") as scratch:
            found = compare(given.first_seed, given.seeds, given.in_flight, given.image_size, Path(scratch))
    except BenchFailed as error:
        print(error, file=sys.stderr)
        return 1
    last = given.first_seed + given.seeds - 1
    note = (
        f"Whole episodes, seeds {given.first_seed} to {last}, {given.in_flight} in flight; text only and "
        f"PYTHONHASHSEED=1 in one process, {given.image_size}-pixel pictures and PYTHONHASHSEED=2 in the other."
    )
    print(table(found, note).markdown())
    return 1 if any(item.differences for item in found) else 0


if __name__ == "__main__":
    sys.exit(main())
