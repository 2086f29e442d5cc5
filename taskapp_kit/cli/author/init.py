"""`taskapp init`: a new project from a template, which is a folder that is copied.

In every text file, and in file names, the word `__app_name__` becomes the project's name as a Python identifier and
`__app_title__` the name as it was given; nothing else is changed.
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
    """A template: its name, its folder, and the first line of its app's docstring."""

    name: str
    folder: Path
    summary: str


def templates() -> list[Template]:
    """The bundled templates, by name; an empty list when this installation carries none."""
    try:
        root = bundled_root("templates")
    except DiscoveryError:
        return []
    folders = [path for path in sorted(root.iterdir()) if path.is_dir() and path.name not in LEFT_OUT]
    return [Template(path.name, path, _summary(path)) for path in folders if any(path.iterdir())]


def find_template(name: str) -> Template:
    """The template of that name. Raises DiscoveryError with the list and *did you mean*."""
    known = {item.name: item for item in templates()}
    if name in known:
        return known[name]
    close = closest(name, known)
    raise DiscoveryError(
        f"There is no template {name!r}; the templates are {', '.join(known) or 'missing from this installation'}.",
        hint=f"Did you mean {close!r}?" if close else "`taskapp list` says what each one is.",
    )


def identifier(title: str) -> str:
    """A project's name as a Python module's: `My-Game` is `my_game`. Raises RequestError for one that cannot be."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,63}", title):
        raise RequestError(
            f"The name {title[:80]!r} cannot be a project's name.",
            hint="Begin with a letter; then at most 63 letters, digits, '-' or '_', e.g. my_game.",
        )
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", title).replace("-", "_").lower()
    if keyword.iskeyword(name) or name in ("test", "tests", "app"):
        raise RequestError(f"The name {title!r} has a meaning of its own in Python or in a project.", hint=OTHER)
    if name in sys.stdlib_module_names or name in _installed() or name == __name__.partition(".")[0]:
        raise RequestError(f"The name {title!r} would hide the Python module {name!r}.", hint=OTHER)
    return name


OTHER = "Take another one, e.g. my_game."


def instantiate(template: Template, target: Path, title: str) -> list[Path]:
    """Copies the template to `target` and fills in the names; the files written, relative to `target`, sorted.

    Raises RequestError when `target` is there and not an empty directory, or when `title` is no name.
    """
    names = {NAME: identifier(title), TITLE: title}
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise RequestError(f"{target} is there already and is not an empty directory.", hint="Take another name.")
    written = []
    for source in sorted(template.folder.rglob("*")):
        relative = source.relative_to(template.folder)
        if not source.is_file() or LEFT_OUT.intersection(relative.parts) or source.suffix == ".pyc":
            continue
        place = Path(_filled(relative.as_posix(), names))
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        content = source.read_bytes()
        with contextlib.suppress(UnicodeDecodeError):  # a picture, say
            content = _filled(content.decode("utf-8"), names).encode("utf-8")
        (target / place).write_bytes(content)
        shutil.copymode(source, target / place)
        written.append(place)
    return sorted(written)


def app_file(folder: Path, files: list[Path]) -> Path | None:
    """The file that makes the TaskApp, of a project's files; None when none does."""
    for place in files:
        if place.suffix == ".py" and len(place.parts) == 1 and "TaskApp(" in (folder / place).read_text("utf-8"):
            return place
    return None


def _filled(text: str, names: dict[str, str]) -> str:
    for word, value in names.items():
        text = text.replace(word, value)
    return text


def _summary(folder: Path) -> str:
    """The description of the project, or the first line of the app's docstring without the placeholder's words."""
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    if "description" in project:
        return str(project["description"])
    for file in sorted(folder.glob("*.py")):
        text = file.read_text("utf-8")
        if "TaskApp(" not in text:
            continue
        try:
            docstring = ast.get_docstring(ast.parse(text)) or ""
        except SyntaxError:  # a placeholder where Python wants something else
            docstring = ""
        line = docstring.split("\n", 1)[0]
        line = re.sub(rf"^(?:{NAME}|{TITLE})\s*[:.,-]?\s*", "", line)
        return line[:1].upper() + line[1:]
    return ""


@functools.cache
def _installed() -> frozenset[str]:
    """Names that installed packages are imported by."""
    return frozenset(packages_distributions())


@click.command(epilog=example("taskapp init my_game --template multi-turn-game"))
@click.argument("name")
@click.option("--template", metavar="T", help="What to start from, `questions` by default; `taskapp list` names them.")
@click.option("--package", is_flag=True, help="Make a package of apps that others install: the template `package`.")
def command(name: str, template: str | None, package: bool) -> None:
    """Make a new project in the directory NAME.

    NAME begins with a letter and holds letters, digits, '-' and '_'. The directory must not exist, or be empty.
    """
    identifier(name)
    if package and template is not None:
        raise click.UsageError("--package is the template `package`. Give --package or --template.")
    chosen = find_template("package" if package else template or "questions")
    target = Path(name)
    files = instantiate(chosen, target, name)
    out = console()
    out.print(f"Made {name} from the template {chosen.name}:", style="bold")
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
