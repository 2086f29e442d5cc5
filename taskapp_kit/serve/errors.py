"""Error responses of a task app's server. They never repeat data that the client sent."""

from __future__ import annotations

import logging

from fastapi.exceptions import RequestValidationError

from taskapp_kit.errors import RequestError
from taskapp_kit.net.error_response import ErrorWriter
from taskapp_kit.net.response import EncodedResponse
from taskapp_kit.wire.field_problems import problems_of

ERRORS = ErrorWriter("The server", logging.getLogger("taskapp_kit.serve"), stored="the rollout", routes="/openapi.json")


def error_answer(error: BaseException, *, where: str = "") -> EncodedResponse:
    """Return the response for any exception, and log the details for the operator. `where` is the route to log."""
    # FastAPI validates only routes that authors add, and its messages would repeat the input
    if isinstance(error, RequestValidationError):
        error = RequestError("The request is invalid.", fields=problems_of(error.errors()))
    return ERRORS.response(error, where)
