"""Selects the seeds of an evaluation. They may be limited to rows with certain difficulties and tags."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import islice

from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate.rows import check_by, chosen
from taskapp_kit.evaluate.runners import EvaluatedApp, Runner
from taskapp_kit.records.content import Json
from taskapp_kit.records.seeds import FIRST_SEEDS, Seeds, size

SEEDS_AT_ONCE = 500
"""How many rows are read at a time."""


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
    """Return the given seeds, or the first FIRST_SEEDS of the split, filtered by the difficulty and tags of their rows.

    A row must have one of the difficulties and all of the tags. Raises ConfigError if no seeds are known, if the environment
    has no rows, or if no row matches.
    """
    whole = about.splits.get(split) if split is not None else next(iter(about.splits.values()), None)
    if given is None and not whole:
        raise ConfigError("The app does not report its seeds. Pass --seeds, for example --seeds 0-99.")
    if not difficulty and not tags:
        return given or Seeds(range(seed, seed + 1) for seed in (whole or ())[:FIRST_SEEDS])
    if not about.has_rows:
        raise ConfigError(
            f"--difficulty and --tags select rows, but the environment {about.environment} has no rows.",
            hint="Remove these options.",
        )
    if split is not None and not whole:
        raise ConfigError(f"The split {split[:80]!r} does not exist. The splits are {', '.join(about.splits)}.")
    most = None if given is not None else FIRST_SEEDS
    found: list[int] = []
    async for seed, row in _rows(runner, environment, split, given if given is not None else whole or ()):
        if chosen(row, difficulty, tags):
            found.append(seed)
        if len(found) == most:
            break
    if not found:
        filters = [f"difficulty {' or '.join(difficulty)}"] if difficulty else []
        filters += [f"tags {', '.join(tags)}"] if tags else []
        raise ConfigError(f"No row of these seeds has {' and '.join(filters)}.", hint="See `taskapp info APP`.")
    return Seeds(range(seed, seed + 1) for seed in found)


def unplayed(about: EvaluatedApp, split: str | None, seeds: Seeds) -> str:
    """Return a note on how to play the full split, or an empty string if `seeds` is the full split."""
    whole = about.splits.get(split) if split is not None else next(iter(about.splits.values()), None)
    if not whole or size(whole) <= len(seeds) or whole.step != 1:
        return ""
    return f" of {size(whole):,} (--seeds {whole[0]}-{whole[-1]} plays all)"


async def check_groups(
    runner: Runner, by: Sequence[str], seeds: Seeds, *, environment: str | None, split: str | None
) -> None:
    """Raise ConfigError if `--by` names a field that no row of these seeds has. See `rows.check_by`."""
    if any(name != "seed" for name in by):
        check_by(by, [row async for _, row in _rows(runner, environment, split, seeds)])


async def _rows(
    runner: Runner, environment: str | None, split: str | None, seeds: Iterable[int]
) -> AsyncIterator[tuple[int, dict[str, Json]]]:
    left = iter(seeds)
    while some := list(islice(left, SEEDS_AT_ONCE)):
        for seed, row in zip(some, await runner.rows(environment, split, some), strict=True):
            yield seed, row
