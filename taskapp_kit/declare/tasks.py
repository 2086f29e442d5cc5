"""Task rows: loading from their sources, and validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from taskapp_kit.declare.private_fields import PublicRows, private_fields
from taskapp_kit.declare.signature import finished
from taskapp_kit.declare.source_location import shown_path
from taskapp_kit.errors import DeclarationError, Problem
from taskapp_kit.records.content import Json, json_hash, plain, read_exactly

Rows = Sequence[Any] | str | Path | Callable[[], Iterable[Any]]
"""A list of rows, the path of a JSONL file, or a callable that returns rows."""


@dataclass
class TaskSource:
    """Rows by split, which are read at first use and cached.

    The seed of an episode is the index of its row in the split.

    Attributes:
        app: Name of the app, for error messages.
        place: Location of the declaration.
        row: Pydantic model or dataclass that validates each row. None for plain dicts.
        sources: Source of each split.
        folder: Directory at which relative paths start.
        shared: A single source for all splits. Each value of `sources` is then a range of row numbers, starting at 0.
    """

    app: str
    place: str
    row: type | None
    sources: Mapping[str, Rows | range]
    folder: Path
    shared: Rows | None = None
    _loaded: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits, in declaration order."""
        return tuple(self.sources)

    @property
    def files(self) -> list[Path]:
        """The JSONL files among the sources. `taskapp deploy` uploads them."""
        sources = (self.shared, *self.sources.values())
        return [self._path(source) for source in sources if isinstance(source, (str, Path))]

    def rows(self, split: str) -> tuple[Any, ...]:
        """Return the validated rows of a split. Raises DeclarationError with the location of each invalid row."""
        if split not in self._loaded:
            source = self.sources[split]
            if self.shared is None:
                self._loaded[split] = tuple(self._read(source, f" of split {split!r}"))
            else:
                self._loaded[split] = self._part(split, source)
        return self._loaded[split]

    def check(self) -> list[Problem]:
        """Read every split and return all problems."""
        problems: list[Problem] = []
        for split in self.splits:
            try:
                rows = self.rows(split)
                if not rows:
                    found = f"split {split!r} has no rows"
                    problems.append(Problem(self.place, found, "at least one row", "add rows or remove the split"))
                problems.extend(self._unpublishable(split, rows))
            except DeclarationError as error:
                problems.extend(problem for problem in error.problems if problem not in problems)
        return problems or self._in_two_splits()

    def _in_two_splits(self) -> list[Problem]:
        """Return one problem for each pair of splits that share a row."""
        problems: dict[tuple[str, str], Problem] = {}
        seen: dict[str, tuple[str, int]] = {}
        for split in self.splits if len(self.splits) > 1 else ():
            for index, row in enumerate(self.rows(split)):
                other, number = seen.setdefault(row_hash(row), (split, index))
                if other != split and (other, split) not in problems:
                    found = f"row {index} of split {split!r} is also row {number} of split {other!r}"
                    expected = "each row in only one split, so that no training row is also a test row"
                    problems[other, split] = Problem(self.place, found, expected, "remove it from one of the splits")
        return list(problems.values())

    @cached_property
    def _public_rows(self) -> PublicRows:
        return PublicRows(self.app, self.place)

    def without_private(self, row: Any) -> Any:
        """Return a row of the same class without private fields. Reading a private field raises DeclarationError."""
        return self._public_rows.of(row, self.row)

    def _unpublishable(self, split: str, rows: Sequence[Any]) -> list[Problem]:
        """Return the problem of the first row that cannot be made public.

        For example, a computed field may read a private field.
        """
        for index, row in enumerate(rows):
            try:
                if self.without_private(row) is not row:
                    self.public(row)
            except DeclarationError as error:
                where = f"serializing the public fields of row {index} of split {split!r}"
                return [replace(problem, found=f"{where} {problem.found}") for problem in error.problems]
            except ValueError as error:  # NotJson, or an error of pydantic
                place = f"{self.place} (row {index} of split {split!r})"
                return [Problem(place, str(error), "a row that JSON can represent", "fix the row")]
        return []

    def public(self, row: Any) -> dict[str, Json]:
        """Return the row as JSON. Private fields of the row and of nested models are omitted."""
        public = self.without_private(row)
        if public is not row and hasattr(public, "model_dump"):  # a nested union would warn about missing fields
            public = public.model_dump(mode="json", warnings=False)
        return row_json(public)

    def difficulties(self) -> list[str]:
        """Return the distinct values of the rows' public field `difficulty`, in order of first appearance."""
        values: dict[str, None] = {}
        for split in self.splits:
            for row in self.rows(split):
                if "difficulty" in private_fields(type(row)) | private_fields(self.row):
                    return []
                value = row.get("difficulty") if isinstance(row, Mapping) else getattr(row, "difficulty", None)
                if isinstance(value, str | int | float):
                    values[str(value)] = None
        return list(values)

    def _path(self, source: str | Path) -> Path:
        path = Path(source)
        return path if path.is_absolute() else self.folder / path

    @cached_property
    def _all_rows(self) -> tuple[Any, ...]:
        assert self.shared is not None
        return tuple(self._read(self.shared))

    def _part(self, split: str, numbers: Any) -> tuple[Any, ...]:
        """Return the rows of `shared` in a range of row numbers."""
        if not isinstance(numbers, range):
            found, expected = f"split {split!r} is {numbers!r}", "a range of row numbers, because rows= is set"
            problem = Problem(self.place, found, expected, f"write {split}=range(40), or remove rows=")
            raise DeclarationError(self.app, [problem])
        rows = self._all_rows
        outside = [number for number in (numbers[:1], numbers[-1:]) if number and number[0] not in range(len(rows))]
        if outside:
            found = f"split {split!r} is {numbers!r}, but rows= contains the rows 0 to {len(rows) - 1}"
            problem = Problem(self.place, found, "numbers of existing rows", "change the range, or add rows")
            raise DeclarationError(self.app, [problem])
        return tuple(rows[number] for number in numbers)

    def _read(self, source: Rows | range, part: str = "") -> list[Any]:
        """Return the validated rows of a source. `part` names the split in the location of a problem."""
        if isinstance(source, (str, Path)):
            return self._read_file(self._path(source))
        try:
            rows = list(finished(source()) if callable(source) else source)
        except Exception as error:
            message = str(error).split("\n", 1)[0]
            found = f"raised {type(error).__name__}: {message}" if callable(source) else f"are {source!r}"
            expected = "a list of rows, a JSONL path, or a callable that returns rows"
            raise DeclarationError(
                self.app, [Problem(self.place, f"the rows {found}", expected, "fix the rows")]
            ) from error
        return self._validated([(f"{self.place} (row {index}{part})", row) for index, row in enumerate(rows)])

    def _read_file(self, path: Path) -> list[Any]:
        if not path.is_file():
            raise DeclarationError(
                self.app,
                [Problem(self.place, f"the file {path} does not exist", "a JSONL file", "check the path")],
            )
        numbered: list[tuple[str, Any]] = []
        problems: list[Problem] = []
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            if not line.strip():
                continue
            where = f"{shown_path(str(path))}:{number}"
            try:
                read = read_exactly(line)
            except ValueError as error:
                problems.append(Problem(where, f"is not JSON ({error})", "a JSON object per line", "fix the line"))
                continue
            if isinstance(read, dict):
                numbered.append((where, read))
            else:
                problems.append(Problem(where, f"is a {type(read).__name__}", "a JSON object per line", "fix the line"))
        if problems:
            raise DeclarationError(self.app, problems)
        return self._validated(numbered)

    def _validated(self, numbered: list[tuple[str, Any]]) -> list[Any]:
        """Validate rows. Raises DeclarationError for rows that are invalid or that JSON cannot represent."""
        import pydantic

        validate: Callable[[Any], Any] = lambda row: row  # noqa: E731
        if self.row is not None:
            try:
                validate = pydantic.TypeAdapter(self.row).validate_python
            except Exception as error:  # annotations are the author's code
                message = str(error).split("\n", 1)[0]
                problem = Problem(
                    self.place, f"row={self.row!r}: {message}", "a pydantic model or a dataclass", "change row="
                )
                raise DeclarationError(self.app, [problem]) from error
        rows, problems = [], []
        for place, raw in numbered:
            try:
                row = validate(raw)
                row_json(row)
                rows.append(row)
            except pydantic.ValidationError as error:
                first = error.errors(include_url=False)[0]
                where = ".".join(map(str, first["loc"]))
                found = f"{where}: {first['msg']}" if where else str(first["msg"])
                expected = getattr(self.row, "__name__", str(self.row))
                problems.append(Problem(place, found, f"a {expected}", "fix the row or the model"))
            except Exception as error:  # NotJson, or an error of a computed field
                problems.append(Problem(place, str(error), "a row that JSON can represent", "fix the row"))
        if problems:
            raise DeclarationError(self.app, problems)
        return rows


def row_json(row: Any) -> dict[str, Json]:
    """Return a row as a JSON object, including its private fields."""
    value = plain(row, "row")
    return value if isinstance(value, dict) else {"row": value}


def row_hash(row: Any) -> str:
    """Return the SHA-256 of a row in hexadecimal. A store contains this hash instead of the row."""
    return json_hash(row_json(row))
