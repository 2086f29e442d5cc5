"""Makes the ASGI application of a task app on this machine from one of four arguments.

    app=             a TaskApp of ours, or any ASGI application
    config=          the result of Synth's `build_config()`
    config_factory=  a function that returns one of these
    task_app_path=   a file: `adder.py`, `adder.py:app`, a bundled name, `module:attribute`; it holds a TaskApp, an ASGI
                     application called `app`, or a `build_config()`

A config of theirs is served by their own package, which must be installed. Nothing here needs it otherwise.
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
"""The modules of `create_task_app` in their releases: from 0.2.23, and before."""
FOREIGN_PACKAGE = "synth_ai"
LOOKED_FOR = ("app", "build_config")


@dataclass(frozen=True, slots=True)
class AppSource:
    """The application to serve. name: for messages. app: a TaskApp of ours, or any ASGI application."""

    name: str
    app: TaskApp | ASGIApp

    @property
    def ours(self) -> bool:
        """Whether it is a TaskApp, which takes its key from settings; others may read theirs from the environment."""
        return isinstance(self.app, TaskApp)

    def asgi(self, settings: Settings, exposure: Exposure) -> ASGIApp:
        """The application. Raises DeclarationError, ConfigError, Unavailable, StoreError."""
        if not isinstance(self.app, TaskApp):
            return self.app
        from taskapp_kit.asgi import build

        return build(self.app, settings, exposure=exposure)


def check_sources(*, app: Any, config: Any, config_factory: Any, task_app_path: str | Path | None) -> None:
    """Raises BadArgument unless exactly one is given, FileMissing for a path that does not exist."""
    given = {"app": app, "config": config, "config_factory": config_factory, "task_app_path": task_app_path}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        found = f"{' and '.join(named)} are" if named else "none is"
        raise BadArgument(
            f"Give exactly one of app, config, config_factory and task_app_path; {found} given.",
            hint='The usual one is a file of yours: task_app_path="my_task_app.py".',
        )
    if config_factory is not None and not callable(config_factory):
        raise BadArgument(
            f"config_factory is of type {type(config_factory).__name__}; expected a function without arguments."
        )
    if task_app_path is not None:
        if not isinstance(task_app_path, (str, Path)) or not str(task_app_path):
            raise BadArgument("task_app_path names no file; expected a path such as my_task_app.py.")
        file = _file_of(str(task_app_path))[0]
        if file is not None and not file.exists():
            raise FileMissing(
                f"There is no file {file}.",
                hint=f"Check the path; it is taken from the working directory, {Path.cwd()}.",
            )


def find_source(*, app: Any, config: Any, config_factory: Any, task_app_path: str | Path | None) -> AppSource:
    """Finds the app that the argument names. Imports and calls author's code, in the caller's thread: Synth's package can be
    imported on the main thread only. Raises DiscoveryError, BadArgument, Unavailable, or what a kit app's file raises.
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
        if module is None:  # it is not there, or its import failed
            missing = error.__cause__
            if isinstance(missing, ModuleNotFoundError) and (missing.name or "").split(".")[0] == FOREIGN_PACKAGE:
                raise _not_installed(str(file or reference)) from error
            raise
        return _foreign(module, attribute, error)
    return AppSource(found.name, found)


def _foreign(module: ModuleType, attribute: str | None, error: DiscoveryError) -> AppSource:
    """The app of another kind in a file without a TaskApp, as `error` says."""
    held = vars(module)
    if not attribute and any(isinstance(value, TaskApp) for value in held.values()):
        raise error  # several: it names them
    for name in (attribute,) if attribute else LOOKED_FOR:
        value = held.get(name)
        if value is not None:
            where = f"{Path(str(module.__file__)).name}:{name}"
            made = inspect.isfunction(value) and not _is_asgi(value)
            return _made_by(value, where) if made else _recognised(value, where)
    if attribute:
        raise error
    raise DiscoveryError(
        f"{module.__file__} makes no task app; looked for a TaskApp, an ASGI application called app, and build_config().",
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
        raise BadArgument(f"{where} is async; expected a plain function that returns the app or its config.")
    return _recognised(made, f"{where}()")


def _recognised(value: Any, where: str) -> AppSource:
    if isinstance(value, TaskApp):
        return AppSource(value.name, value)
    if hasattr(value, "app_id") and callable(getattr(value, "rollout", None)):
        return AppSource(str(value.app_id), _served_by_them(value, where))
    if _is_asgi(value):
        return AppSource(str(getattr(value, "title", "") or where), value)
    hint = "Give the TaskApp itself." if isinstance(getattr(value, "__self__", None), TaskApp) else ""
    raise BadArgument(
        f"{where} is of type {type(value).__name__}; expected a TaskApp, an ASGI application, or a task app config of synth-ai.",
        hint=hint,
    )


def _served_by_them(config: Any, where: str) -> ASGIApp:
    for name in FOREIGN_SERVERS:
        try:
            create: Callable[[Any], ASGIApp] = import_module(name).create_task_app
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != FOREIGN_PACKAGE:
                raise Unavailable(
                    f"synth-ai cannot be imported: it lacks {error.name}.",
                    hint=f"Install it: pip install {error.name}.",
                ) from error
            continue
        return create(config)
    raise _not_installed(where)


def _not_installed(what: str) -> Unavailable:
    return Unavailable(
        f"{what} needs synth-ai, which is not installed here.",
        hint="Install it beside the kit (pip install synth-ai==0.3.9), or write the app as a TaskApp of the kit.",
    )


def _is_asgi(value: Any) -> bool:
    """Whether the value can be called with scope, receive and send."""
    if isinstance(value, type) or not callable(value):
        return False
    try:
        inspect.signature(value).bind(None, None, None)
    except (TypeError, ValueError):
        return False
    return True


def _file_of(reference: str) -> tuple[Path | None, str | None]:
    """The file (or folder) that a reference names, and the attribute; no file for a bundled name or a module."""
    before, colon, attribute = reference.rpartition(":")
    if colon and len(before) > 1 and (before.endswith(".py") or Path(before).exists()):
        return Path(before), attribute or None
    if reference.endswith(".py") or "/" in reference or Path(reference).exists():
        return Path(reference), None
    return None, None


def _loaded(file: Path) -> ModuleType | None:
    """The module that was imported from this file."""
    wanted = str((file / "app.py" if file.is_dir() else file).resolve())
    return next(
        (
            module
            for name, module in list(sys.modules.items())
            if name.startswith("_taskapp_") and getattr(module, "__file__", None) == wanted
        ),
        None,
    )


@contextmanager
def _own_signals() -> Iterator[None]:
    """Restores the handlers of Ctrl-C and SIGTERM that importing Synth's package replaces: its own only stop tunnels."""
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
