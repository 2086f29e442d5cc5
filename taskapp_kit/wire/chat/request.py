"""A request for a completion, as every server of models here reads it; each adds what else it reads of the body."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from taskapp_kit.errors import RequestError
from taskapp_kit.wire.field_problems import body_problems

Request = TypeVar("Request", bound=BaseModel)


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None


class CompletionRequest(BaseModel):
    """A request of `completions` or of chat completions. Other members are ignored."""

    model_config = ConfigDict(strict=True)

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def usage_event(self) -> bool:
        """Whether a stream ends with the number of tokens."""
        return bool(self.stream and self.stream_options and self.stream_options.include_usage)


class ChatCompletionRequest(CompletionRequest):
    """A request of chat completions. What is in a message is checked by whoever reads it."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]


def read_request(model: type[Request], body: Any) -> Request:
    """Return a body as its model. Raises RequestError, which names the members that are wrong."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        fields = body_problems(error, body)
        place = ".".join(map(str, fields[0].loc[1:]))
        raise RequestError(f"{place} {fields[0].message}.", fields=fields) from None
