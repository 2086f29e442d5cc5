"""A gateway as Modal's: it plays a POST on, and answers with 303 until its result is there. It can misbehave."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from tests.client.listening import drop

CALL = "__gateway_call_id"


@dataclass
class Gateway:
    """hops: redirects before the result. drops: how many times in a row the GET of that hop is dropped. slow: seconds
    by which the first GET of that hop is late. broken: a status that the first GET of that hop is answered with.
    """

    upstream: str
    hops: int = 0
    drops: dict[int, int] = field(default_factory=dict)
    slow: dict[int, float] = field(default_factory=dict)
    broken: dict[int, int] = field(default_factory=dict)
    drop_posts: int = 0
    post_status: int = 0
    """What the first POST is answered with, after it was played on."""
    once: bool = False
    """A result can be read once, as Modal's."""
    location: str = ""
    posts: int = 0
    gets: list[int] = field(default_factory=list)
    seen: list[tuple[str, str | None, str | None, bytes]] = field(default_factory=list)
    asked_for: list[str | None] = field(default_factory=list)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/rollout", self._post)
        app.router.add_get("/rollout", self._result)
        app.router.add_get("/{rest:.*}", self._through)
        app.on_startup.append(self._start)
        app.on_cleanup.append(self._end)
        return app

    async def _start(self, _: web.Application) -> None:
        self.session = aiohttp.ClientSession()
        self.calls: dict[str, asyncio.Task[tuple[int, bytes, dict[str, str]]]] = {}
        self.tries: Counter[int] = Counter()
        self.read: set[str] = set()

    async def _end(self, _: web.Application) -> None:
        await asyncio.wait_for(asyncio.gather(*self.calls.values(), return_exceptions=True), 30)
        await self.session.close()

    async def _post(self, request: web.Request) -> web.StreamResponse:
        self.posts += 1
        self.asked_for.append(request.headers.get("Prefer"))
        number = str(self.posts)
        body = await request.read()
        self.calls[number] = asyncio.create_task(self._play(body, request.headers))
        if self.posts <= self.drop_posts:
            return drop(request)
        if self.post_status and self.posts == 1:
            return web.Response(status=self.post_status, text="<html>gateway</html>")
        return await self._hop(number, 0)

    async def _result(self, request: web.Request) -> web.StreamResponse:
        hop = int(request.query["hop"])
        self.gets.append(hop)
        self.seen.append((request.method, request.headers.get("X-API-Key"), request.headers.get("Content-Type"),
                          await request.read()))  # fmt: skip
        self.tries[hop] += 1
        first = self.tries[hop] == 1
        if self.tries[hop] <= self.drops.get(hop, 0):
            return drop(request)
        if first and hop in self.slow:
            await asyncio.sleep(self.slow[hop])
        if first and hop in self.broken:
            return web.Response(status=self.broken[hop], text="<html>gateway</html>")
        return await self._hop(request.query[CALL], hop)

    async def _hop(self, number: str, hop: int) -> web.StreamResponse:
        if hop < self.hops:
            where = self.location or f"/rollout?{CALL}={number}&hop={hop + 1}"
            return web.Response(status=303, headers={"Location": where})
        if number in self.read:
            return web.json_response({"detail": "no such call"}, status=404)
        status, body, headers = await asyncio.shield(self.calls[number])
        if self.once:
            self.read.add(number)
        return web.Response(status=status, body=body, headers=headers)

    async def _through(self, request: web.Request) -> web.StreamResponse:
        async with self.session.get(self.upstream + request.raw_path, headers=_kept(request.headers)) as answer:
            return web.Response(status=answer.status, body=await answer.read(), headers=_kept(answer.headers))

    async def _play(self, body: bytes, headers: object) -> tuple[int, bytes, dict[str, str]]:
        async with self.session.post(self.upstream + "/rollout", data=body, headers=_kept(headers)) as answer:
            return answer.status, await answer.read(), _kept(answer.headers)


def _kept(headers: object) -> dict[str, str]:
    names = {"x-api-key", "content-type", "idempotency-key", "prefer", "location", "retry-after"}
    return {name: value for name, value in headers.items() if name.lower() in names}  # type: ignore[attr-defined]
