"""Requests to a running task app, whose errors name the options of the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from taskapp_kit.errors import TaskAppError

KEY_HINT = (
    "Give the server's key as --key, or set ENVIRONMENT_API_KEY (a minted one is shown where the server was started)."
)
NO_KEY_CODES = ("unauthorised", "unauthorized")

Asked = ParamSpec("Asked")
Result = TypeVar("Result")


def asked(ask: Callable[Asked, Result], *args: Asked.args, **kwargs: Asked.kwargs) -> Result:
    """The result of a request. Raises what it raises, with the command's own hint where the key was refused."""
    try:
        return ask(*args, **kwargs)
    except TaskAppError as error:
        if error.status in (401, 403) or error.code in NO_KEY_CODES:
            error.hint = KEY_HINT
        raise
