"""`taskapp serve`: serve an app over HTTP on this machine."""

from __future__ import annotations

import dataclasses
import secrets
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

import click

from taskapp_kit import asgi
from taskapp_kit.cli.options import ENV_FILES, LOG_LEVEL
from taskapp_kit.cli.output.app_output import curl_lines, reward_words, split_words
from taskapp_kit.cli.output.terminal import clean, complain, console, example, table, until_stopped
from taskapp_kit.config import (
    Settings,
    export,
    from_environment,
    hand_over,
    hidden_from_authors,
    keep_from_authors,
    load,
)
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import ConfigError, KitError
from taskapp_kit.records import example_policy as example_policies
from taskapp_kit.rollout import describe
from taskapp_kit.rollout.policy import options as policies
from taskapp_kit.serve import auth, connection_limits, uvicorn_server
from taskapp_kit.system.child_python import hide_memory
from taskapp_kit.viewer import viewer as viewers

if TYPE_CHECKING:
    from fastapi import FastAPI

DEFAULT_STORE = "sqlite:///.taskapp/rollouts.db"
HANDED_APP, HANDED_EXPOSURE, HANDED_LEVEL = "TASKAPP_SERVED_APP", "TASKAPP_SERVED_EXPOSURE", "TASKAPP_SERVED_LOG_LEVEL"


@click.command(
    epilog=example(
        "taskapp serve adder.py",
        "taskapp serve crafter --port 8010 --store none",
        "taskapp serve crafter --workers 2",
        "taskapp serve adder.py --host 0.0.0.0 --env-file production.env",
    )
)
@click.argument("app")
@click.option("--host", metavar="H", help="The address to listen on.  [default: 127.0.0.1]")
@click.option(
    "--port", type=click.IntRange(0, 65_535), metavar="P", help="The port; 0 picks a free one.  [default: 8001]"
)
@click.option(
    "--max-concurrent", type=click.IntRange(1, 1_000_000), metavar="N", help="Concurrent rollouts.  [default: 1024]"
)
@click.option(
    "--workers",
    type=click.IntRange(0, 256),
    metavar="N",
    help="Worker processes that play rollouts; 0 uses threads of the server process.  [default: 0]",
)
@click.option(
    "--grace-seconds",
    type=click.IntRange(0, 3600),
    metavar="T",
    help="How long rollouts may continue after SIGTERM or Ctrl-C.  [default: 25]",
)
@click.option(
    "--max-time-seconds", type=click.FloatRange(0, 86_400, min_open=True), metavar="T", help="Longest rollout (s)."
)
@click.option(
    "--max-calls-per-answer",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Play at most N tool calls of one model reply.  [default: 64]",
)
@click.option("--max-body-bytes", type=click.IntRange(1024, 2**30), metavar="N", help="Largest request body.")
@click.option("--cors-origins", metavar="LIST", help="Allowed web origins (CORS), comma-separated.  [default: none]")
@click.option("--protocols", metavar="LIST", help="Additional protocols, comma-separated, or all.  [default: none]")
@click.option(
    "--gold/--no-gold",
    default=None,
    help="Whether callers may use the policy gold.  [default: no, if it reads private fields and others can call]",
)
@click.option("--debug-env", is_flag=True, default=None, help="Serve /debug/env, which reports whether keys are set.")
@ENV_FILES
@click.option("--keys-file", metavar="F", help="A file with one valid key per line, reloaded when it changes.")
@click.option(
    "--store",
    metavar="URL",
    help=f"Where rollouts are stored: sqlite:///PATH, postgresql://…, or none.  [default: {DEFAULT_STORE}]",
)
@click.option("--reload", is_flag=True, help="Restart when a Python file in the app's directory changes.")
@LOG_LEVEL
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="The format of the log; json writes one object per line.  [default: text]",
)
@click.option("--show-config", is_flag=True, help="Print each setting and its source, and exit.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    app: str,
    env_files: tuple[str, ...],
    reload: bool,
    log_level: str,
    show_config: bool,
    **flags: Any,
) -> None:
    """Serve an app over HTTP, protected by a key.

    A setting can be set by a flag, the process environment, --env-file, .env or taskapp.toml, in this order of precedence.
    If no key is configured and the address is a loopback address, `serve` creates a key and prints it once. On any other
    address, a key is required. Ctrl-C stops the server.
    """
    settings = load(flags, env_files=env_files)
    if settings.store is None:
        settings = dataclasses.replace(settings, store=DEFAULT_STORE)
    if show_config:
        _show(settings)
        return
    settings, minted, local = _with_key(settings)
    with until_stopped(ctx, ConfigError):
        _serve(app, settings, minted=minted, local=local, reload=reload, log_level=log_level)


def _show(settings: Settings) -> None:
    rows = table("setting", "value", "from")
    for row in settings.shown():
        rows.add_row(*map(clean, row))
    console().print(rows)


def _serve(app: str, settings: Settings, *, minted: str | None, local: bool, reload: bool, log_level: str) -> None:
    """Serve the app until Ctrl-C. minted: the key that was created for this run, or None if a key is configured.

    Raises DiscoveryError or DeclarationError if the app cannot be loaded, Unavailable if a package is missing,
    StoreError if the store cannot be opened, and ConfigError if the address is in use.
    """
    uvicorn_server.log_to_stderr(log_level, settings.log_format)
    exposure: Any = "local" if local else "public"
    export(settings)
    if not reload:
        keep_from_authors()
    with hidden_from_authors():
        target = find_app(app)
        target.freeze()
    viewer: viewers.Viewer | None = None
    if reload:
        hand_over(settings, **{HANDED_APP: app, HANDED_EXPOSURE: exposure, HANDED_LEVEL: log_level})
        _hide_handed_keys()
        served: Any = f"{__name__}:{reload_factory.__name__}"
        how: dict[str, Any] = {"factory": True, "reload": True, "reload_dirs": [str(target.file.resolve().parent)]}
    else:
        served = asgi.build(target, settings, exposure=exposure)
        viewer = served.state.viewer
        served.state.service.prepare()
        how = {"grace_seconds": settings.grace_seconds, "drain": served.state.drain}
    uvicorn_server.run(
        served,
        host=settings.host,
        port=settings.port,
        log_level=log_level,
        log_format=settings.log_format,
        announce=lambda url: _banner(target, url, settings, minted=minted, local=local, viewer=viewer),
        limits=connection_limits.limits_of(settings),
        **how,
    )


def _hide_handed_keys() -> None:
    """Hide the serving child's keys from processes that run an author's code."""
    # The resource tracker of `multiprocessing` would start together with the child and inherit the environment, which every
    # process of the user can read. So start the tracker now, without the keys.
    with hidden_from_authors():
        resource_tracker.ensure_running()
    hide_memory()


def reload_factory() -> FastAPI:
    """Build the application in the child process that `--reload` restarts, with settings from the environment.

    If the author's code raises an error, it is printed in one paragraph, and the child ends. The next change of a file
    starts another child.
    """
    settings = from_environment()
    keep_from_authors()
    uvicorn_server.log_to_stderr(settings.variable(HANDED_LEVEL) or "info", settings.log_format)
    exposure: Any = settings.variable(HANDED_EXPOSURE) or "public"
    try:
        return asgi.build(find_app(settings.variable(HANDED_APP) or ""), settings, exposure=exposure)
    except KitError as error:
        complain(error)
        raise SystemExit(1) from None


def _with_key(settings: Settings) -> tuple[Settings, str | None, bool]:
    """Return the settings with a key, the key if this function created it, and whether the server is local.

    The second value is None if a key was already configured. A local server listens on a loopback address.

    Raises ConfigError if other machines can reach the server and no key is configured.
    """
    local = uvicorn_server.bound_to_this_machine(settings.host)
    if auth.Keys.of(settings).configured():
        return settings, None, local
    if not local:
        raise ConfigError(
            f"The server did not start, because other machines can reach {settings.host} and no key is configured.",
            hint="Set ENVIRONMENT_API_KEY (in the environment or an --env-file), or serve on 127.0.0.1.",
        )
    key = secrets.token_urlsafe(24)
    return dataclasses.replace(settings, environment_api_key=key), key, local


def _banner(
    app: TaskApp, url: str, settings: Settings, *, minted: str | None, local: bool, viewer: viewers.Viewer | None
) -> None:
    """Print the app, its address, reward and store, example requests, and, if there are any, a new key and a login link."""
    spec = policies.offered(app.freeze(), exposure="local" if local else "public", gold=settings.gold)
    description = describe.Description(
        spec,
        max_time_seconds=settings.max_time_seconds,
        max_concurrent=settings.max_concurrent,
        max_body_bytes=settings.max_body_bytes,
    )
    out = console()
    out.print(f"{clean(spec.name)} {spec.version} at {url}", style="bold", soft_wrap=True)
    facts = table("", "")
    for environment in spec.environments.values():
        task = description.task(environment, environment.split_names[0], 0)
        facts.add_row("environment", f"{environment.name}: {split_words(task['dataset'])}")
        facts.add_row("reward", clean("\n".join(reward_words(task))))
    store = next(value for name, value, _ in settings.shown() if name == "store")
    facts.add_row("store", "none; rollouts are not stored" if store == "none" else store)
    facts.add_row("key", _key_words(settings, minted))
    if local:
        facts.add_row("docs", f"{url}/docs")
        if viewer is not None:
            facts.add_row("viewer", "log in with the link below, which works once, or with the key")
    else:
        facts.add_row("warning", "other machines can reach this address; put a TLS proxy in front of it")
    out.print(facts)
    out.print()
    if viewer is not None and local:
        out.print(viewer.login_link(url), soft_wrap=True)
    if minted is not None:
        out.print(f"export ENVIRONMENT_API_KEY={minted}", soft_wrap=True)
    first = spec.default_environment
    shown = url if local else url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    for line in curl_lines(
        shown,
        None,
        first.first_seed,
        example_policies.example_policy(policies.policies_of(spec, first), words=first.text_action is not None),
    ):
        out.print(line, soft_wrap=True)
    out.print("\nCtrl-C stops the server.", style="dim")


def _key_words(settings: Settings, minted: str | None) -> str:
    if minted is not None:
        return "created for this run and shown only here; set ENVIRONMENT_API_KEY for a permanent key"
    if settings.environment_api_key:
        source = settings.sources.get("environment_api_key", "given").removesuffix(", ENVIRONMENT_API_KEY")
        return f"ENVIRONMENT_API_KEY ({source})"
    return f"the keys in {settings.keys_file}" if settings.keys_file else "configured"
