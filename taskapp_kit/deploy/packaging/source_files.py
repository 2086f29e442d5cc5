"""Selects the author's files that are uploaded to a container, and excludes private files.

Whole directories are never uploaded, because a directory may contain a `.env` file.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from pathlib import Path, PurePosixPath
from typing import Literal

from taskapp_kit.declare.discovery import PLUGIN_GROUP, bundled_root
from taskapp_kit.errors import ConfigError, DiscoveryError
from taskapp_kit.system.foreign_files import ForeignFileRefused, inside

KIT_DIR = Path(__file__).resolve().parents[2]
"""The directory `taskapp_kit` in a checkout or in site-packages."""

APP_DIR = "task_app"
"""The directory of the author's files in the container, below the source root. It is a separate directory, so that a
file named `random.py` does not shadow a standard module."""

_PRIVATE = tuple(
    """*.env *.pem *.key *.keys *.p12 *.pfx *.jks *.kdbx id_rsa* id_dsa* id_ecdsa* id_ed25519* *keys.txt api_key*
    api-key* env secrets.* secrets credentials.* credentials service-account*.json service_account*.json
    password* passwd* token.json tokens.json *.tfstate *.tfstate.* *.tfvars rollouts.db*""".split()
)
_SOURCE_SUFFIXES = frozenset({".py", ".typed"})
_KIT_SUFFIXES = _SOURCE_SUFFIXES | {
    ".toml", ".json", ".jsonl", ".yaml", ".yml", ".txt", ".md", ".html", ".j2", ".jinja", ".css", ".js", ".svg", ".png",
    ".sql", ".safetensors",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """The app to deploy.

    A Target depends only on the spelling of the reference, so that it is the same in a container.

    Attributes:
        kind: `file`, `module`, or `bundled` for a bundled environment.
        name: A path that ends in `.py`, a dotted name, or the name of a bundled environment.
        attribute: The part after the colon, or None if the reference does not contain a colon.
    """

    kind: Literal["file", "module", "bundled"]
    name: str
    attribute: str | None = None


@dataclass(frozen=True, slots=True)
class FileSet:
    """Files in a local directory, and their directory in the container.

    Attributes:
        local_dir: The local directory.
        remote_dir: The directory in the container as a POSIX path, relative to the source root.
        files: Sorted POSIX paths, relative to `local_dir`.
    """

    local_dir: Path
    remote_dir: str
    files: tuple[str, ...]


def parse_target(text: str) -> Target:
    """Parse `adder.py`, `adder.py:app`, `package.module:app` or `crafter`. Raises DiscoveryError for other strings."""
    head, colon, attribute = text.rpartition(":")
    if text.endswith(".py"):
        return Target("file", text)
    if colon and head.endswith(".py"):
        return Target("file", head, attribute or None)
    if colon:
        return Target("module", head, attribute or None)
    if "." in text or "/" in text or not text:
        raise DiscoveryError(
            f"{text!r} is not a reference to a task app that can be deployed.",
            hint="Pass a path that ends in .py, `package.module:attribute`, or the name of a bundled environment.",
        )
    return Target("bundled", text)


def folder_of(beside: str | Path) -> Path:
    """Return the absolute path of `beside` if it is a directory, else of its parent directory."""
    path = Path(beside).absolute()
    return path if path.is_dir() else path.parent


def resolve(text: str, *, beside: Path) -> str:
    """Return a reference that `parse_target` accepts.

    A directory that contains `app.py` is replaced by this file, the name of a plugin by the plugin's
    `module:attribute`, and a symbolic link by the file to which it points. A bundled environment takes precedence over
    a directory with the same name.
    """
    head, colon, attribute = text.rpartition(":") if ":" in text else (text, "", "")
    if not head.endswith(".py") and (beside / head / "app.py").is_file() and not _is_bundled(head):
        head = f"{Path(head).as_posix()}/app.py"
    if head.endswith(".py"):
        real = (beside / head).resolve()
        linked = (beside / head).is_symlink() and real.suffix == ".py"
        return f"{real if linked else head}{colon}{attribute}"
    if colon or "/" in text or "." in text or _is_bundled(text):
        return text
    for point in entry_points(group=PLUGIN_GROUP, name=text):
        return f"{point.module}:{point.attr}"
    return text


def _is_bundled(name: str) -> bool:
    return (
        "/" not in name and name not in ("", ".", "..") and (bundled_root("environments") / name / "app.py").is_file()
    )


def container_address(target: Target, root: Path) -> str:
    """Return the app's reference inside the container, whose source root is `root`."""
    attribute = f":{target.attribute}" if target.attribute else ""
    if target.kind == "file":
        return f"{root / APP_DIR / Path(target.name).name}{attribute}"
    return f"{target.name}{attribute}"


def is_private(path: str | Path) -> bool:
    """Return whether the name of a file suggests private content: dot-files, `*.env`, keys, credentials and stores.

    Python source is private only if its name begins with a dot, because a module may be named `secrets.py`.
    """
    parts = PurePosixPath(Path(path).as_posix()).parts
    if any(part.startswith(".") and part not in (".", "..") for part in parts):
        return True
    name = parts[-1].lower() if parts else ""
    return not name.endswith(".py") and any(fnmatch(name, pattern) for pattern in _PRIVATE)


def kit_files() -> list[tuple[Path, str]]:
    """Return the kit's files and their paths below site-packages, sorted by path.

    The environments and templates in a checkout have the same paths as in an installed kit.
    """
    found = [(KIT_DIR / file, f"{KIT_DIR.name}/{file}") for file in _walk(KIT_DIR, _KIT_SUFFIXES)]
    for kind in ("environments", "templates"):
        root = KIT_DIR.parent / kind
        if not (KIT_DIR / "_bundled" / kind).is_dir() and root.is_dir():
            found += [(root / file, f"{KIT_DIR.name}/_bundled/{kind}/{file}") for file in _walk(root, _KIT_SUFFIXES)]
    return sorted(found, key=lambda pair: pair[1])


def trees(target: Target, *, beside: Path, data_files: Sequence[str] = ()) -> tuple[FileSet, ...]:
    """Return the author's files to upload for `target`. The result is empty for a bundled environment.

    Args:
        target: The app.
        beside: The directory to which a path in `target` is relative.
        data_files: Files that the app reads, relative to the directory of the app's file, as in `app.path`.

    Raises:
        DiscoveryError: The app does not exist.
        ConfigError: A data file does not exist, is a directory or looks private, or a file is outside the app's
            directory.
    """
    if target.kind == "file":
        path = (beside / target.name).absolute()
        if not path.is_file():
            raise DiscoveryError(
                f"The file {path} does not exist.",
                hint=f"Check the path. It is relative to {beside.absolute()}.",
            )
        files = set(_own_modules(path)) | {_data_file(path.parent, name) for name in data_files}
        return (_file_set(path.parent, APP_DIR, files),)
    if target.kind == "module":
        return (_module_tree(target.name, data_files),)
    _check_bundled(target.name, data_files)
    return ()


def _file_set(folder: Path, remote_dir: str, files: Iterable[str]) -> FileSet:
    """Return a FileSet. Raises ConfigError for a private file, and for a link to a file outside of the directory."""
    for name in files:
        try:
            behind = inside(folder, name).relative_to(folder.resolve())
        except ForeignFileRefused as error:
            raise ConfigError(
                f"The file {name!r} is a symbolic link to a file outside of {folder}.",
                hint="Replace the link with a copy of the file.",
            ) from error
        if is_private(name) or is_private(behind):
            raise ConfigError(
                f"The file {name!r} or its link target is not uploaded, because its name suggests private content.",
                hint="Store keys in the Modal Secret. If the file contains no key, rename it or replace the link with a copy.",
            )
    return FileSet(folder, remote_dir, tuple(sorted(files)))


def _walk(top: Path, suffixes: frozenset[str]) -> Iterator[str]:
    """Yield the files below `top` with these suffixes in a fixed order. Links and private files are omitted."""
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(f for f in folders if f != "__pycache__" and not f.startswith("."))
        for file in sorted(files):
            path = Path(folder, file)
            relative = path.relative_to(top).as_posix()
            if path.suffix in suffixes and not path.is_symlink() and not is_private(relative):
                yield relative


def _own_modules(file: Path) -> set[str]:
    """Return the author's file and the local modules that it imports, recursively.

    If the file is in a package, return all modules in the package.
    """
    folder = file.parent
    if (folder / "__init__.py").is_file():
        return {file.name, *_walk(folder, _SOURCE_SUFFIXES)}
    found: set[str] = set()
    waiting = [file.name]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for module in _imports(folder / name):
            if (folder / f"{module}.py").is_file():
                waiting.append(f"{module}.py")
            elif (folder / module / "__init__.py").is_file() or _is_namespace(folder, module):
                waiting += [f"{module}/{inner}" for inner in _walk(folder / module, _SOURCE_SUFFIXES)]
    return found


def _is_namespace(folder: Path, module: str) -> bool:
    """Return whether Python would import this directory, which has no `__init__.py`, as a namespace package."""
    if not (folder / module).is_dir():
        return False
    spec = PathFinder.find_spec(module, [str(folder), *sys.path])
    return spec is not None and spec.origin is None


def _imports(file: Path) -> set[str]:
    """Return the top-level modules that a source file imports.

    If the file cannot be parsed, the result is empty, and importing the file reports the error.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return set()
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module and not node.level
    ]
    # In a checkout, the kit may be next to the file. A file never replaces the standard module with the same name.
    return {name.partition(".")[0] for name in names} - {KIT_DIR.name} - sys.stdlib_module_names


def lazy_imports(file: Path) -> list[tuple[str, int]]:
    """Return the top-level modules that functions in a source file import, and the lines of the imports.

    Imports in `try` or `if` are omitted, because the author handles missing modules there.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return []
    found: list[tuple[str, int]] = []

    def walk(node: ast.AST, *, inside: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Try | ast.If):
                continue
            if inside and isinstance(child, ast.Import):
                found.extend((alias.name.partition(".")[0], child.lineno) for alias in child.names)
            elif inside and isinstance(child, ast.ImportFrom) and child.module and not child.level:
                found.append((child.module.partition(".")[0], child.lineno))
            walk(child, inside=inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))

    walk(tree, inside=False)
    return found


def _data_file(folder: Path, name: str) -> str:
    path = folder / name
    hint = "List each data file with its path, relative to the directory of the app's file."
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ConfigError(f"The data file {name!r} is not given as a relative path below {folder}.", hint=hint)
    if path.is_dir():
        raise ConfigError(f"The data file {name!r} is a directory. Whole directories are never uploaded.", hint=hint)
    if not path.is_file():
        raise ConfigError(f"The data file {path} does not exist.", hint=hint)
    return Path(name).as_posix()


def find_top(name: str) -> ModuleSpec | None:
    """Search the working directory and sys.path for a top-level module. Return its spec, or None if it is not found."""
    return PathFinder.find_spec(name, [str(Path.cwd()), *sys.path])


def _module_tree(module: str, data_files: Sequence[str]) -> FileSet:
    top = module.partition(".")[0]
    spec = find_top(top)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise DiscoveryError(
            f"No Python source was found for the module {top!r}.",
            hint="Run the command in the module's directory, or pass the path of a file. A package needs __init__.py.",
        )
    origin = Path(spec.origin)
    if not spec.submodule_search_locations:
        data = {_data_file(origin.parent, name) for name in data_files}
        return _file_set(origin.parent, "", {origin.name} | data)
    folder = origin.parent
    data = {_data_file(folder, name) for name in data_files}
    return _file_set(folder, top, set(_walk(folder, _SOURCE_SUFFIXES)) | data)


def _check_bundled(name: str, data_files: Sequence[str]) -> None:
    if data_files:
        raise ConfigError(
            f"data_files is set, but the bundled environment {name!r} already includes its files.",
            hint="Remove data_files.",
        )
    if not _is_bundled(name):
        raise DiscoveryError(
            f"A bundled environment named {name!r} does not exist.",
            hint="To list the names, run: taskapp list. To deploy your own file, pass a path that ends in .py.",
        )
