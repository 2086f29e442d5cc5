"""What `taskapp serve` does: makes the application and serves it, here or in a child that `--reload` restarts."""

from __future__ import annotations

import dataclasses
import secrets
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from taskapp_kit.asgi import build
from taskapp_kit.cli.app_output import reward_words, split_words
from taskapp_kit.cli.curl import curl_lines
from taskapp_kit.cli.terminal import clean, complain, console, table
from taskapp_kit.config import Settings, export, from_environment, hand_over, hidden_from_authors, keep_from_authors
from taskapp_kit.contract.example_policy import example_policy
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import ConfigError, KitError
from taskapp_kit.rollout.describe import Description
from taskapp_kit.rollout.policy.select import offered, policies_of
from taskapp_kit.serve.connection_limits import limits_of
from taskapp_kit.serve.keys import Keys
from taskapp_kit.serve.uvicorn_server import bound_to_this_machine, log_to_stderr, run
from taskapp_kit.serve.viewer.viewer import Viewer
from taskapp_kit.system.child_python import hide_memory

if TYPE_CHECKING:
    from fastapi import FastAPI

HANDED_APP, HANDED_EXPOSURE, HANDED_LEVEL = "TASKAPP_SERVED_APP", "TASKAPP_SERVED_EXPOSURE", "TASKAPP_SERVED_LOG_LEVEL"


def serve(app: str, settings: Settings, *, minted: str | None, local: bool, reload: bool, log_level: str) -> None:
    """Serve the app until Ctrl-C. minted: the key that was made for this run, shown once.

    Raises DiscoveryError, DeclarationError, Unavailable, StoreError, ConfigError: the address is taken.
    """
    log_to_stderr(log_level, settings.log_format)
    exposure: Any = "local" if local else "public"
    export(settings)
    if not reload:
        keep_from_authors()
    with hidden_from_authors():
        found = find_app(app)
        found.freeze()

    viewer: list[Viewer] = []

    def announce(url: str) -> None:
        _banner(found, url, settings, minted=minted, local=local, viewer=viewer[0] if viewer else None)

    if not reload:
        served = build(found, settings, exposure=exposure)
        if served.state.viewer is not None:
            viewer.append(served.state.viewer)
        served.state.service.prepare()
        run(
            served,
            host=settings.host,
            port=settings.port,
            log_level=log_level,
            log_format=settings.log_format,
            grace_seconds=settings.grace_seconds,
            drain=served.state.drain,
            announce=announce,
            limits=limits_of(settings),
        )
        return
    hand_over(settings, **{HANDED_APP: app, HANDED_EXPOSURE: exposure, HANDED_LEVEL: log_level})
    _hide_handed_keys()
    run(
        "taskapp_kit.cli.serve_run:reload_factory",
        host=settings.host,
        port=settings.port,
        log_level=log_level,
        log_format=settings.log_format,
        factory=True,
        reload=True,
        reload_dirs=[str(found.file.resolve().parent)],
        announce=announce,
        limits=limits_of(settings),
    )


def _hide_handed_keys() -> None:
    """Protect this process, which has the keys for the child that serves, from processes that run an author's code.

    The resource tracker of `multiprocessing` starts with the child, inherits the environment and can be read by every
    process of the user, so it is started here, without the keys.
    """
    with hidden_from_authors():
        resource_tracker.ensure_running()
    hide_memory()


def reload_factory() -> FastAPI:
    """The application, in the child process that `--reload` restarts; its settings come from the environment.

    An author's error is printed in one paragraph and ends the child; the next change of a file starts another.
    """
    settings = from_environment()
    keep_from_authors()
    log_to_stderr(settings.variable(HANDED_LEVEL) or "info", settings.log_format)
    exposure: Any = settings.variable(HANDED_EXPOSURE) or "public"
    try:
        return build(find_app(settings.variable(HANDED_APP) or ""), settings, exposure=exposure)
    except KitError as error:
        complain(error)
        raise SystemExit(1) from None


def with_key(settings: Settings) -> tuple[Settings, str | None, bool]:
    """Settings with a key, the key where it was made here, and whether only this machine can call. Raises ConfigError."""
    local = bound_to_this_machine(settings.host)
    if Keys.of(settings).configured():
        return settings, None, local
    if not local:
        raise ConfigError(
            f"No key is configured, and {settings.host} can be reached from other machines, so nothing is served.",
            hint="Set ENVIRONMENT_API_KEY (in the environment or an --env-file), or serve on 127.0.0.1.",
        )
    key = secrets.token_urlsafe(24)
    return dataclasses.replace(settings, environment_api_key=key), key, local


def _banner(
    app: TaskApp, url: str, settings: Settings, *, minted: str | None, local: bool, viewer: Viewer | None
) -> None:
    """Print what is served, where, how it is scored and how to call it; a minted key and a login link, once."""
    spec = offered(app.freeze(), exposure="local" if local else "public", gold=settings.gold)
    description = Description(
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
    facts.add_row("store", "none: rollouts are answered and not stored" if store == "none" else store)
    facts.add_row("key", _key_words(settings, minted))
    if local:
        facts.add_row("docs", f"{url}/docs")
        if viewer is not None:
            facts.add_row("viewer", "the link below logs a browser in, once; later the key does")
    else:
        facts.add_row("warning", "this address can be reached from other machines; put TLS before it")
    out.print(facts)
    out.print()
    if viewer is not None and local:
        out.print(viewer.login_link(url), soft_wrap=True)
    if minted is not None:
        out.print(f"export ENVIRONMENT_API_KEY={minted}", soft_wrap=True)
    first = spec.default_environment
    shown = url if local else url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    for line in curl_lines(
        shown, None, first.first_seed, example_policy(policies_of(spec, first), words=first.text_action is not None)
    ):
        out.print(line, soft_wrap=True)
    out.print("\nCtrl-C stops it.", style="dim")


def _key_words(settings: Settings, minted: str | None) -> str:
    if minted is not None:
        return "made for this run and shown here only; ENVIRONMENT_API_KEY gives one that stays"
    if settings.environment_api_key:
        source = settings.sources.get("environment_api_key", "given").removesuffix(", ENVIRONMENT_API_KEY")
        return f"ENVIRONMENT_API_KEY ({source})"
    if settings.keys_file:
        return f"those of {settings.keys_file}"
    return "configured"
