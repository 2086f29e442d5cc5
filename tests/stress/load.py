"""Many callers at once, from the process of the test: whole rollouts with aiohttp, and connections that are cut."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

from tests.stress.server import Server

Cut = Literal["close", "reset"]


@dataclass(slots=True)
class Told:
    """One answer: status, headers, JSON, and how long it took."""

    status: int
    headers: dict[str, str]
    body: dict[str, Any]
    seconds: float

    @property
    def error(self) -> dict[str, Any]:
        """The error that it tells."""
        error: dict[str, Any] = self.body["detail"]["error"]
        return error


def session(server: Server, timeout_seconds: float = 30.0) -> aiohttp.ClientSession:
    """A client of the server with as many connections as it needs."""
    return aiohttp.ClientSession(
        server.url,
        headers=server.headers,
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=timeout_seconds),
    )


async def ask(client: aiohttp.ClientSession, request: dict[str, Any]) -> Told:
    """One rollout. Raises aiohttp.ClientError when the connection breaks."""
    began = time.monotonic()
    async with client.post("/rollout", json=request) as answer:
        told = json.loads(await answer.read())
        headers = {name.lower(): text for name, text in answer.headers.items()}
        return Told(answer.status, headers, told, time.monotonic() - began)


async def ask_all(server: Server, requests: Iterable[dict[str, Any]]) -> list[Told]:
    """All at once; their answers in the same order."""
    async with session(server) as client:
        return await asyncio.gather(*(ask(client, request) for request in requests))


async def send(server: Server, request: dict[str, Any]) -> asyncio.StreamWriter:
    """A rollout that is asked for on a connection of its own; nobody reads the answer."""
    host, port = server.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(request).encode()
    head = (
        f"POST /rollout HTTP/1.1\r\nhost: {host}:{port}\r\nx-api-key: {server.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    return writer


def cut(writer: asyncio.StreamWriter, how: Cut) -> None:
    """The caller is gone: politely (FIN) or as one that crashed (RST)."""
    if how == "reset":
        there: socket.socket = writer.get_extra_info("socket")
        there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
