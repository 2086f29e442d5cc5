"""The wheel, built as a release would be and used where no checkout is: what is in it, and that it works.

Nothing is fetched. The wheel is built by the hatchling that is installed with the tests, from a copy of the checkout in
which keys and leftovers lie about. It is installed into a virtual environment, to which links are made of the packages
that the wheel requires, as installed for the tests, and of those that a test names in addition: nothing else can be
imported there, this checkout included.
"""

from __future__ import annotations

import email
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.process


ROOT = Path(__file__).parents[1]
TREES = {
    "taskapp_kit": "taskapp_kit",
    "environments": "taskapp_kit/_bundled/environments",
    "templates": "taskapp_kit/_bundled/templates",
}
PRIVATE = "ENVIRONMENT_API_KEY=canary-of-the-wheel"
PLANTED = (
    ".env",
    "taskapp_kit/.env",
    "taskapp_kit/.env.local",
    "environments/crafter/.env",
    "environments/crafter/.taskapp/rollouts.db",
    "environments/crafter/__pycache__/rules.cpython-311.pyc",
    "templates/questions/.env",
    "templates/questions/.env.production",
    "templates/questions/.taskapp/rollouts.db",
)
TEMPLATES = ("customer-service", "gymnasium", "multi-turn-game", "questions")


def sources(checkout: Path) -> set[str]:
    """What the wheel's package should hold, by its place there: every file of the three trees but what was planted."""
    found = set()
    for tree, place in TREES.items():
        for file in (checkout / tree).rglob("*"):
            relative = file.relative_to(checkout / tree).as_posix()
            if file.is_file() and f"{tree}/{relative}" not in PLANTED:
                found.add(f"{place}/{relative}")
    return found


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a wheel is built from, without git, with files in it that must not travel."""
    copy = tmp_path_factory.mktemp("copy") / "checkout"
    left = shutil.ignore_patterns("__pycache__", ".taskapp", ".env", ".env.*", ".*_cache")
    for tree in (*TREES, "tests"):
        shutil.copytree(ROOT / tree, copy / tree, ignore=left)
    for name in ("pyproject.toml", "README.md", "LICENSE", "THIRD_PARTY.md", "modal_app.py"):
        shutil.copy(ROOT / name, copy)
    for name in PLANTED:
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text(PRIVATE)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `python -m build` makes of the copy."""
    out = tmp_path_factory.mktemp("dist")
    made = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(checkout)],
        capture_output=True, text=True, timeout=120, check=False, cwd=out,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    (file,) = out.iterdir()
    return file


def links(home: Path, *lines: str) -> None:
    """Link what these requirements and their requirements are made of into the environment at `home`."""
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    waiting, seen = [Requirement(line) for line in lines], set()
    while waiting:
        requirement = waiting.pop()
        for extra in ("", *requirement.extras):
            name = (canonicalize_name(requirement.name), extra)
            if name in seen:
                continue
            seen.add(name)
            distribution = importlib.metadata.distribution(requirement.name)
            for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
                if not (site / top).exists():
                    (site / top).symlink_to(distribution.locate_file(top))
            needs = [Requirement(line) for line in distribution.requires or ()]
            waiting += [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of programs of a new virtual environment that has the wheel and what it requires."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, symlinks=os.name != "nt")
    programs = home / "bin"
    pip = (sys.executable, "-m", "pip", "--python", programs / "python", "--isolated", "--disable-pip-version-check")
    done = subprocess.run(
        [*pip, "install", "--no-index", "--no-deps", "--no-compile", wheel],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = email.message_from_bytes(archive.read(metadata)).get_all("Requires-Dist", [])
    required = [line for line in lines if "extra ==" not in line]
    assert len(required) <= 15
    links(home, *required)
    return programs


def run(programs: Path, folder: Path, program: str, *args: str) -> str:
    """What it prints, from a shell that says nothing about the checkout. Fails when it fails."""
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    environ = {**kept, "HOME": str(folder), "COLUMNS": "100", "PATH": f"{programs}{os.pathsep}{os.defpath}"}
    done = subprocess.run(
        [programs / program, *args], cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_holds_the_package_the_environments_and_the_templates_whole(checkout: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == sources(checkout)
    assert "taskapp_kit/py.typed" in names
    assert "taskapp_kit/_bundled/environments/crafter/app.py" in names
    for template in TEMPLATES:
        assert {
            f"taskapp_kit/_bundled/templates/{template}/{name}" for name in (".gitignore", "tests/test___app_name__.py")
        } <= names


def test_no_key_and_nothing_of_a_checkouts_own_is_in_it(checkout: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [PurePosixPath(name) for name in archive.namelist()]
        canaries = [name for name in archive.namelist() if PRIVATE.encode() in archive.read(name)]
    assert canaries == []
    assert {name.parts[0].partition("-")[0] for name in names} == {"taskapp_kit"}
    assert not [name for name in names if name.suffix == ".pyc" or name.name.startswith(".env")]
    assert all((checkout / name).is_file() for name in PLANTED), "the build tidied up what it should step around"


def test_its_two_commands_and_its_licence_are_declared(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (folder,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        commands = archive.read(f"{folder}/entry_points.txt").decode()
        metadata = archive.read(f"{folder}/METADATA").decode()
        assert {f"{folder}/licenses/{name}" for name in ("LICENSE", "THIRD_PARTY.md")} <= set(archive.namelist())
    for name in ("taskapp", "taskapp-kit"):
        assert f"{name} = taskapp_kit.cli.main:main" in commands
    for extra in ("all", "crafter", "gymnasium", "jobs", "math", "modal", "otel", "postgres"):
        assert f"Provides-Extra: {extra}\n" in metadata


def test_installed_it_reads_its_own_bundle_and_nothing_of_this_checkout(installed: Path, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from taskapp_kit.declare.discovery import bundled_root, find_app\n"
        "print(bundled_root('environments')); print(bundled_root('templates')); print(find_app('crafter').file)\n"
        "print(*(m.__file__ for n, m in sys.modules.items()\n"
        "        if n.lstrip('_').startswith('taskapp') and getattr(m, '__file__', None)), sep='\\n')\n"
    )
    lines = [Path(line) for line in run(installed, tmp_path, "python", "-c", program).splitlines()]
    home = installed.parent
    assert len(lines) > 20
    assert [line for line in lines if not line.is_relative_to(home)] == []
    assert [line.parent.name for line in lines[:2]] == ["_bundled", "_bundled"]
    assert lines[2].parts[-4:] == ("_bundled", "environments", "crafter", "app.py")


def test_list_shows_what_came_with_it(installed: Path, tmp_path: Path) -> None:
    shown = run(installed, tmp_path, "taskapp", "list")
    for name in ("crafter", "math", "python_sandbox", *TEMPLATES):
        assert name in shown
    assert run(installed, tmp_path, "taskapp-kit", "list") == shown


@pytest.mark.ci
def test_with_its_required_packages_alone_it_plays_and_only_extras_are_missing(installed: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "adder.py", tmp_path)
    played = run(installed, tmp_path, "taskapp", "rollout", "adder.py", "--policy", "gold", "--seed", "3")
    assert "reward = 1" in played
    import_all = (
        "import importlib, pkgutil, taskapp_kit\n"
        "from taskapp_kit.errors import Unavailable\n"
        "for module in pkgutil.walk_packages(taskapp_kit.__path__, 'taskapp_kit.'):\n"
        "    try: module.name.endswith('__main__') or importlib.import_module(module.name)\n"
        "    except ModuleNotFoundError as error: print(error.name)\n"
        "    except Unavailable as error: print(error.__cause__.name)\n"
    )
    missing = set(run(installed, tmp_path, "python", "-c", import_all).split())
    assert missing == {
        "gymnasium", "inspect_ai", "matplotlib", "mcp", "packaging", "psycopg", "pytest", "ray", "tinker",
        "tokenizers", "torch", "verifiers",
    }  # fmt: skip


@pytest.mark.ci
@pytest.mark.parametrize(
    "template",
    [name if name == "questions" else pytest.param(name, marks=pytest.mark.exhaustive) for name in TEMPLATES],
)
def test_a_project_made_with_it_passes_its_tests_and_is_played(template: str, installed: Path, tmp_path: Path) -> None:
    run(installed, tmp_path, "taskapp", "init", "My-Game", "--template", template)
    links(installed.parent, "pytest", "gymnasium")
    project = tmp_path / "My-Game"
    assert (project / ".gitignore").is_file()
    tested = run(installed, project, "python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert " passed" in tested
    assert "skipped" not in tested
    played = run(installed, project, "taskapp", "rollout", "my_game.py", "--policy", "gold", "--seed", "0")
    assert "reward " in played
    assert "terminated (environment)" in played


@pytest.mark.exhaustive
def test_crafter_is_played_from_it(installed: Path, tmp_path: Path) -> None:
    links(installed.parent, "crafter", "imageio", "numba", "opensimplex")
    played = run(
        installed, tmp_path, "taskapp", "rollout", "crafter", "--policy", "scripted", "--seed", "5",
        "--config", '{"length": 40}',
    )  # fmt: skip
    assert "reward = 1 · return" in played
    assert "game_steps 40" in played
