"""Requests to a running task app whose errors mention command-line options."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from taskapp_kit.errors import TaskAppError

KEY_HINT = (
    "Pass the server's key as --key or in ENVIRONMENT_API_KEY. A key made by `serve` is printed where it was started."
)
NO_KEY_CODES = ("unauthorised", "unauthorized")

Asked = ParamSpec("Asked")
Result = TypeVar("Result")


def asked(ask: Callable[Asked, Result], *args: Asked.args, **kwargs: Asked.kwargs) -> Result:
    """Return the result of a request. If the key is rejected, the error's hint explains how to pass it."""
    try:
        return ask(*args, **kwargs)
    except TaskAppError as error:
        if error.status in (401, 403) or error.code in NO_KEY_CODES:
            error.hint = KEY_HINT
        raise
