"""The house's rules, read from the code: who may import whom, what an import loads, what names are."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import taskapp_kit

PACKAGE = Path(taskapp_kit.__file__).parent
ROOT = PACKAGE.parent
FILES = sorted(path for path in PACKAGE.rglob("*.py") if "_bundled" not in path.parts)

LAYERS = {
    "errors": 0,
    "config": 0,
    "child_python": 0,
    "private_files": 0,
    "contract": 0,
    "version": 0,
    "logs": 0,
    "declare": 1,
    "run": 2,
    "score": 2,
    "policy": 2,
    "store": 2,
    "sandbox": 2,
    "adapters": 2,
    "service": 3,  # the hall, and the files it was cut into:
    "planning": 3,
    "course": 3,
    "players": 3,
    "playing": 3,
    "live": 3,
    "sandboxed": 3,
    "places": 3,
    "group_scoring": 3,
    "store_state": 3,
    "replaying": 3,
    "stored_answer": 3,
    "retention": 3,
    "model_access": 3,
    "live_rollouts": 3,
    "journal": 3,
    "tickets": 3,
    "keeping": 3,
    "outcome": 3,
    "foreman": 3,
    "worker": 3,
    "sessions": 3,
    "rollout_log": 3,
    "measures": 3,
    "spans": 3,
    "tracing": 3,
    "serve": 4,
    "protocols": 4,
    "view": 4,
    "asgi": 5,
    "evaluate": 6,
    "deploy": 6,
    "testing": 6,
    "cli": 7,
}
WINGS = {"client": {"client"}, "backend": {"backend", "client", "store"}, "train": {"train", "client"}}
APART = ({"run", "score", "policy", "store", "sandbox", "adapters"}, {"serve", "protocols", "view"})
GROUND = {"errors", "config", "contract", "version"}
FASTAPI = {"serve", "protocols", "view", "asgi", "backend", "testing"}


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports_of(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every module that is imported, wherever in the file, and the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, "imports inside the package are absolute"
            yield node.module, node.lineno
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


def type_checking_only(tree: ast.AST) -> set[int]:
    """The lines under `if TYPE_CHECKING:`."""
    return {
        inner.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
        if hasattr(inner, "lineno")
    }


@functools.cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


@functools.cache
def imports(path: Path) -> list[tuple[str, int]]:
    return list(imports_of(trees()[path]))


def allowed(room: str, other: str) -> bool:
    if room == other or (other in GROUND and room not in GROUND):
        return True
    if room in WINGS:
        return other in WINGS[room] | GROUND
    if other in WINGS:
        return (other == "client" and LAYERS[room] >= 6) or room == "cli"
    if any({room, other} <= group for group in APART):
        return False
    return LAYERS[other] <= LAYERS[room]


def test_every_room_stands_in_the_plan() -> None:
    assert {room_of(path) for path in FILES} - {"__init__", "__main__"} <= set(LAYERS) | set(WINGS)


def test_a_room_imports_only_what_lies_below_it() -> None:
    wrong = []
    for path in FILES:
        room = room_of(path)
        if room in ("__init__", "__main__"):
            continue
        for name, line in imports(path):
            parts = name.split(".")
            if parts[0] != "taskapp_kit" or len(parts) == 1:
                continue
            sanctioned = path.name == "taskapp.py" and parts[1] == "asgi"
            known = parts[1] in LAYERS or parts[1] in WINGS
            if known and not allowed(room, parts[1]) and not sanctioned:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {room} imports {name}")
    assert not wrong


def test_the_rules_bite() -> None:
    assert not allowed("run", "policy")
    assert not allowed("policy", "score")
    assert not allowed("declare", "run")
    assert not allowed("contract", "declare")
    assert not allowed("serve", "protocols")
    assert not allowed("service", "serve")
    assert not allowed("client", "declare")
    assert not allowed("train", "service")
    assert allowed("service", "run")
    assert allowed("backend", "store")
    assert allowed("deploy", "client")


def test_the_ground_floor_imports_itself_downwards_only() -> None:
    order = ["version", "errors", "config", "contract"]
    for path in FILES:
        if room_of(path) in GROUND:
            for name, line in imports(path):
                parts = name.split(".")
                if parts[0] == "taskapp_kit" and len(parts) > 1:
                    assert parts[1] in order, f"{path}:{line} imports {name}"
                    assert room_of(path) == "contract" or parts[1] != "contract", f"{path}:{line} imports {name}"


def test_one_upward_import_is_sanctioned_and_it_stands_in_taskapp_asgi() -> None:
    found = []
    for path, tree in trees().items():
        if room_of(path) == "declare":
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef):
                    found += [
                        node.name for name, _ in imports_of(node) if name.split(".")[:2] == ["taskapp_kit", "asgi"]
                    ]
    assert set(found) == {"asgi"}


def test_fastapi_stands_only_at_the_doors() -> None:
    for path, tree in trees().items():
        skipped = type_checking_only(tree)
        for name, line in imports(path):
            if name.split(".")[0] in ("fastapi", "starlette") and line not in skipped:
                assert room_of(path) in FASTAPI, f"{path.relative_to(ROOT)}:{line} imports {name}"


def test_only_config_reads_the_environment() -> None:
    for path, tree in trees().items():
        if room_of(path) == "config":
            continue
        for node in ast.walk(tree):
            name = node.attr if isinstance(node, ast.Attribute) else node.name if isinstance(node, ast.alias) else ""
            assert name not in ("environ", "getenv", "environb", "putenv"), (
                f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            )


def test_nothing_dangerous() -> None:
    for path, tree in trees().items():
        where = path.relative_to(ROOT)
        for name, line in imports(path):
            assert name.split(".")[0] not in ("pickle", "marshal", "shelve", "dill", "cloudpickle"), (
                f"{where}:{line} imports {name}"
            )
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""
                assert called not in ("eval", "exec", "compile", "os.system", "__import__"), (
                    f"{where}:{node.lineno} calls {called}"
                )
                assert not called.endswith("yaml.load"), f"{where}:{node.lineno} calls {called}"
                shell = next((word.value for word in node.keywords if word.arg == "shell"), None)
                assert not (isinstance(shell, ast.Constant) and shell.value), f"{where}:{node.lineno} uses a shell"


def test_no_module_is_named_after_nothing() -> None:
    nothing = {"utils", "util", "helpers", "helper", "common", "core", "manager", "misc", "base", "stuff"}
    for path in FILES:
        assert not nothing & {part.removesuffix(".py") for part in path.relative_to(PACKAGE).parts}


def test_every_module_says_what_it_is() -> None:
    for path, tree in trees().items():
        assert ast.get_docstring(tree), path  # type: ignore[arg-type]


OPTIONAL = (
    "crafter",
    "reasoning_gym",
    "math_verify",
    "sympy",
    "numba",
    "numpy",
    "modal",
    "gymnasium",
    "sqlalchemy",
    "uvicorn",
    "click",
    "rich",
    "fastapi",
    "starlette",
    "pydantic",
    "httpx",
    "aiohttp",
    "yaml",
    "jinja2",
    "dotenv",
    "PIL",
    "torch",
    "prometheus_client",
    "opentelemetry",
)


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh process has loaded after this code."""
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return set(json.loads(ran.stdout.splitlines()[-1]))


def test_importing_the_kit_loads_the_declarations_only() -> None:
    loaded = loaded_by("import taskapp_kit")
    assert not loaded & set(OPTIONAL)
    own = {name for name in loaded if name.startswith("taskapp_kit.")}
    assert "taskapp_kit.contract.wire" not in own
    assert {name.split(".")[1] for name in own} <= {"contract", "declare", "errors", "version"}


def test_the_service_needs_no_front_entrance_and_no_database() -> None:
    loaded = loaded_by("import taskapp_kit.rollout.service")
    assert not loaded & (set(OPTIONAL) - {"pydantic", "dotenv"})
    rooms = {name.split(".")[1] for name in loaded if name.startswith("taskapp_kit.")}
    assert not rooms & {"serve", "asgi", "store", "cli", "deploy"}


def modules() -> list[str]:
    return [item.name for item in pkgutil.walk_packages([str(PACKAGE)], "taskapp_kit.") if "_bundled" not in item.name]


def test_what_a_module_promises_is_there() -> None:
    for name in ["taskapp_kit", *modules()]:
        if name.endswith("__main__"):
            continue
        module = importlib.import_module(name)
        promised = getattr(module, "__all__", None)
        if promised is not None:
            assert len(set(promised)) == len(promised), name
            assert [item for item in promised if not hasattr(module, item)] == [], name


def test_the_exported_names_are_exactly_all() -> None:
    tree = trees()[PACKAGE / "__init__.py"]
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == set(taskapp_kit.__all__)
    assert list(taskapp_kit.__all__) == sorted(taskapp_kit.__all__)
    namespace: dict[str, object] = {}
    exec("from taskapp_kit import *", namespace)
    assert set(namespace) - {"__builtins__"} == set(taskapp_kit.__all__)
