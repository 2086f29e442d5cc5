"""Starts and ends the process that serves a model. This module loads no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import orjson

from taskapp_kit.config import child_environment
from taskapp_kit.errors import ConfigError
from taskapp_kit.system.child import OwnedProcess
from taskapp_kit.system.child_python import python_command
from taskapp_kit.train.engine.child_program import OFFLINE
from taskapp_kit.train.engine.local_engine import check_installed

START_SECONDS = 600.0
"""The deadline of reading and checking the weights. The first use of some models also downloads and converts them."""


class ServingProcess(OwnedProcess[dict[str, Any]]):
    """A process that serves one model. `with` waits until it answers, and ends it. It also ends with this process.

    After `wait`, `url` (ending in /v1) and `key`, a bearer token, are set. Raises Unavailable without the extra `train`.
    name: see `find_model`. paths: whether the name may be the path of a directory.
    """

    def __init__(
        self, name: str, models: Path, aliases: Mapping[str, str] | None = None, *, paths: bool = False
    ) -> None:
        check_installed("Serving a model")
        self.name = name
        self.url = ""
        self.key = ""
        self.own_name = name
        """The model's name after aliases."""
        message = {
            "model": name,
            "models": os.fspath(models.expanduser().absolute()),
            "aliases": dict(aliases or {}),
            "paths": paths,
        }
        super().__init__(
            python_command("taskapp_kit.train.serving.serving_child"),
            env={**child_environment(), **OFFLINE},
            name="taskapp-serving",
            input=orjson.dumps(message) + b"\n",
            reads="stdout",
            ready=orjson.loads,
        )

    def wait(self, seconds: float = START_SECONDS) -> None:
        """Wait until the model is served. Raises ConfigError, after which the process has ended."""
        try:
            answer = self.wait_ready(seconds) or {}
        except BaseException:
            self.close()
            raise
        if "url" not in answer:
            if not answer:
                self.kill()
            self.close()
            raise ConfigError(
                answer.get("error")
                or f"The process that serves the model {self.name!r} ended during its start ({self.end}).",
                hint=answer.get("hint", "Its error output shows the reason."),
            )
        self.url, self.key, self.own_name = answer["url"], answer["key"], answer["name"]

    def __enter__(self) -> Self:
        self.wait()
        return self
