"""A task app that counts its episodes and may be slow, on a real server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from taskapp_kit import TaskApp, action
from taskapp_kit.asgi import build
from taskapp_kit.config import Settings
from taskapp_kit.serve.uvicorn_server import BackgroundServer

KEY = "canary-task-app-key-0815"


@dataclass
class Counted:
    """A running server. episodes: the seeds that were played, in order."""

    url: str = ""
    episodes: list[int] = field(default_factory=list)


@contextmanager
def counting(*, max_concurrent: int = 64, workers: int = 0) -> Iterator[Counted]:
    """`env.config`: seconds that the reset takes, and whether the one action raises."""
    counted = Counted()
    app = TaskApp("counting", version="1.0.0")

    @app.environment("counting", splits={"train": range(1000)}, max_steps=5)
    class Counting:
        """Counts."""

        def __init__(self, seconds: float = 0.0, breaks: bool = False):
            self.seconds, self.breaks = seconds, breaks

        def reset(self, seed: int) -> str:
            counted.episodes.append(seed)
            time.sleep(self.seconds)
            self.seed = seed
            return f"seed {seed}"

        @action
        def go(self) -> str:
            """Goes."""
            if self.breaks:
                raise RuntimeError("broken")
            return f"went {self.seed}"

    settings = Settings(environment_api_key=KEY, max_concurrent=max_concurrent, store="none")
    with BackgroundServer(build(app, settings, exposure="local")) as server:
        counted.url = server.url
        yield counted


def a_rollout(seed: int = 7, **config: Any) -> dict[str, Any]:
    return {
        "run_id": f"r{seed}",
        "env": {"env_name": "counting", "seed": seed, "config": config},
        "policy": {"config": {"policy": "random"}},
        "ops": ["agent"] * 2,
        "mode": "eval",
    }
