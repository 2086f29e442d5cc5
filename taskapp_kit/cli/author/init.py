"""`taskapp init`: create a project by copying the directory of a template.

In file names and text files, `__app_name__` is replaced with the project's name as a Python identifier, and `__app_title__`
with the name as the user typed it.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import keyword
import re
import shutil
import sys
import tomllib
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import click

from taskapp_kit.cli.output.terminal import console, example
from taskapp_kit.declare.discovery import bundled_root
from taskapp_kit.errors import DiscoveryError, RequestError, closest

NAME, TITLE = "__app_name__", "__app_title__"
LEFT_OUT = frozenset({"__pycache__", ".pytest_cache", ".ruff_cache", ".mypy_cache", ".taskapp", ".DS_Store"})


@dataclass(frozen=True, slots=True)
class Template:
    """A template. `folder` is its directory, and `summary` describes it in one line."""

    name: str
    folder: Path
    summary: str


def templates() -> list[Template]:
    """Return the bundled templates, sorted by name. The list is empty if this installation contains no templates."""
    try:
        root = bundled_root("templates")
    except DiscoveryError:
        return []
    folders = [path for path in sorted(root.iterdir()) if path.is_dir() and path.name not in LEFT_OUT]
    return [Template(path.name, path, _summary(path)) for path in folders if any(path.iterdir())]


def find_template(name: str) -> Template:
    """Return a template by name. Raises DiscoveryError, with a suggestion, if the name is unknown."""
    by_name = {item.name: item for item in templates()}
    if name in by_name:
        return by_name[name]
    close = closest(name, by_name)
    raise DiscoveryError(
        f"Unknown template {name!r}. The templates are {', '.join(by_name) or 'missing from this installation'}.",
        hint=f"Did you mean {close!r}?" if close else "`taskapp list` describes each template.",
    )


def identifier(title: str) -> str:
    """Return a project's name as a Python identifier: `My-Game` becomes `my_game`.

    Raises RequestError if the name is invalid, reserved, or the name of an installed module.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,63}", title):
        raise RequestError(
            f"{title[:80]!r} is not a valid project name.",
            hint="Use 1 to 64 characters: a-z, A-Z, 0-9, '-' and '_'. The first one must be a letter.",
        )
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", title).replace("-", "_").lower()
    if keyword.iskeyword(name) or name in ("test", "tests", "app"):
        raise RequestError(f"The name {title!r} is reserved by Python or taskapp-kit.", hint=OTHER)
    if name in sys.stdlib_module_names or name in _installed() or name == __name__.partition(".")[0]:
        raise RequestError(f"The name {title!r} would hide the Python module {name!r}.", hint=OTHER)
    return name


OTHER = "Choose another name, e.g. my_game."


def instantiate(template: Template, target: Path, title: str) -> list[Path]:
    """Copy the template to `target` and fill in the names. Return the new files, sorted and relative to `target`.

    Raises RequestError if `target` exists and is not an empty directory, or if `title` is not a valid name.
    """
    names = {NAME: identifier(title), TITLE: title}
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise RequestError(f"{target} already exists and is not an empty directory.", hint="Choose another name.")
    written = []
    for source in sorted(template.folder.rglob("*")):
        relative = source.relative_to(template.folder)
        if not source.is_file() or LEFT_OUT.intersection(relative.parts) or source.suffix == ".pyc":
            continue
        path = Path(_filled(relative.as_posix(), names))
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        content = source.read_bytes()
        with contextlib.suppress(UnicodeDecodeError):  # a binary file, such as an image, is copied unchanged
            content = _filled(content.decode("utf-8"), names).encode("utf-8")
        (target / path).write_bytes(content)
        shutil.copymode(source, target / path)
        written.append(path)
    return sorted(written)


def app_file(folder: Path, files: list[Path]) -> Path | None:
    """Return the file in a project's top directory that creates the TaskApp, or None if no file creates it."""
    scripts = (path for path in files if path.suffix == ".py" and len(path.parts) == 1)
    return next((path for path in scripts if "TaskApp(" in (folder / path).read_text("utf-8")), None)


def _filled(text: str, names: dict[str, str]) -> str:
    for word, value in names.items():
        text = text.replace(word, value)
    return text


def _summary(folder: Path) -> str:
    """Return a template's summary: its project description, or else the first line of its app's docstring."""
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    if "description" in project:
        return str(project["description"])
    for file in sorted(folder.glob("*.py")):
        text = file.read_text("utf-8")
        if "TaskApp(" not in text:
            continue
        try:
            docstring = ast.get_docstring(ast.parse(text)) or ""
        except SyntaxError:  # the template's placeholders are not valid Python
            docstring = ""
        line = re.sub(rf"^(?:{NAME}|{TITLE})\s*[:.,-]?\s*", "", docstring.split("\n", 1)[0])
        return line[:1].upper() + line[1:]
    return ""


@functools.cache
def _installed() -> frozenset[str]:
    """Return the import names of all installed packages."""
    return frozenset(packages_distributions())


@click.command(epilog=example("taskapp init my_game --template multi-turn-game"))
@click.argument("name")
@click.option("--template", metavar="T", help="The template, see `taskapp list`.  [default: questions]")
@click.option("--package", is_flag=True, help="Create an installable package of apps.")
def command(name: str, template: str | None, package: bool) -> None:
    """Create a new project in the directory NAME.

    NAME must begin with a letter and contain only a-z, A-Z, 0-9, '-' and '_'. If the directory exists, it must be empty.
    """
    identifier(name)
    if package and template is not None:
        raise click.UsageError("--package selects the template `package`. Pass either --package or --template.")
    chosen = find_template("package" if package else template or "questions")
    target = Path(name)
    files = instantiate(chosen, target, name)
    out = console()
    out.print(f"Created {name} from the template {chosen.name}:", style="bold")
    for file in files:
        out.print(f"  {target / file}")
    out.print("\nNext:", style="bold")
    out.print(f"  cd {name}")
    if any(file.parts[0] == "tests" or file.name.startswith("test_") for file in files):
        out.print(f"  python -m pytest{'' if find_spec('pytest') else '   # needs: pip install pytest'}")
    app = app_file(target, files)
    if app is None:
        out.print("  pip install -e .")
        out.print("  taskapp list")
    else:
        out.print(f"  taskapp info {app}")
        out.print(f"  taskapp play {app}")
        out.print(f"  taskapp serve {app}")
