"""Reads the model's endpoint from `policy.config`. Whatever can be refused about it is refused before the rollout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskapp_kit.contract.chat import Endpoint
from taskapp_kit.contract.inference_url import INFERENCE_URL, GivenUrl, complete_url
from taskapp_kit.errors import FieldProblem, RequestError
from taskapp_kit.net.addresses import AddressPolicy, Place, check_address
from taskapp_kit.rollout.models.credentials import Credentials, caller_key

CONFIG: Place = INFERENCE_URL[:-1]
MAX_MODEL_LETTERS = 512


def endpoint_of(
    config: Mapping[str, Any],
    top_level: str | None,
    address: GivenUrl | None,
    *,
    rules: AddressPolicy,
    keys: Credentials,
    cache: bool = False,
) -> Endpoint | None:
    """The model of a request; None when it names no address. Raises RequestError naming the field.

    top_level: the request's own `inference_url`. address: as `given_url` returns it, of both. cache: replies may come from
    the response cache.
    """
    if address is None or address[1] != INFERENCE_URL:
        keys.check_config({"inference_url": top_level}, loc=("body",))
    keys.check_config(config)
    if address is None:
        return None
    url, loc = address
    model = config.get("model")
    if model is not None and not (isinstance(model, str) and 0 < len(model) <= MAX_MODEL_LETTERS):
        raise _wrong((*CONFIG, "model"), f"is not a model's name; expected 1 to {MAX_MODEL_LETTERS} characters")
    called = check_address(complete_url(url), rules.exposure, rules, loc=loc)
    sample = config.get("sample")
    return Endpoint(called, model, caller_key(config), cache, sample if type(sample) is int else 0)


def _wrong(loc: Place, what: str) -> RequestError:
    message = f"{'.'.join(str(part) for part in loc[1:])} {what}."
    return RequestError(message, fields=(FieldProblem(loc, message, "type_error"),))
