"""Settings that the job commands share: the addresses and keys of the backend and the task app."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from taskapp_kit.cli.output.terminal import echo
from taskapp_kit.config import load
from taskapp_kit.errors import ConfigError

BACKEND_VARIABLES = ("BACKEND_BASE_URL", "PROD_BACKEND_URL")
TASK_APP_VARIABLES = ("TASK_APP_URL", "TASK_APP_BASE_URL")
SYNTH_KEY, ENVIRONMENT_KEY = "SYNTH_API_KEY", "ENVIRONMENT_API_KEY"
LOCAL_BACKEND = "http://127.0.0.1:8500"


@dataclass(frozen=True, slots=True)
class JobSettings:
    """The addresses and keys for a job command. A value is None if it is not set."""

    backend_url: str | None
    task_app_url: str | None
    backend_key: str | None = field(default=None, repr=False)
    task_app_key: str | None = field(default=None, repr=False)

    @property
    def keys(self) -> tuple[str | None, str | None]:
        """Return the backend's key and the task app's key. They must never be printed."""
        return self.backend_key, self.task_app_key

    def needed_backend(self) -> str:
        """Return the backend's address. Raises ConfigError if it is not set."""
        if self.backend_url is None:
            raise ConfigError(
                "The backend's address is not set.",
                hint=f"Pass --backend-url or set BACKEND_BASE_URL. `taskapp backend serve` starts a backend at {LOCAL_BACKEND}.",
            )
        return self.backend_url

    def needed_backend_key(self) -> str:
        """Return the backend's key. Raises ConfigError if it is not set."""
        return _needed(self.backend_key, SYNTH_KEY, "the backend's key")

    def needed_task_app_key(self) -> str:
        """Return the task app's key. Raises ConfigError if it is not set."""
        return _needed(self.task_app_key, ENVIRONMENT_KEY, "the task app's key")


def job_settings(
    *, env_files: Sequence[str] = (), backend_url: str | None = None, task_app_url: str | None = None
) -> JobSettings:
    """Return the settings of a job command. Flags take precedence. Raises ConfigError if an env file cannot be read."""
    settings = load(env_files=env_files)

    def first(*names: str) -> str | None:
        return next((value for name in names if (value := settings.variable(name))), None)

    return JobSettings(
        backend_url=backend_url or first(*BACKEND_VARIABLES),
        task_app_url=task_app_url or first(*TASK_APP_VARIABLES),
        backend_key=settings.variable(SYNTH_KEY),
        task_app_key=settings.environment_api_key,
    )


def job_settings_or_ask(
    *, env_files: Sequence[str], backend_url: str | None, task_app_url: str | None, task_app_needed: bool
) -> JobSettings:
    """Return the result of `job_settings`. If a value is missing and stdin is a terminal, prompt once for an env file."""
    settings = job_settings(env_files=env_files, backend_url=backend_url, task_app_url=task_app_url)
    needed = {SYNTH_KEY: settings.backend_key, ENVIRONMENT_KEY: settings.task_app_key}
    if task_app_needed:
        needed[TASK_APP_VARIABLES[0]] = settings.task_app_url
    missing = [name for name, value in needed.items() if not value]
    if not missing or not sys.stdin.isatty():
        return settings
    echo(
        f"Not set: {', '.join(missing)}. `taskapp setup` writes them into .env and can find task apps on Modal.",
        err=True,
    )
    prompt = "Path of an .env file with these variables (leave empty to skip)"
    answer = click.prompt(prompt, default="", show_default=False, err=True).strip()
    if not answer:
        return settings
    path = Path(answer).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"The file {answer} does not exist.", hint="Enter the path of an .env file, or run `taskapp setup`."
        )
    return job_settings(env_files=[*env_files, str(path)], backend_url=backend_url, task_app_url=task_app_url)


def _needed(value: str | None, name: str, what: str) -> str:
    if value is None:
        raise ConfigError(
            f"{name} ({what}) is not set.",
            hint="Set it in the environment or an --env-file, or run `taskapp setup`, which writes it into .env.",
        )
    return value
