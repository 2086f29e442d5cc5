"""`/openapi.json`, and `/docs`, an HTML page without scripts or external resources.

`net/body.py` parses request bodies instead of FastAPI, so this module adds their models to FastAPI's document.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import Response

from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.net.response import EncodedResponse, json_answer
from taskapp_kit.rollout.policy.options import BUILT_IN
from taskapp_kit.serve.route import REF, SECURITY

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
code, pre {{ font: 14px/1.5 ui-monospace, monospace; background: #f3f3f0; border-radius: 4px; }}
code {{ padding: 0 .25em; }} pre {{ padding: .6rem .8rem; overflow-x: auto; }}
h2 {{ font-size: 1.1rem; margin: 2rem 0 .25rem; }} h2 b {{ color: #0a6b5e; }}
table {{ border-collapse: collapse; }} td {{ padding: .1rem 1rem .1rem 0; vertical-align: top; }}
</style></head><body>
<h1>{title} <small>{version}</small></h1>
<p>{description}</p>
<p>Every route except <code>/</code> requires the API key in the header <code>X-API-Key</code>, in
<code>Authorization: Bearer</code>, or as the password of HTTP Basic.
For tools: <a href="openapi.json">openapi.json</a>.</p>
{routes}
</body></html>
"""


def install(app: FastAPI, spec: AppSpec) -> None:
    """Replace `app.openapi()` with a function that returns the complete document, which is built at the first call."""
    names = {
        "environment": list(spec.environments),
        "split": [split for environment in spec.environments.values() for split in environment.split_names],
        "policy": [*BUILT_IN, *(policy.name for policy in spec.policies)],
    }

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # one function handles GET and HEAD of "/"
                found = get_openapi(
                    title=app.title, version=app.version, description=app.description, routes=app.routes
                )
            # FastAPI assigns the same id to GET and HEAD, but ids must be unique
            found["paths"]["/"]["head"]["operationId"] = "root_head"
            components = found.setdefault("components", {})
            components["securitySchemes"] = SECURITY
            schemas = components.setdefault("schemas", {})
            requests = (getattr(route, "request_model", None) for route in app.routes)  # FastAPI does not parse them
            # several routes have the same body
            for model in dict.fromkeys(model for model in requests if model is not None):
                schema = model.model_json_schema(ref_template=REF)
                for name, inner in schema.pop("$defs", {}).items():
                    schemas.setdefault(name, inner)
                schemas.setdefault(model.__name__, schema)
            # lists the names, so that generated clients and fuzzers use existing environments
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


async def openapi_document(request: Request) -> Response:
    """Return `/openapi.json`."""
    return json_answer(request.app.openapi())  # type: ignore[return-value]  # an EncodedResponse is an ASGI application


async def page(request: Request) -> Response:
    """Return `/docs`, which describes each route and shows a curl command for it."""
    document = request.app.openapi()
    routes = "\n".join(
        _route(path, verb.upper(), operation)
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
        if verb != "head"
    )
    about = document["info"]
    html = PAGE.format(
        title=escape(about["title"]),
        version=escape(about["version"]),
        description=escape(about.get("description", "")),
        routes=routes,
    )
    headers = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
        (b"x-content-type-options", b"nosniff"),
    ]
    return EncodedResponse(200, html.encode(), headers)  # type: ignore[return-value]


def _route(path: str, verb: str, operation: dict[str, Any]) -> str:
    parameters = "".join(
        f"<tr><td><code>{escape(item['name'])}</code></td><td>{escape(item['in'])}</td></tr>"
        for item in operation.get("parameters", [])
    )
    answers = ", ".join(
        f"{status} {escape(item['description'])}" for status, item in sorted(operation["responses"].items())
    )
    curl = f'curl -H "X-API-Key: $ENVIRONMENT_API_KEY" "$URL{path}"'
    if "requestBody" in operation:
        example = '{"run_id":"r1","env":{"seed":0},"policy":{"config":{"policy":"random"}},"ops":[],"mode":"eval"}'
        curl += f" -H 'Content-Type: application/json' -d '{example}'"
    elif verb != "GET":
        curl = curl.replace("curl", f"curl -X {verb}", 1)
    table = f"<table>{parameters}</table>" if parameters else ""
    return (
        f"<h2><b>{verb}</b> {escape(path)}</h2><p>{escape(operation.get('summary', ''))}. "
        f"{escape(operation.get('description', ''))}</p>{table}<pre>{escape(curl)}</pre><p><small>{answers}</small></p>"
    )
