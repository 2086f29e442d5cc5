"""`taskapp setup`: write an .env file with the addresses and keys of the backend and the task app."""

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
    help="The file to write.",
)
@env_files_option("Also read values from this file; may be repeated.")
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
@click.option("--upload-key", is_flag=True, help="Upload the task app's key, encrypted for the backend only.")
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

    Values are read from flags, the environment and env files. On a terminal, the command prompts for missing values and
    does not echo keys. If ENVIRONMENT_API_KEY is not set, a key is created. If SYNTH_API_KEY is not set and the backend is on
    this machine, a key is created for the backend. Nothing leaves this machine without --upload-key or --discover.
    """
    sources = [*([str(path)] if path.expanduser().is_file() else []), *env_files]
    settings = job_settings(env_files=sources, backend_url=backend_url, task_app_url=task_url)
    interactive = sys.stdin.isatty()
    backend = _address(settings.backend_url)
    if backend is None and interactive:
        backend = click.prompt("Backend", default=LOCAL_BACKEND, value_proc=_typed_address)
    ours = backend is not None and on_loopback(backend)
    synth = settings.backend_key
    if interactive and not synth:
        empty = "leave empty to create one" if ours else "leave empty to set it later"
        prompt = f"{SYNTH_KEY}, the backend's key ({empty})"
        synth = click.prompt(prompt, default="", hide_input=True, show_default=False)
    task_app = _address(task_url or (_discovered(modal_env, interactive) if discover else settings.task_app_url))
    if task_app is None and interactive:
        prompt = "Task app (leave empty to set it later)"
        task_app = click.prompt(prompt, default="", show_default=False, value_proc=_typed_address)
    values = {
        BACKEND_VARIABLES[0]: backend,
        SYNTH_KEY: synth or (client.mint_environment_api_key() if ours else None),
        TASK_APP_VARIABLES[0]: task_app,
        ENVIRONMENT_KEY: settings.task_app_key or client.mint_environment_api_key(),
    }
    env_file.write(path, {name: value for name, value in values.items() if value})
    echo(f"Wrote {clean(str(path))}, which only you can read:")
    before = {SYNTH_KEY: synth, ENVIRONMENT_KEY: settings.task_app_key}
    for name, value in values.items():
        state = "(not set)" if not value else "set" if before.get(name) else "created"
        echo(f"  {name}  {clean(value) if value and name.endswith('URL') else state}")
    _warn_of_git(path)
    if values[SYNTH_KEY] and not synth:
        echo(
            f"`taskapp backend serve` in this directory will use this {SYNTH_KEY}. Restart a backend that is already running."
        )
    if upload_key:
        _upload(JobSettings(backend, task_app, values[SYNTH_KEY], values[ENVIRONMENT_KEY]))
    missing = [name for name, value in values.items() if not value]
    if missing:
        echo(f"Not set: {', '.join(missing)}. Run `taskapp setup` again, or add these variables to the file.", err=True)


def _address(text: str | None) -> str | None:
    """Return the normalized address, or None if it is empty. Raises ConfigError if it is invalid or contains a password."""
    return read_address(text) if text else None


def _typed_address(text: str) -> str | None:
    try:
        return _address(text.strip())
    except ConfigError as error:
        raise click.UsageError(error.message) from None


def _discovered(environment: str, interactive: bool) -> str:
    apps = deployed_apps(environment)
    if not apps:
        where = f"the Modal environment {environment!r}" if environment else "Modal's default environment"
        raise ConfigError(
            f"No task app is deployed in {where}.",
            hint="Deploy an app with `taskapp deploy APP --name NAME`.",
        )
    for number, app in enumerate(apps, start=1):
        echo(f"  {number}  {clean(app.name)}  {clean(app.url)}", err=True)
    if len(apps) == 1:
        return apps[0].url
    if not interactive:
        names = ", ".join(clean(app.name) for app in apps)
        raise ConfigError(
            f"Several apps are deployed on Modal: {names}.", hint="Pass the address of one app as --task-url."
        )
    return apps[click.prompt("Number of the app", type=click.IntRange(1, len(apps)), err=True) - 1].url


def _upload(settings: JobSettings) -> None:
    stored = client.setup_environment_api_key(
        settings.needed_backend(), settings.needed_backend_key(), settings.needed_task_app_key()
    )
    name = clean(str(stored.get("name") or ENVIRONMENT_KEY))
    echo(f"Uploaded {name} to the backend at {clean(settings.needed_backend())}, encrypted for this backend.")


def _warn_of_git(path: Path) -> None:
    """Print a warning if the file, which contains keys, is in a git repository and not ignored."""
    folder = path.expanduser().resolve().parent
    try:
        command = ["git", "check-ignore", "-q", "--", path.name]
        ignored = subprocess.run(command, cwd=folder, capture_output=True, timeout=10, check=False).returncode  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return
    if ignored == 1:  # the file is in a repository and not ignored
        echo(f"Warning: git does not ignore {clean(path.name)}. Add it to .gitignore.", err=True)
