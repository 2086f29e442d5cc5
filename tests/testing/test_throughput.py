"""How quick the mock is, printed (`pytest -s`); asserted is only that nothing is lost, whatever the number of connections."""

from __future__ import annotations

import asyncio
import json
import re

import psutil
import pytest

from taskapp_kit.testing import MockModel

from .conversation import ADD, body

pytestmark = pytest.mark.process

ANSWERED = re.compile(rb"HTTP/1.1 200 OK\r\n.*?content-length: (\d+)\r\n.*?\r\n\r\n", re.DOTALL)


class Asker(asyncio.Protocol):
    """One connection that asks `count` times, each time when the last answer is there."""

    def __init__(self, request: bytes, count: int, done: asyncio.Future[None]) -> None:
        self.request, self.left, self.done, self.got = request, count, done, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.got += data
        head = ANSWERED.match(self.got)
        if head is not None and len(self.got) == head.end() + int(head[1]):
            assert b'"tool_calls"' in self.got
            self.got, self.left = b"", self.left - 1
            if self.left:
                self.transport.write(self.request)
            else:
                self.transport.close()
                self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError(f"closed with {self.left} answers to come"))


@pytest.mark.parametrize(("connections", "count", "latency_seconds"), [(16, 100, 0.0), (512, 3, 0.05)])
def test_every_question_is_answered(connections: int, count: int, latency_seconds: float) -> None:
    async def load(port: int) -> None:
        loop = asyncio.get_running_loop()
        done = [loop.create_future() for _ in range(connections)]
        for index, future in enumerate(done):
            content = json.dumps(body(f"observation {index}", tools=[ADD], tool_choice="required")).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: mock\r\ncontent-length: {len(content)}\r\n\r\n"
            request = head.encode() + content
            await loop.create_connection(
                lambda request=request, future=future: Asker(request, count, future), "127.0.0.1", port
            )
        await asyncio.wait_for(asyncio.gather(*done), 60)

    with MockModel.process(latency_seconds=latency_seconds) as model:
        before = sum(psutil.Process(model.pid).cpu_times()[:2])
        asyncio.run(load(int(model.root.rpartition(":")[2])))
        seconds = sum(psutil.Process(model.pid).cpu_times()[:2]) - before
        answered = connections * count
        print(
            f"\n{connections} connections, {latency_seconds * 1000:.0f} ms: {answered / max(seconds, 0.01):.0f} answers per CPU second"
        )
        assert model.stats()["answers"] == answered
