"""openenv-core 0.3.0 under faults: its server in a process of its own, and its client. See fault_peer.py.

Its server calls no model and scores nothing afterwards: an episode's reward is the one of its last step. Failures are
declared by an exception of the client, which has no other way to report them.
"""

import asyncio
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from fault_peer import is_broken, play_all, report_fault
from openenv.core import GenericEnvClient
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

STEPS, DEADLINE_SECONDS, SESSIONS = 4, 3.0, 1000


class Add(Action):
    by: int


class Added(Observation):
    total: int


class Sums(Environment):
    """Adds numbers, and pays a share of the sum at the end."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, broken: int = 0, slow: float = 0.0, **_: Any) -> Added:
        self.total, self.steps, self.broken, self.slow = 0, 0, broken, slow
        if broken == 1:
            raise RuntimeError("the environment failed")
        return Added(total=0)

    def step(self, action: Add, timeout_s: float | None = None, **_: Any) -> Added:
        time.sleep(self.slow)
        self.steps += 1
        self.total += action.by
        if self.broken == 2:
            raise RuntimeError("the environment failed")
        reward = float("nan") if self.broken == 3 else self.total / (3 * STEPS)
        return Added(total=self.total, done=self.steps == STEPS, reward=reward if self.steps == STEPS else None)

    @property
    def state(self) -> State:
        return State(step_count=self.steps)


def app() -> Any:
    return create_fastapi_app(Sums, Add, Added, max_concurrent_envs=SESSIONS)


def start(port: int) -> "subprocess.Popen[bytes]":
    """Start the server, and wait until it accepts connections."""
    command = ["uvicorn", "--factory", "fault_openenv:app", "--port", str(port), "--log-level", "critical"]
    server = subprocess.Popen([sys.executable, "-m", *command])
    while server.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            break
        time.sleep(0.05)
    return server


async def main(kind: str, rollouts: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server, running = start(port), asyncio.Event()
    running.set()

    async def rollout(number: int) -> float:
        seconds = DEADLINE_SECONDS if kind == "deadline" else 60.0
        late = kind == "deadline" and number % 3 == 0
        slow = 2 * DEADLINE_SECONDS if late else 0.02
        if late:
            report_fault()
        await running.wait()
        async with GenericEnvClient(base_url=f"http://127.0.0.1:{port}", message_timeout_s=seconds) as client:
            result = await client.reset(
                seed=number, broken=1 + number // 2 % 3 if is_broken(kind, number) else 0, slow=slow
            )
            while not result.done:
                result = await client.step({"by": 1 + (number + result.observation["total"]) % 3})
            return result.reward

    async def kill_the_server() -> None:
        nonlocal server
        while True:
            await asyncio.sleep(2.0)
            running.clear()
            server.kill()
            server.wait()
            report_fault()
            server = await asyncio.to_thread(start, port)
            running.set()

    killing = asyncio.ensure_future(kill_the_server()) if kind == "kill -9" else None
    await play_all(kind, rollouts, rollout)
    if killing is not None:
        killing.cancel()
    server.kill()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
