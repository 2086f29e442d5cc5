"""A Crafter server process, and the requests that the Crafter scripts send to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import load
from bench.processes import ROOT, Server, our_command, served

ANSWERED = b'"num_steps":'


@contextmanager
def crafter_server(name: str, home: Path, hash_seed: str = "random") -> Iterator[Server]:
    """Runs `taskapp serve crafter` in a process with this PYTHONHASHSEED; no store."""
    command = ["env", f"PYTHONHASHSEED={hash_seed}", *our_command("crafter")]
    with served(name, command, ROOT, home) as server:
        yield server


def request(seed: int, policy: str, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The request for one whole episode. `run_id` is POLICY-SEED."""
    return {
        "run_id": f"{policy}-{seed}",
        "env": {"env_name": "crafter", "seed": seed, "config": dict(config or {})},
        "policy": {"policy_name": policy, "config": {}},
        "ops": [],
        "mode": "eval",
    }


def played(server: Server, requests: Sequence[dict[str, Any]], in_flight: int) -> dict[str, dict[str, Any]]:
    """Sends the requests; returns the answers by `run_id`. Raises BenchFailed at the first that is not a scored rollout."""
    return {answer["run_id"]: answer for answer in load.run(server, requests, in_flight, ANSWERED, keep=True).answers}
