"""Finds the task app that one of four arguments names, and creates its ASGI application.

    app=             a TaskApp, or any ASGI application
    config=          the result of Synth's `build_config()`
    config_factory=  a function that returns an app or a config
    task_app_path=   `adder.py`, `adder.py:app`, `module:attribute` or the name of a bundled app. The module contains a
                     TaskApp, an ASGI application named `app`, or a function `build_config()`

Synth's package must be installed for its configs, because it serves them.
"""

from __future__ import annotations

import inspect
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from taskapp_kit.declare.app import Exposure, TaskApp
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import BadArgument, DiscoveryError, FileMissing, KitError, Unavailable

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from taskapp_kit.config import Settings

FOREIGN_SERVERS = ("synth_ai.sdk.task.server", "synth_ai.task.server")
"""The modules that contain `create_task_app` in synth-ai 0.2.23 and later, and in earlier versions."""
FOREIGN_PACKAGE = "synth_ai"
LOOKED_FOR = ("app", "build_config")


@dataclass(frozen=True, slots=True)
class AppSource:
    """The application to serve.

    Attributes:
        name: Name of the app in messages.
        app: A TaskApp, or any ASGI application.
    """

    name: str
    app: TaskApp | ASGIApp

    @property
    def ours(self) -> bool:
        """Whether the app is a TaskApp.

        A TaskApp reads its API key from the settings; other apps read it on their own.
        """
        return isinstance(self.app, TaskApp)

    def asgi(self, settings: Settings, exposure: Exposure) -> ASGIApp:
        """Return the ASGI application.

        Raises:
            DeclarationError: A declaration is invalid.
            ConfigError: A setting is invalid.
            Unavailable: A package is missing.
            StoreError: The store cannot be opened.
        """
        if not isinstance(self.app, TaskApp):
            return self.app
        from taskapp_kit.asgi import build

        return build(self.app, settings, exposure=exposure)


def check_sources(*, app: Any, config: Any, config_factory: Any, task_app_path: str | Path | None) -> None:
    """Raise BadArgument unless exactly one argument is set, and FileMissing if the path does not exist."""
    given = {"app": app, "config": config, "config_factory": config_factory, "task_app_path": task_app_path}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        found = f"{' and '.join(named)} are" if named else "none is"
        raise BadArgument(
            f"Expected exactly one of app, config, config_factory and task_app_path, but {found} set.",
            hint='To serve a file, pass task_app_path="my_task_app.py".',
        )
    if config_factory is not None and not callable(config_factory):
        raise BadArgument(
            f"config_factory is of type {type(config_factory).__name__}. Expected a function without parameters."
        )
    if task_app_path is not None:
        if not isinstance(task_app_path, (str, Path)) or not str(task_app_path):
            raise BadArgument("task_app_path is empty or not a path. Expected a path such as my_task_app.py.")
        file = _file_of(str(task_app_path))[0]
        if file is not None and not file.exists():
            raise FileMissing(
                f"The file {file} does not exist.",
                hint=f"Check the path. It is relative to the working directory {Path.cwd()}.",
            )


def find_source(*, app: Any, config: Any, config_factory: Any, task_app_path: str | Path | None) -> AppSource:
    """Return the app that one of the arguments names.

    The author's code is imported and called in the calling thread, because Synth's package can be imported only in the
    main thread.

    Raises:
        DiscoveryError: The app cannot be found or imported.
        BadArgument: An argument is invalid.
        Unavailable: A package is missing.
    """
    check_sources(app=app, config=config, config_factory=config_factory, task_app_path=task_app_path)
    with _own_signals():
        if app is not None:
            return _recognised(app, "app")
        if config is not None:
            return _recognised(config, "config")
        if config_factory is not None:
            return _made_by(config_factory, "config_factory")
        return _from_reference(str(task_app_path))


def _from_reference(reference: str) -> AppSource:
    try:
        found = find_app(reference)
    except DiscoveryError as error:
        file, attribute = _file_of(reference)
        module = None if file is None else _loaded(file)
        if module is None:  # the file does not exist or cannot be imported
            missing = error.__cause__
            if isinstance(missing, ModuleNotFoundError) and (missing.name or "").split(".")[0] == FOREIGN_PACKAGE:
                raise _not_installed(str(file or reference)) from error
            raise
        return _foreign(module, attribute, error)
    return AppSource(found.name, found)


def _foreign(module: ModuleType, attribute: str | None, error: DiscoveryError) -> AppSource:
    """Return the ASGI application or Synth config in a module. Raises DiscoveryError if the module has neither."""
    held = vars(module)
    if not attribute and any(isinstance(value, TaskApp) for value in held.values()):
        raise error  # the error lists the TaskApps in the module
    for name in (attribute,) if attribute else LOOKED_FOR:
        value = held.get(name)
        if value is not None:
            where = f"{Path(str(module.__file__)).name}:{name}"
            made = inspect.isfunction(value) and not _is_asgi(value)
            return _made_by(value, where) if made else _recognised(value, where)
    if attribute:
        raise error
    raise DiscoveryError(
        f"{module.__file__} defines no task app. "
        "Expected a TaskApp, an ASGI application named `app`, or a function named `build_config`.",
        hint='Write: app = TaskApp("name", version="1.0.0")',
    )


def _made_by(factory: Callable[[], Any], where: str) -> AppSource:
    try:
        made = factory()
    except KitError:
        raise
    except (Exception, SystemExit) as error:
        raise DiscoveryError(f"{where}() failed: {type(error).__name__}: {error}.") from error
    if inspect.iscoroutine(made):
        made.close()
        raise BadArgument(f"{where} is async. Expected a plain function that returns the app or its config.")
    return _recognised(made, f"{where}()")


def _recognised(value: Any, where: str) -> AppSource:
    if isinstance(value, TaskApp):
        return AppSource(value.name, value)
    if hasattr(value, "app_id") and callable(getattr(value, "rollout", None)):
        return AppSource(str(value.app_id), _served_by_them(value, where))
    if _is_asgi(value):
        return AppSource(str(getattr(value, "title", "") or where), value)
    hint = "Pass the TaskApp itself." if isinstance(getattr(value, "__self__", None), TaskApp) else ""
    raise BadArgument(
        f"{where} is of type {type(value).__name__}. Expected a TaskApp, an ASGI application, or a config of synth-ai.",
        hint=hint,
    )


def _served_by_them(config: Any, where: str) -> ASGIApp:
    for name in FOREIGN_SERVERS:
        try:
            create: Callable[[Any], ASGIApp] = import_module(name).create_task_app
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != FOREIGN_PACKAGE:
                raise Unavailable(
                    f"synth-ai cannot be imported, because {error.name} is not installed.",
                    hint=f"Install it: pip install {error.name}.",
                ) from error
            continue
        return create(config)
    raise _not_installed(where)


def _not_installed(what: str) -> Unavailable:
    return Unavailable(
        f"{what} requires synth-ai, which is not installed.",
        hint="Install it (pip install synth-ai==0.3.9), or write the app as a TaskApp.",
    )


def _is_asgi(value: Any) -> bool:
    """Return whether the value can be called with scope, receive and send."""
    if isinstance(value, type) or not callable(value):
        return False
    try:
        inspect.signature(value).bind(None, None, None)
    except (TypeError, ValueError):
        return False
    return True


def _file_of(reference: str) -> tuple[Path | None, str | None]:
    """Return the path and the attribute in a reference. The path is None for a bundled app or a module name."""
    before, colon, attribute = reference.rpartition(":")
    if colon and len(before) > 1 and (before.endswith(".py") or Path(before).exists()):
        return Path(before), attribute or None
    if reference.endswith(".py") or "/" in reference or Path(reference).exists():
        return Path(reference), None
    return None, None


def _loaded(file: Path) -> ModuleType | None:
    """Return the module that `load_file` imported from this file, or None if the file was not imported."""
    path = str((file / "app.py" if file.is_dir() else file).resolve())
    return next(
        (
            module
            for name, module in list(sys.modules.items())
            if name.startswith("_taskapp_") and getattr(module, "__file__", None) == path
        ),
        None,
    )


@contextmanager
def _own_signals() -> Iterator[None]:
    """Restore the signal handlers for SIGINT and SIGTERM after the block, because Synth's package replaces them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            now = signal.getsignal(number)
            theirs = (getattr(now, "__module__", None) or "").split(".")[0] == FOREIGN_PACKAGE
            if now is not handler and theirs and handler is not None:
                signal.signal(number, handler)
