"""Private fields of rows: the mark `Private[T]`, and copies of rows without private fields."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Generic, TypeVar

from taskapp_kit.declare.source_location import calling_line
from taskapp_kit.errors import DeclarationError, Problem


class PrivateMark:
    """The mark that `Private[T]` puts on a field."""

    def __repr__(self) -> str:
        return "Private"


PRIVATE = PrivateMark()

T = TypeVar("T")

Private = Annotated[T, PRIVATE]
"""Mark of a private field, e.g. `Private[str]`. Only rubrics, judges and the policy `gold` can read a private field. It
never appears in prompts, responses or descriptions.
"""

_WRAPPERS = (Annotated, typing.Required, typing.NotRequired)


def private_fields(row: Any) -> frozenset[str]:
    """Return the names of a row model's private fields. A field is private if its annotation contains the mark.

    `Private[str] | None` is private as a whole. A mark also counts in a type alias and in an argument of a generic
    model. Private fields of nested models are not included.
    """
    if not isinstance(typing.get_origin(row) or row, type):
        return frozenset()
    return frozenset(name for name, annotation in _annotations(row).items() if _marked(annotation, []))


def _annotations(kind: Any) -> dict[str, Any]:
    """Return the annotations of a class's fields, including marks. Type variables are replaced by their values."""
    fields = getattr(kind, "model_fields", None)
    if isinstance(fields, Mapping):  # pydantic has resolved these annotations
        return {
            name: Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
            for name, info in fields.items()
        }
    cls: Any = typing.get_origin(kind) or kind
    hints = typing.get_type_hints(cls, include_extras=True)
    for base in cls.__dict__.get("__orig_bases__", cls.__bases__):
        if isinstance(typing.get_origin(base) or base, type) and typing.get_origin(base) is not Generic:
            # the subclass's own annotation contains `T`, and the annotation of the base contains its value
            for name, hint in _annotations(base).items():
                hints[name] = typing.Union[hints.get(name, hint), hint]  # noqa: UP007  not all operands support |
    values = dict(zip(getattr(cls, "__parameters__", ()), typing.get_args(kind), strict=False))
    return {name: _filled(hint, values) for name, hint in hints.items()} if values else hints


def _filled(hint: Any, values: Mapping[Any, Any]) -> Any:
    """Return the annotation with type variables replaced by their values."""
    if isinstance(hint, TypeVar):
        return values.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if typing.get_origin(hint) is None or not any(parameter in values for parameter in parameters):
        return hint
    return hint[tuple(values.get(parameter, parameter) for parameter in parameters)]


def _target(annotation: Any) -> Any:
    """Return the target of a type alias (`type X = …`) or a NewType. Other annotations are returned unchanged."""
    alias = typing.get_origin(annotation) or annotation
    if hasattr(alias, "__value__"):
        values = dict(zip(alias.__type_params__, typing.get_args(annotation), strict=False))
        return _filled(alias.__value__, values)
    return getattr(annotation, "__supertype__", annotation)


def _marked(annotation: Any, seen: list[Any]) -> bool:
    """Return whether the annotation contains the mark. Aliases may be recursive: `seen` lists the enclosing aliases."""
    if isinstance(annotation, PrivateMark):
        return True
    target = _target(annotation)
    if target is not annotation:
        return annotation not in seen and _marked(target, [*seen, annotation])
    if typing.get_origin(annotation) is typing.Literal:
        return False
    return any(_marked(part, seen) for part in typing.get_args(annotation))


class PublicRows:
    """Creates copies of rows without private fields, at any depth, for prompts, `/task_info` and agent loops.

    A copy is an instance of the row's class, so methods, `str()` and dumps work with the remaining fields. Reading a
    private field of a copy raises DeclarationError with the line that reads the field, or with `place` if the code has
    no source line.
    """

    def __init__(self, app: str, place: str) -> None:
        self._app = app
        self._place = place
        self._shapes: dict[tuple[Any, ...], _Shape] = {}

    def of(self, row: Any, annotation: Any = None) -> Any:
        """Return a copy of the row without private fields, or the row itself if it has no private fields.

        Args:
            row: The row.
            annotation: The row's declared type.
        """
        return self._public(row, _alternatives(annotation))

    def _public(self, value: Any, declared: list[Any]) -> Any:
        kind = type(value)
        if isinstance(value, Mapping):
            return self._mapping(value, declared)
        if isinstance(value, (list, tuple, set, frozenset, deque)):
            return self._items(value, declared)
        if hasattr(kind, "model_fields") or hasattr(kind, "__dataclass_fields__"):
            return self._model(value, declared)
        return value

    def _mapping(self, value: Mapping[Any, Any], declared: list[Any]) -> Any:
        """Return a copy of a dict without the private fields of every TypedDict in its declared types."""
        kinds = [kind for kind in declared if hasattr(typing.get_origin(kind) or kind, "__required_keys__")]
        hidden = frozenset().union(*map(private_fields, kinds))
        members = {name: note for kind in kinds for name, note in _annotations(kind).items()}
        inner = _inner(declared)
        public = {
            name: self._public(item, _alternatives(members[name]) if name in members else inner)
            for name, item in value.items()
            if name not in hidden
        }
        if hidden:
            owner = str((typing.get_origin(kinds[0]) or kinds[0]).__name__)
            return _PublicDict(public, {name: self._withheld(name, owner, public) for name in hidden})
        return public if any(public[name] is not value[name] for name in value) else value

    def _items(self, value: Any, declared: list[Any]) -> Any:
        kind = type(value)
        if hasattr(kind, "_fields") and private_fields(kind):
            found = f"{kind.__name__} is a NamedTuple with private fields, but fields cannot be removed from a tuple"
            problem = Problem(self._place, found, "a pydantic model or a dataclass", "change the type of the row")
            raise DeclarationError(self._app, [problem])
        inner = _inner(declared)
        items = list(value)
        public = [self._public(item, inner) for item in items]
        if all(copy is item for copy, item in zip(public, items, strict=True)):
            return value
        return kind(*public) if hasattr(kind, "_fields") else kind(public)

    def _model(self, value: Any, declared: list[Any]) -> Any:
        """Return a copy of a pydantic model or a dataclass without private fields.

        `declared` contains the type arguments of a generic dataclass, because its instances do not store them.
        """
        kind = type(value)
        kinds = [
            generic
            for generic in declared
            if isinstance(typing.get_origin(generic), type) and isinstance(value, typing.get_origin(generic))
        ]
        key = (kind, *map(repr, kinds))
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = self._shape(kind, kinds)
        fields = {name: getattr(value, name) for name in shape.public if hasattr(value, name)}
        public = {name: self._public(item, shape.public[name]) for name, item in fields.items()}
        if not shape.hidden and all(public[name] is fields[name] for name in fields):
            return value
        result: Any = object.__new__(shape.view)
        if hasattr(shape.view, "model_fields"):  # the attributes that pydantic's copy() sets
            object.__setattr__(result, "__dict__", public)
            object.__setattr__(result, "__pydantic_fields_set__", value.__pydantic_fields_set__ & set(public))
            object.__setattr__(result, "__pydantic_extra__", self._public(value.__pydantic_extra__, []))
            object.__setattr__(result, "__pydantic_private__", {})
        else:
            for name, item in public.items():
                object.__setattr__(result, name, item)  # setattr fails for frozen dataclasses
        return result

    def _shape(self, kind: type, kinds: Sequence[Any]) -> _Shape:
        hidden = frozenset().union(*map(private_fields, (kind, *kinds)))
        annotations = [_annotations(each) for each in (kind, *kinds)]
        names = getattr(kind, "model_fields", None) or [field.name for field in dataclasses.fields(kind)]
        public = {
            name: [alternative for hints in annotations for alternative in _alternatives(hints.get(name))]
            for name in names
            if name not in hidden
        }
        # a pydantic private attribute may depend on a private field
        withheld = hidden | set(getattr(kind, "__private_attributes__", {}))
        return _Shape(hidden, public, self._view(kind, withheld, public))

    def _view(self, kind: type, hidden: Iterable[str], public: Iterable[str]) -> type:
        """Return a subclass with the same name that raises DeclarationError when a hidden field is read."""
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
        view = types.new_class(kind.__name__, (kind,), exec_body=lambda body: body.update(names))
        for name in hidden:
            setattr(view, name, self._withheld(name, kind.__name__, public))
        if not hasattr(kind, "model_fields"):
            fields = {field.name: field for field in dataclasses.fields(kind) if field.name in public}
            setattr(view, "__dataclass_fields__", fields)  # noqa: B010  read by asdict() and fields()
            if _generated(kind.__repr__):
                bare = [(name, Any, dataclasses.field(repr=field.repr)) for name, field in fields.items()]
                setattr(view, "__repr__", dataclasses.make_dataclass(kind.__name__, bare).__repr__)  # noqa: B010
        return view

    def _withheld(self, name: str, row: str, public: Iterable[str]) -> _Withheld:
        return _Withheld(self._app, self._place, name, row, tuple(public))


@dataclasses.dataclass(frozen=True, slots=True)
class _Shape:
    """A row class's private fields, the possible types of its public fields, and the subclass for public copies."""

    hidden: frozenset[str]
    public: Mapping[str, list[Any]]
    view: type


@dataclasses.dataclass(frozen=True, slots=True)
class _Withheld:
    """Descriptor that replaces a private field in a class and raises DeclarationError when the field is read."""

    app: str
    place: str
    name: str
    row: str
    public: tuple[str, ...]

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self
        raise self.error(calling_line(1))

    def error(self, line: str) -> DeclarationError:
        """Return the error for reading the field at `line`, which is `file:line`."""
        public = ", ".join(self.public)
        return DeclarationError(
            self.app,
            [
                Problem(
                    self.place if line.startswith("<") else line,
                    f"reads {self.name!r}, a private field of {self.row}",
                    f"one of {public}" if public else "public fields only",
                    "read the field only in rubrics, judges or the policy gold, or make it public",
                )
            ],
        )


class _PublicDict(dict[str, Any]):
    """A dict that raises DeclarationError when a private key is read."""

    def __init__(self, public: Mapping[str, Any], withheld: Mapping[str, _Withheld]) -> None:
        super().__init__(public)
        self._withheld = withheld

    def __missing__(self, name: str) -> Any:
        if name in self._withheld:
            raise self._withheld[name].error(calling_line(1))
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        if name in self._withheld:
            raise self._withheld[name].error(calling_line(1))
        return super().get(name, default)


def _alternatives(annotation: Any) -> list[Any]:
    """Return the types that a value with this annotation may have. Unions and marks are resolved."""
    target = _target(annotation)
    if target is not annotation:
        return _alternatives(target)
    origin = typing.get_origin(annotation)
    if origin in _WRAPPERS:
        return _alternatives(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [alternative for part in typing.get_args(annotation) for alternative in _alternatives(part)]
    return [] if annotation is None else [annotation]


def _inner(declared: list[Any]) -> list[Any]:
    """Return the types that the items of a container may have."""
    return [item for container in declared for part in typing.get_args(container) for item in _alternatives(part)]


def _generated(function: Any) -> bool:
    """Return whether `@dataclass` generated the method."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is not None and code.co_filename.startswith("<")
