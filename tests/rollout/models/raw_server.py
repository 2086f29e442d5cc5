"""An HTTP server that sends the very bytes it is told to, and keeps what it was sent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import orjson

Sent = bytes | Callable[["Arrived"], bytes]


@dataclass(slots=True)
class Arrived:
    """One request: its first line, headers (names in small letters) and body."""

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class RawServer:
    port: int = 0
    requests: list[Arrived] = field(default_factory=list)
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/chat/completions"


def http(status: int, body: object = b"", *headers: tuple[str, str]) -> bytes:
    """An HTTP answer; what is not bytes becomes JSON."""
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    lines = [
        f"HTTP/1.1 {status} Told",
        f"Content-Length: {len(content)}",
        *(f"{name}: {text}" for name, text in headers),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + content


def said(content: str = "hello", **more: object) -> dict[str, object]:
    """A chat completion."""
    message = {"role": "assistant", "content": content}
    return {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], **more}


@contextlib.asynccontextmanager
async def raw_server(answers: Sequence[Sent], host: str = "127.0.0.1") -> AsyncIterator[RawServer]:
    """Sends one answer after the other, the last one again and again."""
    told = RawServer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {name.lower(): text for name, _, text in (line.partition(": ") for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                arrived = Arrived(head[0], headers, body)
                answer = answers[min(len(told.requests), len(answers) - 1)]
                told.requests.append(arrived)
                writer.write(answer(arrived) if callable(answer) else answer)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, host, 0)
    told.port = server.sockets[0].getsockname()[1]
    try:
        yield told
    finally:
        server.close()
