"""Python processes that the kit starts: what they import, and what their environment shows."""

from __future__ import annotations

import ast
import subprocess
import sys
import uuid
from pathlib import Path

import httpx
import pytest

import taskapp_kit
from taskapp_kit.declare.discovery import bundled_root
from tests.cli.conftest import Served, serving
from tests.sandbox.boxes import holding

pytestmark = pytest.mark.process

SHADOWS = (
    "asyncio", "ctypes", "dataclasses", "email", "http", "json", "logging", "queue", "random", "secrets", "socket",
    "string", "tempfile", "uuid",
)  # fmt: skip
"""Files of these names say when they are imported, and offer nothing of what the standard modules have."""
MARKS = "open(__file__ + '.imported', 'w').close()\n"

APP = """
import json, os, random
from pathlib import Path
import beside
from taskapp_kit import Step, TaskApp, action

app = TaskApp("shadowed", version="1.0.0")

if os.environ.get("ENVIRONMENT_API_KEY"):
    Path(__file__).with_name("imported-with-the-key").touch()

def environ_of(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except PermissionError:
        return "refused"
    except OSError:
        return "ended"

def keys_of_all():
    environs = [environ_of(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [line for environ in environs for line in environ.split("\\0") if line.startswith("ENVIRONMENT_API_KEY")]

def declare(name, **more):
    @app.environment(name, splits={"train": range(9)}, max_steps=3, **more)
    class Here:
        def reset(self, seed: int) -> str:
            import queue, secrets
            queue.Queue(), secrets.token_hex(4), random.random()
            return json.dumps({"parent": environ_of(os.getppid()), "keys": keys_of_all(), "beside": beside.VALUE})

        @action
        def go(self) -> Step:
            \"\"\"Go.\"\"\"
            return Step(observation="end", reward=1.0, terminated=True)

declare("shared")
declare("alone", isolation="process")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with an app and 14 files named like standard modules."""
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "beside.py").write_text("VALUE = 'beside the app'\n")
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(MARKS)
    return tmp_path


def imported(folder: Path) -> list[str]:
    return sorted(path.name.partition(".")[0] for path in folder.glob("*.imported"))


def python(folder: Path, code: str) -> str:
    """What a program prints that a user starts in `folder`, as the installed `taskapp` starts."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rollout(served: Served, environment: str) -> httpx.Response:
    body = {
        "run_id": "r", "env": {"env_name": environment, "seed": 3}, "policy": {"config": {"policy": "random"}},
        "ops": [], "mode": "eval", "record": {"trajectories": True},
    }  # fmt: skip
    return httpx.post(f"{served.url}/rollout", headers={"X-API-Key": str(served.key)}, json=body, timeout=30)


@pytest.mark.parametrize(
    "flags",
    [
        ("--reload", "--workers", "1"),
        pytest.param(("--workers", "1"), marks=pytest.mark.exhaustive),
        pytest.param(("--reload",), marks=pytest.mark.exhaustive),
    ],
)
def test_server_and_workers_do_not_import_files_named_like_standard_modules(
    folder: Path, flags: tuple[str, ...]
) -> None:
    with serving(folder, "app.py", "--store", "none", *flags) as served:
        for environment in ("shared", "alone"):
            answer = rollout(served, environment)
            assert answer.status_code == 200, answer.text
            assert "beside the app" in answer.text
    assert imported(folder) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize(("app", "environment"), [("app:app", "shared"), ("crafter", "crafter")])
def test_module_and_bundled_app_do_not_import_shadowing_files(folder: Path, app: str, environment: str) -> None:
    with serving(folder, app, "--store", "none", "--workers", "1") as served:
        assert rollout(served, environment).status_code == 200
    assert imported(folder) == []


def test_an_empty_entry_of_pythonpath_is_not_the_working_directory_in_a_worker(folder: Path, tmp_path: Path) -> None:
    from taskapp_kit.config import child_environment

    assert child_environment({"PYTHONPATH": f":{tmp_path}::/usr"})["PYTHONPATH"] == f"{tmp_path}:/usr"


PROGRAMS = {
    "mock model": ("""
from taskapp_kit.testing import MockProcess
with MockProcess() as model: print(model.stats()["requests"])""", "0\n"),
    "import check of a deploy": ("""
import sys, taskapp_kit.asgi
from pathlib import Path
from taskapp_kit.deploy.packaging.import_check import rehearse
allowed = ["taskapp_kit", "beside", *sys.modules]
print(rehearse("app.py", allowed=allowed, folder=Path(), own=["app.py", "beside.py"]).name)""", "shadowed\n"),
    "Modal's account": ("""
import os
os.environ.update({"MODAL_TOKEN_ID": "", "MODAL_TOKEN_SECRET": "", "MODAL_CONFIG_PATH": os.path.abspath("none.toml")})
from taskapp_kit.deploy.modal.account import ModalRefused, address
try: address("a", "b")
except ModalRefused: print("refused")""", "refused\n"),
    "Modal's command line": ("""
from taskapp_kit.deploy.modal.run import _modal
lines = []; print(_modal(["deploy", "--help"], lines.append)[0], len(lines) > 3)""", "0 True\n"),
}  # fmt: skip
"""What starts a Python process of its own, and what it prints."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.exhaustive if "Modal" in name else ()) for name in PROGRAMS]
)
def test_other_children_do_not_import_shadowing_files(folder: Path, name: str) -> None:
    code, printed = PROGRAMS[name]
    assert python(folder, code) == printed
    assert imported(folder) == []


@pytest.mark.ci
def test_box_at_any_level_imports_no_module_of_the_host(folder: Path) -> None:
    levels = (0, *holding())
    code = (
        "from taskapp_kit.sandbox import Sandbox\n"
        f"for level in {levels}:\n"
        "    with Sandbox(level=level, allow_weak=True) as box:\n"
        "        print(box.run_sync('import random, json; print(json.dumps(random.Random(1).random() < 2))').stdout)"
    )
    assert python(folder, code).split() == ["true"] * len(levels)
    assert imported(folder) == []


def test_python_is_started_in_one_place() -> None:
    """No other module of the kit, of an environment or a template names the interpreter; boxes have one of their own, and so has an author's
    program (`from_program`), which imports what its author means."""
    package = Path(taskapp_kit.__file__).parent
    folders = (package, bundled_root("environments"), bundled_root("templates"))
    named = {
        path.relative_to(package.parent).as_posix()
        for folder in folders
        for path in folder.rglob("*.py")
        if "executable" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr == "executable"
    }
    assert named == {
        f"taskapp_kit/{file}"
        for file in (
            "system/child_python.py",
            "sandbox/interpreter.py",
            "sandbox/remote_inside.py",
            "interop/programs/program.py",
            "interop/programs/in_box.py",
        )
    }


WITHOUT_TRACING = """
import ctypes, os, sys
PR_CAPBSET_DROP = 24
if os.geteuid() == 0:  # leaves root as it is in most containers; an ordinary user has no capability
    for capability in (19, 21, 38):  # SYS_PTRACE, SYS_ADMIN, PERFMON
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.ci
@pytest.mark.skipif(sys.platform != "linux", reason="/proc shows environments on Linux only")
@pytest.mark.parametrize("reload", [("--reload",), pytest.param((), marks=pytest.mark.exhaustive)])
def test_no_process_of_a_server_shows_its_key_to_an_environment_in_a_worker(
    folder: Path, reload: tuple[str, ...]
) -> None:
    key = uuid.uuid4().hex
    flags = ("--store", "none", "--workers", "1", *reload)
    with serving(folder, "app.py", *flags, start=("-P", "-c", WITHOUT_TRACING), ENVIRONMENT_API_KEY=key) as served:
        served.key = key
        for environment in ("shared", "alone"):
            answer = rollout(served, environment)
            assert answer.status_code == 200, answer.text
            assert key not in answer.text
            assert "refused" in answer.text
    assert not (folder / "imported-with-the-key").exists()


def test_a_file_named_like_a_standard_module_is_named_where_its_import_fails(folder: Path) -> None:
    from taskapp_kit.declare.discovery import find_app
    from taskapp_kit.errors import DiscoveryError

    (folder / "other.py").write_text("from queue import what_the_author_wrote\n")
    with pytest.raises(DiscoveryError) as caught:
        find_app(str(folder / "other.py"))
    assert str(folder / "queue.py") in str(caught.value.hint)
