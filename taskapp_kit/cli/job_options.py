"""The settings of the commands for jobs: the backend, the task app and the two keys.

Precedence as everywhere: flag > process environment > `--env-file` (a later file wins) > `.env` > `taskapp.toml`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from taskapp_kit.cli.output.terminal import echo
from taskapp_kit.config import Settings, load
from taskapp_kit.errors import ConfigError

BACKEND_VARIABLES = ("BACKEND_BASE_URL", "PROD_BACKEND_URL")
TASK_APP_VARIABLES = ("TASK_APP_URL", "TASK_APP_BASE_URL")
SYNTH_KEY, ENVIRONMENT_KEY = "SYNTH_API_KEY", "ENVIRONMENT_API_KEY"
LOCAL_BACKEND = "http://127.0.0.1:8500"


@dataclass(frozen=True, slots=True)
class JobSettings:
    """The addresses and keys of a command about jobs; None where not set."""

    backend_url: str | None
    task_app_url: str | None
    backend_key: str | None = field(default=None, repr=False)
    task_app_key: str | None = field(default=None, repr=False)

    @property
    def keys(self) -> tuple[str | None, str | None]:
        """Both keys, which are never shown."""
        return self.backend_key, self.task_app_key

    def needed_backend(self) -> str:
        """The backend's address. Raises ConfigError."""
        if self.backend_url is None:
            raise ConfigError(
                "No backend is named.",
                hint=f"Give --backend-url, or set BACKEND_BASE_URL; `taskapp backend serve` runs one at {LOCAL_BACKEND}.",
            )
        return self.backend_url

    def needed_backend_key(self) -> str:
        """The backend's key. Raises ConfigError."""
        return _needed(self.backend_key, SYNTH_KEY, "the backend's key")

    def needed_task_app_key(self) -> str:
        """The task app's key. Raises ConfigError."""
        return _needed(self.task_app_key, ENVIRONMENT_KEY, "the task app's key")


def job_settings(
    *, env_files: Sequence[str] = (), backend_url: str | None = None, task_app_url: str | None = None
) -> JobSettings:
    """The settings of a command about jobs; flags first. Raises ConfigError for an env file that cannot be read."""
    return _of(load(env_files=env_files), backend_url, task_app_url)


def job_settings_or_ask(
    *, env_files: Sequence[str], backend_url: str | None, task_app_url: str | None, task_app_needed: bool
) -> JobSettings:
    """As `job_settings`; at a terminal, prompts once for an env file when a value is missing."""
    found = job_settings(env_files=env_files, backend_url=backend_url, task_app_url=task_app_url)
    missing = [
        name for name, value in ((SYNTH_KEY, found.backend_key), (ENVIRONMENT_KEY, found.task_app_key)) if not value
    ]
    if task_app_needed and found.task_app_url is None:
        missing.append(TASK_APP_VARIABLES[0])
    if not missing or not sys.stdin.isatty():
        return found
    echo(
        f"Not set: {', '.join(missing)}. `taskapp setup` writes them into .env, and can look for the task app on Modal.",
        err=True,
    )
    path = click.prompt(
        "An .env file that holds them (empty to go on without)", default="", show_default=False, err=True
    ).strip()
    if not path:
        return found
    if not Path(path).expanduser().is_file():
        raise ConfigError(f"There is no file {path}.", hint="Give the path of an .env file, or run `taskapp setup`.")
    return job_settings(
        env_files=[*env_files, str(Path(path).expanduser())], backend_url=backend_url, task_app_url=task_app_url
    )


def _of(settings: Settings, backend_url: str | None, task_app_url: str | None) -> JobSettings:
    return JobSettings(
        backend_url=backend_url or _first(settings, BACKEND_VARIABLES),
        task_app_url=task_app_url or _first(settings, TASK_APP_VARIABLES),
        backend_key=settings.variable(SYNTH_KEY),
        task_app_key=settings.environment_api_key,
    )


def _first(settings: Settings, names: Sequence[str]) -> str | None:
    return next((value for name in names if (value := settings.variable(name))), None)


def _needed(value: str | None, name: str, what: str) -> str:
    if value is None:
        raise ConfigError(
            f"{name} is not set: {what} is missing.",
            hint="Set it in the environment or an --env-file; `taskapp setup` writes both keys into .env.",
        )
    return value
