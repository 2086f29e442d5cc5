"""What the core's tests share: an app from a text, a request, a rollout played in this process."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from taskapp_kit import TaskApp
from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.records.protocols import Clock, Store, SystemClock
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.models.access import ModelAccess, model_access
from taskapp_kit.rollout.service import Service, ServiceSettings
from taskapp_kit.wire.rollout import RolloutRequest

HEADER = """import dataclasses, enum, math, random
from typing import Annotated, Any, Literal, Optional
import pydantic
from pydantic import BaseModel, Field
from taskapp_kit import Blend, Image, InvalidAction, Private, Step, TaskApp, Text, Trajectory, action
"""


def app_from(folder: Path, source: str, *, header: str = HEADER, name: str = "app.py") -> TaskApp:
    """The app that a file with this text makes."""
    file = folder / name
    file.write_text(header + textwrap.dedent(source), encoding="utf-8")
    return find_app(str(file))


def a_request(policy: str | None = "random", **given: Any) -> RolloutRequest:
    """A request: `seed`, `config`, `env_name` go to env; `action`, `policy_config` to the policy; the rest to the top."""
    env = {name: given.pop(name) for name in ("seed", "config", "env_name", "env_id") if name in given}
    config = dict(given.pop("policy_config", {}))
    if "action" in given:
        config["action"] = given.pop("action")
    body = {"run_id": "r", "mode": "rl", "ops": [], "env": env, "policy": {"policy_name": policy, "config": config}}
    return RolloutRequest.model_validate({**body, **given})


def a_service(
    app: TaskApp,
    *,
    store: Store | None = None,
    clock: Clock | None = None,
    models: ModelAccess | None = None,
    **settings: Any,
) -> Service:
    """A service whose settings are given one by one."""
    return Service(app, ServiceSettings(**settings), store=store, clock=clock, models=models)


@asynccontextmanager
async def serving(app: TaskApp, **options: Any) -> AsyncIterator[Service]:
    """A service, closed at the end."""
    service = a_service(app, **options)
    try:
        yield service
    finally:
        await service.close()


def served(app: TaskApp, request: RolloutRequest, **options: Any) -> Rollout:
    """One rollout on a service with these settings; raises what `Service.rollout` raises."""

    async def once() -> Rollout:
        async with serving(app, **options) as service:
            return await service.rollout(request)

    return asyncio.run(once())


def play(app: TaskApp, policy: str | None = "random", **given: Any) -> Rollout:
    """One rollout on a service with the settings that a server has by default."""
    return served(app, a_request(policy, **given))


def local_models(**variables: str) -> ModelAccess:
    """The access to models that a server on this machine has, with these variables of the environment."""
    return model_access(Settings(variables=variables), "local", SystemClock())


def one_model_rollout(app: TaskApp, url: str, **given: Any) -> Rollout:
    """One rollout that the model at `url` plays; `policy_config` adds to `policy.config`."""
    config = {"inference_url": url, "model": "m", **given.pop("policy_config", {})}
    request = a_request(None, policy_config=config, **{"seed": 3, **given})
    return served(app, request, exposure="local", models=local_models())
