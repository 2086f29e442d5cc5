"""A task app that calls the model as often as a test says, on a thread of the test."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from taskapp_kit import TaskApp
from taskapp_kit.asgi import build
from taskapp_kit.config import Settings
from taskapp_kit.serve.uvicorn_server import BackgroundServer

Answer = tuple[int, Any]
NUMBERS = itertools.count()
KEY = "k" * 40


@contextmanager
def served(app: TaskApp, **settings: Any) -> Iterator[str]:
    """The address of a real task app that has the key."""
    made = Settings(environment_api_key=KEY, max_concurrent=64, **settings)
    with BackgroundServer(build(app, made, exposure="local")) as server:
        yield server.url


@dataclass
class RolloutAsked:
    key: str
    body: dict[str, Any]
    http: httpx.AsyncClient

    @property
    def place(self) -> tuple[str, str, int]:
        """Phase, group and sample."""
        return self.body["mode"], self.body["group_id"], self.body["policy"]["config"]["sample"]

    @property
    def sample(self) -> int:
        return int(self.body["policy"]["config"]["sample"])

    async def call(self, *messages: dict[str, Any]) -> dict[str, Any]:
        url = self.body["policy"]["config"]["inference_url"]
        first = {"role": "user", "content": f"Seed {self.body['env']['seed']}."}
        response = await self.http.post(f"{url}/chat/completions", json={"messages": [first, *messages]})
        response.raise_for_status()
        message: dict[str, Any] = response.json()["choices"][0]["message"]
        return message

    async def attempt_ended(self) -> None:
        """Wait until the gateway has closed its address."""
        url = self.body["policy"]["config"]["inference_url"]
        while (await self.http.get(f"{url}/chat/completions")).status_code != 410:
            await asyncio.sleep(0.01)

    def scored(self, reward: float | None, status: str = "terminated") -> Answer:
        metrics = {"episode_returns": [reward], "mean_return": reward, "outcome_score": reward, "num_steps": 1}
        return 200, {
            "run_id": self.body["run_id"],
            "trajectories": [],
            "metrics": metrics,
            "reward": reward,
            "status": status,
            "rollout_id": f"ro_{next(NUMBERS)}",
        }


def failed(boundary: str | None = "environment", code: str = "environment_raised", status: int = 500) -> Answer:
    error = {"code": code, "message": "It broke.", "hint": "", "boundary": boundary, "rollout_id": "ro-broken"}
    return status, {"detail": {"error": error}}


Play = Callable[[RolloutAsked], Awaitable[Answer]]
"""What a rollout is answered with."""


def one_call_scored(reward: Callable[[RolloutAsked], float | None]) -> Play:
    async def play(asked: RolloutAsked) -> Answer:
        await asked.call()
        return asked.scored(reward(asked))

    return play


one_call = one_call_scored(lambda asked: float(asked.sample))


@dataclass
class CallingApp:
    """asked: every POST. policies: those that it plays itself."""

    play: Play = one_call
    policies: tuple[str, ...] = ("random",)
    asked: list[RolloutAsked] = field(default_factory=list)
    in_flight: int = 0
    most: int = 0

    @contextmanager
    def serving(self) -> Iterator[str]:
        routes = [
            Route("/health", _health),
            Route("/task_info", self._task_info),
            Route("/rollout", self._rollout, methods=["POST"]),
        ]
        with BackgroundServer(Starlette(routes=routes)) as server:
            yield server.url

    async def _task_info(self, request: Request) -> JSONResponse:
        seeds = {"train": [0, 1000], "test": [1000, 1100]}
        return JSONResponse(
            {
                "taskset": {"splits": [*seeds], "default_split": "train", "kind": "seeds", "seeds": seeds},
                "inference": {"policies": list(self.policies)},
            }
        )

    async def _rollout(self, request: Request) -> JSONResponse:
        async with httpx.AsyncClient(timeout=60) as http:
            asked = RolloutAsked(request.headers["idempotency-key"], await request.json(), http)
            self.asked.append(asked)
            self.in_flight += 1
            self.most = max(self.most, self.in_flight)
            playing = asyncio.ensure_future(self.play(asked))
            gone = asyncio.ensure_future(_until_gone(request))
            try:
                await asyncio.wait((playing, gone), return_when=asyncio.FIRST_COMPLETED)
                status, answer = playing.result() if playing.done() else (499, {})
            except httpx.HTTPError:
                status, answer = failed("policy", "model_unreachable", 502)
            finally:
                playing.cancel()
                gone.cancel()
                self.in_flight -= 1
            return JSONResponse(answer, status)


async def _health(_: Request) -> JSONResponse:
    return JSONResponse({"healthy": True})


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def for_ever() -> None:
    """Hang until the caller hangs up."""
    await asyncio.Event().wait()
