"""`from_dataset` reads rows for `app.tasks` or an environment from a file, a directory or the Hugging Face Hub.

This module reads JSON lines, JSON, CSV and Parquet (extra `taskapp-kit[parquet]`). Names that begin with `hub:` are
read from the Hub by the package `datasets` (written against 5.2.0).
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from taskapp_kit.errors import ConfigError, Unavailable
from taskapp_kit.records.content import read_exactly
from taskapp_kit.system.foreign_files import ForeignFileRefused, inside

HUB = "hub:"
KINDS = (".jsonl", ".json", ".csv", ".parquet")


def from_dataset(
    source: str | Path,
    *,
    split: str = "train",
    name: str | None = None,
    revision: str | None = None,
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
) -> Callable[[], list[dict[str, Any]]]:
    """Return a function that reads rows, for `train=` of `app.tasks` or of `environment(tasks={...})`.

        app.tasks("gsm8k", row=Row, prompt="{question}", train=from_dataset("hub:openai/gsm8k", name="main"))
        app.tasks("mine", row=Row, prompt="{question}", train=from_dataset("data", split="train"))

    The data is read when the rows are first needed. The returned function raises ConfigError if the data cannot be
    read, and Unavailable if a required package is not installed.

    Args:
        source: A file; a directory with `SPLIT.jsonl` (or .json, .csv, .parquet) or `data/SPLIT-*.parquet`; or
            `hub:OWNER/NAME`. A relative path is relative to the calling file's directory.
        split: The split of the directory, or of the data set on the Hub.
        name: The configuration name of a data set on the Hub.
        revision: The commit of a data set on the Hub.
        columns: Maps the name of each new column to its name in the source. All other columns are dropped. Defaults to
            all columns of the source.
        limit: Read at most this many rows.

    Returns:
        A function that returns the rows.
    """
    directory = Path(sys._getframe(1).f_code.co_filename).parent

    def rows() -> list[dict[str, Any]]:
        text = str(source)
        read = (
            _of_the_hub(text.removeprefix(HUB), name, split, revision, limit)
            if text.startswith(HUB)
            else _of_files(directory / text, text, split)
        )
        return [_renamed(row, columns, text) for row in read[:limit]]

    return rows


def _renamed(row: dict[str, Any], columns: Mapping[str, str] | None, source: str) -> dict[str, Any]:
    if columns is None:
        return row
    missing = [old for old in columns.values() if old not in row]
    if missing:
        raise ConfigError(
            f"{source} has no column {missing[0]!r}. Its columns are {', '.join(row)}.", hint="Correct columns=."
        )
    return {new: row[old] for new, old in columns.items()}


def _of_files(path: Path, shown: str, split: str) -> list[dict[str, Any]]:
    files = [path]
    if path.is_dir():
        files = [file for kind in KINDS if (file := path / f"{split}{kind}").is_file()][:1]
        files = files or sorted((path / "data").glob(f"{split}-*.parquet")) or sorted(path.glob(f"{split}-*.parquet"))
    if not files or not all(file.is_file() for file in files):
        where = (
            f"The directory {shown} has no split {split!r}." if path.is_dir() else f"The file {path} does not exist."
        )
        raise ConfigError(where, hint=f"Check the path and split=. To read from the Hub, pass {HUB}OWNER/NAME.")
    try:
        if (
            path.is_dir()
        ):  # a directory from elsewhere may contain links that expose other JSON or CSV files of this machine
            files = [inside(path, file.relative_to(path).as_posix()) for file in files]
        rows = [row for file in files for row in _of_file(file)]
    except ForeignFileRefused as error:
        raise ConfigError(
            f"{shown}: {error.filename} {error.strerror}.", hint="Copy the file into the directory."
        ) from error
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise ConfigError(f"{shown} cannot be read: {str(error).splitlines()[0]}.") from error
    if not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{shown} has rows that are not JSON objects.", hint="Write one object per row.")
    return rows


def _of_file(file: Path) -> list[Any]:
    """Return a file's rows. Raises OSError, ValueError, csv.Error, ConfigError or Unavailable if it cannot be read."""
    if file.suffix == ".parquet":
        try:
            import pyarrow.parquet
        except ImportError:
            raise _missing("pyarrow", "Parquet", "taskapp-kit[parquet]") from None
        rows: list[Any] = pyarrow.parquet.read_table(file).to_pylist()
        return rows
    text = file.read_text("utf-8")
    if file.suffix == ".csv":
        return list(csv.DictReader(io.StringIO(text, newline="")))
    if file.suffix == ".json":
        read = read_exactly(text)
        return read if isinstance(read, list) else [read]
    if file.suffix == ".jsonl":
        return [_line(line, number) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    raise ConfigError(f"The format of {file.name} is not supported.", hint=f"Use {', '.join(KINDS)}.")


def _line(line: str, number: int) -> Any:
    try:
        return read_exactly(line)
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from None


def _of_the_hub(
    data_set: str, name: str | None, split: str, revision: str | None, limit: int | None
) -> list[dict[str, Any]]:
    try:
        import datasets
    except ImportError:
        raise _missing("datasets", "the Hub", "datasets") from None
    part = split if limit is None else f"{split}[:{limit}]"
    try:
        data_set_rows = datasets.load_dataset(data_set, name, split=part, revision=revision)
    except Exception as error:  # several packages raise exceptions of many classes
        first = (str(error).splitlines() or [""])[0]
        raise ConfigError(
            f"The data set {data_set!r} cannot be read from the Hub: {type(error).__name__}: {first}",
            hint="Check name=, split= and the network connection.",
        ) from error
    rows: list[dict[str, Any]] = data_set_rows.to_list()
    return rows


def _missing(package: str, what: str, install: str) -> Unavailable:
    return Unavailable(
        f"Reading {what} needs the package {package}, which is not installed.", hint=f"pip install '{install}'"
    )
