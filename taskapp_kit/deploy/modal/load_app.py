"""Imports the author's app: in place on this machine, from the mounted files in a container."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from taskapp_kit.declare.discovery import find_app
from taskapp_kit.deploy.packaging.source_files import container_address, folder_of, parse_target, resolve
from taskapp_kit.errors import Unavailable

if TYPE_CHECKING:
    from taskapp_kit import TaskApp


def require_modal() -> ModuleType:
    """Modal's client. Raises Unavailable."""
    try:
        import modal
    except ModuleNotFoundError as error:
        if error.name != "modal":
            raise
        raise Unavailable(
            "Deploying to Modal needs Modal's client, which is not installed here.",
            hint="Install it with: pip install 'taskapp-kit[modal]'",
        ) from error
    return modal


def load_task_app(target: str, *, beside: str | Path) -> TaskApp:
    """Imports the author's app: in the container from the mounted files, elsewhere in place.

    Raises:
        DiscoveryError: no such app, or its file failed while importing.
    """
    folder = folder_of(beside)
    parsed = parse_target(resolve(target, beside=folder))
    if parsed.kind != "file":
        return find_app(target)
    if not require_modal().is_local():
        return find_app(container_address(parsed, folder))
    return find_app(f"{folder / parsed.name}{':' + parsed.attribute if parsed.attribute else ''}")
