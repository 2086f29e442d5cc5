"""A mock model in a separate process, for benchmarks. `child.py` is the program of the process.

The program reads its settings as JSON from standard input, prints its address, and exits at the end of standard input.
It therefore never outlives the process that started it.
"""

from __future__ import annotations

import dataclasses
import urllib.request
from pathlib import Path
from typing import Any

import orjson

from taskapp_kit.config import child_environment
from taskapp_kit.errors import ConfigError
from taskapp_kit.records.content import Json
from taskapp_kit.system.child import OwnedProcess
from taskapp_kit.system.child_python import python_command
from taskapp_kit.testing.mock_model.faults import Faults

START_SECONDS = 30.0


class MockProcess(OwnedProcess[dict[str, Any]]):
    """A mock model that runs in a separate process until the end of a `with` block.

    It does not record requests, but `stats()` returns counts.

    Args:
        script: A list of answers, or a file. A function cannot be sent to another process.
        **settings: Other arguments of MockModel.

    Attributes:
        url: Address for a policy's `inference_url`.
        root: The address without `/v1`.
        pid: Id of the process, for measuring its CPU time.

    Raises:
        ConfigError: A setting is invalid, or the process did not start.
    """

    def __init__(self, script: list[Any] | str | Path | None = None, **settings: Any) -> None:
        if callable(script):
            raise ConfigError(
                "A function cannot be sent to another process.",
                hint="Pass a list of answers or a file, or use MockModel.",
            )
        faults = settings.pop("faults", None)
        message = {
            "script": str(Path(script).resolve()) if isinstance(script, str | Path) else script,
            "faults": _as_json(faults) if isinstance(faults, Faults) else None,
            "settings": {"record": 0, **settings},
        }
        super().__init__(
            python_command("taskapp_kit.testing.mock_model.child"),
            env=child_environment(),
            name="mock-model",
            input=orjson.dumps(message) + b"\n",
            reads="stdout",
            ready=orjson.loads,
        )
        answer = self.wait_ready(START_SECONDS) or {}
        if "url" not in answer:
            self.close()
            raise ConfigError(
                str(answer.get("error") or "The process of the mock model ended at startup. See the output above.")
            )
        self.url: str = answer["url"]
        self.root = self.url.removesuffix("/v1")

    def stats(self) -> dict[str, Json]:
        """Return the counts since the start, as `GET /mock/stats` does."""
        with urllib.request.urlopen(f"{self.root}/mock/stats", timeout=START_SECONDS) as answer:  # noqa: S310
            message: dict[str, Json] = orjson.loads(answer.read())
        return message


def _as_json(faults: Faults) -> dict[str, Json]:
    message = {name.name: getattr(faults, name.name) for name in dataclasses.fields(faults)}
    return {**message, "rate": dict(faults.rate), "sequence": list(faults.sequence)}
