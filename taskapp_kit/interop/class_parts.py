"""Helpers for adapters that create a class for `app.environment(...)`: constructors and errors at the author's line."""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from types import FrameType, FunctionType
from typing import Any, TypeVar

from taskapp_kit.declare.marks import PROBLEMS
from taskapp_kit.declare.source_location import shown_path
from taskapp_kit.errors import DeclarationError, Problem, Unavailable

T = TypeVar("T")


def require(adapter: str, package: str, library: str, extra: str) -> None:
    """Raise Unavailable if a package is not installed. The hint names the extra to install.

    adapter: the function's name. library: the package's display name.
    """
    if importlib.util.find_spec(package) is None:
        raise Unavailable(
            f"{adapter} needs {library}, which is not installed.", hint=f"Run: pip install 'taskapp-kit[{extra}]'"
        )


class ClassParts:
    """The parts of a class that a call of an adapter creates.

    adapter: the adapter's name (`from_gymnasium`). name: the name of the adapted environment. caller: the frame of the
    author's call; problems and tracebacks point to its line.
    """

    def __init__(self, adapter: str, name: str, caller: FrameType) -> None:
        self.adapter, self.name = adapter, name
        self.place = (caller.f_code.co_filename, caller.f_lineno)
        self.module = str(caller.f_globals.get("__name__", __name__))

    def wrong(self, found: str, expected: str, fix: str) -> DeclarationError:
        """Return the error for a mistake in the author's call. found: a clause that follows the adapter's name."""
        where = f"{shown_path(self.place[0])}:{self.place[1]}"
        return DeclarationError(self.name, [Problem(where, f"{self.adapter} {found}", expected, fix)])

    def made(self, base: type[T], name: str, members: Mapping[str, Any]) -> type[T]:
        """Return a subclass of `base` in the author's module."""
        return type(re.sub(r"\W", "_", name), (base,), {"__module__": self.module, **members})

    def without_environment(self, error: DeclarationError, base: type) -> type:
        """Return a class that cannot be instantiated, and that reports the error's problems when its app is frozen."""

        def refuse(*_: Any, **__: Any) -> None:
            raise error

        members = {"__module__": self.module, "__init__": refuse, PROBLEMS: tuple(error.problems)}
        return type(f"{base.__name__}NotMade", (base,), members)

    def defaults(self, configurable: Mapping[str, Any]) -> dict[str, Any]:
        """Return the defaults of the options that env.config may set.

        Raises DeclarationError if `configurable` is not a mapping.
        """
        if not isinstance(configurable, Mapping):
            raise self.wrong(
                f"has configurable={configurable!r}",
                "a mapping from option to default",
                'write configurable={"option": default}',
            )
        return {name: value[1] if isinstance(value, tuple) else value for name, value in configurable.items()}

    def constructor(
        self, configurable: Mapping[str, Any], body: Callable[[Any, dict[str, Any]], None], **further: tuple[Any, Any]
    ) -> FunctionType:
        """Return `__init__(self, *, <configurable>, <further>)`, whose parameters env.config may set.

        body: `fn(self, options)`, which `__init__` calls. further: maps each name to (annotation, default).
        """
        fields: dict[str, tuple[Any, Any]] = {}
        for name, value in configurable.items():
            if not isinstance(value, tuple) and type(value) not in (bool, int, float, str):
                raise self.wrong(
                    f"has configurable[{name!r}] = {value!r}",
                    "a bool, int, float, str, or (annotation, default)",
                    "write the annotation and the default: (list[str], [])",
                )
            fields[name] = value if isinstance(value, tuple) else (type(value), value)
        fields.update(further)
        defaults = {name: default for name, (_, default) in fields.items()}

        def __init__(self: Any, **given: Any) -> None:
            body(self, {**defaults, **given})

        written: Any = __init__
        written.__annotations__ = {name: annotation for name, (annotation, _) in fields.items()}
        written.__signature__ = inspect.Signature(
            [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
            + [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
                for name, (annotation, default) in fields.items()
            ]
        )
        constructor: FunctionType = written
        return constructor

    def function(self, body: Any, name: str, annotations: dict[str, Any]) -> Any:
        """Return a function with the code of `body`. Problems and tracebacks point to the line of the author's call."""
        file, line = self.place
        code = body.__code__.replace(co_filename=file, co_firstlineno=line, co_name=name, co_qualname=name)
        function = FunctionType(code, body.__globals__, name)
        function.__annotations__ = annotations
        return function
