"""The inference route: trained models by name, each for the organization whose job trained it.

A model's name contains its job, and the store has the job's organization. Anyone can write a job into the name in an archive,
so a model of a job that is not in this store (because it was imported, or the store was replaced) belongs to the backend's
operator. A model of another organization is reported as not found. Prepared base models are available to all keys. No path in
a request is opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import orjson
from starlette.requests import Request
from starlette.routing import Route

from taskapp_kit.errors import JobConfigError
from taskapp_kit.jobs.client.config.cross_section_checks import models_named
from taskapp_kit.jobs.server.auth import ORG
from taskapp_kit.jobs.server.schema import JobRow
from taskapp_kit.jobs.server.store import JobStore
from taskapp_kit.net.body import read_json, while_connected
from taskapp_kit.net.error_response import ErrorWriter, RequestRefused
from taskapp_kit.net.http import HttpResponse
from taskapp_kit.net.response import EncodedResponse, Headers, json_answer
from taskapp_kit.wire.chat.completion import DIALECTS, model_list
from taskapp_kit.wire.chat.dialect_body import wrong

MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_BODY_VALUES = 200_000
MAX_NAME = 512
"""Characters of a model's name in a request."""
TRAINED = ("rl:", "ft:")
INFERENCE = "/api/inference/v1"
MODEL_ROUTES = ("chat/completions", "completions", *DIALECTS)
"""The routes below `INFERENCE`, which a serving process answers."""
NEVER_OPENED = ("weights_path", "weights", "checkpoint", "checkpoint_path", "model_path", "adapter_path", "lora_path")
"""Members that other servers read as a path. A request with one is rejected, because it would get different weights."""


@dataclass(frozen=True, slots=True)
class AvailableModel:
    """A model that can be served.

    Attributes:
        name: The model's name.
        job: The job that trained it, or an empty string for a base model.
        created: Seconds since 1970, or 0 if unknown.
    """

    name: str
    job: str = ""
    created: float = 0.0


class ModelProvider(Protocol):
    """Finds and serves the models of this machine. See `train.serving.served_models.ServedModels`."""

    def find(self, name: str) -> AvailableModel | None:
        """Return the model of this name, or None."""
        ...

    def available(self) -> list[AvailableModel]:
        """Return all models."""
        ...

    async def complete(self, model: AvailableModel, route: str, body: bytes) -> HttpResponse:
        """Return a model's answer to `route`, one of `MODEL_ROUTES`. Raises KitError."""
        ...

    async def close(self) -> None:
        """Serve nothing more."""
        ...


@dataclass(frozen=True, slots=True)
class InferenceRoutes:
    """The routes. models: None serves none. operator: returns the organization of the backend's operator. engine: its name."""

    models: ModelProvider | None
    records: JobStore
    operator: Callable[[], str]
    engine: str
    errors: ErrorWriter

    def routes(self) -> list[Route]:
        """Return them."""
        return [
            *(
                Route(f"{INFERENCE}/{path}", self._answered(partial(self.complete, path)), methods=["POST"])
                for path in MODEL_ROUTES
            ),
            Route(f"{INFERENCE}/models", self._answered(self.listed), methods=["GET"]),
        ]

    def _answered(self, handle: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """The handler with errors in the shape that clients of the route's API read."""

        async def answer(request: Request) -> EncodedResponse:
            try:
                response: EncodedResponse = await handle(request)
            except Exception as error:
                return self.errors.for_model_route(request.url.path).response(error, request.url.path)
            return response

        return answer

    async def listed(self, request: Request) -> EncodedResponse:
        """Return the models that this caller may use."""
        models, org = self._models(), request.scope[ORG]
        found = await asyncio.to_thread(models.available)
        owners = {job: await self._owner(job) for job in {model.job for model in found}}
        return json_answer(
            model_list(
                (model.name, model.created, model.job or "base") for model in found if owners[model.job] in (None, org)
            )
        )

    async def complete(self, path: str, request: Request) -> EncodedResponse:
        """Return the answer of a model, whole or as a stream. path: one of `MODEL_ROUTES`."""
        self._models()
        body = await read_json(request.scope, request.receive, MAX_BODY_BYTES, max_values=MAX_BODY_VALUES)
        for member in NEVER_OPENED:
            if body.get(member) is not None:
                raise wrong(
                    (member,), "is not read", "Models are served by name: `taskapp models import ARCHIVE` adds one."
                )
        name = body.get("model")
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            raise wrong(("model",), "should be the name of a model", "GET /api/inference/v1/models lists them.")
        model = await self.visible(name, request.scope[ORG])
        if model is None:
            raise RequestRefused(
                "model_not_found",
                "This key has no model of this name.",
                hint="GET /api/inference/v1/models lists the models of this key.",
            )
        answering = self._models().complete(model, path, orjson.dumps(body))
        response = await while_connected(answering, request.receive)
        return EncodedResponse(response.status, response.body, _headers(response.headers))

    async def visible(self, name: str, org: str) -> AvailableModel | None:
        """Return the model of this name if this organization may use it."""
        model = await asyncio.to_thread(self._models().find, name)
        return model if model is not None and await self._owner(model.job) in (None, org) else None

    async def check_job(self, config: Mapping[str, Any], model: str, org: str) -> None:
        """Raise JobConfigError if a job starts from a trained model of another organization."""
        if self.models is None:
            return
        for name in _model_names(config, model):
            if name.startswith(TRAINED) and await self.visible(name, org) is None:
                problem = f"[model] names {name[:MAX_NAME]}, but this key has no trained model of this name."
                raise JobConfigError("The job's model cannot be used:", problems=(problem,))

    async def _owner(self, job: str) -> str | None:
        """Return the organization that may use the models of a job, or None for all organizations."""
        if not job:
            return None
        row: JobRow | None = await self.records.job(job)
        return self.operator() if row is None else row.org

    def _models(self) -> ModelProvider:
        if self.models is None:
            raise RequestRefused(
                "no_models",
                f"This backend's engine `{self.engine}` trains no weights, so no model (ft:… or rl:…) is served here.",
                hint="Give the address of the server that has the model: in models.toml, or with --inference-url.",
            )
        return self.models


def _model_names(config: Mapping[str, Any], model: str) -> list[str]:
    """Return every model that a job names, with aliases resolved."""
    models = config.get("models")
    table = models.get("alias") if isinstance(models, Mapping) else None
    aliases = table if isinstance(table, Mapping) else {}
    names = [model, *(name for _, _, name in models_named(dict(config)))]
    return [*(name for name in names if name not in aliases), *map(str, aliases.values())]


def _headers(given: Mapping[str, str]) -> Headers:
    """Return the headers of a serving process's response that are passed to the caller."""
    kept = {"content-type": "application/json", **given}
    passed = [(name.encode(), kept[name].encode()) for name in ("content-type", "retry-after") if name in kept]
    return [*passed, (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
