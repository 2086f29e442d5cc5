"""The declarations that an app's decorators have collected, before they are checked."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from taskapp_kit.contract.scorecard import Blend
from taskapp_kit.declare.tasks import TaskSource

Names = str | Sequence[str] | None


class NotGiven(enum.Enum):
    """The default of an argument for which None has a meaning of its own."""

    NOT_GIVEN = "not given"


NOT_GIVEN: Final = NotGiven.NOT_GIVEN


@dataclass(slots=True)
class Declaration:
    """One use of a decorator: its kind, target and options, and its line (`file:line`)."""

    kind: str
    name: str
    target: Any
    options: dict[str, Any]
    place: str
    environments: Names = None
    unknown: tuple[str, ...] = ()
    """Keywords that the decorator does not take: freeze reports each as a problem."""


class Declarations:
    """An app's own members and all its declarations: the input of `freeze` and the checks. `TaskApp` fills it.

    file: the author's. docstring: of its module. place: `file:line` where the app is made.
    """

    name: str
    version: str
    description: str
    reward: Blend | None
    system_prompt: str | None
    file: Path
    docstring: str
    place: str
    declared: list[Declaration]

    def task_source(self, declared: Declaration) -> TaskSource:
        """The rows of a declaration that has them."""
        return TaskSource(
            app=self.name,
            place=declared.place,
            row=cast("type | None", declared.options["row"]),
            sources={**(declared.options["tasks"] or {}), **declared.options.get("keywords", {})},
            folder=self.file.parent,
            shared=declared.options.get("rows"),
        )
