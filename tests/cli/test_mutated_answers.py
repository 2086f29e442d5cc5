"""One value after the other of a server's answers is something else: commands stay calm, and the terminal is left alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from taskapp_kit.serve.uvicorn_server import BackgroundServer
from tests.cli.conftest import Run, Served

pytestmark = pytest.mark.server

EVIL = "\x1b]52;c;cm0gLXJmIH4K\x07\x1b[2J\x9b31m\u202e"
OTHERS = (EVIL, 1e300, -1, [], {}, None, True)
Path = tuple[str | int, ...]


class Between:
    """A server in front of another one, in whose answer of one route the value at one place is replaced."""

    def __init__(self, upstream: str, key: str) -> None:
        self.upstream = httpx.Client(base_url=upstream, headers={"X-API-Key": key}, trust_env=False)
        self.answers: dict[str, Any] = {}
        self.place: tuple[str, Path, Any] | None = None
        self.app = Starlette(routes=[Route("/{path:path}", self.answer, methods=["GET", "POST", "HEAD", "DELETE"])])

    async def answer(self, request: Request) -> Response:
        path = request.url.path
        given = self.upstream.request(
            request.method, str(request.url.path), params=request.query_params, content=await request.body(),
            headers={name: value for name, value in request.headers.items() if name in ("content-type", "idempotency-key")},
        )  # fmt: skip
        try:
            body = given.json()
        except ValueError:
            return Response(given.content, given.status_code)
        self.answers[path] = copy.deepcopy(body)
        if self.place is not None and self.place[0] == path:
            _, where, value = self.place
            at = body
            for step in where[:-1]:
                at = at[step]
            at[where[-1]] = value
        return JSONResponse(body, given.status_code)


def places(body: Any, above: Path = ()) -> Iterator[Path]:
    """The place of every value; of a list the first two."""
    members = body.items() if isinstance(body, dict) else enumerate(body[:2]) if isinstance(body, list) else ()
    for name, value in members:
        yield (*above, name)
        yield from places(value, (*above, name))


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.exhaustive), 23], ids=["all", "one of 23"])
def test_no_answer_ends_in_a_traceback_or_steers_the_terminal(run: Run, adder_server: Served, step: int) -> None:
    between = Between(adder_server.url, adder_server.key)
    with BackgroundServer(between.app) as server:
        commands = (
            ("rollout", server.url, "--seed", "1", "--policy", "gold"),
            ("info", server.url),
            ("show", server.url, "--worst", "1", "--full"),
        )
        for command in commands:
            between.place, between.answers = None, {}
            assert run(*command, ENVIRONMENT_API_KEY=adder_server.key).exit_code == 0
            answers = dict(between.answers)
            tried = [
                (path, where, value) for path, body in answers.items() for where in places(body) for value in OTHERS
            ]
            problems = []
            for between.place in tried[::step]:
                done = run(*command, ENVIRONMENT_API_KEY=adder_server.key)
                if not isinstance(done.exception, SystemExit | None):
                    problems.append(f"{command[0]} {between.place}: {done.exception!r}")
                if set(done.output) & set("\x1b\x9b\x07\u202e"):
                    problems.append(f"{command[0]} {between.place}: escapes")
            assert problems == [], "\n".join(problems)
