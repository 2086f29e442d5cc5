"""Selects the seeds of an evaluation: those that were given, or the first of a split; only rows with certain fields."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import islice

from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate.rows import check_by, chosen
from taskapp_kit.evaluate.runners import EvaluatedApp, Runner
from taskapp_kit.records.content import Json
from taskapp_kit.records.seeds import FIRST_SEEDS, Seeds

SEEDS_AT_ONCE = 500
"""Seeds whose rows are looked at together."""


async def select_seeds(
    runner: Runner,
    about: EvaluatedApp,
    *,
    environment: str | None,
    split: str | None,
    given: Seeds | None,
    difficulty: Sequence[str] = (),
    tags: Sequence[str] = (),
) -> Seeds:
    """The given seeds, else the first FIRST_SEEDS of the split; of rows, those with one of the difficulties and all tags.

    Raises ConfigError: no seeds are known, the environment has no rows, or none of them fits.
    """
    whole = about.splits.get(split) if split is not None else next(iter(about.splits.values()), None)
    if given is None and not whole:
        raise ConfigError("Which seeds? Give --seeds 0-99.")
    if not difficulty and not tags:
        return given or Seeds(range(seed, seed + 1) for seed in (whole or ())[:FIRST_SEEDS])
    if not about.has_rows:
        raise ConfigError(
            f"--difficulty and --tags choose rows, and the environment {about.environment} has none.",
            hint="Leave them out.",
        )
    if split is not None and not whole:
        raise ConfigError(f"There is no split {split[:80]!r}; there are {', '.join(about.splits)}.")
    most = None if given is not None else FIRST_SEEDS
    found: list[int] = []
    async for seed, row in _rows(runner, environment, split, given if given is not None else whole or ()):
        if chosen(row, difficulty, tags):
            found.append(seed)
        if len(found) == most:
            break
    if not found:
        wanted = [f"difficulty {' or '.join(difficulty)}"] if difficulty else []
        wanted += [f"tags {', '.join(tags)}"] if tags else []
        raise ConfigError(f"No row of these seeds has {' and '.join(wanted)}.", hint="`taskapp info APP` lists them.")
    return Seeds(range(seed, seed + 1) for seed in found)


async def check_groups(
    runner: Runner, by: Sequence[str], seeds: Seeds, *, environment: str | None, split: str | None
) -> None:
    """Raises ConfigError when `--by` names a field that no row of these seeds has; see `rows.check_by`."""
    if any(name != "seed" for name in by):
        check_by(by, [row async for _, row in _rows(runner, environment, split, seeds)])


async def _rows(
    runner: Runner, environment: str | None, split: str | None, seeds: Iterable[int]
) -> AsyncIterator[tuple[int, dict[str, Json]]]:
    left = iter(seeds)
    while some := list(islice(left, SEEDS_AT_ONCE)):
        for seed, row in zip(some, await runner.rows(environment, split, some), strict=True):
            yield seed, row
