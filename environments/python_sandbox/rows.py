"""The tasks in `train.jsonl` and `test.jsonl`. Private fields never leave the server."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from taskapp_kit import Private

from .checkers import CHECKERS


class Example(BaseModel):
    """A call that the statement shows, and what it may give."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    args: list[Any]
    result: Any


class Case(BaseModel):
    """A hidden test: the arguments of a call; `expected` is its result, or what the checker has to know."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    args: list[Any]
    expected: Any


class CodeTask(BaseModel):
    """A function to write.

    checker: names the property (`checkers.py`) that decides where there are many right results; None for equality. wrong:
    solutions that look right and fail at least one hidden test. also_right: other solutions, which pass all of them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    difficulty: Literal["easy", "medium", "hard"]
    tags: list[str]
    statement: str
    entry: str = Field(pattern=r"^[a-z_][a-z0-9_]*$")
    signature: str
    examples: list[Example] = Field(min_length=1)
    checker: Private[str | None] = None
    hidden_tests: Private[list[Case]] = Field(min_length=5, max_length=40)
    reference: Private[str]
    wrong: Private[list[str]] = Field(min_length=2)
    also_right: Private[list[str]] = []

    @field_validator("checker")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        if name is not None and name not in CHECKERS:
            raise ValueError(f"The checker {name!r} does not exist. Use one of {', '.join(CHECKERS)}.")
        return name
