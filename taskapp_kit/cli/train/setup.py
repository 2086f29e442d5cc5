"""`taskapp setup`: an .env file with what jobs need: the backend, the task app, the two keys."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from taskapp_kit import client
from taskapp_kit.cli import env_file
from taskapp_kit.cli.job_options import (
    BACKEND_VARIABLES,
    ENVIRONMENT_KEY,
    LOCAL_BACKEND,
    SYNTH_KEY,
    TASK_APP_VARIABLES,
    JobSettings,
    job_settings,
)
from taskapp_kit.cli.options import env_files_option
from taskapp_kit.cli.output.terminal import clean, echo, example
from taskapp_kit.deploy.modal.discovery import deployed_apps
from taskapp_kit.deploy.tunnel.tunnel_settings import on_loopback
from taskapp_kit.errors import ConfigError
from taskapp_kit.net.addresses import read_address


@click.command(
    epilog=example(
        "taskapp setup",
        "taskapp setup --discover --upload-key",
        "taskapp setup --backend-url http://127.0.0.1:8500 --task-url http://127.0.0.1:8001",
    )
)
@click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path(".env"),
    metavar="F",
    help="The file.",
)
@env_files_option("Take values from this file, too; may repeat.")
@click.option("--backend-url", "--backend", "backend_url", metavar="U", help="The backend's address.")
@click.option("--task-url", "--task-app-url", "task_url", metavar="U", help="The task app's address.")
@click.option("--discover", is_flag=True, help="Look for the task app among the apps deployed on Modal.")
@click.option(
    "--modal-env",
    default="",
    show_default=False,
    metavar="E",
    help="The Modal environment to look in.  [default: the account's]",
)
@click.option("--upload-key", is_flag=True, help="Give the backend the task app's key, in a box that it alone opens.")
def command(
    path: Path,
    env_files: tuple[str, ...],
    backend_url: str | None,
    task_url: str | None,
    discover: bool,
    modal_env: str,
    upload_key: bool,
) -> None:
    """Write an .env file (mode 600) that `taskapp train`, `serve`, `eval` and `deploy` read.

    What is known already, from flags, the environment or env files, is taken over; at a terminal what is missing is
    asked for, keys without showing them. A missing ENVIRONMENT_API_KEY is made, and for a backend on this machine a
    missing SYNTH_API_KEY, too. Nothing leaves this machine without --upload-key or --discover.
    """
    sources = [*([str(path)] if path.expanduser().is_file() else []), *env_files]
    known = job_settings(env_files=sources, backend_url=backend_url, task_app_url=task_url)
    asks = sys.stdin.isatty()
    backend = _address(known.backend_url) or (
        click.prompt("Backend", default=LOCAL_BACKEND, value_proc=_typed_address) if asks else None
    )
    ours = backend is not None and on_loopback(backend)
    typed = _asked_for_key(ours) if asks and not known.backend_key else None
    synth = known.backend_key or typed or (client.mint_environment_api_key() if ours else None)
    task_app = _address(task_url or (_discovered(modal_env, asks) if discover else known.task_app_url))
    if task_app is None and asks:
        asked = "Task app (empty: later)"
        task_app = click.prompt(asked, default="", show_default=False, value_proc=_typed_address)
    values = {
        BACKEND_VARIABLES[0]: backend,
        SYNTH_KEY: synth,
        TASK_APP_VARIABLES[0]: task_app,
        ENVIRONMENT_KEY: known.task_app_key or client.mint_environment_api_key(),
    }
    env_file.write(path, {name: value for name, value in values.items() if value})
    echo(f"Wrote {clean(str(path))}, for you alone to read:")
    given = {SYNTH_KEY: known.backend_key or typed, ENVIRONMENT_KEY: known.task_app_key}
    for name, value in values.items():
        shown = "(not set)" if not value else "set" if given.get(name) else "made now"
        echo(f"  {name}  {clean(value) if value and name.endswith('URL') else shown}")
    _warn_of_git(path)
    if values[SYNTH_KEY] and not given[SYNTH_KEY]:
        echo(f"`taskapp backend serve` in this folder takes that {SYNTH_KEY}; one that runs already has another.")
    if upload_key:
        _upload(JobSettings(backend, task_app, synth or None, values[ENVIRONMENT_KEY]))
    missing = [name for name, value in values.items() if not value]
    if missing:
        echo(f"Still missing: {', '.join(missing)}. Run `taskapp setup` again, or write them into the file.", err=True)


def _asked_for_key(ours: bool) -> str:
    empty = "empty: one is made for it" if ours else "empty: later"
    typed: str = click.prompt(
        f"{SYNTH_KEY}, the backend's key ({empty})", default="", hide_input=True, show_default=False
    )
    return typed


def _address(text: str | None) -> str | None:
    """Raises ConfigError for one that no later command could use (or that holds a password)."""
    return read_address(text) if text else None


def _typed_address(text: str) -> str | None:
    try:
        return _address(text.strip())
    except ConfigError as error:
        raise click.UsageError(error.message) from None


def _discovered(environment: str, asks: bool) -> str:
    found = deployed_apps(environment)
    if not found:
        raise ConfigError(
            "No task app is deployed on Modal in this environment.",
            hint="Deploy one with `taskapp deploy APP --name NAME`.",
        )
    for number, app in enumerate(found, start=1):
        echo(f"  {number}  {clean(app.name)}  {clean(app.url)}", err=True)
    if len(found) == 1:
        return found[0].url
    if not asks:
        names = ", ".join(clean(app.name) for app in found)
        raise ConfigError(
            f"Several apps are deployed on Modal: {names}.", hint="Give the address of one as --task-url."
        )
    return found[click.prompt("Which one", type=click.IntRange(1, len(found)), err=True) - 1].url


def _upload(settings: JobSettings) -> None:
    stored = client.setup_environment_api_key(
        settings.needed_backend(), settings.needed_backend_key(), settings.needed_task_app_key()
    )
    name = clean(str(stored.get("name") or ENVIRONMENT_KEY))
    echo(f"The backend at {clean(settings.needed_backend())} has {name} now, sealed for it on the way.")


def _warn_of_git(path: Path) -> None:
    """A file with keys that git would take is worth a word."""
    folder = path.expanduser().resolve().parent
    try:
        asked = ["git", "check-ignore", "-q", "--", path.name]
        ignored = subprocess.run(asked, cwd=folder, capture_output=True, timeout=10, check=False).returncode  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return
    if ignored == 1:  # in a repository, and not ignored
        echo(f"Warning: git would take {clean(path.name)}; add it to .gitignore.", err=True)
