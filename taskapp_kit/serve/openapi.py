"""The OpenAPI document. Bodies are read by `serve/body.py`, so what they should be is told here."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from taskapp_kit.contract.wire import RolloutRequest, RolloutResponse
from taskapp_kit.serve.models import ErrorEnvelope

if TYPE_CHECKING:
    from taskapp_kit.serve.routing import RouteSpec

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
    404: "There is no such thing",
    408: "The body did not arrive in time",
    413: "The body is too large",
    415: "The body is not plain JSON",
    422: "A field is wrong; `fields` names it",
    500: "The environment, a rubric or the server failed",
    502: "The policy failed",
    503: "No key is configured, or every place is taken",
    504: "The rollout's deadline passed",
}


def documentation(spec: RouteSpec) -> dict[str, Any]:
    """The keyword arguments by which FastAPI documents one route."""
    failures = sorted({*spec.failures, *(KEYED_FAILURES if spec.keyed else ())})
    responses: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorEnvelope, "description": TITLES[status]} for status in failures
    }
    if spec.response_model is not None:
        responses[200] = {"model": spec.response_model, "description": "Answered"}
    else:
        responses[200] = {"content": {spec.media_type: {}}, "description": "Answered"}
    extra: dict[str, Any] = {"parameters": list(spec.parameters)} if spec.parameters else {}
    extra["security"] = [{name: []} for name in SECURITY] if spec.keyed else []
    if spec.request_model is not None:
        reference = {"$ref": REF.format(model=spec.request_model.__name__)}
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": reference}}}
    return {"responses": responses, "openapi_extra": extra}


def install(app: FastAPI) -> None:
    """Makes `app.openapi()` give the whole document, built at the first call."""

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
            for model in (RolloutRequest, RolloutResponse, ErrorEnvelope):
                schema = model.model_json_schema(ref_template=REF)
                for name, inner in schema.pop("$defs", {}).items():
                    schemas.setdefault(name, inner)
                schemas.setdefault(model.__name__, schema)
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
