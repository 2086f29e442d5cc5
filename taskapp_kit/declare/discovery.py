"""Finds an app by its path, `path:attribute`, `module:attribute`, or the name of a bundled environment or plugin."""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from taskapp_kit.declare.app import TaskApp
from taskapp_kit.errors import DiscoveryError, KitError, closest
from taskapp_kit.system.child_python import add_import_folder

DISTRIBUTION = "taskapp-kit"
PLUGIN_GROUP = "taskapp_kit.apps"
_PREFIX = "_taskapp_"
"""Prefix of the names of modules that `load_file` loads."""
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+(/\S*)?", re.ASCII)  # a port starts with a digit, an attribute never does


@dataclass(frozen=True, slots=True)
class Bundled:
    """A bundled environment: its name, its file, and the first line of the file's docstring."""

    name: str
    file: Path
    summary: str


def find_app(reference: str) -> TaskApp:
    """Return the app that `reference` names.

    Args:
        reference: A path, `path:attribute`, `module:attribute`, or the name of a bundled app or plugin.

    Raises:
        DiscoveryError: No app has this reference, or its file cannot be imported.
    """
    path_text, colon, attribute = reference.rpartition(":")
    if is_host_and_port(reference):
        raise DiscoveryError(
            f"{reference} looks like the address of a server. A URL must start with http:// or https://.",
            hint=f"Did you mean http://{reference}?",
        )
    if colon and not path_text.endswith((":", "/")) and len(path_text) > 1:
        target = Path(path_text)
        if target.exists():
            return _app_in(load_file(target), attribute)
        if not path_text.endswith(".py"):
            return _app_in(_import_module(path_text), attribute, importable=True)
        raise _no_file(path_text)
    path = Path(reference)
    bundled = {item.name: item for item in bundled_apps()}
    if path.is_file() or (path.is_dir() and reference not in bundled):
        return _app_in(load_file(path), None)
    if reference in bundled:
        return _app_in(load_file(bundled[reference].file), None)
    if reference.endswith(".py") or "/" in reference:
        raise _no_file(reference)
    plugins = {point.name: point for point in importlib.metadata.entry_points(group=PLUGIN_GROUP)}
    if reference in plugins:
        loaded = plugins[reference].load()
        if isinstance(loaded, TaskApp):
            loaded.reference = f"{plugins[reference].module}:{plugins[reference].attr}"
            return loaded
        raise DiscoveryError(
            f"The plugin {reference!r} ({plugins[reference].value}) is a {type(loaded).__name__}. Expected a TaskApp."
        )
    known = [*bundled, *plugins]
    close = closest(reference, known)
    raise DiscoveryError(
        f"The app {reference!r} was not found. No file, bundled app or plugin has this name. "
        f"Known apps: {', '.join(known)}.",
        hint=f"Did you mean {close!r}?" if close else "Pass a path (adder.py), path:attribute, or module:attribute.",
    )


def _no_file(path: str) -> DiscoveryError:
    return DiscoveryError(
        f"The file {path} does not exist.", hint="Check the path. Relative paths start at the working directory."
    )


def is_host_and_port(reference: str) -> bool:
    """Return whether a reference is a server's address without `http://`, such as `localhost:8000`."""
    return _HOST_AND_PORT.fullmatch(reference) is not None and not Path(reference).exists()


def bundled_root(kind: Literal["environments", "templates"]) -> Path:
    """Return the directory of the bundled environments or templates. In an installed package, it is in `_bundled`."""
    package = Path(__file__).resolve().parent.parent
    for root in (package / "_bundled" / kind, package.parent / kind):
        if root.is_dir():
            return root
    raise DiscoveryError(
        f"The bundled {kind} are missing from this installation ({package}).", hint="Reinstall taskapp-kit."
    )


def bundled_apps() -> list[Bundled]:
    """Return the bundled environments, sorted by name, without importing them."""
    try:
        root = bundled_root("environments")
    except DiscoveryError:
        return []
    return [
        Bundled(folder.name, folder / "app.py", _summary(folder / "app.py"))
        for folder in sorted(root.iterdir())
        if (folder / "app.py").is_file()
    ]


def bundled_file(file: Path) -> bool:
    """Return whether the file belongs to a bundled app."""
    return any(item.file.resolve() == file.resolve() for item in bundled_apps())


def missing_packages(app: str) -> list[str]:
    """Return the packages of an extra that are not installed. The extra has the same name as the app or template."""
    try:
        requirements = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:  # the kit runs from a checkout and is not installed
        return []
    missing = []
    for requirement in requirements:
        package, _, marker = requirement.partition(";")
        if re.search(rf"""extra == ['"]{re.escape(app)}['"]""", marker):
            name = re.split(r"[^A-Za-z0-9._-]", package.strip(), maxsplit=1)[0]
            try:
                importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                missing.append(name)
    return missing


def missing_extra(app: str) -> str | None:
    """Return a message with an app's missing packages and the command that installs them, or None if none is missing."""
    packages = missing_packages(app)
    return f"{', '.join(packages)} not installed. Run: pip install '{DISTRIBUTION}[{app}]'" if packages else None


def _summary(file: Path) -> str:
    """Return the first line of the docstring with which a bundled app's file begins."""
    # not `ast.parse`: if several threads parse at the same time, Python 3.11 may raise SystemError
    with file.open(encoding="utf-8") as lines:
        return lines.readline().strip().strip('"')


def load_file(path: Path) -> ModuleType:
    """Import a file, or the `app.py` in a directory, under a unique name. A second call returns the same module."""
    file = (path / "app.py" if path.is_dir() else path).resolve()
    if not file.is_file():
        raise DiscoveryError(f"{path} contains no app.py.", hint="Pass the app's file, e.g. my_app.py.")
    if file.suffix != ".py":
        raise DiscoveryError(f"{path} is not a Python file.", hint="An app is a .py file that creates a TaskApp.")
    mark = hashlib.sha256(str(file).encode()).hexdigest()[:8]
    folder = file.parent
    if (folder / "__init__.py").is_file():  # in a package, files import each other with `from .rules import …`
        package = f"{_PREFIX}{folder.name}_{mark}"
        if package not in sys.modules:
            _execute(package, folder / "__init__.py", [str(folder)])
        return _execute(f"{package}.{file.stem}", file)
    add_import_folder(str(folder))  # so that the file can import its siblings
    return _execute(f"{_PREFIX}{file.stem}_{mark}", file)


def loaded_from_file(module: str) -> bool:
    """Return whether `load_file` loaded this module. Other processes cannot import such a module by its name."""
    return module.startswith(_PREFIX)


def _execute(name: str, file: Path, search: list[str] | None = None) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=search)
    assert spec is not None, "importlib returns a spec for every .py file"
    assert spec.loader is not None, "importlib returns a loader for every .py file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        raise _import_failed(str(file), error) from error
    return module


def _import_module(name: str) -> ModuleType:
    """Import a module. The error differs between a module that is missing and a module that fails during import."""
    here = str(Path.cwd())
    if "" not in sys.path and importlib.machinery.PathFinder.find_spec(name.partition(".")[0], [here]) is not None:
        add_import_folder(here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise DiscoveryError(
                f"The module {name!r} was not found.", hint="Pass a path (adder.py:app) or install the package."
            ) from None
        raise _import_failed(name, error) from error
    except BaseException as error:
        raise _import_failed(name, error) from error


def _import_failed(what: str, error: BaseException) -> DiscoveryError:
    if isinstance(error, KeyboardInterrupt):
        raise error
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else what
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}:{error.lineno}"
    if isinstance(error, KitError):  # report the line in the author's file, not the line in the kit
        kit = str(Path(__file__).resolve().parent.parent)
        own = [frame for frame in frames if not frame.filename.startswith(kit) or "_bundled" in frame.filename]
        if own:
            where = f"{own[-1].filename}:{own[-1].lineno}"
        return DiscoveryError(f"Importing {what} failed at {where}: {error.message}", hint=error.hint)
    hint = "Fix the file, then try again."
    if isinstance(error, ImportError) and (shadowed := _named_like_a_standard_module(error.name, frames)):
        hint = f"Rename {shadowed}, because Python imports the standard library's module of the same name instead."
    elif isinstance(error, ModuleNotFoundError):
        hint = f"Install the missing package: pip install {error.name}."
    return DiscoveryError(f"Importing {what} failed at {where}: {type(error).__name__}: {error}.", hint=hint)


def _named_like_a_standard_module(name: str | None, frames: Sequence[traceback.FrameSummary]) -> Path | None:
    """Return the author's file that hides the standard module `name`, or None if no such file exists."""
    top = (name or "").partition(".")[0]
    if top not in sys.stdlib_module_names or not frames:
        return None
    folder = Path(frames[-1].filename).parent
    return next((file for file in (folder / f"{top}.py", folder / top / "__init__.py") if file.is_file()), None)


def reference_of(app: TaskApp) -> str:
    """Return a reference that loads this app in a process with the same working directory and `sys.path`.

    Raises:
        DiscoveryError: The app is not a global variable of a module, for example because a function created it.
    """
    if app.reference is not None:
        return app.reference
    made_in = [module for module in list(sys.modules.values()) if _is_file_of(module, app)]
    for module in [*made_in, *list(sys.modules.values())]:  # or a module that imported the app
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is app:
                file = getattr(module, "__file__", None)
                if _is_importable(module):
                    return f"{module.__name__}:{name}"
                if file is not None:
                    return f"{Path(file).resolve()}:{name}"
    raise DiscoveryError(
        f"The task app {app.name!r} ({app.place}) is not a global variable, so another process cannot import it.",
        hint="Create the app at the top level of a file: app = TaskApp(...)",
    )


def _is_file_of(module: ModuleType, app: TaskApp) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).name == app.file.name and Path(file).resolve() == app.file.resolve()


def _is_importable(module: ModuleType) -> bool:
    """Return whether another process that imports this module by its name gets the same file."""
    folders: Sequence[str] | None = None
    spec = None
    parts = module.__name__.split(".")
    for count in range(1, len(parts) + 1):
        try:
            spec = importlib.machinery.PathFinder.find_spec(".".join(parts[:count]), folders)
        except (ImportError, ValueError):
            return False
        if spec is None:
            return False
        folders = spec.submodule_search_locations
    file = getattr(module, "__file__", None)
    return spec is not None and file is not None and spec.origin == file


def _app_in(module: ModuleType, attribute: str | None, *, importable: bool = False) -> TaskApp:
    """Return the app in a module, and set its `reference`."""
    where = getattr(module, "__file__", None) or module.__name__
    apps: dict[str, TaskApp] = {name: value for name, value in vars(module).items() if isinstance(value, TaskApp)}
    holder = module.__name__ if importable else where
    if attribute:
        value = getattr(module, attribute, None)
        if isinstance(value, TaskApp):
            value.reference = f"{holder}:{attribute}"
            return value
        what = "does not exist" if value is None else f"is a {type(value).__name__}, not a TaskApp"
        raise DiscoveryError(f"{where}: {attribute!r} {what}. Task apps in this file: {', '.join(apps) or 'none'}.")
    distinct = {id(value): name for name, value in apps.items()}
    if len(distinct) == 1:
        (name,) = distinct.values()
        apps[name].reference = f"{holder}:{name}"
        return apps[name]
    if not apps:
        raise DiscoveryError(f"{where} creates no TaskApp.", hint='Write: app = TaskApp("name", version="1.0.0")')
    raise DiscoveryError(
        f"{where} creates several task apps: {', '.join(apps)}.", hint=f"Choose one, e.g. {where}:{next(iter(apps))}"
    )
