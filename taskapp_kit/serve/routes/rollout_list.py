"""`GET /rollouts` returns the stored rollouts of this app to which the key has access, newest first, in pages."""

from __future__ import annotations

import base64
import binascii
import math
from typing import Any, get_args, get_type_hints
from urllib.parse import parse_qsl

import orjson
from pydantic import BaseModel, create_model
from starlette.requests import Request

from taskapp_kit.errors import Boundary, RequestError
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.net.response import EncodedResponse, json_answer
from taskapp_kit.records.protocols import LISTED, RolloutQuery, RolloutRow, StoredRollout
from taskapp_kit.records.trajectory import Status
from taskapp_kit.serve.auth import caller_of
from taskapp_kit.serve.route import RouteContext, RouteSpec, invalid_field, parameter

LIMIT, MAX_LIMIT = 50, 500
"""The default and the maximum number of rollouts on a page."""
MAX_TEXT = 512
WORDS = ("environment", "policy", "run_id", "group_id", "key_label")
CHOICES = {"status": get_args(Status), "boundary": get_args(Boundary)}
NUMBERS = ("reward_above", "reward_below")
NAMES = (*WORDS, *CHOICES, *NUMBERS, "limit", "cursor")


_TYPES = {**get_type_hints(StoredRollout), **dict.fromkeys(("policy", "model", "boundary"), str | None)}
ListedRollout = create_model(
    "ListedRollout",
    __doc__="A rollout in a list. `boundary` is the part that failed. `tokens` and `cost` are null if unknown.",
    id=str,
    **{name: _TYPES[name] for name in LISTED},
)


class RolloutList(BaseModel):
    """A page of rollouts, newest first. `next_cursor` is the `cursor` of the next page, and null on the last page."""

    rollouts: list[ListedRollout]  # type: ignore[valid-type]  # created from the row's fields
    next_cursor: str | None


async def list_rollouts(context: RouteContext, request: Request) -> EncodedResponse:
    """Return the stored rollouts that match every filter.

    The list contains the rollouts of the key's label; for an admin's key, it contains the rollouts of all labels.
    `reward_above` and `reward_below` are exclusive limits, and a null reward matches neither. Only an admin's key can
    filter by `key_label`.
    """
    caller = caller_of(request.scope)
    asked = _query(request)
    if "key_label" in asked and not caller.admin:
        raise RequestRefused(
            "admin_only",
            "Only a key with the admin flag can filter by key_label.",
            hint="Omit key_label, because the list contains only the rollouts of this key's label.",
        )
    limit = asked.pop("limit", LIMIT)
    # one more than a page, to detect whether another page follows
    found = await context.service.stored.query(RolloutQuery(**asked, limit=limit + 1), caller)
    page = found[:limit]
    return json_answer(
        {
            "rollouts": [_row(row) for row in page],
            "next_cursor": _cursor(page[-1]) if len(found) > limit else None,
        }
    )


def _row(row: RolloutRow) -> dict[str, Any]:
    return {"id": row.rollout_id, **{name: getattr(row, name) for name in LISTED}}


def _query(request: Request) -> dict[str, Any]:
    """Return the query parameters as arguments for RolloutQuery. Raises RequestError for an invalid parameter."""
    try:
        pairs = parse_qsl(
            request.scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=len(NAMES)
        )
    except ValueError:
        raise _wrong("query", f"has more than {len(NAMES)} parameters") from None
    asked: dict[str, Any] = {}
    for name, text in pairs:
        if name not in NAMES:
            # if a misspelled filter were ignored, the response would contain all rollouts
            raise _wrong(name[:64], f"is unknown. Known parameters are {', '.join(NAMES)}")
        if name in asked:
            raise _wrong(name, "was sent more than once")
        asked[name] = _read(name, text)
    if "cursor" in asked:
        asked["before"] = asked.pop("cursor")
    return asked


def _read(name: str, text: str) -> Any:
    if name in NUMBERS:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise _wrong(name, "must be a finite number")
        return number
    if name == "limit":
        if not text.isascii() or not text.isdigit() or len(text) > 6 or not 1 <= int(text) <= MAX_LIMIT:
            raise _wrong(name, f"must be an integer from 1 to {MAX_LIMIT}")
        return int(text)
    if name == "cursor":
        return _before(text)
    if name in CHOICES and text not in CHOICES[name]:
        raise _wrong(name, f"must be one of {', '.join(CHOICES[name])}")
    if len(text) > MAX_TEXT:
        raise _wrong(name, f"has more than {MAX_TEXT} characters")
    return text


def _cursor(row: RolloutRow) -> str:
    # time and id, because new rollouts must not shift pages, and rollouts may begin in the same microsecond
    return base64.urlsafe_b64encode(orjson.dumps([row.created_at, row.rollout_id])).decode().rstrip("=")


def _before(text: str) -> tuple[float, str]:
    try:
        created_at, rollout_id = orjson.loads(base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)))
        # callers may send any value, but the store's query needs these types
        if type(created_at) is float and type(rollout_id) is str:
            return created_at, rollout_id
    except (ValueError, TypeError, binascii.Error):
        pass
    raise _wrong("cursor", "must be the next_cursor of a page")


def _wrong(name: str, found: str) -> RequestError:
    return invalid_field(("query", name), found, code="invalid_query")


def _parameter(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return parameter(name, "query", description, **(schema or {"type": "string", "maxLength": MAX_TEXT}))


ROUTE = RouteSpec(
    "/rollouts",
    "GET",
    list_rollouts,
    "List stored rollouts, newest first",
    response_model=RolloutList,
    failures=(403, 422, 500),
    parameters=(
        _parameter("environment", "Its name."),
        _parameter("policy", "The policy that played, or `model` for a language model."),
        _parameter("status", "How the rollout ended.", type="string", enum=list(CHOICES["status"])),
        _parameter("boundary", "The part in which the rollout failed.", type="string", enum=list(CHOICES["boundary"])),
        _parameter("reward_above", "Only rollouts with a greater reward.", type="number"),
        _parameter("reward_below", "Only rollouts with a smaller reward.", type="number"),
        _parameter("run_id", "The caller's label of a run."),
        _parameter("group_id", "The caller's label of a group."),
        _parameter("key_label", "The label of the key that requested the rollout. Only for admins."),
        _parameter("limit", "Rollouts per page.", type="integer", minimum=1, maximum=MAX_LIMIT, default=LIMIT),
        _parameter("cursor", "The `next_cursor` of the previous page."),
    ),
)
