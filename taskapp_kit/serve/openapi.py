"""The OpenAPI document. FastAPI does not parse the bodies (`net/body.py` does), so their models are added here."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.rollout.policy.select import BUILT_IN
from taskapp_kit.serve.openapi_models import ErrorEnvelope
from taskapp_kit.serve.route import RouteSpec

REF = "#/components/schemas/{model}"
SECURITY = {
    "X-API-Key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "Bearer": {"type": "http", "scheme": "bearer"},
    "Basic": {"type": "http", "scheme": "basic", "description": "The password is the key; the name is ignored."},
}
KEYED_FAILURES = (401, 503)
TITLES = {
    400: "The request is refused",
    401: "No valid key",
    403: "The key may not ask for that",
    404: "There is no such thing",
    408: "The body did not arrive in time",
    409: "It does not fit what went before",
    410: "It has ended",
    413: "The body is too large",
    415: "The body is not plain JSON",
    422: "A field is wrong; `fields` names it",
    429: "The key has as many rollouts under way as it may",
    500: "The environment, a rubric or the server failed",
    502: "The policy failed",
    503: "No key is configured, or every place is taken",
    504: "The rollout's deadline passed",
}

ANSWER_HEADERS = {
    401: {"WWW-Authenticate": "How a key may be sent."},
    429: {"Retry-After": "Seconds until it is worth asking again."},
    503: {"Retry-After": "Seconds until it is worth asking again; absent when no key is configured."},
}
LOCATION = {"Location": "Where the rollout is found."}
REPLAYED_HEADERS = {"Idempotent-Replayed": "`true`: the answer of an earlier request."}
STREAMED_HEADERS = {**REPLAYED_HEADERS, **LOCATION}
ACCEPTED_HEADERS = {
    **LOCATION,
    "Preference-Applied": "`respond-async`, when that was asked for.",
    "Retry-After": "Seconds until it is worth asking again.",
}


STREAM = (
    "Answered. As text/event-stream: server-sent events with `id`, `event` and `data`, the rollout's events and at the end "
    "`result` with a RolloutResponse or `failure` with an ErrorEnvelope."
)


def documentation(spec: RouteSpec) -> dict[str, Any]:
    """Return the keyword arguments that document one route in FastAPI."""
    failures = sorted({*spec.failures, *(KEYED_FAILURES if spec.keyed else ())})
    responses: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorEnvelope, "description": TITLES[status]} for status in failures
    }
    if spec.response_model is not None:
        responses[200] = {"model": spec.response_model, "description": "Answered"}
        if spec.streams:
            # no schema: OpenAPI 3.1 has none for the items of a stream, and some tools apply `schema` to each of them
            responses[200] |= {"content": {"text/event-stream": {}}, "description": STREAM}
            if spec.method == "GET":  # only a stream that is resumed can have nothing left
                responses[204] = {"description": "Of a stream: it was over, and all of it had arrived"}
    else:
        kinds: dict[str, Any] = {name: {} for name in (spec.media_type, *spec.other_media_types)}
        responses[200] = {"content": kinds, "description": "Answered"}
    if spec.accepted_model is not None:
        responses[202] = {"model": spec.accepted_model, "description": "Under way; `Location` says where it is found"}
    headers: dict[int, dict[str, str]] = dict(ANSWER_HEADERS)
    if spec.headers:
        headers[200] = dict(spec.headers)
    if spec.streams:
        headers[200] = STREAMED_HEADERS
        for failed in (500, 502, 503, 504):  # a failure is replayed as that failure
            headers[failed] = REPLAYED_HEADERS | headers.get(failed, {})
    if spec.accepted_model is not None:
        headers[202] = ACCEPTED_HEADERS
    for status in responses.keys() & headers.keys():
        responses[status]["headers"] = {
            name: {"description": words, "schema": {"type": "string"}} for name, words in headers[int(status)].items()
        }
    extra: dict[str, Any] = {"parameters": list(spec.parameters)} if spec.parameters else {}
    extra["security"] = [{name: []} for name in SECURITY] if spec.keyed else []
    if spec.request_model is not None:
        reference = {"$ref": REF.format(model=spec.request_model.__name__)}
        extra["requestBody"] = {"required": spec.body_required, "content": {"application/json": {"schema": reference}}}
    return {"responses": responses, "openapi_extra": extra}


def install(app: FastAPI, spec: AppSpec) -> None:
    """Replace `app.openapi()` by a function that returns the whole document of the app, built at the first call."""
    names = {
        "environment": list(spec.environments),
        "split": [split for environment in spec.environments.values() for split in environment.split_names],
        "policy": [*BUILT_IN, *(policy.name for policy in spec.policies)],
    }

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # "/" answers GET and HEAD from one function
                found = get_openapi(
                    title=app.title, version=app.version, description=app.description, routes=app.routes
                )
            found["paths"]["/"]["head"]["operationId"] = "root_head"
            components = found.setdefault("components", {})
            components["securitySchemes"] = SECURITY
            schemas = components.setdefault("schemas", {})
            requests = (getattr(route, "request_model", None) for route in app.routes)  # FastAPI does not parse them
            for model in dict.fromkeys(model for model in requests if model is not None):
                schema = model.model_json_schema(ref_template=REF)
                for name, inner in schema.pop("$defs", {}).items():
                    schemas.setdefault(name, inner)
                schemas.setdefault(model.__name__, schema)
            _list_names(found, names)
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _list_names(part: Any, names: Mapping[str, Sequence[str]]) -> None:
    if isinstance(part, dict) and isinstance(kind := part.get("format"), str) and kind in names:
        del part["format"]
        part["enum"] = list(dict.fromkeys(names[kind]))
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _list_names(inner, names)
