"""The inference route, which serves trained models by name to the organization whose job trained them.

A model's name contains its job's id, and the store has the job's organization. If the model was imported or the store
was replaced, the job is not in this store. The model then belongs to the backend's operator, because anyone can write
any job id into an archive. Models of other organizations are reported as not found. Prepared base models are available
to all keys. Paths in requests are never opened.
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
"""The maximum length of a model's name in a request."""
TRAINED = ("rl:", "ft:")
INFERENCE = "/api/inference/v1"
MODEL_ROUTES = ("chat/completions", "completions", *DIALECTS)
"""The routes below `INFERENCE` that a serving process handles."""
NEVER_OPENED = ("weights_path", "weights", "checkpoint", "checkpoint_path", "model_path", "adapter_path", "lora_path")
"""Fields that other servers read as a path.

A request with one of these fields is rejected, because ignoring the field would surprise the caller.
"""


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
    """Finds and serves the models on this machine. See `train.serving.served_models.ServedModels`."""

    def find(self, name: str) -> AvailableModel | None:
        """Return the model with this name, or None if it does not exist."""
        ...

    def available(self) -> list[AvailableModel]:
        """Return all models."""
        ...

    async def complete(self, model: AvailableModel, route: str, body: bytes) -> HttpResponse:
        """Return a model's response to a request to `route`, one of `MODEL_ROUTES`.

        Raises KitError if the request fails.
        """
        ...

    async def close(self) -> None:
        """Stop serving models."""
        ...


@dataclass(frozen=True, slots=True)
class InferenceRoutes:
    """The routes of the inference API.

    Args:
        models: Finds and serves models. If None, no models are served.
        operator: A function that returns the organization of the backend's operator.
        engine: The engine's name, for messages.
    """

    models: ModelProvider | None
    records: JobStore
    operator: Callable[[], str]
    engine: str
    errors: ErrorWriter

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            *(
                Route(f"{INFERENCE}/{path}", self._answered(partial(self.complete, path)), methods=["POST"])
                for path in MODEL_ROUTES
            ),
            Route(f"{INFERENCE}/models", self._answered(self.listed), methods=["GET"]),
        ]

    def _answered(self, handle: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """Wrap a handler so that its errors have the format of the route's API."""

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
        """Return a model's response, complete or as a stream. path: One of `MODEL_ROUTES`."""
        self._models()
        body = await read_json(request.scope, request.receive, MAX_BODY_BYTES, max_values=MAX_BODY_VALUES)
        for member in NEVER_OPENED:
            if body.get(member) is not None:
                raise wrong(
                    (member,), "is not supported", "Add the model with `taskapp models import` and name it instead."
                )
        name = body.get("model")
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            raise wrong(("model",), "should be the name of a model", "GET /api/inference/v1/models lists them.")
        model = await self.visible(name, request.scope[ORG])
        if model is None:
            raise RequestRefused(
                "model_not_found",
                "No model with this name is available to this key.",
                hint="GET /api/inference/v1/models lists the available models.",
            )
        answering = self._models().complete(model, path, orjson.dumps(body))
        response = await while_connected(answering, request.receive)
        return EncodedResponse(response.status, response.body, _headers(response.headers))

    async def visible(self, name: str, org: str) -> AvailableModel | None:
        """Return the model with this name, or None if it does not exist or this organization may not use it."""
        model = await asyncio.to_thread(self._models().find, name)
        return model if model is not None and await self._owner(model.job) in (None, org) else None

    async def check_job(self, config: Mapping[str, Any], model: str, org: str) -> None:
        """Raise JobConfigError if a job starts from a trained model of another organization."""
        if self.models is None:
            return
        for name in _model_names(config, model):
            if name.startswith(TRAINED) and await self.visible(name, org) is None:
                problem = f"[model] names {name[:MAX_NAME]}, but this key has no trained model with this name."
                raise JobConfigError("The job's model cannot be used:", problems=(problem,))

    async def _owner(self, job: str) -> str | None:
        """Return the organization that may use the models of a job, or None if all organizations may use them."""
        if not job:
            return None
        row: JobRow | None = await self.records.job(job)
        return self.operator() if row is None else row.org

    def _models(self) -> ModelProvider:
        if self.models is None:
            raise RequestRefused(
                "no_models",
                f"This backend serves no models (ft:… or rl:…), because its engine `{self.engine}` does not train weights.",
                hint="Set the address of the server that serves the model, in models.toml or with --inference-url.",
            )
        return self.models


def _model_names(config: Mapping[str, Any], model: str) -> list[str]:
    """Return the names of all models that a job uses, with aliases resolved."""
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
