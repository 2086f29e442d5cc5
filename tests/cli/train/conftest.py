"""A backend and a task app on this machine, for the commands that submit and follow jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from taskapp_kit.asgi import build
from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from tests.cli.conftest import ROOT, assert_no_key

BACKEND_KEY, TASK_APP_KEY = "sk_train_0123456789abcdef", "ek_train_0123456789abcdef"
OTHER_BACKEND_KEY = "another-key-of-the-backend"
FAST = ("--poll-interval", "0.1")


@dataclass
class Both:
    """A backend and a task app on this machine."""

    backend: str
    task_app: str

    def variables(self, **other: str) -> dict[str, str]:
        named = {
            "SYNTH_API_KEY": BACKEND_KEY,
            "ENVIRONMENT_API_KEY": TASK_APP_KEY,
            "BACKEND_BASE_URL": self.backend,
            "PROD_BACKEND_URL": "",
            "TASK_APP_URL": self.task_app,
            "TASK_APP_BASE_URL": "",
        }
        return {**named, **other}


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    from taskapp_kit.jobs.server.app import create_backend  # its extra is asked for by the tests' modules

    app = find_app(str(ROOT / "examples" / "rl" / "task_app.py"))
    served = build(app, Settings(environment_api_key=TASK_APP_KEY), exposure="local")
    backend = create_backend([BACKEND_KEY, OTHER_BACKEND_KEY], environment_api_key=TASK_APP_KEY)
    with BackgroundServer(served) as task_app, BackgroundServer(backend) as running:
        yield Both(running.url, task_app.url)


def safe(text: str) -> None:
    assert_no_key(text, BACKEND_KEY, TASK_APP_KEY, piece=8)
    assert "Traceback" not in text
