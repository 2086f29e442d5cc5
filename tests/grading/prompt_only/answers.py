"""Answers to the bundled apps by someone who had seen only the first observation and the tools' schemas.

They were committed before they were first played, and are not changed to suit a grader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Reply = str | dict[str, Any] | tuple[Any, ...]
"""A text, a tool call `{"tool": {args}}`, or a tuple with the replies of several turns."""


@dataclass(frozen=True)
class Answers:
    """The answers to one environment, by seed.

    Attributes:
        app: The app's path, its bundled name, or `templates/NAME`.
        right: Answers that deserve full reward.
        wrong: Answers that deserve less than half of it.
        environment: The environment's name, if it is not the app's first.
        config: The environment's configuration.
    """

    app: str
    right: Mapping[int, Sequence[Reply]]
    wrong: Mapping[int, Sequence[Reply]]
    environment: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
