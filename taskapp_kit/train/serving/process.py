"""Starts and ends the process that serves a model. This module does not import torch."""

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
"""Time limit in seconds for loading a model. The first use of some models also downloads and converts them."""


class ServingProcess(OwnedProcess[dict[str, Any]]):
    """A process that serves one model. Entering a `with` block waits until it responds, and leaving the block ends it.

    The process also ends with this process. After `wait`, `url` (ending in /v1) and the bearer token `key` are set.
    `paths` is whether the model's name may be the path of a directory. Raises Unavailable if the extra `train` is not
    installed.
    """

    def __init__(
        self, name: str, models: Path, aliases: Mapping[str, str] | None = None, *, paths: bool = False
    ) -> None:
        check_installed("Serving a model")
        self.name = name
        self.url = ""
        self.key = ""
        self.own_name = name
        """The model's name after aliases are applied."""
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
        """Wait until the model is served. If this fails, the process has ended and ConfigError is raised."""
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
                or f"The process that serves the model {self.name!r} ended while it was starting ({self.end}).",
                hint=answer.get("hint", "The error output of the process shows the reason."),
            )
        self.url, self.key, self.own_name = answer["url"], answer["key"], answer["name"]

    def __enter__(self) -> Self:
        self.wait()
        return self
