"""Imports and serves the author's app in a Modal container, with idempotency records that containers share.

The web function in `modal_app.py` returns `serve(...)`. A container may start from a memory snapshot, which Modal
takes after importing `modal_app.py` and before calling the function. Many containers may then start with the same
memory. Random values, open files and Secrets must therefore be created in `serve` or later. Slow imports belong in
`preload`.
"""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from taskapp_kit.config import from_environment, hidden_from_authors, keep_from_authors
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.deploy.modal.account import require_client
from taskapp_kit.deploy.modal.idempotency import ModalIdempotencyStore
from taskapp_kit.deploy.modal.idempotency_record import ModalEntries
from taskapp_kit.deploy.packaging.source_files import container_address, folder_of, parse_target, resolve
from taskapp_kit.errors import ConfigError
from taskapp_kit.records.protocols import IdempotencyStore, SystemClock
from taskapp_kit.store.idempotency_memory import MemoryIdempotencyStore

if TYPE_CHECKING:
    from fastapi import FastAPI

    from taskapp_kit import TaskApp
    from taskapp_kit.config import Settings

Together = Literal["dict", "memory", "store"]
"""Where idempotency records are stored: in a modal.Dict, in the memory of each container, or in the app's store."""
LONGEST_NAME = 64
_loaded: dict[tuple[str, str], TaskApp] = {}


def tickets_of(app_name: str) -> str:
    """Return the default name of the modal.Dict of an app."""
    fit = re.sub(r"[^A-Za-z0-9._-]", "-", app_name)[: LONGEST_NAME - len("-tickets")]
    return f"{fit}-tickets"


def why_not_shared(coordinator: Together, *, max_containers: int | None, keeps: bool = False) -> str | None:
    """Return why Idempotency-Key and `/rollouts/{id}` would not work across containers, or None if they work.

    The returned sentence is part of an error message.

    Args:
        coordinator: Where idempotency records are stored.
        max_containers: Maximum number of containers, or None for no limit.
        keeps: Whether all containers can access the store in TASKAPP_STORE.
    """
    if coordinator == "memory":
        if max_containers == 1:
            return None
        return (
            "each container would store Idempotency-Keys and results in its own memory, so a repeated request to "
            "another container would play the episode again. Set max_containers=1 or coordinator='dict'."
        )
    if coordinator == "store":
        if keeps:
            return None
        return "coordinator='store' requires a store, but no store is set. Use coordinator='dict'."
    try:
        import modal
    except ModuleNotFoundError:
        return "Modal's client is not installed. Run: pip install 'taskapp-kit[modal]'"
    if "skip_if_exists" not in inspect.signature(modal.Dict.put).parameters:
        return (
            "the installed version of Modal's client has no atomic put-if-absent for a Dict, so two containers could "
            "claim the same Idempotency-Key. Install modal 1.6.4 or later."
        )
    return None


def preload(target: str, *, beside: str | Path) -> None:
    """Import the author's app and the server's modules for a memory snapshot, without starting a server.

    Outside of a container, nothing is imported. The keys in the Secret are already set, but hidden from the author's
    code.
    """
    if _in_container():
        import taskapp_kit.asgi  # noqa: F401

        with hidden_from_authors():
            app = load_task_app(target, beside=beside)
            app.freeze()
        _loaded[target, str(beside)] = app


def serve(
    target: str,
    *,
    beside: str | Path,
    settings: Settings | None = None,
    coordinator: Together = "dict",
    dict_name: str | None = None,
    sandbox: Literal["modal", "local"] = "modal",
) -> FastAPI:
    """Return the FastAPI app of a container.

    Outside of a container, as with `web.local()`, idempotency records are stored in memory, and the boxes of
    `taskapp_kit.sandbox` run locally.

    Args:
        target: See `load_task_app`.
        beside: See `load_task_app`.
        settings: Server settings. Defaults to the values in the process environment, which include the values in the
            Secret. The keys are then removed from the environment, so that the author's code cannot read them.
        coordinator: Where idempotency records are stored; see `Together`.
        dict_name: Name of the modal.Dict. Defaults to `tickets_of(app.name)`.
        sandbox: Where boxes run if the app's file imports `taskapp_kit.sandbox` at the top level: "modal" for Modal
            Sandboxes, "local" for this container.

    Raises:
        DiscoveryError: The app cannot be found or imported.
        DeclarationError: The app's declarations are invalid.
        ConfigError: A setting is invalid.
        Unavailable: A package is missing.
        StoreError: The store cannot be opened.
    """
    from taskapp_kit.asgi import build

    in_container = _in_container()
    if coordinator not in ("dict", "memory", "store"):
        raise ConfigError(f"The coordinator {coordinator!r} is unknown.", hint="Use 'dict', 'store' or 'memory'.")
    if settings is None:
        settings = from_environment()
        if in_container:
            keep_from_authors()
    app = _loaded.get((target, str(beside))) or load_task_app(target, beside=beside)
    if in_container and sandbox == "modal" and "taskapp_kit.sandbox" in sys.modules:
        from taskapp_kit.deploy.modal.sandboxes import ModalMachines
        from taskapp_kit.sandbox import remote

        # A container does not have the privileges to isolate its own processes.
        remote.use(ModalMachines())
    # From here on, files are opened and random values are drawn, which must not be part of a memory snapshot.
    clock = SystemClock()
    records: IdempotencyStore | None = None
    if coordinator == "store":
        if settings.store in (None, "none"):
            raise ConfigError(
                "coordinator='store' requires a store, but no store is set.",
                hint="Add TASKAPP_STORE to the Secret, or use coordinator='dict'.",
            )
    elif coordinator == "memory" or not in_container:
        records = MemoryIdempotencyStore(clock)
    else:
        records = ModalIdempotencyStore(ModalEntries(dict_name or tickets_of(app.name)), clock)
    return build(app, settings, clock=clock, coordinator=records)


def _in_container() -> bool:
    import modal

    return not modal.is_local()


def require_modal() -> ModuleType:
    """Return the module of Modal's client. Raises Unavailable if it is not installed."""
    require_client()
    return import_module("modal")


def load_task_app(target: str, *, beside: str | Path) -> TaskApp:
    """Import the author's app. In a container, it is imported from the mounted files.

    Raises:
        DiscoveryError: The app cannot be found or imported.
    """
    folder = folder_of(beside)
    parsed = parse_target(resolve(target, beside=folder))
    if parsed.kind != "file":
        return find_app(target)
    if not require_modal().is_local():
        return find_app(container_address(parsed, folder))
    return find_app(f"{folder / parsed.name}{':' + parsed.attribute if parsed.attribute else ''}")
