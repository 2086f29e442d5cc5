"""Probes /health repeatedly from a process of its own: the program, and how it runs beside a load."""

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
    """Sends requests for the duration of the `with` block, from a process of its own, unaffected by the load generator.

    latencies_ms: of all answers, after the block has ended. Raises BenchFailed at an answer other than 200.
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
        output, errors = await self._process.communicate(b"\n")
        if self._process.returncode != 0:
            raise BenchFailed(f"/health failed: {errors.decode(errors='replace')[-500:]}")
        self.latencies_ms = json.loads(output)


def main() -> None:
    """Sends requests until its standard input has data or ends; then prints the latencies in ms, as JSON."""
    address = urlsplit(sys.argv[1])
    headers = {"X-API-Key": os.environ["PROBED_KEY"]}
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
    latencies = []
    os.set_blocking(sys.stdin.fileno(), False)
    while not _stopped():
        sent = time.perf_counter()
        connection.request("GET", "/health", headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        latencies.append((time.perf_counter() - sent) * 1000)
        if answer.status != 200:
            sys.exit(f"{answer.status}: {body[:300]!r}")
        time.sleep(PAUSE_SECONDS)
    print(json.dumps(latencies))


def _stopped() -> bool:
    try:
        os.read(sys.stdin.fileno(), 1)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    main()
