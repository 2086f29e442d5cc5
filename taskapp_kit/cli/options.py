"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from taskapp_kit.config import DEADLINE_SECONDS
from taskapp_kit.records.seeds import SEED_LIMIT

if TYPE_CHECKING:
    ValueKind = click.ParamType[Any]
else:
    ValueKind = click.ParamType  # `click.ParamType` is not generic in every release of click that the kit supports

Command = TypeVar("Command", bound=Callable[..., Any])


class Seed(ValueKind):
    """An integer in [0, 2⁶³)."""

    name = "seed"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the seed. Fails if the value is not an integer from 0 to 2⁶³−1."""
        text = str(value)
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) < SEED_LIMIT):
            self.fail(f"{text[:80]!r} is not a valid seed. Expected an integer from 0 to {SEED_LIMIT - 1}.", param, ctx)
        return int(text)


class JsonObject(ValueKind):
    """A JSON object, e.g. `{"low": 3}`."""

    name = "JSON"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Return the object. Fails if the value is not a JSON object."""
        parsed = _json(self, value, param, ctx, '{"low": 3}')
        if not isinstance(parsed, dict):
            self.fail('expected a JSON object such as {"low": 3}. Put it in single quotes for the shell.', param, ctx)
        return parsed


class ActionValue(ValueKind):
    """An action: `{"tool": {args}}`, a list of such objects, or plain text (with or without JSON quotes)."""

    name = "JSON"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the action. Fails if its JSON is invalid."""
        if value.lstrip()[:1] not in ("{", "[", '"'):
            return value
        return _json(self, value, param, ctx, '{"add": {"amount": 3}}')


def _json(kind: ValueKind, text: str, param: click.Parameter | None, ctx: click.Context | None, sample: str) -> Any:
    try:
        return json.loads(text, parse_constant=lambda name: kind.fail(f"{name} is not a JSON number.", param, ctx))
    except ValueError as error:
        return kind.fail(f"invalid JSON ({error}). Quote it for the shell: '{sample}'.", param, ctx)


class AtOnce(ValueKind):
    """The number of concurrent rollouts: an integer from 1 to LARGEST_CONCURRENCY, or `auto`."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or `auto`. Fails for any other value."""
        text = str(value)
        if text == "auto":
            return text
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= LARGEST_CONCURRENCY):
            self.fail(f"{text[:80]!r} is neither auto nor an integer from 1 to {LARGEST_CONCURRENCY}.", param, ctx)
        return int(text)


ARGUMENTS = "taskapp_kit.arguments"
"""The key under which a command's context stores the command's arguments for `command_with`."""
MAY_HOLD_KEYS = ("--key", "--policy-config")
LARGEST_CONCURRENCY = 4096
SEED = Seed()
JSON_OBJECT = JsonObject()


def options(*parts: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Combine decorators into one. `--help` lists their options in the order of `parts`."""

    def decorate(command: Command) -> Command:
        for part in reversed(parts):
            command = part(command)
        return command

    return decorate


def names_of(*parts: Callable[[Any], Any]) -> tuple[str, ...]:
    """Return the names of the parameters that these decorators add to a command, in order."""
    return tuple(str(param.name) for param in click.command(options(*parts)(lambda: None)).params)


def json_option(about: str = "Print JSON.") -> Callable[[Command], Command]:
    """Return the option `--json`, whose value is passed as `as_json`. about: the help text."""
    return click.option("--json", "as_json", is_flag=True, help=about)


def env_files_option(
    about: str = "Read settings and keys from this file; may be repeated, and later files take precedence.",
) -> Callable[[Command], Command]:
    """Return the option `--env-file`, whose values are passed as the tuple `env_files`. about: the help text."""
    return click.option("--env-file", "env_files", multiple=True, metavar="F", help=about)


def listen_options(port: int) -> Callable[[Command], Command]:
    """Return the options `--host` and `--port` of a server. port: the default port."""
    return options(
        click.option("--host", default="127.0.0.1", metavar="H", help="The address to listen on."),
        click.option(
            "--port", type=click.IntRange(0, 65_535), default=port, metavar="P", help="The port; 0 picks a free one."
        ),
    )


def policy_options(builtin: str, *, several: bool = False) -> Callable[[Command], Command]:
    """Return the options that choose the policy and how a model returns actions.

    Args:
        builtin: The built-in policies that the help lists.
        several: Whether --policy, --model and --inference-url may be repeated. Their values are then passed as
            `policies`, `models` and `inference_urls`.
    """
    repeat = "; may be repeated" if several else ""
    return options(
        click.option(
            "--policy",
            "policies" if several else "policy",
            multiple=several,
            metavar="P",
            help=f"The policy that plays: {builtin}, or one of the app's policies{repeat}.",
        ),
        click.option(
            "--model",
            "models" if several else "model",
            multiple=several,
            metavar="M",
            help=f"The language model that plays: its name at the endpoint or in models.toml{repeat}.",
        ),
        click.option(
            "--inference-url",
            "inference_urls" if several else "inference_url",
            multiple=several,
            metavar="U",
            help="The model's OpenAI-compatible endpoint"
            + ("; give one for all models, or one per model." if several else "."),
        ),
        click.option("--output-mode", type=OUTPUT_MODE, default="tool_calls", help="The format of model replies."),
        click.option(
            "--action",
            type=ActionValue(),
            metavar="JSON",
            help='The action that the policy `constant` repeats: {"tool": {args}}, or text.',
        ),
        click.option("--policy-config", type=JSON_OBJECT, metavar="JSON", help="More fields of policy.config."),
    )


ENV_FILES = env_files_option()
OUTPUT_MODE = click.Choice(["tool_calls", "text", "structured"])
SERVER_KEY = click.option("--key", metavar="K", help="The server's API key.  [default: ENVIRONMENT_API_KEY]")
ENVIRONMENT = click.option("--env", "environment", metavar="NAME", help="The environment.  [default: the app's first]")
ENV_CONFIG = click.option(
    "--config", "env_config", type=JSON_OBJECT, metavar="JSON", help="The environment's configuration."
)
EPISODE = options(
    ENVIRONMENT,
    click.option("--seed", type=SEED, metavar="S", help="The episode's seed.  [default: a random seed]"),
    click.option("--split", metavar="NAME", help="The split. If it has rows, the seed is a row's index."),
)
LIMITS = options(
    click.option(
        "--ops", type=click.IntRange(1, 200_000), metavar="N", help="End an episode after N turns of the policy."
    ),
    click.option(
        "--max-time-seconds",
        type=click.FloatRange(0, 86_400, min_open=True),
        default=DEADLINE_SECONDS,
        metavar="T",
        help="A rollout that takes longer than T seconds fails.",
    ),
    click.option(
        "--max-refusals",
        type=click.IntRange(1, 10_000_000),
        metavar="N",
        help="Truncate an episode after N consecutive turns without an accepted action; can only lower the limit.",
    ),
    click.option(
        "--max-rollout-tokens",
        type=click.IntRange(1, 10**12),
        metavar="N",
        help="Truncate an episode once its models have used N tokens, prompts and replies together.",
    ),
)
"""The limits of an episode."""
CACHE = click.option(
    "--cache", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Cache models' responses in DIR."
)
JUDGES = click.option(
    "--judges",
    type=click.Choice(["ask", "skip"]),
    default="ask",
    help="With skip, judges are not called. Their scores are null, and so are rewards that depend on them.",
)
"""For commands that play an app in this process."""
WIDTH = click.option(
    "--width",
    type=click.IntRange(40, 10_000),
    metavar="N",
    help="Width of the output in columns.  [default: the terminal's width; at least 120 in a pipe]",
)
FULL = click.option("--full", is_flag=True, help="Print everything, even long text and repeated steps.")
"""For commands that print the steps of an episode."""
LOG_LEVEL = click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", help="The log level."
)
BACKEND = click.option(
    "--backend-url", "--backend", "backend_url", metavar="U", help="The backend.  [default: BACKEND_BASE_URL]"
)
POLLING = options(
    click.option(
        "--poll-timeout",
        type=click.FloatRange(0, min_open=True),
        default=7200.0,
        metavar="S",
        help="Stop following the job after S seconds.",
    ),
    click.option(
        "--poll-interval", type=click.FloatRange(0.1), default=5.0, metavar="S", help="Seconds between polls."
    ),
)


def typed(ctx: click.Context) -> dict[str, str]:
    """Return the parameters that the command line sets, with the name of the option for each."""
    flags = ((str(param.name), param.opts[0]) for param in ctx.command.params)
    return {name: flag for name, flag in flags if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}


def is_url(reference: str) -> bool:
    """Return whether an APP argument is the URL of a server."""
    return reference.startswith(("http://", "https://"))


def shown_source(reference: str) -> str:
    """Return a source as shown to the user. An address that may contain a password is replaced with `STORE`."""
    return "STORE" if "://" in reference and ("@" in reference or "?" in reference) else reference


def command_with(options: Sequence[str]) -> list[str]:
    """Return this process's command line with `options` added. Values that may contain keys are replaced with `…`."""
    words = ["taskapp"]
    for word in click.get_current_context().meta[ARGUMENTS]:
        name, equals, _ = word.partition("=")
        hidden = "…" if words[-1] in MAY_HOLD_KEYS else f"{name}=…" if equals and name in MAY_HOLD_KEYS else None
        words.append(hidden or shown_source(word))
    return [*words, *options]


def episode(
    environment: str | None, seed: int | None, env_config: Mapping[str, Any] | None, split: str | None
) -> dict[str, Any]:
    """Return the field `env` of a rollout request for the options --env, --seed, --config and --split."""
    config = {**(env_config or {}), **({} if split is None else {"split": split})}
    return {"env_name": environment, "seed": seed, "config": config}
