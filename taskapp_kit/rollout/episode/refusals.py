"""What a model reads when an action of its answer is refused. It is part of digests and training prompts."""

from __future__ import annotations

from collections.abc import Iterable

from taskapp_kit.declare.signature import BadArguments


def unknown_tool(name: str, tools: Iterable[str], *, declared: bool) -> str:
    """Return the refusal of a call of no tool of this episode. declared: it is an action, but not available here."""
    known = ", ".join(tools)
    if not name:
        return f"Nothing was done: answer with a tool call. The tools are: {known}."
    where = "in this episode" if declared else "here"
    return f"Nothing was done: there is no tool {name[:80]!r} {where}. The tools are: {known}."


def bad_arguments(name: str, error: BadArguments) -> str:
    """Return the refusal of a call whose arguments the action does not take."""
    return f"{name} was not done: {error}."


def too_many_calls(most: int) -> str:
    """Return the refusal of a call beyond the limit of its answer, and of all after it."""
    return f"This was not done, nor what follows it: an answer may hold at most {most} calls."
