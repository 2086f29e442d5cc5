"""Requests to a running task app. Error messages name command-line options."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from taskapp_kit.errors import TaskAppError

KEY_HINT = (
    "Pass the server's key as --key or in ENVIRONMENT_API_KEY. A key that `serve` creates is printed when it starts."
)
NO_KEY_CODES = ("unauthorised", "unauthorized")

Asked = ParamSpec("Asked")
Result = TypeVar("Result")


def asked(ask: Callable[Asked, Result], *args: Asked.args, **kwargs: Asked.kwargs) -> Result:
    """Call `ask` and return its result. If the server rejects the key, the error's hint explains how to pass a key."""
    try:
        return ask(*args, **kwargs)
    except TaskAppError as error:
        if error.status in (401, 403) or error.code in NO_KEY_CODES:
            error.hint = KEY_HINT
        raise
