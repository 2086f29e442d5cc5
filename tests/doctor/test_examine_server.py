"""`taskapp doctor URL --load` against real servers: a sound one, and one that lets anyone in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.asgi import build
from taskapp_kit.config import load
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.doctor.examine_server import examine_server
from taskapp_kit.doctor.finding import DoctorFinding
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.store import open_store

ADDER = Path(__file__).parents[2] / "examples" / "adder.py"
KEY = "a-key-for-the-doctor-0123456789"
pytestmark = pytest.mark.server


def examined(application: Any, key: str | None = KEY) -> dict[str, DoctorFinding]:
    async def all_of_them(url: str) -> list[DoctorFinding]:
        return [finding async for finding in examine_server(url, key)]

    with BackgroundServer(application) as server:
        return {item.name: item for item in asyncio.run(all_of_them(server.url))}


def served(store: str | None = None) -> Any:
    return build(find_app(str(ADDER)), replace(load({"environment_api_key": KEY}), store=store), exposure="local")


def test_a_sound_server_passes_and_the_key_is_not_shown(tmp_path: Path) -> None:
    store = str(tmp_path / "rollouts.db")
    found = examined(served(store))
    assert {name: item.status for name, item in found.items()} == dict.fromkeys(
        ("auth", "errors", "limits", "same-seed", "at-once"), "ok"
    )
    assert KEY not in str(found)
    assert asyncio.run(open_store(store).recent()) == [], "trials are not stored"


class WithoutAKey:
    """The app behind a proxy that adds the key to every request."""

    def __init__(self, application: Any) -> None:
        self._application = application

    async def __call__(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        if scope["type"] == "http":
            headers = [item for item in scope["headers"] if item[0] != b"x-api-key"]
            scope = {**scope, "headers": [*headers, (b"x-api-key", KEY.encode())]}
        await self._application(scope, receive, send)


def test_a_server_that_lets_anyone_in_is_caught() -> None:
    found = examined(WithoutAKey(served()))
    assert found["auth"].status == "wrong" and "/health without a key" in found["auth"].found
    assert found["errors"].status == "ok"
