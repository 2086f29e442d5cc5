"""Imports and serves the author's app in a Modal container, with idempotency records that containers share.

The function of `modal_app.py` returns `serve(...)`. A container may start from a memory snapshot, which Modal takes when
`modal_app.py` is imported, before it calls that function; many containers then begin with the same memory. So random
values, open files and Secrets belong in `serve` or later, and slow imports in `preload`.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from taskapp_kit.config import from_environment, hidden_from_authors, keep_from_authors
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.deploy.modal.idempotency import ModalIdempotencyStore
from taskapp_kit.deploy.modal.idempotency_record import ModalEntries
from taskapp_kit.deploy.packaging.source_files import container_address, folder_of, parse_target, resolve
from taskapp_kit.errors import ConfigError, Unavailable
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
    """The name of the Dict of a Modal app, unless another is given."""
    fit = re.sub(r"[^A-Za-z0-9._-]", "-", app_name)[: LONGEST_NAME - len("-tickets")]
    return f"{fit}-tickets"


def why_not_shared(coordinator: Together, *, max_containers: int | None, keeps: bool = False) -> str | None:
    """Why an Idempotency-Key and `/rollouts/{id}` would not work across the containers of this deploy; None if they do.

    A deploy refuses with this sentence. max_containers: None is no limit. keeps: whether TASKAPP_STORE names a store that
    all containers reach.
    """
    if coordinator == "memory":
        if max_containers == 1:
            return None
        return (
            "each container would store Idempotency-Keys and results in its own memory, so a repeated request that "
            "reaches another container is played again. Set max_containers=1, or coordinator='dict'."
        )
    if coordinator == "store":
        if keeps:
            return None
        return "Idempotency-Keys and results are to be in the store, and no store is set. Use coordinator='dict'."
    try:
        import modal
    except ModuleNotFoundError:
        return "Modal's client is not installed here. Install it with: pip install 'taskapp-kit[modal]'."
    if "skip_if_exists" not in inspect.signature(modal.Dict.put).parameters:
        return (
            "Modal's client here is too old: its Dict cannot put an entry only if there is none, so two containers "
            "could both take one Idempotency-Key. Install modal 1.6.4 or later."
        )
    return None


def preload(target: str, *, beside: str | Path) -> None:
    """Imports the author's app and the server, and starts nothing: for a memory snapshot. Does nothing on a laptop.

    The Secret's keys are already set; they are hidden from the author's code, here as in `serve`.
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
    """The FastAPI app of one container. On a laptop (`web.local()`) records are in memory and boxes are local.

    Args:
        target: as `load_task_app` takes it.
        beside: as `load_task_app` takes it.
        settings: from the process environment when absent, where Modal puts the Secret's values; keys are then removed
            from it, because author's code could read them there.
        coordinator: where idempotency records are stored; see `Together`.
        dict_name: of the modal.Dict; see `tickets_of`.
        sandbox: the boxes of an app whose file (not only a function in it) imports `taskapp_kit.sandbox`: Modal
            Sandboxes, or the isolation that works inside this container.

    Raises:
        DiscoveryError: the app cannot be found or imported.
        DeclarationError: its declarations have mistakes.
        ConfigError: a setting cannot be used.
        Unavailable: a package is missing.
        StoreError: the store cannot be opened.
    """
    from taskapp_kit.asgi import build

    in_container = _in_container()
    if coordinator not in ("dict", "memory", "store"):
        raise ConfigError(f"There is no coordinator {coordinator!r}.", hint="Use 'dict', 'store' or 'memory'.")
    if settings is None:
        settings = from_environment()
        if in_container:
            keep_from_authors()
    app = _loaded.get((target, str(beside))) or load_task_app(target, beside=beside)
    if in_container and sandbox == "modal" and "taskapp_kit.sandbox" in sys.modules:
        from taskapp_kit.deploy.modal.sandboxes import ModalMachines
        from taskapp_kit.sandbox import remote

        # A container has none of the rights with which walls are built inside it.
        remote.use(ModalMachines())
    # From here on things are opened and drawn: after a memory snapshot was restored, not in it.
    clock = SystemClock()
    records: IdempotencyStore | None = None
    if coordinator == "store":
        if settings.store in (None, "none"):
            raise ConfigError(
                "Idempotency records are to be in the store, and no store is set.",
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
