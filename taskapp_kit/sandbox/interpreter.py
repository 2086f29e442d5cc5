"""The Python that runs in a box, and the host's directories that boxes can read. Boxes cannot read installed packages."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
EXTRA = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python for boxes. prefix: the Python's directory, or None if the Python is in a system directory."""

    program: str
    prefix: str | None


@functools.cache
def own() -> Interpreter:
    """Return this process's base Python, outside the virtual environment."""
    program = os.path.realpath(sys.executable)
    prefix = os.path.realpath(sys.base_prefix)
    if not Path(program).is_relative_to(prefix):
        prefix = str(Path(program).parents[1])
    return Interpreter(program, None if Path(prefix).is_relative_to("/usr") else prefix)


@functools.cache
def reachable() -> Interpreter | None:
    """Return a Python that any user can start, preferably this process's Python. Return None if no such Python exists."""
    if _open_to_all(own().program):
        return own()
    for program in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if Path(program).exists() and _open_to_all(os.path.realpath(program)):
            return Interpreter(os.path.realpath(program), None)
    return None


def _open_to_all(program: str) -> bool:
    """Return whether other users can access the program and all its parent directories."""
    path = Path(program)
    return all(part.stat().st_mode & stat.S_IXOTH for part in (path, *path.parents))


@functools.cache
def hidden() -> tuple[str, ...]:
    """Return the directories in `shown_roots` that boxes must not see: packages, the kit and the working directory."""
    base = {"base": sys.base_prefix, "platbase": sys.base_prefix}
    private = {sysconfig.get_path(name, vars=base) for name in ("purelib", "platlib")}
    for root in ("/usr/lib", "/usr/local/lib", f"{sys.base_prefix}/lib"):
        for pattern in ("python3*/dist-packages", "python3*/site-packages"):
            private |= {str(path) for path in Path(root).glob(pattern)}
    private |= {str(PACKAGE.parent), "/usr/src"}
    with contextlib.suppress(FileNotFoundError):  # the working directory was removed
        private.add(str(Path.cwd()))
    if sys.prefix != sys.base_prefix:
        private.add(sys.prefix)
    shown = [Path(root).resolve() for root in shown_roots()]
    needed = [Path(own().program), Path(os.path.realpath(os.__file__))]
    folders = {
        path
        for path in map(Path, map(os.path.realpath, private))
        if path.is_dir()
        and any(path.is_relative_to(root) for root in shown)
        and not any(file.is_relative_to(path) for file in needed)
    }
    return tuple(sorted(str(path) for path in folders if not any(other in path.parents for other in folders)))


def shown_roots() -> list[str]:
    """Return the directories of the host that boxes can read."""
    prefix = own().prefix
    return [root for root in SYSTEM if Path(root).exists()] + ([prefix] if prefix else [])


@functools.cache
def readable(program: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the trees that a box may read, and the directories that it may only list.

    Landlock cannot exclude paths, so a root that contains a hidden directory is split into its entries. The root itself may
    then be listed but not read.
    """
    trees: list[str] = []
    listed: list[str] = []
    roots = [root for root in (*SYSTEM, *EXTRA) if Path(root).exists()]
    prefix = own().prefix if program == own().program else None
    waiting = [*roots, *([prefix] if prefix else [])]
    while waiting:
        path = waiting.pop()
        real = os.path.realpath(path)
        inside = [folder for folder in hidden() if Path(folder).is_relative_to(real)]
        if not inside:
            trees.append(path)
        elif real not in inside:
            listed.append(path)
            waiting += [entry.path for entry in os.scandir(path)]
    return tuple(dict.fromkeys(trees)), tuple(dict.fromkeys(listed))


def command(argv: Sequence[str], program: str) -> list[str]:
    """Return the argv. The commands `python` and `python3` are replaced with the box's interpreter."""
    return [program, *argv[1:]] if argv[0] in ("python", "python3") else list(argv)
