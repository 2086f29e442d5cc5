"""A client of its own that asks /health again and again: the program, and how it is run beside a load."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import sys
import time
from urllib.parse import urlsplit

from bench.processes import ROOT, BenchFailed, Server

PAUSE_SECONDS = 0.05


class HealthProbe:
    """Asks from `with` to the end of the block, in a process of its own: another's load would be taken for the server's.

    latencies_ms: of all answers, once the block has ended. Raises BenchFailed at an answer other than 200.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.latencies_ms: list[float] = []

    async def __aenter__(self) -> HealthProbe:
        pipe = asyncio.subprocess.PIPE
        variables = {"PATH": os.environ["PATH"], "PROBED_KEY": self._server.key}
        command = [sys.executable, "-m", "bench.health_probe", self._server.address]
        self._process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env=variables, stdin=pipe, stdout=pipe, stderr=pipe, limit=2**26
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        told, complaint = await self._process.communicate(b"\n")
        if self._process.returncode != 0:
            raise BenchFailed(f"/health was not answered well: {complaint.decode(errors='replace')[-500:]}")
        self.latencies_ms = json.loads(told)


def main() -> None:
    """Asks until its standard input says something or ends; then the latencies in ms, as JSON."""
    address = urlsplit(sys.argv[1])
    headers = {"X-API-Key": os.environ["PROBED_KEY"]}
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
    latencies = []
    os.set_blocking(sys.stdin.fileno(), False)
    while not _told_to_stop():
        asked = time.perf_counter()
        connection.request("GET", "/health", headers=headers)
        answer = connection.getresponse()
        said = answer.read()
        latencies.append((time.perf_counter() - asked) * 1000)
        if answer.status != 200:
            sys.exit(f"{answer.status}: {said[:300]!r}")
        time.sleep(PAUSE_SECONDS)
    print(json.dumps(latencies))


def _told_to_stop() -> bool:
    try:
        os.read(sys.stdin.fileno(), 1)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    main()
