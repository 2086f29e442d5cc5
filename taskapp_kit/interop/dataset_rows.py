"""`from_dataset`: a file, a folder or a data set of the Hugging Face Hub as the rows of `app.tasks` or an environment.

Files of JSON lines, JSON, CSV and Parquet (extra `taskapp-kit[parquet]`) are read here; the Hub by the package `datasets`
(written against 5.2.0), and only for a name that begins with `hub:`.
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
    """Returns a function that reads the rows, for `train=` of `app.tasks` or of `environment(tasks={...})`.

        app.tasks("gsm8k", row=Row, prompt="{question}", train=from_dataset("hub:openai/gsm8k", name="main"))
        app.tasks("mine", row=Row, prompt="{question}", train=from_dataset("data", split="train"))

    source: a file; a folder with `SPLIT.jsonl` (json, csv, parquet), or `data/SPLIT-*.parquet` as data sets of the Hub
    have it; or `hub:OWNER/NAME`. A relative path is relative to the file that calls this. split: which one, of a folder or
    of the Hub. name, revision: configuration and commit of a data set of the Hub. columns: new name to name in the source;
    the others are left out. limit: only the first so many.

    The function raises ConfigError (nothing there, not readable, a column is missing) and Unavailable (a package is
    missing) when the rows are first needed.
    """
    folder = Path(sys._getframe(1).f_code.co_filename).parent

    def rows() -> list[dict[str, Any]]:
        text = str(source)
        read = (
            _of_the_hub(text.removeprefix(HUB), name, split, revision, limit)
            if text.startswith(HUB)
            else _of_files(folder / text, text, split)
        )
        return [_renamed(row, columns, text) for row in read[:limit]]

    return rows


def _renamed(row: dict[str, Any], columns: Mapping[str, str] | None, source: str) -> dict[str, Any]:
    if columns is None:
        return row
    missing = [old for old in columns.values() if old not in row]
    if missing:
        raise ConfigError(
            f"{source} has no column {missing[0]!r}; a row has {', '.join(row)}.", hint="Change columns=."
        )
    return {new: row[old] for new, old in columns.items()}


def _of_files(path: Path, shown: str, split: str) -> list[dict[str, Any]]:
    files = [path]
    if path.is_dir():
        files = [one for kind in KINDS if (one := path / f"{split}{kind}").is_file()][:1]
        files = files or sorted((path / "data").glob(f"{split}-*.parquet")) or sorted(path.glob(f"{split}-*.parquet"))
    if not files or not all(file.is_file() for file in files):
        where = f"The folder {shown} has no split {split!r}." if path.is_dir() else f"There is no file {path}."
        raise ConfigError(where, hint=f"Check the path; a data set of the Hub is named {HUB}OWNER/NAME.")
    try:
        if path.is_dir():  # it may be another's: a link in it could show any JSON or CSV of this machine as rows
            files = [inside(path, file.relative_to(path).as_posix()) for file in files]
        found = [row for file in files for row in _of_file(file)]
    except ForeignFileRefused as error:
        raise ConfigError(
            f"{shown}: {error.filename} {error.strerror}.", hint="Copy the file into the folder."
        ) from error
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise ConfigError(f"{shown} cannot be read: {str(error).splitlines()[0]}.") from error
    if not all(isinstance(row, dict) for row in found):
        raise ConfigError(f"{shown} has rows that are no objects.", hint="Give one object for each row.")
    return found


def _of_file(file: Path) -> list[Any]:
    """Raises OSError, ValueError, csv.Error, ConfigError, Unavailable."""
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
    raise ConfigError(f"{file.name} is no kind of file that is read here.", hint=f"The kinds are {', '.join(KINDS)}.")


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
        found = datasets.load_dataset(data_set, name, split=part, revision=revision)
    except Exception as error:  # of many classes, of several packages
        first = (str(error).splitlines() or [""])[0]
        raise ConfigError(
            f"The data set {data_set!r} of the Hub was not read: {type(error).__name__}: {first}",
            hint="Check name=, split= and the connection.",
        ) from error
    rows: list[dict[str, Any]] = found.to_list()
    return rows


def _missing(package: str, what: str, install: str) -> Unavailable:
    return Unavailable(
        f"Reading {what} needs the package {package}, which is not installed.", hint=f"pip install '{install}'"
    )
