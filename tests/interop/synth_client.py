"""Drives a task app with the real Synth AI SDK, release 0.3.9. Runs inside that peer's own virtual environment.

    SYNTH_DISABLE_LOGGING=1 HOME=<scratch> ENVIRONMENT_API_KEY=<key> python synth_client.py http://127.0.0.1:8001 \\
        --env-name adder --policy-name gold

Prints one JSON document, `{"peer", "base_url", "ok", "checks": [{"name", "ok", "detail"}]}`; exit status 0 when every
check is ok, else 1. The key is read from the environment, so that no process list shows it; no check prints any of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import json
import math
import os
import secrets
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

import httpx
from pydantic import ValidationError

with contextlib.redirect_stdout(sys.stderr):  # importing the SDK prints; stdout is for our document alone
    from synth_ai.sdk.api.train.task_app import check_task_app_health
    from synth_ai.sdk.task.client import TaskAppClient
    from synth_ai.sdk.task.contracts import (
        DatasetInfo,
        InferenceInfo,
        LimitsInfo,
        RolloutRequest,
        RolloutResponse,
        TaskDescriptor,
        TaskInfo,
    )
    from synth_ai.sdk.task.datasets import TaskDatasetSpec
    from synth_ai.sdk.task.rubrics import Rubric
    from synth_ai.sdk.task.trace_correlation_helpers import verify_trace_correlation_id_in_response
    from synth_ai.sdk.task.validators import validate_rollout_response_for_rl, validate_task_app_endpoint

WRONG_KEY = secrets.token_hex(16)
SHOWN_FRAGMENT = 6  # as many characters of a key in an answer are a leak


@dataclass(frozen=True)
class Check:
    """One thing that the peer asked or judged."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Target:
    """What is driven, and how a rollout there is asked for."""

    base_url: str
    key: str
    env_name: str
    policy_name: str | None
    policy_config: dict[str, Any]
    env_config: dict[str, Any]
    ops: list[Any]
    seeds: list[int]

    def request(self, mode: str, run_id: str) -> RolloutRequest:
        """A rollout request as the SDK's trainer sends one."""
        cid = f"trace_{run_id}"
        config = {
            "model": "Qwen/Qwen3-4B",
            "temperature": 0.7,
            "max_completion_tokens": 256,
            "inference_url": f"http://127.0.0.1:9/v1/chat/completions?cid={cid}",
            "trace_correlation_id": cid,
            **self.policy_config,
        }
        return RolloutRequest.model_validate(
            {
                "run_id": run_id,
                "env": {
                    "env_id": self.env_name,
                    "env_name": self.env_name,
                    "config": self.env_config,
                    "seed": self.seeds[0],
                },
                "policy": {"policy_id": self.policy_name, "policy_name": self.policy_name, "config": config},
                "ops": self.ops,
                "record": {"trajectories": True, "return_trace": True, "trace_format": "structured"},
                "safety": {"max_ops": 64, "max_time_s": 60.0},
                "training_session_id": "sess-1",
                "synth_base_url": "http://127.0.0.1:8500",
                "mode": mode,
            }
        )


class Examination:
    """A runner of checks that stores their results. An exception fails a check and does not end the run."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.checks: list[Check] = []
        self.last_body: Any = None

    async def run(self, name: str, check: Callable[[], Awaitable[str]]) -> None:
        """Appends the check's verdict."""
        try:
            verdict = Check(name, True, await check())
        except Exception as error:  # an exception of the peer's own code is its verdict
            verdict = Check(name, False, f"{type(error).__name__}: {error}"[:2000])
        self.checks.append(verdict)

    async def remember(self, response: httpx.Response) -> None:
        """Keeps the answer as it came: the SDK's models drop fields that its own verifiers look for."""
        await response.aread()
        with contextlib.suppress(ValueError):
            self.last_body = response.json()

    def client(self, key: str | None = None) -> TaskAppClient:
        return TaskAppClient(self.target.base_url, key or self.target.key, timeout=60.0)

    async def everything(self) -> None:
        """All checks, in the order in which a trainer meets the routes."""
        async with self.client() as client:
            (await client._ensure_client()).event_hooks["response"].append(self.remember)
            await self.run("health", lambda: self.health(client))
            await self.run("info", lambda: self.info(client))
            await self.run("task_info_without_seed", lambda: self.task_info_without_seed(client))
            await self.run("task_info_without_seed_in_client", lambda: self.task_info_without_seed_in_client(client))
            await self.run("task_info_one_seed", lambda: self.task_info_one_seed(client))
            await self.run("task_info_many_seeds", lambda: self.task_info_many_seeds(client))
            for mode in ("rl", "eval"):
                await self.rollout_checks(client, mode)
        await self.run("check_task_app_health", self.task_app_health)
        await self.run("validate_task_app_endpoint", self.endpoint_validator)
        await self.run("wrong_key_refused", self.wrong_key_refused)
        await self.run("wrong_key_unhealthy", self.wrong_key_unhealthy)
        await self.run("wrong_key_answer_shows_no_key", self.wrong_key_answer_shows_no_key)

    async def health(self, client: TaskAppClient) -> str:
        answer = await client.health()
        assert answer.get("healthy") is True, f"healthy is {answer.get('healthy')!r}, not true"
        assert answer.get("auth", {}).get("required") is True, f"auth.required is missing: {answer.get('auth')!r}"
        return f"healthy, fields {sorted(answer)}"

    async def info(self, client: TaskAppClient) -> str:
        """/info has no model in the SDK, so each part is compared with the model that it is made from."""
        answer = await client.info()
        task = TaskDescriptor.model_validate(answer["service"]["task"])
        assert isinstance(answer["service"].get("version"), str), "service.version is missing"
        DatasetInfo.model_validate(answer["dataset"])
        InferenceInfo.model_validate(answer["inference"])
        LimitsInfo.model_validate(answer["limits"])
        rubrics = answer["rubrics"] or {}
        for part in ("outcome", "events"):
            if rubrics.get(part) is not None:
                Rubric.model_validate(rubrics[part])
        return f"task {task.id}, rubrics {sorted(key for key, value in rubrics.items() if value)}"

    async def task_info_without_seed(self, client: TaskAppClient) -> str:
        """`{"taskset": ...}`, which a raw GET must get: the SDK's server answers so."""
        answer = (await client._request("GET", "/task_info")).json()
        assert isinstance(answer.get("taskset"), dict), f"no taskset object: fields {sorted(answer)}"
        spec = TaskDatasetSpec.model_validate(answer["taskset"])
        return f"taskset {spec.id}, splits {spec.splits}, cardinality {spec.cardinality}"

    async def task_info_without_seed_in_client(self, client: TaskAppClient) -> str:
        """0.3.9's `task_info()` reads the answer as a TaskInfo, which a bare `{"taskset": ...}` is not.

        Ok when the client takes it (a server may answer with both), and when it refuses just for that reason.
        """
        try:
            info = await client.task_info()
        except ValidationError as error:
            missing = {str(problem["loc"][0]) for problem in error.errors() if problem["type"] == "missing"}
            expected = {name for name, field in TaskInfo.model_fields.items() if field.is_required()}
            assert missing == expected, f"refused for another reason than the bare taskset: {error}"
            return "refused by the client, as with the SDK's own server: the answer is a taskset, not a TaskInfo"
        assert isinstance(info, TaskInfo), f"got {type(info).__name__}"
        return f"accepted: task {info.task.id}"

    async def task_info_one_seed(self, client: TaskAppClient) -> str:
        info = await client.task_info(self.target.seeds[:1])
        assert isinstance(info, TaskInfo), f"one seed must give one object, got {type(info).__name__}"
        assert info.environment == self.target.env_name, f"environment is {info.environment!r}"
        sections = [section for section in (info.rubric.outcome, info.rubric.events) if section is not None]
        criteria = [criterion.id for section in sections for criterion in section.criteria]
        return f"task {info.task.id}, criteria {criteria}"

    async def task_info_many_seeds(self, client: TaskAppClient) -> str:
        infos = await client.task_info(self.target.seeds)
        assert isinstance(infos, list), f"several seeds must give an array, got {type(infos).__name__}"
        assert len(infos) == len(self.target.seeds), f"{len(infos)} objects for {len(self.target.seeds)} seeds"
        return f"{len(infos)} objects"

    async def rollout_checks(self, client: TaskAppClient, mode: str) -> None:
        """One rollout; then the SDK's own verifiers on the answer as it came over the wire."""
        request = self.target.request(mode, f"interop-{mode}")
        self.last_body = None
        await self.run(f"rollout_{mode}", lambda: self.rollout(client, request))
        body, cid = self.last_body, request.policy.config["trace_correlation_id"]

        async def validator() -> str:
            assert isinstance(body, dict), "no response to check"
            issues = validate_rollout_response_for_rl(body)
            assert issues == [], "; ".join(issues)
            return "no issues"

        async def correlation() -> str:
            assert isinstance(body, dict), "no response to check"
            assert verify_trace_correlation_id_in_response(body, cid, request.run_id), (
                "the verifier misses the id: top level "
                f"{body.get('trace_correlation_id')!r}, pipeline_metadata "
                f"{(body.get('pipeline_metadata') or {}).get('trace_correlation_id')!r}, trajectories "
                f"{[trajectory.get('trace_correlation_id') for trajectory in body.get('trajectories', [])]}"
            )
            return "found in all three places"

        async def trace() -> str:
            assert isinstance(body, dict), "no response to check"
            traces = [trajectory.get("trace") or {} for trajectory in body["trajectories"]]
            assert all(one.get("event_history") for one in traces), "a trajectory's trace.event_history is empty"
            return f"{sum(len(one['event_history']) for one in traces)} events"

        await self.run(f"validate_rollout_response_for_rl_{mode}", validator)
        await self.run(f"verify_trace_correlation_id_{mode}", correlation)
        await self.run(f"trajectory_trace_{mode}", trace)

    async def rollout(self, client: TaskAppClient, request: RolloutRequest) -> str:
        answer: RolloutResponse = await client.rollout(request)
        assert answer.run_id == request.run_id, f"run_id is {answer.run_id!r}"
        assert not answer.aborted, "aborted is true"
        assert len(answer.trajectories) == 1, f"{len(answer.trajectories)} trajectories"
        steps, metrics = answer.trajectories[0].steps, answer.metrics
        assert steps, "the trajectory has no steps"
        assert len(steps) == answer.trajectories[0].length == metrics.num_steps, "steps, length and num_steps differ"
        total = sum(step.reward or 0.0 for step in steps)
        assert math.isclose(metrics.mean_return, total, abs_tol=1e-9), f"mean_return {metrics.mean_return}, not {total}"
        assert all(step.tool_calls or step.output is not None for step in steps), "a step shows no action"
        assert metrics.outcome_score is not None, "outcome_score is null"
        turns = sum(1 for op in request.ops if op == "agent") or math.inf
        assert len(steps) <= turns, f"{len(steps)} steps for {turns} agent operations"
        return f"{len(steps)} steps, return {total}, outcome_score {metrics.outcome_score}"

    async def task_app_health(self) -> str:
        health = check_task_app_health(self.target.base_url, self.target.key)
        assert health.ok, str(health.detail)
        return str(health.detail)

    async def endpoint_validator(self) -> str:
        """The validator behind the SDK's `task-app validate`; it requests this many instances, one seed at a time."""
        wanted = min(10, len(self.target.seeds))
        passed, results = await validate_task_app_endpoint(self.target.base_url, self.target.key, min_instances=wanted)
        failed = [name for name, result in results["endpoints"].items() if not result.get("passed")]
        assert passed, f"failed: {failed or results['task_instances']}"
        return f"{sorted(results['endpoints'])}, {results['task_instances'].get('count')} instances"

    async def wrong_key_refused(self) -> str:
        async with self.client(WRONG_KEY) as client:
            request = self.target.request("eval", "refused")
            for call in (client.health(), client.info(), client.task_info([0]), client.rollout(request)):
                try:
                    await call
                except httpx.HTTPStatusError as error:
                    status, path = error.response.status_code, error.request.url.path
                    assert status in (400, 401), f"{path} answers {status}"
                    code = error.response.json()["detail"]["error"]["code"]
                    assert code == "unauthorised", f"{path} answers with code {code!r}"
                else:
                    raise AssertionError("a wrong key was let in")
        return f"refused with {status} on four routes"

    async def wrong_key_unhealthy(self) -> str:
        health = check_task_app_health(self.target.base_url, WRONG_KEY)
        assert not health.ok, "check_task_app_health calls a server healthy that refuses its key"
        return f"health {health.health_status}, task_info {health.task_info_status}"

    async def wrong_key_answer_shows_no_key(self) -> str:
        async with httpx.AsyncClient(base_url=self.target.base_url) as client:
            answer = await client.get("/health", headers={"X-API-Key": WRONG_KEY})
        shown = answer.text + str(answer.headers)
        for secret, whose in ((self.target.key, "the valid key"), (WRONG_KEY, "the caller's key")):
            pieces = (secret[at : at + SHOWN_FRAGMENT] for at in range(len(secret) - SHOWN_FRAGMENT + 1))
            leaked = any(piece in shown for piece in pieces)
            assert not leaked, f"the refusal shows {SHOWN_FRAGMENT} characters of {whose}"
        return "nothing of any key in the refusal"


def read_target() -> Target:
    """The command line, and the key from the environment."""
    parser = argparse.ArgumentParser(description="Drive a task app with the real synth-ai client.")
    parser.add_argument("base_url")
    parser.add_argument("--env-name", required=True)
    parser.add_argument("--policy-name")
    parser.add_argument("--policy-config", type=json.loads, default={}, help="JSON, over the trainer's usual")
    parser.add_argument("--env-config", type=json.loads, default={}, help="JSON object")
    parser.add_argument("--ops", type=json.loads, default=["agent", "env"] * 4, help="JSON array")
    parser.add_argument("--seeds", type=json.loads, default=list(range(12)), help="JSON array of at least two seeds")
    given = parser.parse_args()
    key = os.environ.get("ENVIRONMENT_API_KEY", "")
    if not key:
        parser.error("ENVIRONMENT_API_KEY is not set: give the server's key there.")
    return Target(key=key, **vars(given))


def main() -> int:
    """Examine, print the document."""
    target = read_target()
    examination = Examination(target)
    with contextlib.redirect_stdout(sys.stderr):
        asyncio.run(examination.everything())
    ok = all(check.ok for check in examination.checks)
    document = {
        "peer": f"synth-ai {importlib.metadata.version('synth-ai')}",
        "base_url": target.base_url,
        "ok": ok,
        "checks": [asdict(check) for check in examination.checks],
    }
    print(json.dumps(document, indent=1))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
