"""The four things that a task app on this machine can be made from."""

from __future__ import annotations

import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from taskapp_kit import TaskApp
from taskapp_kit.config import Settings
from taskapp_kit.deploy.local.app_source import AppSource, find_source
from taskapp_kit.errors import BadArgument, ConfigError, DeclarationError, DiscoveryError, FileMissing, Unavailable
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from tests.deploy import tiny_app

NAMES = ("app", "config", "config_factory", "task_app_path")

SDK = """
import signal

class TaskAppConfig:
    def __init__(self, app_id, rollout=None):
        self.app_id, self.rollout = app_id, rollout

def create_task_app(config):
    async def app(scope, receive, send):
        if scope["type"] == "http":
            body = config.app_id.encode()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})
    return app

def handler(number, frame):
    pass
handler.__module__ = "synth_ai.sdk.task.in_process"
signal.signal(signal.SIGINT, handler)   # as the real one does when it is imported
signal.signal(signal.SIGTERM, handler)
"""

SYNTH_FILE = """
from {module} import TaskAppConfig
def rollout(request, http_request):
    return {{}}
def build_config():
    return TaskAppConfig("theirs", rollout)
"""


class Config:
    """Looks like theirs."""

    app_id = "x"

    def rollout(self) -> None: ...


def found(**given: Any) -> AppSource:
    return find_source(**{**dict.fromkeys(NAMES), **given})


def kit_file(folder: Path, name: str = "tiny", file: str = "mine.py", more: str = "") -> Path:
    path = folder / file
    text = Path(tiny_app.__file__).read_text()
    path.write_text(text.replace('TaskApp("tiny"', f"TaskApp({name!r}") + more)
    return path


@pytest.fixture(autouse=True)
def modules() -> Iterator[None]:
    """What a test imports is forgotten after it."""
    before, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("_taskapp_", "synth_ai")):
            del sys.modules[name]
    sys.path[:] = path


@pytest.fixture(params=["synth_ai.sdk.task", "synth_ai.task"])
def sdk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Stands in for Synth's package, which is not installed beside the kit; the module that it has its server in."""
    folder = tmp_path / "site"
    for part in request.param.split("."):
        folder = folder / part
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text("")
    (folder / "server.py").write_text(SDK)
    sys.path.insert(0, str(tmp_path / "site"))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield f"{request.param}.server"
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_task_app_and_the_ways_to_name_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = kit_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    for reference in (file, str(file), f"{file}:app", "mine.py", "mine.py:app", tmp_path / "mine.py"):
        source = found(task_app_path=reference)
        assert (source.name, source.ours) == ("tiny", True)
        assert isinstance(source.app, TaskApp)
    assert found(app=source.app) == source
    assert found(config_factory=lambda: source.app) == source
    assert found(task_app_path="crafter").name == "crafter"


@pytest.mark.server
def test_a_kit_app_takes_its_key_from_settings(tmp_path: Path) -> None:
    asgi = found(task_app_path=kit_file(tmp_path)).asgi(Settings(environment_api_key="one-key"), "public")
    with BackgroundServer(asgi) as server:
        statuses = [
            httpx.get(f"{server.url}/health", headers={"X-API-Key": key}).status_code for key in ("one-key", "x")
        ]
    assert statuses == [200, 401]


def test_any_asgi_application() -> None:
    starlette = Starlette()
    source = found(app=starlette)
    assert (source.ours, source.asgi(Settings(), "public")) == (False, starlette)

    async def plain(scope: Any, receive: Any, send: Any) -> None:
        """An application that is a function."""

    assert found(app=plain).app is plain
    assert found(config_factory=lambda: starlette).app is starlette


def test_an_application_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "asgi.py"
    file.write_text("from starlette.applications import Starlette\napp = Starlette()\nother = Starlette()\n")
    assert type(found(task_app_path=file).app).__name__ == "Starlette"
    source = found(task_app_path=f"{file}:other")
    assert source.app is sys.modules[next(name for name in sys.modules if name.startswith("_taskapp_asgi"))].other


@pytest.mark.server
def test_a_build_config_file_is_served_by_their_package(tmp_path: Path, sdk: str) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    file = tmp_path / "theirs.py"
    file.write_text(SYNTH_FILE.format(module=sdk))
    by_path = found(task_app_path=file)
    module = sys.modules[next(name for name in sys.modules if name.startswith("_taskapp_theirs"))]
    sources = [
        by_path,
        found(task_app_path=f"{file}:build_config"),
        found(config_factory=module.build_config),
        found(config=module.build_config()),
    ]
    assert [(source.name, source.ours) for source in sources] == [("theirs", False)] * 4
    with BackgroundServer(by_path.asgi(Settings(), "public")) as server:
        assert httpx.get(server.url).text == "theirs"
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_an_authors_own_signal_handler_stays(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    more = "import signal\nsignal.signal(signal.SIGTERM, lambda number, frame: None)\n"
    try:
        found(task_app_path=kit_file(tmp_path, more=more))
        assert signal.getsignal(signal.SIGTERM) is not before
    finally:
        signal.signal(signal.SIGTERM, before)


def test_their_package_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "theirs.py"
    file.write_text(SYNTH_FILE.format(module="synth_ai.sdk.task.server"))
    with pytest.raises(Unavailable, match=r"theirs\.py .*pip install synth-ai"):
        found(task_app_path=file)
    with pytest.raises(Unavailable, match=r"^config .*pip install synth-ai"):
        found(config=Config())


def test_their_package_lacks_something(tmp_path: Path, sdk: str) -> None:
    (tmp_path / "site" / Path(*sdk.split(".")).with_suffix(".py")).write_text("import celery_of_theirs\n")
    with pytest.raises(Unavailable, match="synth-ai .*celery_of_theirs"):
        found(config=Config())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "exactly one of app, config, config_factory and task_app_path, but none is set"),
        ({"app": 1, "task_app_path": "a.py"}, ", but app and task_app_path are set"),
        ({"app": 3}, r"^app .*\bint\. .*TaskApp"),
        ({"app": TaskApp}, r"^app .*\btype\. .*TaskApp"),
        ({"config": {"app_id": "x"}}, r"^config .*\bdict\. "),
        ({"config_factory": "build"}, r"^config_factory .*\bstr\. "),
        ({"config_factory": lambda: None}, r"^config_factory\(\) .*\bNoneType\. "),
        ({"task_app_path": ""}, r"^task_app_path .*my_task_app\.py"),
    ],
)
def test_what_is_no_source(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadArgument, match=sentence) as raised:
        found(**given)
    assert isinstance(raised.value, ValueError)
    assert isinstance(raised.value, ConfigError)


def test_a_method_of_the_app_is_not_the_app(tmp_path: Path) -> None:
    app = found(task_app_path=kit_file(tmp_path)).app
    assert isinstance(app, TaskApp)
    with pytest.raises(BadArgument, match=r"^app .*\bmethod\. .*TaskApp itself"):
        found(app=app.asgi)


def test_a_factory_that_is_async_or_breaks() -> None:
    async def later() -> None:
        """Too late."""

    def broken() -> None:
        raise LookupError("no data here")

    with pytest.raises(BadArgument, match="config_factory.*async"):
        found(config_factory=later)
    with pytest.raises(DiscoveryError, match=r"config_factory\(\).*LookupError: no data here"):
        found(config_factory=broken)


def test_a_factory_or_a_file_that_exits_ends_nobody(tmp_path: Path) -> None:
    with pytest.raises(DiscoveryError, match=r"config_factory\(\).*SystemExit: 0"):
        found(config_factory=lambda: sys.exit(0))
    file = tmp_path / "exits.py"
    file.write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(DiscoveryError, match=r"exits.py:2: SystemExit: 0"):
        found(task_app_path=file)


def test_modules_that_are_none_or_something_else_are_no_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sys.modules[name] = None` forbids an import; some packages put objects of their own there."""
    monkeypatch.setitem(sys.modules, "forbidden_here", None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "object_here", object())  # type: ignore[arg-type]
    file = tmp_path / "empty.py"
    file.write_text("x = 1\n")
    with pytest.raises(DiscoveryError, match=r"empty\.py .*`build_config`"):
        found(task_app_path=file)


def test_a_file_that_is_not_there_is_a_file_not_found_error(tmp_path: Path) -> None:
    for reference in (tmp_path / "nix.py", str(tmp_path / "nix.py:app"), tmp_path / "nix"):
        with pytest.raises(FileNotFoundError, match="nix") as raised:
            found(task_app_path=reference)
        assert isinstance(raised.value, FileMissing)
        assert raised.value.hint


def test_a_file_that_breaks_or_makes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("x = 1\nraise LookupError('no data')\n")
    with pytest.raises(DiscoveryError, match=r"broken.py:2: LookupError: no data"):
        found(task_app_path=file)
    file = tmp_path / "empty.py"
    file.write_text("x = 1\n")
    with pytest.raises(DiscoveryError, match=r"empty\.py .*TaskApp, .*`build_config`"):
        found(task_app_path=file)
    with pytest.raises(DiscoveryError, match="'y'"):
        found(task_app_path=f"{file}:y")
    both = kit_file(tmp_path, file="both.py", more='second = TaskApp("second", version="1")\n')
    with pytest.raises(DiscoveryError, match=r"both\.py .*: app, second\b"):
        found(task_app_path=both)
    with pytest.raises(DiscoveryError, match="'craftr'.*'crafter'"):
        found(task_app_path="craftr")


def test_a_file_with_a_mistake_tells_all_of_it(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text('from taskapp_kit import TaskApp\napp = TaskApp("wrong", version="1")\n')
    with pytest.raises(DeclarationError, match=r"'wrong' .*\n.*wrong\.py:2:"):
        found(task_app_path=file).asgi(Settings(), "local")


def test_a_file_is_run_once(tmp_path: Path) -> None:
    file = tmp_path / "counted.py"
    file.write_text(
        textwrap.dedent("""
        from pathlib import Path
        from starlette.applications import Starlette
        with open(Path(__file__).with_name("runs"), "a") as runs:
            runs.write("x")
        def build_config():
            return Starlette()
    """)
    )
    for _ in range(2):
        found(task_app_path=file)
    assert (tmp_path / "runs").read_text() == "x"
