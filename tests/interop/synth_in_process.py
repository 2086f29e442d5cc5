"""Serves a `build_config()` of the Synth AI SDK, release 0.3.9, with our InProcessTaskApp. Runs inside that peer's own
environment, with our checkout on PYTHONPATH.

    SYNTH_DISABLE_LOGGING=1 HOME=<scratch> ENVIRONMENT_API_KEY=<key> python synth_in_process.py FILE

Prints one JSON document: for each way to name the app what it answered, and whose the handlers of signals are at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import signal
import sys
from typing import Any

import httpx

from taskapp_kit.deploy.local.in_process import InProcessTaskApp
from taskapp_kit.errors import TaskAppError

REQUEST = {
    "run_id": "r1",
    "env": {"env_name": "counter", "seed": 1, "config": {}},
    "policy": {"policy_name": "scripted", "config": {}},
    "ops": [],
    "mode": "eval",
}


def played(task_app: InProcessTaskApp) -> dict[str, Any]:
    """Its responses to a rollout, and to a caller without its key."""
    rollout = httpx.post(
        f"{task_app.url}/rollout", headers={"X-API-Key": task_app.api_key or ""}, json=REQUEST, timeout=60
    )
    metrics = rollout.json().get("metrics", {}) if rollout.status_code == 200 else {}
    return {
        "status": rollout.status_code,
        "mean_return": metrics.get("mean_return"),
        "without_key": httpx.get(f"{task_app.url}/health").status_code,
        "minted": task_app.key_was_minted,
    }


async def in_a_loop(**given: Any) -> dict[str, Any]:
    """The same in an `async with`."""
    async with InProcessTaskApp(**given, port=0, tunnel_mode="local") as task_app:
        return await asyncio.to_thread(played, task_app)


def examined(file: str) -> dict[str, Any]:
    """Each of the ways to name their app, one after the other, in one process."""
    found: dict[str, Any] = {}
    with InProcessTaskApp(task_app_path=file, port=0, tunnel_mode="local") as task_app:
        found["path"] = played(task_app)
    spec = importlib.util.spec_from_file_location("theirs", file)
    assert spec is not None
    assert spec.loader is not None
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    found["config_factory"] = asyncio.run(in_a_loop(config_factory=theirs.build_config))
    found["config"] = asyncio.run(in_a_loop(config=theirs.build_config()))
    with InProcessTaskApp(app=theirs.build_app(), port=0, tunnel_mode="local") as task_app:
        found["app"] = played(task_app)
    del os.environ["ENVIRONMENT_API_KEY"]
    try:
        with InProcessTaskApp(task_app_path=file, port=0, tunnel_mode="local"):
            found["no key"] = "it started"
    except TaskAppError as error:
        found["no key"] = [error.status, error.code]
    return found


def main() -> None:
    """Examine, press Ctrl-C, print the document."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with contextlib.redirect_stdout(sys.stderr):  # importing the SDK prints; stdout is for our document alone
        found = examined(sys.argv[1])
        found["handlers"] = all(signal.getsignal(number) == handler for number, handler in before.items())
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            found["ctrl_c"] = "interrupts"
    found["peer"] = f"synth-ai {importlib.metadata.version('synth-ai')}"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
