"""Tasks: where rows come from, how they are checked, which of their fields are private."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from taskapp_kit.contract.content import Json
from taskapp_kit.contract.digest import json_hash
from taskapp_kit.declare.places import shown_path
from taskapp_kit.errors import DeclarationError, Problem


class PrivateMark:
    """The mark that `Private[T]` leaves on a field."""

    def __repr__(self) -> str:
        return "Private"


PRIVATE = PrivateMark()

T = TypeVar("T")

Private = Annotated[T, PRIVATE]
"""`Private[str]`: a field that rubrics read and nobody outside the server ever sees."""


def private_fields(row: type | None) -> frozenset[str]:
    """The names of a row model's private fields: those with the mark anywhere in their annotation.

    `Private[str] | None` is private as a whole. Models inside the row have private fields of their own.
    """
    if row is None or not isinstance(row, type):
        return frozenset()
    hints = typing.get_type_hints(row, include_extras=True)
    return frozenset(name for name, annotation in hints.items() if _marked(annotation))


def _marked(annotation: Any) -> bool:
    if isinstance(annotation, PrivateMark):
        return True
    if typing.get_origin(annotation) is typing.Literal:
        return False
    return any(_marked(part) for part in typing.get_args(annotation))


def _public(value: Any, told: Json, row: type | None = None) -> Json:
    """`told`, the JSON of `value`, without the private fields of the models in it."""
    kind = row or type(value)
    if isinstance(told, dict):
        fields = hasattr(type(value), "model_fields") or hasattr(type(value), "__dataclass_fields__")
        hidden = private_fields(kind) if fields or row is not None else frozenset()
        for name in hidden:  # a model may write itself under other names
            info = getattr(kind, "model_fields", {}).get(name)
            hidden |= {str(getattr(info, "alias", name)), str(getattr(info, "serialization_alias", name))}
        read: Callable[[str], Any] = (lambda name: getattr(value, name, None)) if fields else (
            lambda name: value.get(name) if isinstance(value, Mapping) else None
        )  # fmt: skip
        return {name: _public(read(name), part) for name, part in told.items() if name not in hidden}
    if isinstance(told, list) and isinstance(value, (list, tuple)) and len(told) == len(value):
        return [_public(item, part) for item, part in zip(value, told, strict=True)]
    return told


Rows = Sequence[Any] | str | Path | Callable[[], Iterable[Any]]
"""A list of rows, a path to JSONL, or a callable that gives rows."""


@dataclass
class TaskSource:
    """Rows by split, read at the first need and kept. The seed is the row's index in its split.

    row: the pydantic model (or dataclass) that validates each row, None for plain dicts. place: where it was declared.
    """

    app: str
    place: str
    row: type | None
    sources: Mapping[str, Rows]
    folder: Path
    _loaded: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits, in the order in which they were declared."""
        return tuple(self.sources)

    @property
    def files(self) -> list[Path]:
        """The JSONL files among the sources: a deploy has to carry them."""
        return [self._path(source) for source in self.sources.values() if isinstance(source, (str, Path))]

    def rows(self, split: str) -> tuple[Any, ...]:
        """The split's rows, validated. Raises DeclarationError with file and line of each bad row."""
        if split not in self._loaded:
            self._loaded[split] = tuple(self._read(self.sources[split]))
        return self._loaded[split]

    def check(self) -> list[Problem]:
        """Reads every split; the problems found."""
        problems: list[Problem] = []
        for split in self.splits:
            try:
                if not self.rows(split):
                    problems.append(
                        Problem(
                            self.place, f"split {split!r} has no rows", "at least one row", "add rows or drop the split"
                        )
                    )
            except DeclarationError as error:
                problems.extend(error.problems)
        return problems

    def public(self, row: Any) -> dict[str, Json]:
        """The row without its private fields, as JSON; models inside it are without theirs."""
        told = _public(row, row_json(row), self.row)
        assert isinstance(told, dict), "a row's JSON is an object"
        return told

    def _path(self, source: str | Path) -> Path:
        path = Path(source)
        return path if path.is_absolute() else self.folder / path

    def _read(self, source: Rows) -> list[Any]:
        if isinstance(source, (str, Path)):
            return self._read_file(self._path(source))
        try:
            rows = list(source() if callable(source) else source)
        except Exception as error:
            found = f"raised {type(error).__name__}: {error}" if callable(source) else f"are {source!r}"
            expected = "a list of rows, a JSONL path, or a callable that gives rows"
            raise DeclarationError(
                self.app, [Problem(self.place, f"the rows {found}", expected, "mend them")]
            ) from error
        return self._validated([(f"{self.place} (row {index})", row) for index, row in enumerate(rows)])

    def _read_file(self, path: Path) -> list[Any]:
        import orjson

        if not path.is_file():
            raise DeclarationError(
                self.app,
                [Problem(self.place, f"there is no file {path}", "a JSONL file, one object a line", "check the path")],
            )
        numbered: list[tuple[str, Any]] = []
        problems: list[Problem] = []
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            if not line.strip():
                continue
            where = f"{shown_path(str(path))}:{number}"
            try:
                read = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                problems.append(Problem(where, f"is not JSON ({error})", "one JSON object", "mend the line"))
                continue
            if isinstance(read, dict):
                numbered.append((where, read))
            else:
                problems.append(Problem(where, f"is a {type(read).__name__}", "one JSON object", "mend the line"))
        if problems:
            raise DeclarationError(self.app, problems)
        return self._validated(numbered)

    def _validated(self, numbered: list[tuple[str, Any]]) -> list[Any]:
        if self.row is None:
            return [row for _, row in numbered]
        import pydantic

        try:
            adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(self.row)
        except Exception as error:  # annotations are the author's code
            told = str(error).split("\n", 1)[0]
            problem = Problem(self.place, f"row={self.row!r}: {told}", "a pydantic model or a dataclass", "mend row=")
            raise DeclarationError(self.app, [problem]) from error
        rows, problems = [], []
        for place, row in numbered:
            try:
                rows.append(adapter.validate_python(row))
            except pydantic.ValidationError as error:
                first = error.errors(include_url=False)[0]
                where = ".".join(map(str, first["loc"]))
                found = f"{where}: {first['msg']}" if where else str(first["msg"])
                wanted = getattr(self.row, "__name__", str(self.row))
                problems.append(Problem(place, found, f"a {wanted}", "mend the row or the model"))
        if problems:
            raise DeclarationError(self.app, problems)
        return rows


def row_json(row: Any) -> dict[str, Json]:
    """A row as a JSON object, private fields included."""
    from taskapp_kit.contract.content import plain

    value = plain(row, "row")
    return value if isinstance(value, dict) else {"row": value}


def row_hash(row: Any) -> str:
    """SHA-256 (hex) of the row: what a store keeps in its place."""
    return json_hash(row_json(row))
