"""Shared flags and error handling of the scripts in this directory.

A flag has precedence over the config file, which has precedence over the default. Environment variables can also set
addresses and keys.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from taskapp_kit.errors import KitError

CONFIG = Path(__file__).with_name("config.toml")


def parser(description: str, *, task_app: bool = True) -> argparse.ArgumentParser:
    """Return a parser with the flags that all scripts have."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--backend-url", default=variable("BACKEND_BASE_URL", "PROD_BACKEND_URL"))
    made.add_argument("--api-key", default=variable("SYNTH_API_KEY"), help="the backend's key [SYNTH_API_KEY]")
    if task_app:
        made.add_argument("--task-app-url", default=variable("TASK_APP_URL", "TASK_APP_BASE_URL"))
    return made


def job_flags(made: argparse.ArgumentParser) -> None:
    """Add the flags of a script that submits a job."""
    made.add_argument("--config-path", type=Path, default=CONFIG)
    made.add_argument("--trainer-id")
    made.add_argument("--model")
    made.add_argument("--batch-size", type=int)
    made.add_argument("--group-size", type=int)
    made.add_argument("--stream-seconds", type=float, help="show events for this long, then only the status")
    made.add_argument("--timeout-seconds", type=float, default=7200.0)


def variable(*names: str) -> str | None:
    """Return the value of the first variable that is set, or None."""
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def needed(**values: str | None) -> None:
    """Exit with a message if a value is missing."""
    missing = [f"--{name.replace('_', '-')}" for name, value in values.items() if not value]
    if missing:
        sys.exit(f"missing: {', '.join(missing)} (or the environment variable; see --help)")


def main(run: Callable[[], int | None]) -> None:
    """Run a script. Errors of the kit are printed without a traceback, and the exit status is 1."""
    try:
        sys.exit(run() or 0)
    except KitError as error:
        sys.exit(f"Error: {error}")
