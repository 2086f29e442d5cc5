"""Runs inside a network namespace of its own, in which every address there is leads to this program: it counts who is called.

Prints, as JSON, a list of [exposure, address, code of the failure or "answered", addresses that were connected to].
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from typing import Any

import uvloop
from aiohttp.abc import AbstractResolver, ResolveResult
from raw_server import http, said  # this folder is where the program lies

from taskapp_kit.config import Settings
from taskapp_kit.rollout.models.client import HttpModelClient
from taskapp_kit.wire.chat.conversation import Endpoint, ModelFailed

PORTS = (80, 81, 8000)
NAMES: dict[str, list[list[str]]] = {  # name to what it leads to the first time, the second, …
    "public.example": [["93.184.216.34"]],
    "private.example": [["10.0.0.5"]],
    "loopback.example": [["127.0.0.1"]],
    "loopback6.example": [["::1"]],
    "mapped.example": [["::ffff:127.0.0.1"]],
    "nat64.example": [["64:ff9b::7f00:1"]],
    "linklocal6.example": [["fe80::1%lo"]],
    "metadata.example": [["169.254.169.254"]],
    "mixed.example": [["93.184.216.34", "10.0.0.5"]],
    "mixed6.example": [["::1", "93.184.216.34"]],
    "rebinding.example": [["93.184.216.34"], ["127.0.0.1"]],
    "to-metadata.example": [["93.184.216.34"], ["169.254.169.254"]],
}


class Table(AbstractResolver):
    """Names lead where NAMES says."""

    def __init__(self) -> None:
        self.asked: dict[str, int] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        answers = NAMES[host.lower()]
        at = self.asked[host] = self.asked.get(host, -1) + 1
        return [
            ResolveResult(
                hostname=host, host=address, port=port, proto=0, flags=socket.AI_NUMERICHOST,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
            )
            for address in answers[min(at, len(answers) - 1)]
        ]  # fmt: skip

    async def close(self) -> None:
        pass


class Trap:
    """Everything that is connected to."""

    def __init__(self) -> None:
        self.caught: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.caught.append(writer.get_extra_info("sockname")[0])
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split()[1]
            if path.startswith("/redirect/"):
                _, _, status, scheme, rest = path.split("/", 4)
                answer = http(int(status), b"", ("Location", f"{scheme}://{rest}"), ("Connection", "close"))
            else:
                answer = http(200, said(), ("Connection", "close"))
            writer.write(answer)
            await writer.drain()
        finally:
            writer.close()


async def main(calls: list[list[Any]]) -> list[list[Any]]:
    trap, told = Trap(), []
    for port in PORTS:
        await asyncio.start_server(trap.serve, "0.0.0.0", port)
        listening = socket.socket(socket.AF_INET6)
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(("::", port))
        await asyncio.start_server(trap.serve, sock=listening)
    for exposure, allow, urls in calls:
        client = HttpModelClient(exposure, Settings(inference_allow=tuple(allow)), resolver=Table())
        before, outcome = len(trap.caught), ""
        for url in urls:
            try:
                await client.chat(Endpoint(url), {"messages": []}, seconds=2)
                outcome = "answered"
            except ModelFailed as failed:
                outcome = failed.failure.code
        await client.close()
        await asyncio.sleep(0)
        told.append([exposure, urls[-1], outcome, trap.caught[before:]])
    return told


if __name__ == "__main__":
    for command in ("ip link set lo up", "ip route add local 0.0.0.0/0 dev lo", "ip -6 route add local ::/0 dev lo"):
        subprocess.run(command.split(), check=True)
    factory = uvloop.new_event_loop if sys.argv[1] == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        print(json.dumps(runner.run(main(json.loads(sys.stdin.read())))))
