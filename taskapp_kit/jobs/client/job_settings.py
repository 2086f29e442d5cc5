"""Defaults of a job's arguments: keys from the environment, and overrides split into tables and arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskapp_kit.config import process_variable
from taskapp_kit.errors import JobConfigError
from taskapp_kit.net.http import header_key

FLAT = ("task_url", "task_app_url", "backend", "backend_url", "model")
"""Overrides that are arguments, not tables of the file; some of them exist in the SDK, too."""


def backend_key(given: str | None) -> str:
    """The given key, else SYNTH_API_KEY. Raises JobConfigError."""
    found = header_key(given, "The backend's key") or header_key(process_variable("SYNTH_API_KEY"), "SYNTH_API_KEY")
    if found is None:
        raise JobConfigError(
            "There is no key for the backend: none was given, and SYNTH_API_KEY is not set.",
            hint="Give it as api_key, or set SYNTH_API_KEY.",
        )
    return found


def task_app_key(given: str | None) -> str | None:
    """The given key, else ENVIRONMENT_API_KEY; None for a task app without a key. Raises ConfigError."""
    return header_key(given, "The task app's key") or header_key(
        process_variable("ENVIRONMENT_API_KEY"), "ENVIRONMENT_API_KEY"
    )


def split_overrides(overrides: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, str]]:
    """The tables to merge into the file, and the texts that are arguments; the caller's mapping is not changed.

    `model` is an argument when it is text, and the table `[model]` when it is a mapping.
    """
    tables: dict[str, Any] = {}
    words: dict[str, str] = {}
    for name, value in (overrides or {}).items():
        if name in FLAT and isinstance(value, str):
            words[{"task_app_url": "task_url", "backend_url": "backend"}.get(name, name)] = value
        else:
            tables[name] = value
    return tables, words
