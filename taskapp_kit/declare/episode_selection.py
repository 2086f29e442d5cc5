"""Selection of the environment, split, seed and row for a request."""

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
"""Fields of `env.config` that apps of the original kit accept. If the environment does not accept them, they are
ignored with a warning.
"""


@dataclass(frozen=True, slots=True)
class Instance:
    """The identity of an episode, without its `config`.

    `task` is the row with private fields, or None if there are no rows.
    """

    environment: EnvironmentSpec
    split: str
    seed: int
    task: Any = None


def find_environment(app: AppSpec, name: str | None) -> EnvironmentSpec:
    """Return an environment by name, or the first one if `name` is None. Raises RequestError for an unknown name."""
    if name is None:
        return app.default_environment
    spec = app.environments.get(name)
    if spec is None:
        known = ", ".join(app.environments)
        close = closest(name, app.environments)
        raise _wrong(
            ("env", "env_name"),
            f"The environment {name[:80]!r} does not exist. Available environments: {known}.",
            "unknown_environment",
            hint=f"Did you mean {close!r}?" if close else "",
        )
    return spec


def find_instance(
    spec: EnvironmentSpec,
    split: str | None,
    seed: int | None,
    rng: random.Random,
    selection: Mapping[str, Json] | None = None,
) -> Instance:
    """Return the environment, split, seed and row of an episode.

    Args:
        spec: The environment.
        split: Name of the split. Defaults to the split that contains the seed, or to the first split if the environment
            has rows or `seed` is None.
        seed: The seed. If the environment has rows, the seed is a row's index in the split. If it is None, `rng` draws
            a seed.
        rng: Random generator that draws the seed.
        selection: Required values of the row's `difficulty` and `tags`.

    Raises:
        RequestError: The split does not exist, the seed is outside the split, or no row matches.
    """
    if split is not None and split not in spec.split_names:
        raise _wrong(
            ("env", "config", "split"),
            f"The environment {spec.name!r} has no split {str(split)[:80]!r}. "
            f"Available splits: {', '.join(spec.split_names)}.",
            "unknown_split",
        )
    if spec.tasks is not None:
        return _row_instance(spec, spec.tasks, split or spec.split_names[0], seed, rng, selection or {})
    if seed is None:
        split = split or spec.split_names[0]
        seeds = spec.splits[split]
        return Instance(spec, split, seeds[rng.randrange(size(seeds))])
    holder = next((name for name, seeds in spec.splits.items() if seed in seeds), None)
    if holder is None:
        ranges = "; ".join(f"{name} {seeds[0]} to {seeds[-1]}" for name, seeds in spec.splits.items())
        raise _wrong(
            ("env", "seed"),
            f"Seed {seed} is outside the seeds of the environment {spec.name!r}: {ranges}.",
            "seed_out_of_range",
        )
    if split is not None and split != holder:
        seeds = spec.splits[split]
        raise _wrong(
            ("env", "seed"),
            f"Seed {seed} belongs to split {holder!r}. Split {split!r} has the seeds {seeds[0]} to {seeds[-1]}.",
            "seed_out_of_range",
        )
    return Instance(spec, holder, seed)


def _row_instance(
    spec: EnvironmentSpec,
    tasks: TaskSource,
    split: str,
    seed: int | None,
    rng: random.Random,
    selection: Mapping[str, Json],
) -> Instance:
    rows = tasks.rows(split)
    described = " and ".join(f"{name} {str(value)[:80]}" for name, value in selection.items())
    if seed is None:
        chosen = [index for index, row in enumerate(rows) if _matches(row, selection)]
        if not chosen:
            raise _wrong(("env", "config"), f"No row in split {split!r} has {described}.", "no_such_row")
        index = chosen[rng.randrange(len(chosen))]
        return Instance(spec, split, index, rows[index])
    if not 0 <= seed < len(rows):
        raise _wrong(
            ("env", "seed"),
            f"Seed {seed} is outside split {split!r} of the environment {spec.name!r}, which has the rows 0 to "
            f"{len(rows) - 1}.",
            "seed_out_of_range",
        )
    if not _matches(rows[seed], selection):
        raise _wrong(("env", "seed"), f"Row {seed} in split {split!r} does not have {described}.", "no_such_row")
    return Instance(spec, split, seed, rows[seed])


def _matches(row: Any, selection: Mapping[str, Json]) -> bool:
    if not selection:
        return True
    row = row_json(row)
    if "difficulty" in selection and row.get("difficulty") != selection["difficulty"]:
        return False
    expected, tags = selection.get("tags", []), row.get("tags") or []
    tags = [tags] if isinstance(tags, str) else tags
    return all(tag in tags for tag in ([expected] if isinstance(expected, str) else expected))


@dataclass(frozen=True, slots=True)
class ReadConfig:
    """Parsed `env.config`: the selected task, the constructor's arguments, and warnings about ignored fields."""

    split: str | None
    index: int | None
    given: dict[str, Json]
    arguments: dict[str, Any]
    wanted: dict[str, Json]
    warnings: list[str]


def read_config(spec: EnvironmentSpec, config: Mapping[str, Json]) -> ReadConfig:
    """Parse `env.config` for the constructor.

    Raises RequestError, which lists the valid fields, if a field is invalid.
    """
    given = dict(config)
    split = given.pop("split", None)
    index = given.pop("index", None)
    if split is not None and not isinstance(split, str):
        raise _wrong(("env", "config", "split"), '`split` must be the name of a split, e.g. "train".', "bad_split")
    if index is not None and (type(index) is not int or index < 0):
        raise _wrong(("env", "config", "index"), "`index` must be an integer ≥ 0.", "bad_index")
    warnings: list[str] = []
    wanted: dict[str, Json] = {}
    known = spec.config.names
    for name in ("difficulty", "tags"):
        if spec.tasks is not None and name in given and name not in known:
            wanted[name] = given.pop(name)
    tags = wanted.get("tags", [])
    if not isinstance(tags, (str, list)) or not all(isinstance(tag, str) for tag in tags):
        raise _wrong(
            ("env", "config", "tags"), '`tags` must be a string or a list of strings, e.g. ["easy"].', "bad_tags"
        )
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
        members = ", ".join(known) or "no members"
        message = f"env.config is invalid: {error}. The environment {spec.name!r} accepts {members}."
        raise RequestError(message, fields=fields, code="bad_config") from None
    return ReadConfig(split, index, given, arguments, wanted, warnings)


def seed_of_index(spec: EnvironmentSpec, split: str | None, index: int) -> int:
    """Return the seed at an index of the split. Raises RequestError if the index is past the end of the split."""
    name = split or spec.split_names[0]
    if spec.tasks is not None or name not in spec.splits:
        return index
    seeds = spec.splits[name]
    try:
        return seeds[index]
    except IndexError:
        raise _wrong(
            ("env", "config", "index"),
            f"Index {index} is past the end of split {name!r}, whose last seed is {seeds[-1]}.",
            "seed_out_of_range",
        ) from None


def _wrong(loc: tuple[str, ...], message: str, code: str, *, hint: str = "") -> RequestError:
    return RequestError(message, fields=(FieldProblem(("body", *loc), message, code),), code=code, hint=hint)
