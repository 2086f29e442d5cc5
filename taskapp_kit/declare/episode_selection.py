"""Selects the episode of a request: environment, split, seed, row. Every invalid request has its own message."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taskapp_kit.declare.signature import BadArguments
from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.declare.tasks import TaskSource, row_json
from taskapp_kit.errors import FieldProblem, RequestError, closest
from taskapp_kit.records.content import Json
from taskapp_kit.records.seeds import size

IGNORED_CONFIG = ("step_rewards", "difficulty")
"""Members of `env.config` that apps of the original kit take: accepted and ignored, with a warning, unless ours do."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One episode's identity, except `config`. `task` is the row, private fields included; None without rows."""

    environment: EnvironmentSpec
    split: str
    seed: int
    task: Any = None


def find_environment(app: AppSpec, name: str | None) -> EnvironmentSpec:
    """Return the environment of that name, the first declared if absent. Raises RequestError with *did you mean*."""
    if name is None:
        return app.default_environment
    spec = app.environments.get(name)
    if spec is None:
        known = ", ".join(app.environments)
        close = closest(name, app.environments)
        raise _wrong(
            ("env", "env_name"),
            f"there is no environment {name[:80]!r} here; there are: {known}.",
            "unknown_environment",
            hint=f"Did you mean {close!r}?" if close else "",
        )
    return spec


def find_instance(
    spec: EnvironmentSpec, split: str | None, seed: int | None, rng: random.Random,
    wanted: Mapping[str, Json] | None = None,
) -> Instance:  # fmt: skip
    """Return the instance of a seed; if it is None, `rng` draws one from the split.

    With ranges the seed implies the split; with rows it is the row's index in the split (the first split when none is
    named). wanted: `difficulty` and `tags` that the row must have. Raises RequestError naming seed and range.
    """
    if split is not None and split not in spec.split_names:
        raise _wrong(
            ("env", "config", "split"),
            f"environment {spec.name!r} has no split {str(split)[:80]!r}; it has {', '.join(spec.split_names)}.",
            "unknown_split",
        )
    if spec.tasks is not None:
        return _row_instance(spec, spec.tasks, split or spec.split_names[0], seed, rng, wanted or {})
    if seed is None:
        split = split or spec.split_names[0]
        seeds = spec.splits[split]
        return Instance(spec, split, seeds[rng.randrange(size(seeds))])
    holder = next((name for name, seeds in spec.splits.items() if seed in seeds), None)
    if holder is None:
        ranges = "; ".join(f"{name} {seeds[0]} to {seeds[-1]}" for name, seeds in spec.splits.items())
        raise _wrong(
            ("env", "seed"),
            f"seed {seed} is outside the seeds of environment {spec.name!r}: {ranges}.",
            "seed_out_of_range",
        )
    if split is not None and split != holder:
        seeds = spec.splits[split]
        raise _wrong(
            ("env", "seed"),
            f"seed {seed} belongs to split {holder!r}; split {split!r} has the seeds {seeds[0]} to {seeds[-1]}.",
            "seed_out_of_range",
        )
    return Instance(spec, holder, seed)


def _row_instance(
    spec: EnvironmentSpec,
    tasks: TaskSource,
    split: str,
    seed: int | None,
    rng: random.Random,
    wanted: Mapping[str, Json],
) -> Instance:
    rows = tasks.rows(split)
    if seed is None:
        chosen = [index for index, row in enumerate(rows) if _fits(row, wanted)]
        if not chosen:
            raise _wrong(("env", "config"), f"no row of split {split!r} has {_words(wanted)}.", "no_such_row")
        index = chosen[rng.randrange(len(chosen))]
        return Instance(spec, split, index, rows[index])
    if not 0 <= seed < len(rows):
        raise _wrong(
            ("env", "seed"),
            f"seed {seed} is outside split {split!r} of environment {spec.name!r}: it has the rows 0 to {len(rows) - 1}.",
            "seed_out_of_range",
        )
    if not _fits(rows[seed], wanted):
        raise _wrong(("env", "seed"), f"row {seed} of split {split!r} does not have {_words(wanted)}.", "no_such_row")
    return Instance(spec, split, seed, rows[seed])


def _fits(row: Any, wanted: Mapping[str, Json]) -> bool:
    if not wanted:
        return True
    row = row_json(row)
    if "difficulty" in wanted and row.get("difficulty") != wanted["difficulty"]:
        return False
    expected, tags = wanted.get("tags", []), row.get("tags") or []
    tags = [tags] if isinstance(tags, str) else tags
    return all(tag in tags for tag in ([expected] if isinstance(expected, str) else expected))


def _words(wanted: Mapping[str, Json]) -> str:
    return " and ".join(f"{name} {str(value)[:80]}" for name, value in wanted.items())


@dataclass(frozen=True, slots=True)
class ReadConfig:
    """`env.config`, parsed: the task's selection, the constructor's arguments, and warnings about ignored members."""

    split: str | None
    index: int | None
    given: dict[str, Json]
    arguments: dict[str, Any]
    wanted: dict[str, Json]
    warnings: list[str]


def read_config(spec: EnvironmentSpec, config: Mapping[str, Json]) -> ReadConfig:
    """Validate `env.config` against the constructor. Raises RequestError naming each wrong member and the known ones."""
    given = dict(config)
    split = given.pop("split", None)
    index = given.pop("index", None)
    if split is not None and not isinstance(split, str):
        raise _wrong(("env", "config", "split"), 'split is a name, e.g. "train".', "bad_split")
    if index is not None and (type(index) is not int or index < 0):
        raise _wrong(("env", "config", "index"), "index is a whole number from 0.", "bad_index")
    warnings: list[str] = []
    wanted: dict[str, Json] = {}
    known = spec.config.names
    for name in ("difficulty", "tags"):
        if spec.tasks is not None and name in given and name not in known:
            wanted[name] = given.pop(name)
    tags = wanted.get("tags", [])
    if not isinstance(tags, (str, list)) or not all(isinstance(tag, str) for tag in tags):
        raise _wrong(("env", "config", "tags"), 'tags is a word or a list of words, e.g. ["easy"].', "bad_tags")
    for name in IGNORED_CONFIG:
        if name in given and name not in known:
            del given[name]
            warnings.append(f"env.config.{name} is not known here and was ignored")
    if not given and not known:
        return ReadConfig(split, index, {}, {}, wanted, warnings)
    try:
        arguments, _ = spec.config.read(given)
    except BadArguments as error:
        fields = tuple(
            FieldProblem(("body", "env", "config", *path), text, "bad_config") for path, text in error.fields
        )
        takes = (
            f"environment {spec.name!r} takes {', '.join(known)}" if known else f"environment {spec.name!r} takes none"
        )
        raise RequestError(f"env.config does not fit: {error}; {takes}.", fields=fields, code="bad_config") from None
    return ReadConfig(split, index, given, arguments, wanted, warnings)


def seed_of_index(spec: EnvironmentSpec, split: str | None, index: int) -> int:
    """Return the seed at a position of the split. Raises RequestError beyond its end."""
    name = split or spec.split_names[0]
    if spec.tasks is not None or name not in spec.splits:
        return index
    seeds = spec.splits[name]
    try:
        return seeds[index]
    except IndexError:
        raise _wrong(
            ("env", "config", "index"),
            f"index {index} is past the end of split {name!r}, whose last seed is {seeds[-1]}.",
            "seed_out_of_range",
        ) from None


def _wrong(loc: tuple[str, ...], message: str, code: str, *, hint: str = "") -> RequestError:
    return RequestError(message, fields=(FieldProblem(("body", *loc), message, code),), code=code, hint=hint)
