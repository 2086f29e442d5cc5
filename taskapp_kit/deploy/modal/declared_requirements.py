"""Reads the requirements that an app declares in the standard formats.

- A single file may contain a `# /// script` block (PEP 723) with `dependencies` and `requires-python`.
- For a file without a block, and for a package, the nearest `pyproject.toml` is used. The search starts in the app's
  directory and continues in its parents.
- The block and `pyproject.toml` may contain a table `[tool.taskapp.modal]` with the fields of `ModalSettings`.

This module does not import or install anything.
"""

from __future__ import annotations

import dataclasses
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from taskapp_kit.deploy.modal.modal_settings import NAMES, ModalSettings, wrong
from taskapp_kit.deploy.packaging.requirements import (
    check_package,
    is_the_kit,
    parse_requirement,
    split_metadata,
)
from taskapp_kit.deploy.packaging.source_files import KIT_DIR, Target, find_top
from taskapp_kit.errors import ConfigError, closest
from taskapp_kit.jobs.client.config.toml_file import lines_of

SECTION = ("tool", "taskapp", "modal")
NOT_HERE = {
    "extra_packages": "`dependencies`",
    "packages": "`dependencies`",
    "dependencies": "`dependencies` outside of this table",
    "timeout": "timeout_seconds",
    "startup_timeout": "startup_timeout_seconds",
    "scaledown_window": "scaledown_window_seconds",
    "memory": "memory_mib",
    "secret": "secret_name",
    "secrets": "extra_secrets",
    "name": "app_name",
    "regions": "region",
    "apt": "apt_packages",
    "apt_install": "apt_packages",
    "custom_domain": "custom_domains",
    "enable_memory_snapshot": "memory_snapshot",
}
"""The correct key for each key that authors write by mistake, such as a name that Modal uses."""

_BLOCK = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
_KNOWN_SERIES = ("3.11", "3.12", "3.13", "3.14")
_NEWEST_PATCH = 30
"""An upper limit on the patch releases of a Python series, to test whether `requires-python` allows any of them."""


@dataclass(frozen=True, slots=True)
class DeclaredRequirements:
    """The declared requirements of an app.

    Attributes:
        dependencies: pip requirements, except for the requirement on the kit.
        extras: Extras of the kit, from the requirement on the kit.
        requires_python: A specifier such as ">=3.12", or "" if no Python version is declared.
        settings: The table `[tool.taskapp.modal]`.
        source: File with the declarations, or None if the app declares no requirements.
        block: Whether the declarations are in a `# /// script` block in the app's file.
    """

    dependencies: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    requires_python: str = ""
    settings: ModalSettings = field(default_factory=ModalSettings)
    source: Path | None = None
    block: bool = False

    def where_to_declare(self, package: str) -> str:
        """Return a hint on how to declare `package`, so that it is installed in the container."""
        line = f'dependencies = ["{package}"]'
        if self.source is None:
            return f"Add a block of three lines above the imports: `# /// script`, `# {line}` and `# ///`."
        if self.block:
            return f'Add "{package}" to `dependencies` in the `# /// script` block in {self.source.name}.'
        return f'Add "{package}" to [project] `dependencies` in {self.source.name}.'


def read_needs(target: Target, *, beside: Path) -> DeclaredRequirements:
    """Return the requirements that `target` declares. A bundled environment declares none.

    Raises:
        ConfigError: A declaration is invalid. The message lists every problem.
    """
    if target.kind == "bundled":
        return DeclaredRequirements()
    if target.kind == "module":
        return _of_module(target.name.partition(".")[0])
    path = (beside / target.name).absolute()
    if not path.is_file():
        return DeclaredRequirements()  # source_files.py reports the missing file
    text = path.read_text("utf-8", errors="replace").replace("\r\n", "\n")
    blocks = list(_BLOCK.finditer(text))
    if len(blocks) > 1:
        raise ConfigError(f"{path.name} has {len(blocks)} `# /// script` blocks.", hint="Combine them into one block.")
    if blocks:
        content = "".join(
            line[2:] if line.startswith("# ") else line[1:] for line in blocks[0]["content"].splitlines(keepends=True)
        )
        before = text.count("\n", 0, blocks[0].start("content"))
        return _read(content, path, first_line=before, block=True)
    return _of_folder(path.parent)


def python_version(requires: str, installed: tuple[int, int]) -> str:
    """Return the Python version of the container.

    This is the version of the deploying Python if `requires` allows it, and the oldest allowed version otherwise. The
    deploying Python is preferred because the image pins the package versions that are installed on this machine, and
    these versions support the deploying Python.

    Raises:
        ConfigError: Modal has no Python that `requires` allows.
    """
    try:
        allowed = SpecifierSet(requires)
    except InvalidSpecifier:
        raise ConfigError(
            f"requires-python {requires!r} is not a version specifier.", hint='Use a specifier such as ">=3.12".'
        ) from None
    here = f"{installed[0]}.{installed[1]}"
    for series in (here, *_KNOWN_SERIES):
        if series in _KNOWN_SERIES and any(allowed.contains(f"{series}.{patch}") for patch in range(_NEWEST_PATCH)):
            return series
    raise ConfigError(
        f"requires-python {requires!r} excludes all Python versions that Modal supports: {', '.join(_KNOWN_SERIES)}.",
        hint="Change requires-python, or set python_version under [tool.taskapp.modal].",
    )


def _of_module(top: str) -> DeclaredRequirements:
    spec = find_top(top)
    if spec is None or spec.origin is None:
        return DeclaredRequirements()  # source_files.py reports the missing module
    found = _of_folder(Path(spec.origin).parent)
    if found.source is not None:
        return found
    for name in metadata.packages_distributions().get(top, ()):
        distribution = metadata.distribution(name)
        lines, _ = split_metadata(distribution.requires or [], [])
        dependencies, extras = _without_kit(lines)
        return DeclaredRequirements(dependencies, extras, (distribution.metadata.get_all("Requires-Python") or [""])[0])
    return DeclaredRequirements()


def _of_folder(folder: Path) -> DeclaredRequirements:
    """Read the nearest pyproject.toml in the directory or its parents, up to the top of the repository."""
    try:
        home = Path.home()
    except RuntimeError:  # the user has no home directory
        home = None
    for place in (folder, *folder.parents):
        if place != folder and place.stat().st_mode & stat.S_IWOTH:
            break  # a file of another user in /tmp could otherwise select packages for apps in /tmp
        file = place / "pyproject.toml"
        if file.is_file():
            return (
                DeclaredRequirements()
                if place == KIT_DIR.parent
                else _read(file.read_text("utf-8", errors="replace"), file)
            )
        if (place / ".git").exists() or place.name == "site-packages" or place == home:
            break
    return DeclaredRequirements()


def _read(text: str, source: Path, *, first_line: int = 0, block: bool = False) -> DeclaredRequirements:
    what = f"the `# /// script` block in {source.name}" if block else source.name
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = re.sub(r"at line (\d+)", lambda found: f"at line {int(found[1]) + first_line}", str(error))
        raise ConfigError(f"{source}: {what} is not valid TOML: {reason}.", hint="Fix this line.") from None
    lines = lines_of(text)
    problems: list[tuple[int, str]] = []

    def report(path: tuple[str | int, ...], problem: str) -> None:
        line = next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), 1)
        problems.append((line + first_line, problem))

    project = content if block else content.get("project", {})
    above: tuple[str, ...] = () if block else ("project",)
    dependencies = project.get("dependencies", []) if isinstance(project, dict) else []
    if not isinstance(dependencies, list) or not all(isinstance(line, str) for line in dependencies):
        report((*above, "dependencies"), '`dependencies` must be a list of strings, such as ["numpy>=2"].')
        dependencies = []
    for index, line in enumerate(dependencies):
        try:
            if not is_the_kit(parse_requirement(line)):
                check_package(line)
        except ConfigError as error:
            report((*above, "dependencies", index), f"{error.message} {error.hint}")
    requires = project.get("requires-python", "") if isinstance(project, dict) else ""
    if not isinstance(requires, str):
        report((*above, "requires-python"), '`requires-python` must be a string, such as ">=3.12".')
        requires = ""
    settings: dict[str, Any] = {}
    for name, value in _table(content).items():
        if name not in NAMES or name in NOT_HERE:
            report((*SECTION, name), f"the setting {name!r} is unknown; {_meant(name)}")
        elif (expected := wrong(name, value)) is not None:
            report((*SECTION, name), f"{name} is invalid; expected {expected}.")
        else:
            settings[name] = tuple(value) if isinstance(value, list) else value
    if problems:
        listed = "".join(f"\n  line {line}: {problem}" for line, problem in sorted(problems))
        count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise ConfigError(f"{source} has {count}:{listed}")
    kept, extras = _without_kit(dependencies)
    return DeclaredRequirements(kept, extras, requires, dataclasses.replace(ModalSettings(), **settings), source, block)


def _table(content: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Any = content
    for part in SECTION:
        found = found.get(part, {}) if isinstance(found, Mapping) else {}
    return found if isinstance(found, Mapping) else {}


def _without_kit(lines: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the requirements except the one on the kit, and the kit's extras that they require.

    The kit itself is installed from a wheel.
    """
    kept, extras = [], []
    for line in lines:
        requirement = parse_requirement(line)
        if is_the_kit(requirement):
            extras += sorted(requirement.extras)
        else:
            kept.append(line)
    return tuple(kept), tuple(extra for extra in extras if extra not in ("modal", "dev"))


def _meant(name: str) -> str:
    if name in NOT_HERE:
        return f"write {NOT_HERE[name]}."
    known = [key for key in NAMES if key not in NOT_HERE]
    near = closest(name, known)
    return f"did you mean {near!r}?" if near else f"the settings are {', '.join(known)}."
