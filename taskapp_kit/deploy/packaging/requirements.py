"""Determines the packages that a container needs for the kit and an author's app.

The kit's own requirements are read from the pyproject.toml of a checkout, or from the metadata of an installed wheel.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Any
from urllib.parse import urlsplit

from taskapp_kit.deploy.packaging.source_files import KIT_DIR
from taskapp_kit.errors import ConfigError, Unavailable

try:
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.specifiers import SpecifierSet
    from packaging.utils import canonicalize_name
except ModuleNotFoundError as error:
    raise Unavailable(
        "The package `packaging`, which parses requirements, is not installed.",
        hint="Run: pip install 'taskapp-kit[modal]' (or, for verifiers, pip install 'taskapp-kit[verifiers]')",
    ) from error

DISTRIBUTION = "taskapp-kit"

_CONTAINER = {"os_name": "posix", "sys_platform": "linux", "platform_system": "Linux"}
"""The platform for which the markers of an extra's packages are evaluated."""


def requirements(extras: Iterable[str] = (), extra_packages: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the container's packages: the dependencies of the kit, of the `extras`, and of the author's app.

    Each package is pinned to the version that is installed on this machine, so that episodes in the container are the
    same as on this machine. The author's version bounds are preserved. A package that is not installed on this machine
    is not pinned. An author's requirement replaces the kit's requirement on the same package.

    Raises:
        ConfigError: An extra is unknown, or a container cannot or must not install a requirement.
    """
    base, optional = _declared()
    lines = list(base)
    for extra in sorted(set(extras)):
        lines += _lines_of_extra(extra, optional)
    chosen = {canonicalize_name(parse_requirement(line).name): _pinned(line) for line in lines}
    for line in extra_packages:
        check_package(line)
        chosen[canonicalize_name(parse_requirement(line).name)] = _pinned(line, keep_bounds=True)
    return tuple(chosen[name] for name in sorted(chosen))


def modules_of(lines: Iterable[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the top-level modules that these requirements provide, and the distributions that are not installed.

    The modules of distributions that are not installed are unknown. Dependencies are included. Markers are not
    evaluated, because packages that a marker excludes are not installed on this machine.
    """
    modules_by_distribution: dict[str, set[str]] = {}
    for module, names in metadata.packages_distributions().items():
        for name in names:
            modules_by_distribution.setdefault(canonicalize_name(name), set()).add(module)
    modules: set[str] = set()
    unknown: list[str] = []
    waiting = [(parse_requirement(line), True) for line in lines]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement, direct = waiting.pop()
        name = canonicalize_name(requirement.name)
        new = {("", name), *((extra, name) for extra in requirement.extras)} - seen
        if not new:
            continue
        seen |= new
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
        inner = [*base, *(line for extra in requirement.extras for line in optional.get(extra, ()))]
        waiting += [(found, False) for line in inner if (found := _of_metadata(line)) is not None]
    return frozenset(modules), tuple(sorted(unknown))


def providers_of(module: str) -> list[str]:
    """Return the installed distributions that provide a top-level module."""
    return sorted(metadata.packages_distributions().get(module, ()))


def known_extras() -> frozenset[str]:
    """Return the names of the kit's extras (`crafter`, `math`, …)."""
    return frozenset(_declared()[1])


def checkout_project() -> dict[str, Any] | None:
    """Return `[project]` in the kit's pyproject.toml if the kit runs from a checkout, or None if it is installed."""
    pyproject = KIT_DIR.parent / "pyproject.toml"
    if pyproject.is_file():
        project: dict[str, Any] = tomllib.loads(pyproject.read_text("utf-8")).get("project", {})
        if project.get("name") == DISTRIBUTION:
            return project
    return None


def _declared() -> tuple[list[str], dict[str, list[str]]]:
    """Return the kit's dependencies and extras, from a checkout's pyproject.toml or the installed metadata."""
    project = checkout_project()
    if project is not None:
        return list(project.get("dependencies", [])), dict(project.get("optional-dependencies", {}))
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        raise ConfigError(
            f"The kit's dependencies are unknown, because neither a checkout nor an installed {DISTRIBUTION} was found.",
            hint=f"Deploy from a checkout, or install {DISTRIBUTION}.",
        ) from error
    return split_metadata(distribution.requires or [], distribution.metadata.get_all("Provides-Extra") or [])


def split_metadata(lines: Iterable[str], extras: Iterable[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Split `Requires-Dist` lines into dependencies and the requirements of each extra.

    The markers of dependencies are preserved. The markers of an extra's requirements are evaluated for Linux and this
    Python version, and removed.
    """
    base: list[str] = []
    optional: dict[str, list[str]] = {extra: [] for extra in extras}
    for line in lines:
        requirement = _of_metadata(line)
        marker = None if requirement is None else requirement.marker
        if requirement is None or marker is None or 'extra == "' not in str(marker):
            base.append(line)
            continue
        requirement.marker = None
        for extra, its_lines in optional.items():
            if marker.evaluate({**_CONTAINER, "extra": extra}):
                its_lines.append(str(requirement))
    return base, optional


def _of_metadata(line: str) -> Requirement | None:
    """Parse a `Requires-Dist` line. Return None for invalid lines, which old releases may contain."""
    try:
        return Requirement(line)
    except InvalidRequirement:
        return None


def _lines_of_extra(extra: str, optional: dict[str, list[str]]) -> list[str]:
    if extra not in optional:
        raise ConfigError(
            f"{DISTRIBUTION} has no extra {extra!r}.", hint=f"Known extras: {', '.join(sorted(optional)) or 'none'}."
        )
    lines: list[str] = []
    for line in optional[extra]:
        requirement = Requirement(line)
        if is_the_kit(requirement):  # `all = ["taskapp-kit[crafter,math]"]`
            for name in sorted(requirement.extras):
                lines += _lines_of_extra(name, optional)
        else:
            lines.append(line)
    return lines


def parse_requirement(line: str) -> Requirement:
    """Parse an entry in `dependencies`. Raises ConfigError, without repeating the entry, if it is invalid."""
    try:
        if line.isprintable():
            return Requirement(line)
    except InvalidRequirement:
        pass
    raise ConfigError(
        "An entry in the app's list of packages is not a valid requirement.",
        hint='Write it as for pip: "nltk>=3.9", or "name @ https://…" for an archive that a container can download.',
    )


def normalized_name(name: str) -> str:
    """Return a distribution's name in the normalized form that package indexes compare."""
    return canonicalize_name(name)


def is_the_kit(requirement: Requirement) -> bool:
    """Return whether the requirement is the kit itself, which is installed in a container as a wheel."""
    return canonicalize_name(requirement.name) == DISTRIBUTION


def _pinned(line: str, *, keep_bounds: bool = False) -> str:
    requirement = parse_requirement(line)
    bounds = requirement.specifier if keep_bounds else SpecifierSet()
    if requirement.url is not None or any(clause.operator in ("==", "===") for clause in bounds):
        return line.strip()
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return line.strip()
    if "+" in version:  # a local build, which is not on a package index
        return line.strip()
    requirement.specifier = bounds & SpecifierSet(f"=={version}")
    return str(requirement)


def check_package(line: str) -> None:
    """Raise ConfigError, without repeating the URL, if a requirement is a local file or a URL with credentials."""
    requirement = parse_requirement(line)
    address = urlsplit(requirement.url or "")
    if "@" in address.netloc or address.query:
        raise ConfigError(
            f"The URL of the package {requirement.name!r} contains a user name, a token or a query, which would be "
            "readable in the image.",
            hint="Use a URL without credentials, or copy the source of the package into the app's directory.",
        )
    if requirement.url is not None and (not address.netloc or "file" in address.scheme):
        raise ConfigError(
            f"The requirement {requirement.name!r} is a file on this machine, which a container cannot download.",
            hint='Use "name>=version", or "name @ https://…" for an archive that the container can download.',
        )
