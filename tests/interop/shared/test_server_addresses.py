"""How `from_openenv` and `from_ors` are told of a server and its key: mistakes are the app's problems, and no key is shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from taskapp_kit import DeclarationError, TaskApp
from taskapp_kit.asgi import build
from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import Unavailable
from taskapp_kit.interop.openenv import from_openenv
from taskapp_kit.interop.ors import from_ors
from taskapp_kit.serve.uvicorn_server import BackgroundServer

pytestmark = pytest.mark.server
KEY = "round-trip-key-88f1"
IMPORTERS = {"/openenv/adder": from_openenv, "": from_ors}
"""By the path of an environment."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    settings = Settings(environment_api_key=KEY, protocols=("openenv", "ors"))
    with BackgroundServer(build(find_app("examples/adder.py"), settings)) as running:
        yield running.url


def freeze(made: Any) -> None:
    app = TaskApp("of-a-server")
    app.environment("it", splits={"train": range(3)})(made)
    app.freeze()


@pytest.mark.parametrize("path", IMPORTERS)
@pytest.mark.parametrize(
    ("address", "headers", "found"),
    [
        ("", {"X-API-Key": "SERVER_KEY"}, "HTTP 401"),
        ("", {"X-API-Key": "sk-sentinel"}, "names no variable"),
        ("http://key:sentinel@127.0.0.1", {}, "has a key in its URL"),
        ("ws://here", {}, "ws://here"),
        ("http://127.0.0.1:9", {}, "127.0.0.1:9"),
    ],
)
def test_a_wrong_address_or_key_is_a_problem_of_the_app(
    server: str, path: str, address: str, headers: dict[str, str], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_KEY", "wrong-sentinel-key")
    with pytest.raises(DeclarationError, match=found) as refused:
        freeze(IMPORTERS[path]((address or server) + path, headers=headers))
    assert "sentinel" not in str(refused.value)


@pytest.mark.parametrize("path", IMPORTERS)
def test_a_variable_that_is_not_set_is_named(server: str, path: str) -> None:
    with pytest.raises(Unavailable, match="ABSENT_KEY"):
        IMPORTERS[path](server + path, headers={"X-API-Key": "ABSENT_KEY"})


def test_environments_and_tools_that_a_server_does_not_have(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", KEY)
    for options in ({"environment": "subtracter"}, {"sample": {"subtract": lambda rng: {}}}):
        with pytest.raises(DeclarationError, match=r"subtract"):
            freeze(from_ors(server, headers={"X-API-Key": "SERVER_KEY"}, **options))  # type: ignore[arg-type]
