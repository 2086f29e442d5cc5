"""Compares the random agent over `POST /rollout` with the published one: `python -m bench.crafter_table`.

Exit status 1 when score, mean reward or mean length lies outside its band. A set of seeds has one result: the same
command prints the same table everywhere.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev

from bench.crafter_server import crafter_server, played, request
from bench.processes import BenchFailed
from bench.tables import Table
from environments.crafter import published
from environments.crafter.names import ACHIEVEMENTS
from environments.crafter.score import crafter_score, success_rates

SCORE_BAND, REWARD_BAND, LENGTH_BAND = (1.37, 1.72), (1.17, 1.60), (161.0, 175.0)
"""The expected range for 300 episodes of the published agent: percent, reward, game steps."""
RESAMPLES = 2000


@dataclass(frozen=True)
class Episode:
    """One rollout: the sum of its rewards, its game steps, the unlocked achievements."""

    returned: float
    game_steps: float
    unlocked: tuple[str, ...]


def episodes(first_seed: int, count: int, in_flight: int, scratch: Path) -> list[Episode]:
    """Plays them on a new server. Raises BenchFailed."""
    with crafter_server("crafter", scratch) as server:
        wanted = [request(seed, "random") for seed in range(first_seed, first_seed + count)]
        answers = played(server, wanted, in_flight)
    found = []
    for one in wanted:
        metrics = answers[one["run_id"]]["metrics"]
        details = metrics["details"]
        unlocked = tuple(name for name in ACHIEVEMENTS if details[f"achievement/{name}"])
        found.append(Episode(metrics["mean_return"], details["game_steps"], unlocked))
    return found


def score(sample: Sequence[Episode]) -> float:
    """The paper's score of these episodes, percent."""
    return crafter_score(success_rates(one.unlocked for one in sample))


def score_interval(sample: Sequence[Episode]) -> tuple[float, float]:
    """Bootstrap 95 % interval of the score: RESAMPLES draws of as many episodes, from a fixed stream."""
    rng = random.Random(0)
    scores = sorted(score(rng.choices(sample, k=len(sample))) for _ in range(RESAMPLES))
    return scores[int(0.025 * RESAMPLES)], scores[int(0.975 * RESAMPLES) - 1]


def table(sample: Sequence[Episode], first_seed: int) -> tuple[Table, bool]:
    """The table, and whether all three values are inside their bands."""
    count = len(sample)
    rates = success_rates(one.unlocked for one in sample)
    returns = [one.returned for one in sample]
    lengths = [one.game_steps for one in sample]
    uniques = [float(len(one.unlocked)) for one in sample]
    low, high = score_interval(sample)
    seen = score(sample)
    rows = [
        ["score, %", f"{seen:.3f} (95 %: {low:.2f} to {high:.2f})", f"{crafter_score(published.RATES):.3f}", ""],
        _mean_row("mean reward", returns, published.REWARD, published.REWARD_DEVIATION, 3),
        _mean_row("mean length, game steps", lengths, published.LENGTH, published.LENGTH_DEVIATION, 1),
        ["median length, game steps", f"{median(lengths):.0f}", f"{published.MEDIAN_LENGTH}", ""],
        ["unique achievements", _mean(uniques, 3), f"{sum(published.RATES.values()) / 100:.3f}", ""],
        *(
            _rate_row(name, rates[name], count)
            for name in sorted(ACHIEVEMENTS, key=lambda name: -published.RATES[name])
        ),
    ]
    bands = [
        ("score", seen, SCORE_BAND, 3),
        ("mean reward", fmean(returns), REWARD_BAND, 3),
        ("mean length", fmean(lengths), LENGTH_BAND, 1),
    ]
    inside_all = [lowest <= value <= highest for _, value, (lowest, highest), _ in bands]
    return Table(
        title="The random agent",
        header=["", f"POST /rollout, {count} episodes", f"published, {published.EPISODES} episodes", "z"],
        rows=rows,
        notes=[
            (
                f"Policy `random`, seeds {first_seed} to {first_seed + count - 1}, whole episodes. ± is the standard "
                "error of the mean or of the rate; z is the difference in standard errors of both sides together. "
                "z is left out where fewer than 5 successes are expected."
            ),
            *(
                f"{'Inside' if inside else '**Outside**'}: {name} {value:.{digits}f}, band {band[0]:g} to {band[1]:g}."
                for (name, value, band, digits), inside in zip(bands, inside_all, strict=True)
            ),
        ],
    ), all(inside_all)


def _mean(values: Sequence[float], digits: int) -> str:
    return f"{fmean(values):.{digits}f} ± {stdev(values) / math.sqrt(len(values)):.{digits}f}"


def _mean_row(name: str, values: Sequence[float], expected: float, deviation: float, digits: int) -> list[str]:
    error = math.hypot(stdev(values) / math.sqrt(len(values)), deviation / math.sqrt(published.EPISODES))
    z = (fmean(values) - expected) / error
    return [name, _mean(values, digits), f"{expected:.{digits}f}", f"{z:+.1f}"]


def _rate_row(name: str, rate: float, count: int) -> list[str]:
    theirs = published.RATES[name]
    error = math.sqrt(rate * (100 - rate) / count)
    expected = math.sqrt(theirs * (100 - theirs) * (1 / count + 1 / published.EPISODES))
    countable = min(theirs, 100 - theirs) * count / 100 >= 5
    z = f"{(rate - theirs) / expected:+.1f}" if countable else ""
    return [f"{name}, %", f"{rate:.2f} ± {error:.2f}", f"{theirs:.2f}", z]


def main() -> int:
    """Returns the exit status: 0 inside the bands, 1 outside one, or no answer."""
    parser = argparse.ArgumentParser(prog="python -m bench.crafter_table", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--first-seed", type=int, default=1_000_000)
    parser.add_argument("--in-flight", type=int, default=8)
    given = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="taskapp-bench-") as scratch:
            sample = episodes(given.first_seed, given.episodes, given.in_flight, Path(scratch))
    except BenchFailed as error:
        print(error, file=sys.stderr)
        return 1
    result, inside = table(sample, given.first_seed)
    print(result.markdown())
    return 0 if inside else 1


if __name__ == "__main__":
    sys.exit(main())
