"""`taskapp info`: what an app declares, or what its policy reads first."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click
import orjson

from taskapp_kit.cli.app_output import print_description
from taskapp_kit.cli.curl import curl_lines
from taskapp_kit.cli.options import ENV_FILES, JSON_OBJECT, OUTPUT_MODE, SEED, SERVER_KEY, is_url, json_option
from taskapp_kit.cli.terminal import clean, console, example, print_json, shown_from
from taskapp_kit.config import load

if TYPE_CHECKING:
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
@click.option("--clients", is_flag=True, help="Print the lines that clients of other protocols need.")
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
    clients: bool,
    key: str | None,
    env_files: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show environments, actions, rubrics, reward, splits, limits, configuration and policies."""
    settings = load(env_files=env_files)
    if not prompt and any(given is not None for given in (seed, split, env_config, output_mode)):
        raise click.UsageError(
            "--seed, --split, --config and --output-mode are of an episode; they belong to --prompt."
        )
    from taskapp_kit.cli import info_run

    if is_url(app):
        if prompt:
            raise click.UsageError("--prompt plays the reset of an app in this process; give the app, not a URL.")
        with shown_from(app):
            found = info_run.described_by_server(app, key or settings.environment_api_key, environment)
    elif prompt:
        config = {**(env_config or {}), **({"split": split} if split else {})}
        first = info_run.first_prompt(app, settings, environment, seed, config, output_mode or "tool_calls")
        if as_json:
            print_json(first)
        else:
            _print_prompt(first)
        return
    else:
        found = info_run.described(app, settings, environment)
    url = app.rstrip("/") if is_url(app) else f"http://{settings.host}:{settings.port}"
    if clients:
        names = [environment] if environment else list(found["info"].get("environments") or found["task_info"])
        lines = info_run.client_lines(url, names)
        if as_json:
            print_json(lines)
        else:
            _print_clients(lines, app if not is_url(app) else "APP")
        return
    if as_json:
        print_json(found)
        return
    with shown_from(app) if is_url(app) else nullcontext():
        print_description(found["info"], found["task_info"], found["unavailable_policies"])
    out = console()
    if found.get("sandbox"):
        out.print()
        for line in found["sandbox"]:
            out.print(clean(line))
    for warning in found["warnings"]:
        out.print(f"\nWarning: {clean(warning)}", style="yellow")
    out.print()
    out.print("ask it" if is_url(app) else f"ask it, once `taskapp serve {app}` runs", style="bold")
    for line in curl_lines(url, environment, found["example"]["seed"], found["example"]["policy"]):
        out.print(line, soft_wrap=True)


def _print_clients(lines: list[dict[str, Any]], app: str) -> None:
    """For each protocol how it is served, and what each client needs."""
    out = console()
    for protocol in lines:
        out.print(f"{clean(protocol['summary'])}", style="bold")
        out.print(f"taskapp serve {clean(app)} --protocols {protocol['name']}", soft_wrap=True)
        for client in protocol["clients"]:
            out.print(f"\n{clean(client['title'])}", style="dim")
            out.print(clean(client["text"]), soft_wrap=True, markup=False)
        out.print()


def _print_prompt(first: dict[str, Any]) -> None:
    """The episode, the messages, then the other members of the request."""

    def written(value: Any) -> str:
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
        out.print(written(function["parameters"]), soft_wrap=True)
    for name, value in body.items():
        if name not in ("messages", "tools"):
            out.print(f"\n{name}", style="bold")
            out.print(value if isinstance(value, str) else written(value), soft_wrap=True)
