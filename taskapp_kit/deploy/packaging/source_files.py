"""Selects the author's files that are uploaded to a container, and excludes private ones.

Independent of the provider. A *tree* is a list of named files of one local folder. A whole folder is never taken, because a
careless glob would upload a `.env` beside an app.
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
"""The folder `taskapp_kit`: in a checkout or in site-packages, and again in the container."""

APP_DIR = "task_app"
"""Where an author's file and its data lie in the container, below the source root. A folder of its own, so
that a file called `random.py` shadows nothing."""

_PRIVATE = (
    "*.env", "*.pem", "*.key", "*.keys", "*.p12", "*.pfx", "*.jks", "*.kdbx",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*keys.txt", "api_key*", "api-key*", "env",
    "secrets.*", "secrets", "credentials.*", "credentials", "service-account*.json", "service_account*.json",
    "password*", "passwd*", "token.json", "tokens.json", "*.tfstate", "*.tfstate.*", "*.tfvars", "rollouts.db*",
)  # fmt: skip
_SOURCE_SUFFIXES = frozenset({".py", ".typed"})
_KIT_SUFFIXES = _SOURCE_SUFFIXES | frozenset(
    (
        ".toml",
        ".json",
        ".jsonl",
        ".yaml",
        ".yml",
        ".txt",
        ".md",
        ".html",
        ".j2",
        ".jinja",
        ".css",
        ".js",
        ".svg",
        ".png",
        ".sql",
        ".safetensors",
    )
)


@dataclass(frozen=True, slots=True)
class Target:
    """What to deploy, as its author names it; read by spelling alone, so that both sides read it alike.

    `kind` and `name`: `file` with a path ending in `.py`, `module` with a dotted name, `bundled` with the
    name of an environment that comes with the kit. `attribute` is what follows the colon, or None.
    """

    kind: Literal["file", "module", "bundled"]
    name: str
    attribute: str | None = None


@dataclass(frozen=True, slots=True)
class FileSet:
    """Named files of `local_dir`, and where they lie in the container.

    `remote_dir` is POSIX and relative to the source root; "" is the root itself. `files` are POSIX, relative
    to `local_dir`, sorted.
    """

    local_dir: Path
    remote_dir: str
    files: tuple[str, ...]


def parse_target(text: str) -> Target:
    """Reads `adder.py`, `adder.py:app`, `package.module:app` or `crafter`."""
    head, colon, attribute = text.rpartition(":")
    if text.endswith(".py"):
        return Target("file", text)
    if colon and head.endswith(".py"):
        return Target("file", head, attribute or None)
    if colon:
        return Target("module", head, attribute or None)
    if "." in text or "/" in text or not text:
        raise DiscoveryError(
            f"{text!r} names no task app that can be deployed.",
            hint="Give a file ending in .py, `package.module:attribute`, or a bundled environment's name.",
        )
    return Target("bundled", text)


def folder_of(beside: str | Path) -> Path:
    """The folder of a file, or the folder itself, absolute."""
    path = Path(beside).absolute()
    return path if path.is_dir() else path.parent


def resolve(text: str, *, beside: Path) -> str:
    """A target as `parse_target` reads it, for what only this machine can tell: a folder with an `app.py`, a plugin.

    A bundled name wins over a folder of that name, as everywhere. A file that is a link is the one that it leads to.
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
    """How the same app is named inside the container, whose source root is `root`."""
    attribute = f":{target.attribute}" if target.attribute else ""
    if target.kind == "file":
        return f"{root / APP_DIR / Path(target.name).name}{attribute}"
    return f"{target.name}{attribute}"


def is_private(path: str | Path) -> bool:
    """Whether a file of this name may hold a secret or conversations: dot-files, `*.env`, keys, credentials, stores.

    Judged by name alone. Python source obeys the dot rule only: a module may be called `secrets.py`.
    """
    parts = PurePosixPath(Path(path).as_posix()).parts
    if any(part.startswith(".") and part not in (".", "..") for part in parts):
        return True
    name = parts[-1].lower() if parts else ""
    return not name.endswith(".py") and any(fnmatch(name, pattern) for pattern in _PRIVATE)


def kit_files() -> list[tuple[Path, str]]:
    """The kit's own files and where they lie below site-packages, sorted by the latter.

    From a checkout, environments and templates go where an installed kit has them.
    """
    found = [(KIT_DIR / file, f"{KIT_DIR.name}/{file}") for file in _walk(KIT_DIR, _KIT_SUFFIXES)]
    for kind in ("environments", "templates"):
        root = KIT_DIR.parent / kind
        if not (KIT_DIR / "_bundled" / kind).is_dir() and root.is_dir():
            found += [(root / file, f"{KIT_DIR.name}/_bundled/{kind}/{file}") for file in _walk(root, _KIT_SUFFIXES)]
    return sorted(found, key=lambda pair: pair[1])


def trees(target: Target, *, beside: Path, data_files: Sequence[str] = ()) -> tuple[FileSet, ...]:
    """The author's files that travel for `target`; none for a bundled environment, which the kit brings.

    Args:
        target: what `parse_target` read.
        beside: folder that a relative path in `target` starts from.
        data_files: files that the app reads, relative to the folder of the app's file (as for `app.path`).

    Raises:
        DiscoveryError: there is no such app.
        ConfigError: a data file is missing, is a folder or looks private, or a file lies outside the app's folder.
    """
    if target.kind == "file":
        path = (beside / target.name).absolute()
        if not path.is_file():
            raise DiscoveryError(
                f"There is no file {path}.",
                hint=f"Check the path; a relative one starts from {beside.absolute()}.",
            )
        files = set(_own_modules(path)) | {_data_file(path.parent, name) for name in data_files}
        return (_file_set(path.parent, APP_DIR, files),)
    if target.kind == "module":
        return (_module_tree(target.name, data_files),)
    _check_bundled(target.name, data_files)
    return ()


def _file_set(folder: Path, remote_dir: str, files: Iterable[str]) -> FileSet:
    """These files of a folder. Raises ConfigError for one that leads out of it, as links do, or to a private one."""
    for name in files:
        try:
            behind = inside(folder, name).relative_to(folder.resolve())
        except ForeignFileRefused as error:
            raise ConfigError(
                f"The file {name!r} is a link that leads out of {folder}, to a file that was not named.",
                hint="Copy what it leads to into the folder.",
            ) from error
        if is_private(name) or is_private(behind):
            raise ConfigError(
                f"The file {name!r} looks private by its name, or leads to a file that does, so it stays here.",
                hint="Keys belong in the named Modal Secret; rename the file (or copy what its link leads to) if it holds none.",
            )
    return FileSet(folder, remote_dir, tuple(sorted(files)))


def _walk(top: Path, suffixes: frozenset[str]) -> Iterator[str]:
    """Files below `top` with these suffixes, sorted; no links (they may lead out), nothing private."""
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(f for f in folders if f != "__pycache__" and not f.startswith("."))
        for file in sorted(files):
            path = Path(folder, file)
            relative = path.relative_to(top).as_posix()
            if path.suffix in suffixes and not path.is_symlink() and not is_private(relative):
                yield relative


def _own_modules(file: Path) -> set[str]:
    """The author's file and the modules beside it that it imports, and theirs; all of them if it lies in a package."""
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
    """Whether a folder without `__init__.py` is what Python imports: any package or module of the name comes before."""
    if not (folder / module).is_dir():
        return False
    spec = PathFinder.find_spec(module, [str(folder), *sys.path])
    return spec is not None and spec.origin is None


def _imports(file: Path) -> set[str]:
    """First words of what a source file imports; empty for one that does not parse, which its import will report."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return set()
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module and not node.level
    ]
    # in a checkout the kit may lie beside the file; a file named like a standard module is never imported in its place
    return {name.partition(".")[0] for name in names} - {KIT_DIR.name} - sys.stdlib_module_names


def lazy_imports(file: Path) -> list[tuple[str, int]]:
    """Top-level modules that are imported inside functions of a source file, and the lines.

    Imports that the author guards with `try` or `if` are his to decide, and left out.
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
    hint = "Name each data file, relative to the folder of the app's own file."
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ConfigError(f"The data file {name!r} lies outside {folder}.", hint=hint)
    if path.is_dir():
        raise ConfigError(f"{name!r} is a folder; whole folders are never uploaded.", hint=hint)
    if not path.is_file():
        raise ConfigError(f"There is no data file {path}.", hint=hint)
    return Path(name).as_posix()


def find_top(name: str) -> ModuleSpec | None:
    """Where a top-level module is; the working directory counts, as for `python -m`. Nothing is imported."""
    return PathFinder.find_spec(name, [str(Path.cwd()), *sys.path])


def _module_tree(module: str, data_files: Sequence[str]) -> FileSet:
    top = module.partition(".")[0]
    spec = find_top(top)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise DiscoveryError(
            f"The module {top!r} is not importable Python source here.",
            hint="Run the deploy where `import` finds it (a package needs an __init__.py), or name the app's file instead.",
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
            f"{name!r} comes with the kit and brings its own files.",
            hint="Leave data_files empty for a bundled name.",
        )
    if not _is_bundled(name):
        raise DiscoveryError(
            f"No environment called {name!r} comes with this kit.",
            hint="`taskapp list` shows the names; a file of your own is given as a path ending in .py.",
        )
