"""Error responses of a task app's server. They never repeat what the client sent."""

from __future__ import annotations

import logging

from fastapi.exceptions import RequestValidationError

from taskapp_kit.errors import RequestError
from taskapp_kit.net.error_response import ErrorWriter
from taskapp_kit.net.response import EncodedResponse
from taskapp_kit.wire.field_problems import problems_of

ERRORS = ErrorWriter("The server", logging.getLogger("taskapp_kit.serve"), stored="the rollout", routes="/openapi.json")


def error_answer(error: BaseException, *, where: str = "") -> EncodedResponse:
    """Return the response to any exception, and log what the operator needs. where: the route, for the log."""
    # only routes that an author added are validated by FastAPI; its message would repeat the input
    if isinstance(error, RequestValidationError):
        error = RequestError("The request does not fit.", fields=problems_of(error.errors()))
    return ERRORS.response(error, where)
