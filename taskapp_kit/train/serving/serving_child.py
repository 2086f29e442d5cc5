"""The program of a serving process, which `process.py` starts.

It reads one line of JSON from standard input, loads the model, prints its address and its key as a line of JSON, and
serves on the loopback address until standard input ends.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from taskapp_kit.config import LOG_LEVEL, child_environment, take_parent_logging
from taskapp_kit.errors import KitError
from taskapp_kit.logs import configure
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.system.child import end_with_input
from taskapp_kit.train.models.loading import load_model
from taskapp_kit.train.models.sources import find_model
from taskapp_kit.train.sampler.transformers_sampler import TransformersSampler
from taskapp_kit.train.serving.model_server import ModelServer
from taskapp_kit.wire.inference_url import SERVED_HERE

KEY_BYTES = 32


def main() -> None:
    """Serve the model. If this fails, print `{"error": …, "hint": …}`."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries must not print to the output that contains the response
    message = orjson.loads(sys.stdin.buffer.readline())
    end_with_input()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which ends this process
    log_format, level = take_parent_logging({LOG_LEVEL: "warning", **child_environment()})
    configure(level, log_format)
    try:
        _serve(message, answers)
    except KitError as error:
        _say(answers, {"error": error.message, "hint": error.hint})


def _serve(message: dict[str, Any], answers: BinaryIO) -> None:
    name = message["model"]
    source = find_model(name, Path(message["models"]), message["aliases"], paths=message["paths"])
    version = 0 if source.checkpoint is None else source.checkpoint.facts.weights_version
    loaded = load_model(source)
    with TransformersSampler(loaded.model, version=version) as sampler:
        key = secrets.token_urlsafe(KEY_BYTES)
        server = ModelServer(name, sampler, loaded.renderer, context_tokens=sampler.context_tokens)
        with BackgroundServer(server.behind(key)) as running:
            _say(answers, {"url": f"{running.url}{SERVED_HERE}", "key": key, "name": source.name})
            threading.Event().wait()


def _say(answers: BinaryIO, answer: dict[str, Any]) -> None:
    answers.write(orjson.dumps(answer) + b"\n")
    answers.flush()


if __name__ == "__main__":
    main()
