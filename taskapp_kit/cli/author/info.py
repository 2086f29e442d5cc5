"""`taskapp info`: show what an app declares, its first prompt, or the support level of each part of taskapp-kit."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import nullcontext
from typing import Any
from urllib.parse import urlencode

import click
import orjson

from taskapp_kit import client
from taskapp_kit.cli import local_app, remote_task_app, support
from taskapp_kit.cli.options import ENV_FILES, JSON_OBJECT, OUTPUT_MODE, SEED, SERVER_KEY, is_url, json_option
from taskapp_kit.cli.output.app_output import curl_lines, print_description
from taskapp_kit.cli.output.terminal import clean, console, echo, example, print_json, shown_from, table
from taskapp_kit.config import Settings, export, load
from taskapp_kit.declare.discovery import bundled_file, find_app, missing_extra
from taskapp_kit.declare.episode_selection import find_environment, read_config
from taskapp_kit.errors import ConfigError, TaskAppError
from taskapp_kit.interop import protocols
from taskapp_kit.records import example_policy as example_policies
from taskapp_kit.records.protocols import View
from taskapp_kit.rollout import describe
from taskapp_kit.rollout import service as rollout_service
from taskapp_kit.rollout.policy import conversation
from taskapp_kit.rollout.policy import options as policy_choices
from taskapp_kit.rollout.policy import options as policy_options
from taskapp_kit.rollout.score import judges
from taskapp_kit.wire import rollout as wire
from taskapp_kit.wire.chat.conversation import role_variable


@click.command(epilog=example("taskapp info crafter", "taskapp info adder.py --prompt --seed 3"))
@click.argument("app", metavar="[APP|URL]", required=False)
@click.option("--prompt", is_flag=True, help="Print the exact first prompt of a language model in an episode.")
@click.option("--env", "environment", metavar="NAME", help="Show only this environment.")
@click.option("--seed", type=SEED, metavar="S", help="With --prompt, the seed.  [default: the first seed of the split]")
@click.option("--split", metavar="NAME", help="With --prompt, the split.")
@click.option("--config", "env_config", type=JSON_OBJECT, metavar="JSON", help="With --prompt, the configuration.")
@click.option("--output-mode", type=OUTPUT_MODE, help="With --prompt, the format of replies.  [default: tool_calls]")
@click.option("--clients", is_flag=True, help="Print how clients of other protocols connect.")
@SERVER_KEY
@ENV_FILES
@json_option("Print JSON, with complete JSON Schemas.")
def command(
    app: str | None,
    prompt: bool,
    environment: str | None,
    seed: int | None,
    split: str | None,
    env_config: dict[str, Any] | None,
    output_mode: policy_choices.OutputMode | None,
    clients: bool,
    key: str | None,
    env_files: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show an app's environments, actions, scoring, splits, limits, configuration and policies.

    If no app is given, the extras and protocols of taskapp-kit are listed with their support levels.
    """
    if app is None:
        if prompt or clients or environment is not None:
            raise click.UsageError("--prompt, --clients and --env need an app. Pass an APP or a URL.")
        _print_support(as_json=as_json)
        return
    settings = load(env_files=env_files)
    if not prompt and any(option is not None for option in (seed, split, env_config, output_mode)):
        raise click.UsageError("--seed, --split, --config and --output-mode need --prompt.")
    if prompt:
        if is_url(app):
            raise click.UsageError("--prompt resets an environment in this process. Pass an APP instead of a URL.")
        config = {**(env_config or {}), **({"split": split} if split else {})}
        first = _first_prompt(app, settings, environment, seed, config, output_mode or "tool_calls")
        if as_json:
            print_json(first)
        else:
            _print_prompt(first)
        return
    if is_url(app):
        with shown_from(app):
            description = _described_by_server(app, key or settings.environment_api_key, environment)
    else:
        description = _described(app, settings, environment)
    url = app.rstrip("/") if is_url(app) else f"http://{settings.host}:{settings.port}"
    if clients:
        names = (
            [environment] if environment else list(description["info"].get("environments") or description["task_info"])
        )
        lines = _client_lines(url, names)
        if as_json:
            print_json(lines)
        else:
            _print_clients(lines, app if not is_url(app) else "APP")
    elif as_json:
        print_json(description)
    else:
        _print(description, app, url, environment)


def _print_support(*, as_json: bool) -> None:
    """Print the support level of every command, extra and protocol, and what each level promises."""
    if as_json:
        listed = {
            kind: {level: names.split(", ") for level, names in levels.items()}
            for kind, levels in support.SUPPORT.items()
        }
        print_json({"levels": support.PROMISES, **listed})
        return
    rows = table("", *support.PROMISES)
    for kind, names in support.SUPPORT.items():
        rows.add_row(kind, *(names.get(level, "") for level in support.PROMISES))
    console().print(rows)
    for level, promise in support.PROMISES.items():
        echo(f"{level}: {promise}")


def _print(description: dict[str, Any], app: str, url: str, environment: str | None) -> None:
    """Print the description of an app, then example requests."""
    with shown_from(app) if is_url(app) else nullcontext():
        print_description(description["info"], description["task_info"], description["unavailable_policies"])
    out = console()
    if description.get("sandbox"):
        out.print()
        for line in description["sandbox"]:
            out.print(clean(line))
    for warning in description["warnings"]:
        out.print(f"\nWarning: {clean(warning)}", style="yellow")
    out.print()
    out.print("example requests" if is_url(app) else f"example requests to `taskapp serve {app}`", style="bold")
    for line in curl_lines(url, environment, description["example"]["seed"], description["example"]["policy"]):
        out.print(line, soft_wrap=True)


def _print_clients(lines: list[dict[str, Any]], app: str) -> None:
    """Print, for each protocol, the command that serves it and what clients need to connect."""
    out = console()
    for protocol in lines:
        out.print(clean(protocol["summary"]), style="bold")
        out.print(f"taskapp serve {clean(app)} --protocols {protocol['name']}", soft_wrap=True)
        for connection in protocol["clients"]:
            out.print(f"\n{clean(connection['title'])}", style="dim")
            out.print(clean(connection["text"]), soft_wrap=True)
        out.print()


def _print_prompt(first: dict[str, Any]) -> None:
    """Print the episode, then the fields of its first model request: messages, tools and the rest."""

    def as_json(value: Any) -> str:
        return clean(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())

    out, body = console(), first["body"]
    episode = f"{first['environment']}, seed {first['seed']}, output mode {first['output_mode']}"
    out.print(clean(episode), style="dim")
    for message in body["messages"]:
        out.print(f"\n{message['role']}", style="bold")
        parts = message["content"]
        for part in [{"text": parts}] if isinstance(parts, str) else parts:
            out.print(clean(part.get("text", "[picture]")), soft_wrap=True)
    for tool in body.get("tools", ()):
        function = tool["function"]
        out.print(f"\ntool {function['name']}", style="bold")
        out.print(clean(function["description"]), soft_wrap=True)
        out.print(as_json(function["parameters"]), soft_wrap=True)
    for name, value in body.items():
        if name not in ("messages", "tools"):
            out.print(f"\n{name}", style="bold")
            out.print(value if isinstance(value, str) else as_json(value), soft_wrap=True)


def _described(reference: str, settings: Settings, environment_name: str | None) -> dict[str, Any]:
    """Return the declarations of an APP. If `environment_name` is set, only this environment is included.

    Raises DiscoveryError or DeclarationError if the app cannot be loaded, and RequestError for an unknown environment.
    """
    export(settings)
    app = find_app(reference)
    spec = app.freeze()
    description = describe.Description(
        spec,
        max_time_seconds=settings.max_time_seconds,
        max_concurrent=settings.max_concurrent,
        max_body_bytes=settings.max_body_bytes,
    )
    tasks: dict[str, Any] = {}
    unavailable: dict[str, dict[str, str]] = {}
    first: dict[str, Any] = {}
    for environment in [find_environment(spec, environment_name)] if environment_name else spec.environments.values():
        split = environment.split_names[0]
        row = environment.tasks.rows(split)[0] if environment.tasks is not None else None
        tasks[environment.name] = description.task(environment, split, environment.first_seed, row)
        policies = policy_options.policies_of(spec, environment)
        unavailable[environment.name] = {name: why for name, why in policies.items() if why is not None}
        first = first or {
            "seed": environment.first_seed,
            "policy": example_policies.example_policy(policies, words=environment.text_action is not None),
        }
    missing = [
        f"{need.users} call the model of role {need.role!r}, but {role_variable(need.role)} is not set"
        for need in judges.needed_roles(spec)
        if settings.variable(role_variable(need.role)) is None
    ]
    extra = missing_extra(app.file.parent.name) if bundled_file(app.file) else None
    if extra is not None:
        missing.append(extra)
    sandbox = rollout_service.sandbox_in_use()
    return {
        "info": description.info(),
        "sandbox": [] if sandbox is None else sandbox.lines(),
        "task_info": tasks,
        "unavailable_policies": unavailable,
        "warnings": [*spec.warnings, *missing],
        "example": first,
    }


def _described_by_server(url: str, key: str | None, environment_name: str | None) -> dict[str, Any]:
    """Return the declarations of a running server's app, with all environments or only `environment_name`.

    Raises TaskAppError if the request fails, and ConfigError if the response does not describe a task app.
    """
    server = client.SyncTaskAppClient(url, key)
    info = remote_task_app.asked(server.get, "/info")
    try:
        environments = info.get("environments") or {info["dataset"]["name"]: {"dataset": info["dataset"]}}
        names = [environment_name] if environment_name is not None else list(environments)
        tasks, first = {}, None
        for name in names:
            seeds = environments.get(name, {}).get("dataset", {}).get("seeds") or {}
            seed = next(iter(seeds.values()), [0])[0]
            query = urlencode({"seed": seed, "environment": name})
            tasks[name] = remote_task_app.asked(server.get, f"/task_info?{query}")
            first = seed if first is None else first
        policies = next(iter(tasks.values()))["inference"].get("policies") or ["random"]
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise TaskAppError(
            f"The response of {url} does not describe a task app of taskapp-kit ({type(error).__name__}).",
            hint="Check that this is the address of a task app served by taskapp-kit.",
        ) from None
    example_name = "random" if "random" in policies else policies[0]
    return {
        "info": info,
        "task_info": tasks,
        "unavailable_policies": {},
        "warnings": [],
        "example": {"seed": first or 0, "policy": {"policy": example_name}},
    }


def _client_lines(url: str, environments: list[str]) -> list[dict[str, Any]]:
    """Return what the clients of each protocol need to connect. Protocols whose package is not installed are omitted.

    environments: The environments' names. The default environment is the first.
    """
    lines = []
    for name in protocols.protocol_names():
        try:
            (protocol,) = protocols.load_protocols((name,))
        except ConfigError:
            continue
        clients = [dataclasses.asdict(client) for client in protocol.clients(url, environments)]
        lines.append({"name": name, "summary": protocol.summary, "clients": clients})
    return lines


def _first_prompt(
    reference: str,
    settings: Settings,
    environment_name: str | None,
    seed: int | None,
    config: dict[str, Any],
    output_mode: policy_choices.OutputMode,
) -> dict[str, Any]:
    """Reset an episode, and return it with its first request to a language model.

    Raises the same errors as `_described`, and RolloutFailed if the reset fails.
    """
    export(settings)
    app = find_app(reference)
    spec = app.freeze()
    environment = find_environment(spec, environment_name)
    environment = environment.configured(read_config(environment, config).arguments)
    if seed is None:
        split = config.get("split") if config.get("split") in environment.split_names else environment.split_names[0]
        seed = 0 if environment.tasks is not None else environment.splits[str(split)][0]
    request = wire.RolloutRequest.model_validate(
        {
            "run_id": "cli-prompt",
            "env": {"env_name": environment.name, "seed": seed, "config": config},
            "policy": {"output_mode": output_mode},
            "ops": [],
            "mode": "eval",
        }
    )
    local_app.only_authors_log()

    async def first_view() -> View:
        async with local_app.local_service(app, settings, skip_judges=True) as service:
            return await service.first_view(request)

    with local_app.failure_shown():
        view = asyncio.run(first_view())
    body = conversation.prompt_of(spec, environment, policy_choices.read_options({}, output_mode=output_mode), view)
    return {"environment": environment.name, "seed": seed, "output_mode": output_mode, "body": body}
