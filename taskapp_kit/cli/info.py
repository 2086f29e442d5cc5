"""`taskapp info`: what an app declares, or what its policy reads first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from taskapp_kit.cli.options import ENV_FILES, JSON_OBJECT, OUTPUT_MODE, SEED, SERVER_KEY, is_url, json_option
from taskapp_kit.cli.terminal import clean, console, example, print_json

if TYPE_CHECKING:
    from taskapp_kit.config import Settings
    from taskapp_kit.declare.app import TaskApp
    from taskapp_kit.rollout.policy.options import OutputMode


@click.command(epilog=example("taskapp info crafter", "taskapp info adder.py --prompt --seed 3"))
@click.argument("app", metavar="APP|URL")
@click.option("--prompt", is_flag=True, help="Print exactly what a language model reads first in one episode.")
@click.option("--env", "environment", metavar="NAME", help="Only this environment.")
@click.option("--seed", type=SEED, metavar="S", help="With --prompt: the episode.  [default: the first of its split]")
@click.option("--split", metavar="NAME", help="With --prompt: the split.")
@click.option("--config", "env_config", type=JSON_OBJECT, metavar="JSON", help="With --prompt: the configuration.")
@click.option(
    "--output-mode", type=OUTPUT_MODE, help="With --prompt: how the model is to answer.  [default: tool_calls]"
)
@SERVER_KEY
@ENV_FILES
@json_option("Print JSON, with the whole JSON Schemas.")
def command(
    app: str,
    prompt: bool,
    environment: str | None,
    seed: int | None,
    split: str | None,
    env_config: dict[str, Any] | None,
    output_mode: OutputMode | None,
    key: str | None,
    env_files: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show environments, actions, rubrics, reward, splits, limits, configuration and policies."""
    from taskapp_kit.config import export, load

    settings = load(env_files=env_files)
    if not prompt and any(given is not None for given in (seed, split, env_config, output_mode)):
        raise click.UsageError(
            "--seed, --split, --config and --output-mode are of an episode; they belong to --prompt."
        )
    if is_url(app):
        if prompt:
            raise click.UsageError("--prompt plays the reset of an app in this process; give the app, not a URL.")
        found = _remote(app, key or settings.environment_api_key, environment)
    else:
        from taskapp_kit.declare.discovery import find_app

        export(settings)
        task_app = find_app(app)
        if prompt:
            config = {**(env_config or {}), **({"split": split} if split else {})}
            _prompt(task_app, settings, environment, seed, config, output_mode or "tool_calls", as_json)
            return
        found = _local(task_app, settings, environment)
    if as_json:
        print_json(found)
        return
    from taskapp_kit.cli.app_output import print_description
    from taskapp_kit.cli.curl import curl_lines

    print_description(found["info"], found["task_info"], found["unavailable_policies"])
    out = console()
    if found.get("sandbox"):
        out.print()
        for line in found["sandbox"]:
            out.print(clean(line))
    for warning in found["warnings"]:
        out.print(f"\nWarning: {clean(warning)}", style="yellow")
    url = app.rstrip("/") if is_url(app) else f"http://{settings.host}:{settings.port}"
    out.print()
    out.print("ask it" if is_url(app) else f"ask it, once `taskapp serve {app}` runs", style="bold")
    for line in curl_lines(url, environment, found["example"]["seed"], found["example"]["policy"]):
        out.print(line, soft_wrap=True)


def _local(app: TaskApp, settings: Settings, wanted: str | None) -> dict[str, Any]:
    from taskapp_kit.contract.chat import role_variable
    from taskapp_kit.contract.example_policy import example_policy
    from taskapp_kit.declare.discovery import bundled_file, missing_extra
    from taskapp_kit.declare.episode_selection import find_environment
    from taskapp_kit.rollout.describe import Description
    from taskapp_kit.rollout.policy.select import policies_of
    from taskapp_kit.rollout.score.judges import needed_roles
    from taskapp_kit.rollout.service import sandbox_in_use

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
        f"judges {', '.join(need.judges)} ask the model of role {need.role!r}, and {role_variable(need.role)} is not set"
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


def _remote(url: str, key: str | None, wanted: str | None) -> dict[str, Any]:
    from taskapp_kit.cli.remote_task_app import Remote, RemoteError

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


def _prompt(
    app: TaskApp,
    settings: Settings,
    wanted: str | None,
    seed: int | None,
    config: dict[str, Any],
    output_mode: OutputMode,
    as_json: bool,
) -> None:
    import asyncio

    from taskapp_kit.cli.local_app import failure_shown, local_service, only_authors_log
    from taskapp_kit.contract.protocols import View
    from taskapp_kit.contract.wire import RolloutRequest
    from taskapp_kit.declare.episode_selection import find_environment, read_config
    from taskapp_kit.rollout.policy.chat.conversation import prompt_of
    from taskapp_kit.rollout.policy.options import read_options

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
    if as_json:
        print_json({"environment": environment.name, "seed": seed, "output_mode": output_mode, "body": body})
        return
    out = console()
    out.print(clean(f"{environment.name}, seed {seed}, output mode {output_mode}"), style="dim")
    _print_body(body)


def _print_body(body: dict[str, Any]) -> None:
    """The messages, then the other members of the request."""
    import orjson

    def written(value: Any) -> str:
        return clean(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())

    out = console()
    for message in body["messages"]:
        out.print(f"\n{message['role']}", style="bold")
        parts = message["content"]
        for part in [{"text": parts}] if isinstance(parts, str) else parts:
            out.print(clean(part.get("text", "[picture]")), soft_wrap=True)
    for tool in body.get("tools", ()):
        function = tool["function"]
        out.print(f"\ntool {function['name']}", style="bold")
        out.print(clean(function["description"]), soft_wrap=True)
        out.print(written(function["parameters"]), soft_wrap=True)
    for name, value in body.items():
        if name not in ("messages", "tools"):
            out.print(f"\n{name}", style="bold")
            out.print(value if isinstance(value, str) else written(value), soft_wrap=True)
