"""Imports and serves the author's app in a Modal container, with idempotency records that containers share.

The function of `modal_app.py` returns `serve(...)`. A container may start from a memory snapshot, which Modal takes after it
has imported `modal_app.py` and before it calls that function. Many containers then begin with the same memory, so random
values, open files and Secrets belong in `serve` or later, and slow imports in `preload`.
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
"""Where idempotency records are stored: a modal.Dict, each container's memory, or the store of TASKAPP_STORE."""
LONGEST_NAME = 64
_loaded: dict[tuple[str, str], TaskApp] = {}


def tickets_of(app_name: str) -> str:
    """Return the default name of a Modal app's Dict."""
    fit = re.sub(r"[^A-Za-z0-9._-]", "-", app_name)[: LONGEST_NAME - len("-tickets")]
    return f"{fit}-tickets"


def why_not_shared(coordinator: Together, *, max_containers: int | None, keeps: bool = False) -> str | None:
    """Return why Idempotency-Key and `/rollouts/{id}` would not work across containers; None if they work.

    The sentence is the error message of a deployment. max_containers: None means no limit. keeps: whether TASKAPP_STORE
    names a store that all containers reach.
    """
    if coordinator == "memory":
        if max_containers == 1:
            return None
        return (
            "each container would store Idempotency-Keys and results in its own memory, so a repeated request to another "
            "container would play again. Set max_containers=1, or coordinator='dict'."
        )
    if coordinator == "store":
        if keeps:
            return None
        return "coordinator='store' needs a store, but no store is set. Use coordinator='dict'."
    try:
        import modal
    except ModuleNotFoundError:
        return "Modal's client is not installed here. Install it with: pip install 'taskapp-kit[modal]'."
    if "skip_if_exists" not in inspect.signature(modal.Dict.put).parameters:
        return (
            "Modal's client here is too old: its Dict has no put-if-absent, so two containers could both claim one "
            "Idempotency-Key. Install modal 1.6.4 or later."
        )
    return None


def preload(target: str, *, beside: str | Path) -> None:
    """Import the author's app and the server for a memory snapshot, without starting anything. A no-op on a laptop.

    The Secret's keys are already set, but hidden from the author's code.
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
    """Return the FastAPI app of one container. On a laptop (`web.local()`) records are in memory and boxes are local.

    Args:
        target: See `load_task_app`.
        beside: See `load_task_app`.
        settings: Defaults to the process environment, where Modal puts the Secret's values. The keys are then removed
            from the environment, because the author's code could read them there.
        coordinator: Where idempotency records are stored; see `Together`.
        dict_name: The name of the modal.Dict. Defaults to `tickets_of` the app's name.
        sandbox: Where an app whose file imports `taskapp_kit.sandbox` at its top level runs its boxes: in Modal
            Sandboxes, or inside this container.

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

        # A container does not have the rights to isolate processes inside it.
        remote.use(ModalMachines())
    # What is opened or drawn from here on must not be part of a memory snapshot.
    clock = SystemClock()
    records: IdempotencyStore | None = None
    if coordinator == "store":
        if settings.store in (None, "none"):
            raise ConfigError(
                "coordinator='store' needs a store, but no store is set.",
                hint="Put TASKAPP_STORE into the Secret, or use coordinator='dict'.",
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
    """Return Modal's client. Raises Unavailable."""
    require_client()
    return import_module("modal")


def load_task_app(target: str, *, beside: str | Path) -> TaskApp:
    """Import the author's app: in a container from the mounted files, elsewhere in place. Raises DiscoveryError."""
    folder = folder_of(beside)
    parsed = parse_target(resolve(target, beside=folder))
    if parsed.kind != "file":
        return find_app(target)
    if not require_modal().is_local():
        return find_app(container_address(parsed, folder))
    return find_app(f"{folder / parsed.name}{':' + parsed.attribute if parsed.attribute else ''}")
