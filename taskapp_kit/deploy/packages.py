"""Packages: what the Python of a container must have installed for the kit and an author's app.

The kit's own list is read from where it is declared (a checkout's pyproject.toml, an installed wheel's
metadata), so that it is written down once.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from importlib import metadata

from taskapp_kit.deploy.cargo import KIT_DIR
from taskapp_kit.errors import ConfigError

DISTRIBUTION = "taskapp-kit"

_NAME = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(\[[^\]]*\])?\s*")
_EXTRA = re.compile(r"""(?:\band\s+)?\bextra\s*==\s*['"]([^'"]+)['"](?:\s+and\b)?""")


def requirements(extras: Iterable[str] = (), extra_packages: Sequence[str] = ()) -> tuple[str, ...]:
    """What the container's Python needs: the kit's own dependencies, those of `extras`, then the author's.

    Each is pinned to the version installed here, where the app was tried ("same versions: the same episode");
    what is not installed here keeps its declared bounds. An author's entry replaces ours of the same name.

    Raises:
        ConfigError: an unknown extra, or a package line that cannot or must not travel.
    """
    base, optional = _declared()
    lines = list(base)
    for extra in sorted(set(extras)):
        lines += _lines_of_extra(extra, optional)
    chosen = {_normal(_name(line)): _pinned(line) for line in lines}
    for line in extra_packages:
        _check_package(line)
        chosen[_normal(_name(line))] = line if _is_constrained(line) else _pinned(line)
    return tuple(chosen[name] for name in sorted(chosen))


def known_extras() -> frozenset[str]:
    """Names of the kit's optional groups of packages (`crafter`, `math`, …)."""
    return frozenset(_declared()[1])


def _declared() -> tuple[list[str], dict[str, list[str]]]:
    """The kit's dependencies and extras: from the checkout's pyproject.toml, else the installed metadata."""
    pyproject = KIT_DIR.parent / "pyproject.toml"
    if pyproject.is_file():
        project = tomllib.loads(pyproject.read_text("utf-8")).get("project", {})
        if project.get("name") == DISTRIBUTION:
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
        if inner and _normal(inner[1]) == DISTRIBUTION and inner[2]:  # `all = ["taskapp-kit[crafter,math]"]`
            for name in inner[2].strip("[]").split(","):
                lines += _lines_of_extra(name.strip(), optional)
        else:
            lines.append(line)
    return lines


def _name(line: str) -> str:
    found = _NAME.match(line)
    if found is None:
        raise ConfigError(
            "An entry of extra_packages is no package requirement.",
            hint='Write it as for pip, such as "nltk>=3.9".',
        )
    return found[1]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_constrained(line: str) -> bool:
    found = _NAME.match(line)
    return bool(found and line[found.end() :].partition(";")[0].strip())


def _pinned(line: str) -> str:
    requirement, semicolon, marker = line.partition(";")
    found = _NAME.match(requirement)
    if found is None or "@" in requirement:
        return line.strip()
    try:
        version = metadata.version(found[1])
    except metadata.PackageNotFoundError:
        return line.strip()
    if "+" in version:  # a local build: no index has it
        return line.strip()
    return f"{found[1]}{found[2] or ''}=={version}" + (f"; {marker.strip()}" if semicolon else "")


def _check_package(line: str) -> None:
    """Refuses what pip would take but a container must not get; never repeats the line (a token, perhaps)."""
    _name(line)
    url = line.partition("@")[2] if " @ " in line or "://" in line else ""
    if re.search(r"://[^/\s]*@", line):
        raise ConfigError(
            f"The address of the package {_name(line)!r} in extra_packages holds a user name or token, which "
            "would become readable in the image.",
            hint="Use a public address, or vendor the package's source.",
        )
    if "file:" in url or "://" in line.partition("@")[0]:
        raise ConfigError(
            f"The entry for {_name(line)!r} in extra_packages is a bare address or a file on this machine.",
            hint='Write "name>=version", or "name @ https://…" for an archive that the container can fetch.',
        )
