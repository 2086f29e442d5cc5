"""A backend that plays a script, and misbehaves where it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from taskapp_kit.client import BackendClient
from tests.client.listening import drop, listening

KEY = "canary-backend-key-2342"
Trouble = str | int
"""`drop`, `truncated`, `slow`, `html`, or a status."""


@dataclass
class ScriptedBackend:
    """One job, `job_1`. statuses: one for each look, the last one again and again. events, points: what it has.

    families: under which the job's routes lie; sse: under which its stream lies. sse_cut: the stream breaks after so many
    frames; sse_skips: numbers that it leaves out. troubles: what happens to the next requests, by `VERB path-tail`.
    """

    statuses: list[dict[str, Any]] = field(default_factory=lambda: [{"status": "succeeded"}])
    events: list[dict[str, Any]] = field(default_factory=list)
    points: list[dict[str, Any]] = field(default_factory=list)
    families: tuple[str, ...] = ("rl",)
    sse: tuple[str, ...] = ()
    sse_cut: int | None = None
    sse_hangs: bool = False
    sse_skips: tuple[int, ...] = ()
    sse_twice: bool = False
    grows: int = 0
    """Every look at the events shows so many more of them; 0: all at once."""
    late: int = 0
    """So many events appear only when the last status has been looked at."""
    troubles: dict[str, list[Trouble]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    posts: list[tuple[str, Any, dict[str, str]]] = field(default_factory=list)
    any_ok: bool = True
    looks: int = 0
    shown: int = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path.removeprefix("/api/")
        self.asked.append(f"{request.method} {path}")
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.json_response({"detail": f"wrong key {request.headers.get('Authorization')}"}, status=401)
        if request.method == "POST":
            self.posts.append((path, await request.json(), dict(request.headers)))
        for name, queue in self.troubles.items():
            if queue and f"{request.method} {path}".endswith(name):
                return await _trouble(request, queue.pop(0))
        if not request.path.startswith("/api/"):
            return _missing()
        if path == "health":
            return web.json_response({"status": "ok"})
        if request.method == "POST":
            return self._written(path)
        if path == "v1/crypto/public-key":
            return web.json_response({"public_key": "abc=", "alg": "libsodium.sealedbox.v1"})
        if path.startswith("rl/services/"):
            return web.json_response({"trainer_id": request.path.rpartition("/")[2]})
        family, _, rest = path.partition("/")
        if rest == "jobs/job_1/events/stream":
            return await self._stream(request) if family in self.sse else _missing()
        if family not in self.families:
            return _missing()
        return self._read(rest, request.query)

    def _written(self, path: str) -> web.Response:
        if path == "rl/jobs":
            return web.json_response({"job_id": "job_1", "status": "queued"}, status=201)
        if path == "rl/jobs/job_1/cancel":
            self.statuses, self.looks = [{"status": "cancelled"}], 0
            return web.json_response({"job_id": "job_1", "status": "cancelled"})
        if path in ("rl/verify_task_app", "v1/env-keys", "rl/jobs/job_1/start"):
            return web.json_response({"any_ok": self.any_ok, "stored": True})
        return _missing()

    def _read(self, rest: str, query: Any) -> web.Response:
        limit = int(query.get("limit", 200))
        if rest == "jobs":
            return web.json_response({"jobs": [{"job_id": "job_1"}]})
        if rest == "jobs/job_1":
            self.looks += 1
            status = self.statuses[min(self.looks, len(self.statuses)) - 1]
            return web.json_response({"job_id": "job_1", **status})
        if rest == "jobs/job_1/events":
            self.shown += self.grows
            there = self.events[: self.shown] if self.grows else self.events
            if self.looks < len(self.statuses):
                there = there[: len(self.events) - self.late]
            found = [event for event in there if event["seq"] > int(query["since_seq"])]
            return web.json_response({"events": found[:limit], "next_seq": 0})
        if rest == "jobs/job_1/metrics":
            found = [point for point in self.points if point["step"] > int(query["after_step"])]
            return web.json_response({"points": found[:limit]})
        if rest == "jobs/job_1/timeline":
            return web.json_response({"events": [{"phase": "queued"}]})
        return _missing()

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        sent = 0
        for event in self.events:
            if event["seq"] <= int(request.query["since_seq"]) or event["seq"] in self.sse_skips:
                continue
            if self.sse_cut is not None and sent >= self.sse_cut:
                await asyncio.sleep(0.05)  # what was written is on its way
                if self.sse_hangs:
                    await asyncio.sleep(60)
                return drop(request)  # type: ignore[return-value]
            frame = f"event: {event['type']}\nid: {event['seq']}\ndata: ".encode() + orjson.dumps(event) + b"\n\n"
            await response.write(b": alive\n\n" + frame * (2 if self.sse_twice else 1))
            sent += 1
        return response


async def _trouble(request: web.Request, what: Trouble) -> web.StreamResponse:
    if isinstance(what, int):
        return web.Response(status=what, text="<html>secret-page</html>")
    if what == "drop":
        return drop(request)
    if what == "slow":
        await asyncio.sleep(60)
    if what == "html":
        return web.Response(text="<html>secret-page</html>", content_type="text/html")
    response = web.StreamResponse(headers={"Content-Length": "4000", "Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"job_id": "job_1", "status": "succ')
    return drop(request)


def _missing() -> web.Response:
    return web.json_response({"detail": "Not Found"}, status=404)


def numbered(*kinds: str, first: int = 1) -> list[dict[str, Any]]:
    """Events of these types, numbered from `first` on."""
    return [
        {"seq": seq, "type": kind, "message": kind, "job_id": "job_1", "data": {}}
        for seq, kind in enumerate(kinds, first)
    ]


RUN = numbered("rl.job.created", "rl.train.started", *["rl.train.step"] * 7, "rl.eval.summary", "rl.job.completed")


def asked(app: web.Application, what: Callable[[BackendClient], Awaitable[Any]], key: str = KEY, **options: Any) -> Any:
    """What is returned for a client of a backend."""

    async def once(url: str) -> Any:
        async with BackendClient(url, key, **options) as client:
            return await what(client)

    with listening(app) as url:
        return asyncio.run(asyncio.wait_for(once(url), 60))
