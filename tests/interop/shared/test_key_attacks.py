"""The attacks on the key, at every route and socket of every protocol: none gets in, none leaves a trace."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator

import pytest
from starlette.routing import BaseRoute, Route, WebSocketRoute

from taskapp_kit.asgi import create
from taskapp_kit.config import Settings
from taskapp_kit.interop.protocols import protocol_names
from taskapp_kit.rollout.service import Service
from tests.serve.load_test import SECOND, attacked_server, load_test, parsed
from tests.serve.running_server import KEY, RunningServer, app
from tests.serve.test_auth import BAD, GOOD, Headers, message, one_letter_off

pytestmark = pytest.mark.server

SESSIONS = "sessions"
"""Our own routes, in addition to the protocols."""
UPGRADE: Headers = [
    (b"Connection", b"Upgrade"),
    (b"Upgrade", b"websocket"),
    (b"Sec-WebSocket-Version", b"13"),
    (b"Sec-WebSocket-Key", b"dGhlIHNhbXBsZSBub25jZQ=="),
]
LONGEST_LINE = 8192
"""Of a head with an upgrade, in bytes: a longer one ends the connection before the key is looked at."""
NEARLY: dict[str, Headers] = {
    **{f"right but for letter {place}": [(b"X-API-Key", one_letter_off(KEY, place))] for place in range(len(KEY))},
    **{
        f"the first {length} letters of the second": [(b"Authorization", b"Bearer " + SECOND[:length].encode())]
        for length in range(1, len(SECOND))
    },
}
WITHOUT_A_KEY: dict[str, Headers] = {**BAD, **NEARLY}


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    """A server with every protocol, for the attacks of this file."""
    with attacked_server(protocols=("all",)) as found:
        yield found


def routes_of(name: str) -> list[BaseRoute]:
    served = create(Service(app), Settings(environment_api_key=KEY, protocols=("all",)))
    return [route for route in served.routes if f"{getattr(route, 'path', '')}/".startswith(f"/{name}/")]


def filled(path: str, session_id: str) -> str:
    """The path with an open session, an environment that there is, and anything else."""
    known = {"session_id": session_id, "environment": "counter", "env": "counter", "env_name": "counter"}
    return re.sub(r"{(\w+)(:\w+)?}", lambda found: known.get(found[1], "x"), path)


@pytest.mark.ci(keep=2)
@pytest.mark.parametrize("name", [SESSIONS, *protocol_names()])
def test_attacks_on_the_key_are_denied(running: RunningServer, name: str, caplog: pytest.LogCaptureFixture) -> None:
    session = running.client.post("/sessions").json()["session_id"]
    before = running.client.get(f"/sessions/{session}").json()
    attacked = 0
    caplog.set_level(
        logging.WARNING, logger="uvicorn.error"
    )  # as `serve` sets it: below, it logs the headers of sockets
    with load_test(running, caplog) as attack:
        for route in routes_of(name):
            if isinstance(route, Route):
                requests = [
                    (verb, filled(route.path, session), False)
                    for verb in sorted(route.methods or ("DELETE", "GET", "POST"))
                ]
            else:
                assert isinstance(route, WebSocketRoute), route
                requests = [("GET", filled(route.path, session), True)]
            for verb, path, is_socket in requests:
                attacked += 1
                refused = (401, 403) if is_socket else (401,)
                more, body = (UPGRADE, b"") if is_socket else ([(b"Content-Type", b"application/json")], b"{}")
                for attempt, headers in WITHOUT_A_KEY.items():
                    if is_socket and any(len(value) > LONGEST_LINE for _, value in headers):
                        continue
                    answer = attack.send(message(verb.encode(), path.encode(), [*headers, *more], body))
                    assert parsed(answer).status_code in refused, (attempt, verb, path, answer)
    assert attacked >= 2
    assert running.client.get(f"/sessions/{session}").json() | {"idle_seconds": 0} == before | {"idle_seconds": 0}
    running.client.delete(f"/sessions/{session}")
    assert len(running.service.sessions) == 0


@pytest.mark.parametrize("way", GOOD)
def test_correct_key_opens_a_socket(running: RunningServer, way: str) -> None:
    with socket.create_connection((running.server.host, running.server.port), timeout=5) as connection:
        connection.sendall(message(b"GET", b"/openenv/counter/ws", [*GOOD[way], *UPGRADE]))
        assert connection.recv(12) == b"HTTP/1.1 101"
