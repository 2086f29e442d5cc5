"""The directory of an evaluation: its configuration, one line per rollout, and the summary.

    config.json     the requested rollouts, written before the first rollout is played
    results.jsonl   one line per rollout, appended and flushed to disk
    summary.json    written atomically when every rollout has a line
    report.html     the summary with plots, written atomically when the command ends

A running evaluation has a lock on `results.jsonl`, which the operating system releases when the process ends, even if
it is killed. A killed process may leave a partial last line, which is removed when the evaluation is resumed.
"""

from __future__ import annotations

import itertools
import os
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson

from taskapp_kit.errors import ConfigError, StoreError
from taskapp_kit.evaluate.limits import Spending
from taskapp_kit.evaluate.plan import EvalPlan, stored_policies
from taskapp_kit.evaluate.results import line_of, row_of_line
from taskapp_kit.records.content import Json
from taskapp_kit.records.formatting import cut
from taskapp_kit.records.protocols import RolloutRow
from taskapp_kit.system.foreign_files import ForeignFileRefused, inside, read_inside
from taskapp_kit.system.private_files import lock, make_private_folder, open_private, write_durable

CONFIG, RESULTS, SUMMARY, REPORT = "config.json", "results.jsonl", "summary.json", "report.html"
DATABASE = "rollouts.db"
"""The store in an evaluation's directory."""
MAX_LINE_BYTES = 16 * 2**20
MAX_CONFIG_BYTES = 64 * 2**20
FORMAT, SCHEMA_VERSION = "taskapp-eval", 1
NOTHING = -1
LONGEST_VALUE = 70
"""How many characters of a configuration value a message shows."""
EVALS = Path(".taskapp") / "evals"
"""The default parent directory of evaluations."""


def new_path(app: str, names: Sequence[str]) -> Path:
    """Return a new path below `EVALS`, named after the app, the policies and the time."""
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join([app, *names])).strip(".-") or "eval"
    path = EVALS / f"{words[:80]}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    # numbers are only needed if several evaluations start in the same second
    others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(one for one in itertools.chain([path], others) if not one.exists())


class Directory:
    """The directory of an evaluation, open and locked. `close` releases the lock.

    Memory only contains the offset of each rollout's line, 8 bytes per rollout. spent: The tokens and the
    cost of all lines.
    """

    def __init__(self, path: Path, plan: EvalPlan) -> None:
        """Create the directory if needed. Raises ConfigError if another process uses it, or if it is not writable."""
        self.path = path
        self._plan = plan
        self._offsets = array("q", [NOTHING]) * len(plan)
        self._failed: dict[int, int] = {}
        self.done = 0
        self.spent = Spending()
        try:
            make_private_folder(path)
            self._file = open_private(path / RESULTS, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}.", hint="Pass another --out.") from None
        try:
            lock(self._file)
        except OSError:
            os.close(self._file)
            raise ConfigError(
                f"Another evaluation is running in {path}.", hint="Wait until it ends, or pass another --out."
            ) from None
        self._size = os.fstat(self._file).st_size

    def close(self) -> None:
        """Close the files and release the lock."""
        os.close(self._file)

    # -- configuration --------------------------------------------------------------------------------------------

    def begin(self, config: Mapping[str, Any], *, resume: bool) -> dict[str, Any]:
        """Start or resume the evaluation, and return the configuration in effect.

        config: The configuration. When resuming, its `asked` must equal the stored `asked`, and the other fields keep
        their stored values. resume: Whether an existing evaluation may be resumed.

        Raises ConfigError if the directory contains a different evaluation, or if it contains results but `resume` is
        false. Raises StoreError if its files are damaged.
        """
        before = read_config(self.path) if (self.path / CONFIG).exists() else None
        if before is None and self._size:
            raise ConfigError(
                f"{self.path} has a {RESULTS} but no {CONFIG}, so the evaluation cannot be identified.",
                hint="Pass another --out.",
            )
        changed = [] if before is None else differing(before["asked"], config["asked"])
        if before is None or (not self._size and (changed or not resume)):
            whole = {"format": FORMAT, "schema_version": SCHEMA_VERSION, **config}
            self._write(CONFIG, _json(whole))
            return whole
        if not resume:
            raise ConfigError(
                f"{self.path} already contains an evaluation.",
                hint="Pass --resume to continue it, or pass another --out." if not changed else "Pass another --out.",
            )
        if changed:
            raise ConfigError(
                f"{self.path} contains a different evaluation, which cannot be resumed: {'; '.join(changed)}.",
                hint="Pass another --out, or repeat the options of the stored evaluation.",
            )
        self._scan()
        return before

    # -- results --------------------------------------------------------------------------------------------------

    def _scan(self) -> None:
        """Find the line of each rollout, and remove a partial last line."""
        end = 0
        with os.fdopen(os.dup(self._file), "rb") as lines:
            lines.seek(0)
            for line in whole_lines(lines, self.path / RESULTS):
                self._take(line.entry, line.offset, line.number)
                end = line.end
        # A process that is killed during a write leaves a partial last line, and its rollout is played again. Any other
        # damage is an error, because a silently lost result would change the summary.
        if end < self._size:
            os.ftruncate(self._file, end)
            os.fsync(self._file)
            self._size = end

    def _take(self, entry: dict[str, Any], offset: int, number: int) -> None:
        position = self._plan.position(entry.get("key"))
        if position is None:
            raise damaged(self.path / RESULTS, number, "contains a rollout that is not in the evaluation's plan")
        try:
            result = row_of_line(entry)
        except (KeyError, TypeError):
            raise damaged(self.path / RESULTS, number, "is not a result that this release can read") from None
        if self._offsets[position] != NOTHING and position not in self._failed:
            raise damaged(self.path / RESULTS, number, "is a duplicate of another line's result")
        self._note(position, offset, result)

    def _note(self, position: int, offset: int, result: RolloutRow) -> None:
        self.spent.add(result)
        if self._offsets[position] == NOTHING:
            self.done += 1
        self._offsets[position] = offset
        if result.failed:
            self._failed[position] = self._failed.get(position, 0) + 1
        else:
            self._failed.pop(position, None)

    def missing(self, *, retry_failed: bool) -> Iterator[tuple[int, int]]:
        """Yield each rollout that must be played, as (position, failures so far), in the plan's order."""
        for position in range(len(self._offsets)):
            failures = self._failed.get(position, 0)
            if self._offsets[position] == NOTHING or (retry_failed and failures):
                yield position, failures

    @property
    def failed(self) -> int:
        """The number of rollouts whose last result is a failure."""
        return len(self._failed)

    @property
    def unscored(self) -> int:
        """The number of rollouts whose episode ended but whose scoring failed."""
        return sum(result.boundary == "scoring" for result in self.results()) if self.failed else 0

    def append(self, results: list[tuple[int, RolloutRow]]) -> None:
        """Append result lines and flush them to disk. Blocks the calling thread.

        A later line for a failed rollout replaces its earlier line. Raises StoreError if the lines cannot be written.
        In that case none of them is written.
        """
        lines = [line_of(result, self._plan.key(position).to_json()) for position, result in results]
        data = memoryview(b"".join(lines))
        try:
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise StoreError(f"{self.path / RESULTS} cannot be written: {error.strerror}.") from error
        for (position, result), line in zip(results, lines, strict=True):
            self._note(position, self._size, result)
            self._size += len(line)

    def results(self) -> Iterator[RolloutRow]:
        """Yield the current result of each rollout that has a result, in the plan's order."""
        return (result for _, result in self.placed_results())

    def placed_results(self) -> Iterator[tuple[int, RolloutRow]]:
        """Yield the same results as `results`, each as (position, result)."""
        with os.fdopen(os.dup(self._file), "rb") as lines:
            for position, offset in enumerate(self._offsets):
                if offset != NOTHING:
                    yield position, row_of_line(line_at(lines, offset))

    # -- summary --------------------------------------------------------------------------------------------------

    def write_summary(self, summary: Mapping[str, Json]) -> None:
        """Write `summary.json` atomically. Raises StoreError if it cannot be written."""
        self._write(SUMMARY, _json(summary))

    def write_report(self, text: str) -> None:
        """Write `report.html` atomically. Raises StoreError if it cannot be written."""
        self._write(REPORT, text.encode())

    def drop_summary(self) -> None:
        """Remove the summary of an earlier run, because more results follow.

        Raises StoreError if it cannot be removed.
        """
        try:
            (self.path / SUMMARY).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{self.path / SUMMARY} cannot be removed: {error.strerror}.") from None

    def _write(self, name: str, text: bytes) -> None:
        try:
            write_durable(self.path / name, text)
        except OSError as error:
            raise StoreError(f"{self.path / name} cannot be written: {error.strerror}.") from error


class Line(NamedTuple):
    """A line of `results.jsonl`.

    `number` is the line number, from 1. `offset` and `end` are the positions of the first byte and of the byte after the
    line.
    """

    number: int
    offset: int
    end: int
    entry: dict[str, Any]


def whole_lines(lines: BinaryIO, path: Path) -> Iterator[Line]:
    """Yield all complete lines. A partial last line is ignored, because a process may still be writing it.

    Raises StoreError if a complete line is not a JSON object.
    """
    offset = 0
    for number, line in enumerate(iter(partial(lines.readline, MAX_LINE_BYTES), b""), start=1):
        if len(line) == MAX_LINE_BYTES:
            raise damaged(path, number, f"has {MAX_LINE_BYTES} bytes or more")
        if not line.endswith(b"\n"):
            return
        try:
            entry = orjson.loads(line)
        except orjson.JSONDecodeError:
            if next(lines, None) is None:
                return
            entry = None
        if not isinstance(entry, dict):
            raise damaged(path, number, "is not a JSON object")
        yield Line(number, offset, offset + len(line), entry)
        offset += len(line)


def line_at(lines: BinaryIO, offset: int) -> dict[str, Any]:
    """Return the JSON object at the offset of a `Line`."""
    lines.seek(offset)
    entry: dict[str, Any] = orjson.loads(lines.readline())
    return entry


def damaged(path: Path, number: int, what: str) -> StoreError:
    """Return the error for an invalid line."""
    return StoreError(f"{path}, line {number}, {what}.", hint="Fix or remove that line, or pass another directory.")


def _json(body: Mapping[str, Json]) -> bytes:
    return orjson.dumps(body, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def read_config(path: Path) -> dict[str, Any]:
    """Read the `config.json` of an evaluation's directory.

    Raises ConfigError if the file is missing or invalid, or if a symbolic link in the directory points outside of it.
    """
    try:
        text = read_inside(path, CONFIG, MAX_CONFIG_BYTES)
        for name in (RESULTS, *(f"{DATABASE}{end}" for end in ("", "-wal", "-shm", "-journal"))):
            if os.path.lexists(path / name):
                inside(path, name)
    except FileNotFoundError:
        raise ConfigError(f"{path} has no {CONFIG}, so it is not an evaluation.", hint="Check the path.") from None
    except ForeignFileRefused as error:
        raise ConfigError(
            f"{path / error.filename} {error.strerror}. Expected a regular file in the directory.",
            hint="Replace the link with a copy of its target.",
        ) from None
    except OSError as error:
        raise ConfigError(f"{path / CONFIG} cannot be read: {error.strerror}.", hint="Make it readable.") from None
    try:
        config = orjson.loads(text)
        known = config["format"] == FORMAT and config["schema_version"] <= SCHEMA_VERSION
        options = config.get("options", {})
        objects = (config["asked"], options, options.get("models", {}), options.get("not_stored", {}))
        if known and isinstance(config["eval_id"], str) and all(isinstance(entry, dict) for entry in objects):
            stored_policies(config["asked"])
            return dict(config)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ConfigError(
        f"{path / CONFIG} is not the configuration of an evaluation that this release can read.",
        hint="Pass an evaluation's directory.",
    )


def store_address(reference: str) -> str:
    """Return the path of `rollouts.db` if `reference` is the directory of an evaluation, else `reference` itself.

    Raises ConfigError if the directory has no `rollouts.db`.
    """
    path = Path(reference)
    if not path.is_dir():
        return reference
    read_config(path)
    database = path / DATABASE
    if not database.is_file():
        raise ConfigError(
            f"{path} has no {DATABASE}, because its rollouts are stored elsewhere or not at all.",
            hint="Pass the store that contains them: sqlite:///PATH or postgresql://…",
        )
    return str(database)


def differing(before: Mapping[str, Any], now: Mapping[str, Any], above: str = "") -> list[str]:
    """Describe each field that differs, for example `seeds was 0-9, is 0-19`."""
    differences: list[str] = []
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            differences += differing(old, new, f"{above}{name}.")
        else:
            differences.append(f"{above}{name} was {_short(old)}, is {_short(new)}")
    return differences


def _short(value: Any) -> str:
    text = "not set" if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()
    return cut(text, LONGEST_VALUE)
