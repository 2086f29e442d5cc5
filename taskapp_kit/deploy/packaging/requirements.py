"""Packages: what the Python of a container must have installed for the kit and an author's app.

The kit's own list is read from where it is declared (a checkout's pyproject.toml, an installed wheel's
metadata), so that it is written down once.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Any

from taskapp_kit.deploy.packaging.source_files import KIT_DIR
from taskapp_kit.errors import ConfigError

DISTRIBUTION = "taskapp-kit"

_NAME = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(\[[^\]]*\])?\s*")
_CLAUSE = r"(?:~=|===?|!=|<=?|>=?)\s*[A-Za-z0-9][A-Za-z0-9.*+!_-]*"
_LINE = re.compile(rf"{_NAME.pattern}(?:\(?\s*(?:{_CLAUSE}\s*,?\s*)*\)?|@\s*\S+)\s*(?:;.*)?")
"""A requirement and nothing after it: an option there would be pip's."""
_EXTRA = re.compile(r"""(?:\band\s+)?\bextra\s*==\s*['"]([^'"]+)['"](?:\s+and\b)?""")


def requirements(extras: Iterable[str] = (), extra_packages: Sequence[str] = ()) -> tuple[str, ...]:
    """What the container's Python needs: the kit's own dependencies, those of `extras`, then the author's.

    Each is pinned to the version installed here, where the app was tried ("same versions: the same episode"), beside
    the bounds that an author gave; what is not installed here keeps its bounds alone. An author's entry replaces ours
    of the same name.

    Raises:
        ConfigError: an unknown extra, or a package line that cannot or must not travel.
    """
    base, optional = _declared()
    lines = list(base)
    for extra in sorted(set(extras)):
        lines += _lines_of_extra(extra, optional)
    chosen = {normal(requirement_name(line)): _pinned(line) for line in lines}
    for line in extra_packages:
        check_package(line)
        chosen[normal(requirement_name(line))] = _pinned(line, keep_bounds=True)
    return tuple(chosen[name] for name in sorted(chosen))


def modules_of(lines: Iterable[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """The top-level modules that installing these lines brings, as far as this machine knows.

    Followed through what each needs itself; a marker is not weighed, for what it excludes is not installed here either.
    Also the names of those lines' distributions that are not installed here: nobody knows their modules.
    """
    by_module = metadata.packages_distributions()
    modules_by_distribution: dict[str, set[str]] = {}
    for module, names in by_module.items():
        for name in names:
            modules_by_distribution.setdefault(normal(name), set()).add(module)
    modules: set[str] = set()
    unknown: list[str] = []
    waiting = [(line, True) for line in lines]
    seen: set[tuple[str, str]] = set()
    while waiting:
        line, direct = waiting.pop()
        name, extras = normal(requirement_name(line)), _extras_of(line)
        new = extras - {extra for known, extra in seen if known == name}
        if (name, "") in seen and not new:
            continue
        seen |= {(name, ""), *((name, extra) for extra in extras)}
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if direct:
                unknown.append(name)
            continue
        modules |= modules_by_distribution.get(name, set())
        base, optional = split_metadata(
            distribution.requires or [], distribution.metadata.get_all("Provides-Extra") or []
        )
        for inner in (*base, *(item for extra in extras for item in optional.get(extra, ()))):
            waiting.append((inner.partition(";")[0], False))
    return frozenset(modules), tuple(sorted(unknown))


def providers_of(module: str) -> list[str]:
    """The distributions installed here that bring a top-level module."""
    return sorted(metadata.packages_distributions().get(module, ()))


def known_extras() -> frozenset[str]:
    """Names of the kit's optional groups of packages (`crafter`, `math`, …)."""
    return frozenset(_declared()[1])


def checkout_project() -> dict[str, Any] | None:
    """`[project]` of the kit's own pyproject.toml, when the kit runs from a checkout; None when it is installed."""
    pyproject = KIT_DIR.parent / "pyproject.toml"
    if pyproject.is_file():
        project: dict[str, Any] = tomllib.loads(pyproject.read_text("utf-8")).get("project", {})
        if project.get("name") == DISTRIBUTION:
            return project
    return None


def _declared() -> tuple[list[str], dict[str, list[str]]]:
    """The kit's dependencies and extras: from the checkout's pyproject.toml, else the installed metadata."""
    project = checkout_project()
    if project is not None:
        return list(project.get("dependencies", [])), dict(project.get("optional-dependencies", {}))
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        raise ConfigError(
            f"Neither a checkout's pyproject.toml nor an installed {DISTRIBUTION} lists what the kit needs.",
            hint=f"Deploy from a checkout, or install {DISTRIBUTION}.",
        ) from error
    return split_metadata(distribution.requires or [], distribution.metadata.get_all("Provides-Extra") or [])


def split_metadata(lines: Iterable[str], extras: Iterable[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Sorts `Requires-Dist` lines into plain ones and those of each extra, whose marker is taken off."""
    base: list[str] = []
    optional: dict[str, list[str]] = {extra: [] for extra in extras}
    for line in lines:
        requirement, _, marker = line.partition(";")
        found = _EXTRA.search(marker)
        if found is None:
            base.append(line)
            continue
        rest = _EXTRA.sub("", marker).strip()
        optional.setdefault(found[1], []).append(f"{requirement.strip()}; {rest}" if rest else requirement.strip())
    return base, optional


def _lines_of_extra(extra: str, optional: dict[str, list[str]]) -> list[str]:
    if extra not in optional:
        raise ConfigError(
            f"{DISTRIBUTION} has no extra {extra!r}.", hint=f"Known: {', '.join(sorted(optional)) or 'none'}."
        )
    lines: list[str] = []
    for line in optional[extra]:
        inner = _NAME.match(line)
        if inner and normal(inner[1]) == DISTRIBUTION and inner[2]:  # `all = ["taskapp-kit[crafter,math]"]`
            for name in inner[2].strip("[]").split(","):
                lines += _lines_of_extra(name.strip(), optional)
        else:
            lines.append(line)
    return lines


def requirement_name(line: str) -> str:
    """The distribution that a requirement names. Raises ConfigError when it names none."""
    found = _NAME.match(line)
    if found is None:
        raise _no_requirement()
    return found[1]


def _no_requirement() -> ConfigError:
    return ConfigError(
        "An entry of the packages that the app needs is no package requirement.",
        hint='Write it as for pip, such as "nltk>=3.9".',
    )


def normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _extras_of(line: str) -> set[str]:
    found = _NAME.match(line)
    inner = (found[2] or "").strip("[]") if found else ""
    return {extra.strip() for extra in inner.split(",") if extra.strip()}


def _pinned(line: str, *, keep_bounds: bool = False) -> str:
    requirement, semicolon, marker = line.partition(";")
    found = _NAME.match(requirement)
    if found is None or "@" in requirement:
        return line.strip()
    bounds = requirement[found.end() :].strip(" (),") if keep_bounds else ""
    if "==" in bounds:
        return line.strip()
    try:
        version = metadata.version(found[1])
    except metadata.PackageNotFoundError:
        return line.strip()
    if "+" in version:  # a local build: no index has it
        return line.strip()
    pinned = f"{found[1]}{found[2] or ''}{bounds + ',' if bounds else ''}=={version}"
    return pinned + (f"; {marker.strip()}" if semicolon else "")


def check_package(line: str) -> None:
    """Refuses what pip would take but a container must not get. Raises ConfigError, which never repeats the line."""
    name = requirement_name(line)
    url = line.partition("@")[2] if " @ " in line or "://" in line else ""
    if re.search(r"://[^/\s]*@|://[^\s#]*\?", line):
        raise ConfigError(
            f"The address of the package {name!r} holds a user name, a token or a query, which would become readable "
            "in the image.",
            hint="Use a public address, or vendor the package's source.",
        )
    if "file:" in url or "://" in line.partition("@")[0]:
        raise ConfigError(
            f"The entry for {name!r} is a bare address or a file on this machine.",
            hint='Write "name>=version", or "name @ https://…" for an archive that the container can fetch.',
        )
    if not line.isprintable() or _LINE.fullmatch(line) is None:
        raise _no_requirement()
