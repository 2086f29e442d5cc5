"""The mechanism of wire protocols: which exist, how they are selected, and that each can be removed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import taskapp_kit
from taskapp_kit.asgi import create
from taskapp_kit.config import Settings, load
from taskapp_kit.errors import ConfigError
from taskapp_kit.interop.protocols import load_protocols, protocol_names
from taskapp_kit.rollout.service import Service, ServiceSettings
from tests.serve.running_server import KEY, app, opened

PACKAGE = Path(taskapp_kit.__file__).parent
FRAMEWORKS = sorted(path.parent.name for path in PACKAGE.glob("interop/*/__init__.py"))


def test_every_package_with_a_module_protocol_is_a_protocol() -> None:
    assert protocol_names() == ["mcp", "nemo", "openenv", "ors"]


def test_protocols_are_selected_by_name_or_all_without_duplicates() -> None:
    assert load_protocols(()) == []
    assert [found.name for found in load_protocols(("openenv", "openenv"))] == ["openenv"]


def test_unknown_protocol_error_lists_the_protocols() -> None:
    with pytest.raises(ConfigError, match="'opnenv'") as refused:
        load_protocols(("opnenv",))
    assert refused.value.hint == "Did you mean 'openenv'?"
    with pytest.raises(ConfigError) as refused:
        create(Service(app, ServiceSettings()), Settings(environment_api_key=KEY, protocols=("xyz",)))
    assert "openenv" in refused.value.hint


def test_no_protocol_is_enabled_by_default(tmp_path: Path) -> None:
    assert load(folder=tmp_path, environ={}).protocols == ()
    found = load({"protocols": "openenv, all"}, folder=tmp_path, environ={"TASKAPP_PROTOCOLS": "x"})
    assert found.protocols == ("openenv", "all")


@pytest.mark.server
def test_without_the_setting_no_protocol_is_served_or_loaded() -> None:
    with opened() as running:
        assert running.client.get("/openenv/health").status_code == 404


@pytest.mark.process
def test_a_server_without_protocols_imports_none() -> None:
    code = (
        "import sys, taskapp_kit.asgi\nprint([name for name in sys.modules if name.startswith('taskapp_kit.interop.')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "['taskapp_kit.interop.protocols']"


@pytest.mark.ci
@pytest.mark.process
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_package_works_without_the_directory_of_a_framework(name: str, tmp_path: Path) -> None:
    copy = tmp_path / "taskapp_kit"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "_bundled"))
    shutil.rmtree(copy / "interop" / name)
    code = (
        "import importlib, pkgutil, sys, taskapp_kit\n"
        "for found in pkgutil.walk_packages(taskapp_kit.__path__, 'taskapp_kit.'):\n"
        "    if found.name == 'taskapp_kit.__main__' or found.name.startswith('taskapp_kit.train.'):\n"
        "        continue\n"
        "    try:\n"
        "        importlib.import_module(found.name)\n"
        "    except ModuleNotFoundError as missing:\n"  # an optional package
        "        assert not missing.name.startswith('taskapp_kit'), missing\n"
        "from taskapp_kit.interop.protocols import protocol_names\n"
        "print(taskapp_kit.__file__, protocol_names())\n"
    )
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert str(copy) in ran.stdout and f"'{name.removesuffix('_gym')}'" not in ran.stdout


def test_every_protocol_has_client_lines_without_a_key() -> None:
    for protocol in load_protocols(protocol_names()):
        clients = protocol.clients("http://host:1", ["one", "two"])
        assert protocol.summary and clients
        assert all("host:1" in lines.text and "ENVIRONMENT_API_KEY" in lines.text for lines in clients)
