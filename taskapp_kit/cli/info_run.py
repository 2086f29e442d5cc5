"""What `taskapp info` shows: the description of an app, here or at a server, and the first prompt of an episode."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from taskapp_kit.cli.local_app import failure_shown, local_service, only_authors_log
from taskapp_kit.cli.remote_task_app import Remote, RemoteError
from taskapp_kit.config import Settings, export
from taskapp_kit.contract.chat import role_variable
from taskapp_kit.contract.example_policy import example_policy
from taskapp_kit.contract.protocols import View
from taskapp_kit.contract.wire import RolloutRequest
from taskapp_kit.declare.discovery import bundled_file, find_app, missing_extra
from taskapp_kit.declare.episode_selection import find_environment, read_config
from taskapp_kit.errors import ConfigError
from taskapp_kit.rollout.describe import Description
from taskapp_kit.rollout.policy.chat.conversation import prompt_of
from taskapp_kit.rollout.policy.options import OutputMode, read_options
from taskapp_kit.rollout.policy.select import policies_of
from taskapp_kit.rollout.score.judges import needed_roles
from taskapp_kit.rollout.service import sandbox_in_use
from taskapp_kit.serve.protocols import load_protocols, protocol_names


def described(reference: str, settings: Settings, wanted: str | None) -> dict[str, Any]:
    """What an APP declares: all of it, or one environment. Raises DiscoveryError, DeclarationError, RequestError."""
    export(settings)
    app = find_app(reference)
    spec = app.freeze()
    description = Description(
        spec,
        max_time_seconds=settings.max_time_seconds,
        max_concurrent=settings.max_concurrent,
        max_body_bytes=settings.max_body_bytes,
    )
    chosen = [find_environment(spec, wanted)] if wanted is not None else list(spec.environments.values())
    tasks: dict[str, Any] = {}
    unavailable: dict[str, dict[str, str]] = {}
    first: dict[str, Any] = {}
    for environment in chosen:
        split = environment.split_names[0]
        row = environment.tasks.rows(split)[0] if environment.tasks is not None else None
        tasks[environment.name] = description.task(environment, split, environment.first_seed, row)
        policies = policies_of(spec, environment)
        unavailable[environment.name] = {name: why for name, why in policies.items() if why is not None}
        first = first or {
            "seed": environment.first_seed,
            "policy": example_policy(policies, words=environment.text_action is not None),
        }
    asked = [
        f"{need.users} call the model of role {need.role!r}, and {role_variable(need.role)} is not set"
        for need in needed_roles(spec)
        if settings.variable(role_variable(need.role)) is None
    ]
    extra = missing_extra(app.file.parent.name) if bundled_file(app.file) else None
    if extra is not None:
        asked.append(extra)
    sandbox = sandbox_in_use()
    return {
        "info": description.info(),
        "sandbox": [] if sandbox is None else sandbox.lines(),
        "task_info": tasks,
        "unavailable_policies": unavailable,
        "warnings": [*spec.warnings, *asked],
        "example": first,
    }


def described_by_server(url: str, key: str | None, wanted: str | None) -> dict[str, Any]:
    """The same from a running server. Raises RemoteError, ConfigError."""
    server = Remote(url, key)
    info = server.get("/info")
    try:
        environments = info.get("environments") or {info["dataset"]["name"]: {"dataset": info["dataset"]}}
        names = [wanted] if wanted is not None else list(environments)
        tasks, first = {}, None
        for name in names:
            seeds = environments.get(name, {}).get("dataset", {}).get("seeds") or {}
            seed = next(iter(seeds.values()), [0])[0]
            tasks[name] = server.get("/task_info", {"seed": str(seed), "environment": name})
            first = seed if first is None else first
        policies = next(iter(tasks.values()))["inference"].get("policies") or ["random"]
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise RemoteError(
            f"{url} describes itself in a way that taskapp-kit does not know ({type(error).__name__}).",
            hint="Is that the address of a task app served by taskapp-kit?",
        ) from None
    example_name = "random" if "random" in policies else policies[0]
    return {
        "info": info,
        "task_info": tasks,
        "unavailable_policies": {},
        "warnings": [],
        "example": {"seed": first or 0, "policy": {"policy": example_name}},
    }


def client_lines(url: str, environments: list[str]) -> list[dict[str, Any]]:
    """What clients need, by protocol; one whose package is not installed is left out. environments: the default first."""
    found = []
    for name in protocol_names():
        try:
            (protocol,) = load_protocols((name,))
        except ConfigError:
            continue
        clients = [dataclasses.asdict(lines) for lines in protocol.clients(url, environments)]
        found.append({"name": name, "summary": protocol.summary, "clients": clients})
    return found


def first_prompt(
    reference: str,
    settings: Settings,
    wanted: str | None,
    seed: int | None,
    config: dict[str, Any],
    output_mode: OutputMode,
) -> dict[str, Any]:
    """The request that a language model gets first in one episode, with the episode. Raises what `described` raises."""
    export(settings)
    app = find_app(reference)
    spec = app.freeze()
    environment = find_environment(spec, wanted)
    environment = environment.configured(read_config(environment, config).arguments)
    if seed is None:
        split = config.get("split") if config.get("split") in environment.split_names else environment.split_names[0]
        seed = 0 if environment.tasks is not None else environment.splits[str(split)][0]
    request = RolloutRequest.model_validate(
        {
            "run_id": "cli-prompt",
            "env": {"env_name": environment.name, "seed": seed, "config": config},
            "policy": {"output_mode": output_mode},
            "ops": [],
            "mode": "eval",
        }
    )
    only_authors_log()

    async def first_view() -> View:
        async with local_service(app, settings, skip_judges=True) as service:
            return await service.first_view(request)

    with failure_shown():
        view = asyncio.run(first_view())
    body = prompt_of(spec, environment, read_options({}, output_mode=output_mode), view)
    return {"environment": environment.name, "seed": seed, "output_mode": output_mode, "body": body}
