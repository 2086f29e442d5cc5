"""Error responses of a task app's server. Validation errors are reworded and never repeat what the client sent."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import pydantic
from fastapi.exceptions import RequestValidationError

from taskapp_kit.errors import RequestError
from taskapp_kit.net.error_response import ErrorWriter, short_part
from taskapp_kit.net.response import EncodedResponse
from taskapp_kit.wire.field_problems import body_problems, problems_of

M = TypeVar("M", bound=pydantic.BaseModel)

ERRORS = ErrorWriter("The server", logging.getLogger("taskapp_kit.serve"), stored="the rollout", routes="/openapi.json")


def error_answer(error: BaseException, *, where: str = "") -> EncodedResponse:
    """Return the response to any exception, and log what the operator has to know. where: the route, for the log."""
    # only routes that an author added are validated by FastAPI; its message would repeat the input
    if isinstance(error, RequestValidationError):
        error = RequestError("The request does not fit.", fields=problems_of(error.errors()))
    return ERRORS.response(error, where)


def invalid_request(error: pydantic.ValidationError, body: Any) -> RequestError:
    """Return the error of a body that does not fit its model. body: distinguishes field names from union tags."""
    fields = body_problems(error, body)
    # at most five: a caller may send a body in which every field is wrong
    named = ", ".join(".".join(str(short_part(part)) for part in problem.loc[1:]) for problem in fields[:5])
    return RequestError(
        f"The request body does not fit: {named}.",
        fields=fields,
        hint="`fields` says what each one should be; the models are in /openapi.json.",
    )


def parsed(model: type[M], body: Any) -> M:
    """Return the body as its model. Raises RequestError."""
    try:
        return model.model_validate(body)
    except pydantic.ValidationError as error:
        raise invalid_request(error, body) from None
