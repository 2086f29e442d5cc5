"""Checks a running task app with many requests: authentication, errors, limits, and rollouts under load."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from statistics import median
from typing import Any

import orjson

from taskapp_kit.client.checks import Prober, first_seed, name_of, takes_words
from taskapp_kit.client.task_app import TaskAppClient
from taskapp_kit.doctor.finding import CheckResult, DoctorFinding, passed, skipped, wrong
from taskapp_kit.doctor.rollouts import quantile
from taskapp_kit.errors import TaskAppError
from taskapp_kit.net.addresses import read_address
from taskapp_kit.records.example_policy import example_policy

AT_ONCE = 20
TURNS = 20
"""The maximum number of turns in each rollout."""
SECONDS = 30.0
READ_LOG = "Read the task app's log. docs/reference/contract.md specifies the expected response."
GUARDED = ("/health", "/info", "/task_info", "/rollouts", "/metrics")
BROKEN: Mapping[str, bytes] = {
    "no JSON": b"{",
    "a list": b"[]",
    "an empty object": b"{}",
    "a seed below 0": b'{"run_id":"doctor","mode":"eval","ops":[],"env":{"seed":-1},"policy":{"policy_name":"random"}}',
    "an unknown environment": (
        b'{"run_id":"doctor","mode":"eval","ops":[],"env":{"env_name":"no such environment","seed":0},"policy":{}}'
    ),
    "an unknown policy": (
        b'{"run_id":"doctor","mode":"eval","ops":[],"env":{"seed":0},"policy":{"config":{"policy":"no such policy"}}}'
    ),
}


async def examine_server(url: str, key: str | None) -> AsyncIterator[DoctorFinding]:
    """Yield the findings of `taskapp doctor URL --load`. The caller must first check the URL with `check_task_app`."""
    prober = Prober.at(read_address(url), {"X-API-Key": key} if key else {}, SECONDS)
    other = Prober.at(read_address(url), {"X-API-Key": f"not-{uuid.uuid4().hex}"}, SECONDS)
    try:
        for name, function in (("auth", _auth), ("errors", _errors), ("limits", _limits)):
            yield _line(name, await function(prober, other, key))
    finally:
        await prober.aclose()
        await other.aclose()
    async with TaskAppClient(url, key, timeout_seconds=10 * SECONDS, retries=0) as client:
        try:
            for name, result in await _rollouts(client):
                yield _line(name, result)
        except TaskAppError as error:
            found = f"A rollout failed: HTTP {error.status} {name_of(error.code, key)}."
            yield _line("at-once", wrong(found, READ_LOG))


def _line(name: str, result: CheckResult) -> DoctorFinding:
    return DoctorFinding(name, name, result.status, result.found, result.do)


async def _auth(prober: Prober, other: Prober, key: str | None) -> CheckResult:
    """Request every route without a key and with a wrong key."""
    if not key:
        return skipped("The task app requires no key.")
    tried = 0
    for path in GUARDED:
        for asks, keyed, what in ((prober, False, "without a key"), (other, True, "with a wrong key")):
            answer = await asks.ask(path, keyed=keyed)
            tried += 1
            if answer.status == 404:
                continue
            if not 400 <= answer.status < 500:
                return wrong(f"GET {path} {what} returned {answer.words}.", "Require the key on every route.")
    for asks, keyed, what in ((prober, False, "without a key"), (other, True, "with a wrong key")):
        answer = await asks.ask("/rollout", verb="POST", body=BROKEN["an unknown policy"], keyed=keyed)
        tried += 1
        if answer.status not in (400, 401, 403) or answer.code == "unknown_policy":
            return wrong(f"POST /rollout {what} returned {answer.words}.", "Check the key before reading the body.")
    return passed(f"{tried} requests without the key or with a wrong key were rejected.")


async def _errors(prober: Prober, _: Prober, key: str | None) -> CheckResult:
    """Send invalid requests."""
    codes = []
    for what, body in BROKEN.items():
        answer = await prober.ask("/rollout", verb="POST", body=body)
        if not 400 <= answer.status < 500:
            return wrong(
                f"POST /rollout with {what} returned {answer.words}. Expected a status from 400 to 499.", READ_LOG
            )
        if not answer.code:
            return wrong(f"POST /rollout with {what} returned {answer.words} without an error envelope.", READ_LOG)
        codes.append(name_of(answer.code, key))
    return passed(f"{len(codes)} invalid requests were rejected: {', '.join(dict.fromkeys(codes))}.")


async def _limits(prober: Prober, _: Prober, __: str | None) -> CheckResult:
    """Send a body that is larger than the advertised limit."""
    described = (await prober.ask("/task_info")).object or {}
    limits = described.get("limits")
    most = limits.get("max_body_bytes") if isinstance(limits, Mapping) else None
    if not isinstance(most, int) or not 0 < most <= 64_000_000:
        return skipped("/task_info does not state the limit on bodies (limits.max_body_bytes).")
    answer = await prober.ask("/rollout", verb="POST", body=b'{"x":"' + b"x" * most + b'"}')
    if answer.answer is not None and answer.status != 413:
        return wrong(f"A body larger than the advertised {most} bytes returned {answer.words}. Expected 413.", READ_LOG)
    return passed(f"A body larger than {most} bytes is rejected.")


async def _rollouts(client: TaskAppClient) -> list[tuple[str, CheckResult]]:
    described = await client.task_info()
    inference, dataset = described.get("inference"), described.get("dataset")
    offered = inference.get("policies") if isinstance(inference, dict) else None
    names = [name for name in offered if isinstance(name, str)] if isinstance(offered, list) else []
    config = example_policy(dict.fromkeys(names), words=takes_words(described))
    if not config:
        return [("at-once", skipped("The task app has no policy that can act without a model."))]
    first = first_seed(dataset if isinstance(dataset, dict) else {})
    count = dataset.get("cardinality") if isinstance(dataset, dict) else None
    seeds = [
        first + number % (count if isinstance(count, int) and 0 < count < AT_ONCE else AT_ONCE)
        for number in range(AT_ONCE)
    ]

    async def one(seed: int) -> str:
        answer = await client.rollout(
            {
                "run_id": f"doctor-{uuid.uuid4().hex[:12]}",
                "env": {"seed": seed},
                "policy": {"config": config},
                "ops": ["agent", "env"] * TURNS,
                "record": {"store": False},
                "mode": "eval",
            }
        )
        return _digest(answer)

    waited: list[float] = []
    began = time.monotonic()
    alone = [await one(seed) for seed in seeds]
    seconds = time.monotonic() - began
    again = await one(seeds[0])
    playing = asyncio.gather(*(one(seed) for seed in seeds))
    try:
        while not playing.done():
            asked = time.monotonic()
            await client.health()
            waited.append(time.monotonic() - asked)
    finally:
        together = await playing
    same = (
        passed(f"Seed {seeds[0]} was played twice with equal digests.")
        if again == alone[0]
        else wrong(f"Seed {seeds[0]} was played twice with different digests.", "`taskapp doctor APP` shows where.")
    )
    differs = [seed for seed, before, after in zip(seeds, alone, together, strict=True) if before != after]
    if differs and same.status == "ok":
        found = f"{len(differs)} of {AT_ONCE} seeds had different digests when played concurrently. The first is {differs[0]}."
        return [("same-seed", same), ("at-once", wrong(found, "`taskapp doctor APP` shows where."))]
    health = (
        f"; /health answered in {1000 * median(waited):.0f} ms, p99 {1000 * quantile(waited, 0.99):.0f} ms"
        if waited
        else ""
    )
    found = f"{AT_ONCE} concurrent rollouts were equal to sequential rollouts ({seconds:.1f} s){health}."
    return [("same-seed", same), ("at-once", passed(found) if same.status == "ok" else skipped("See same-seed."))]


def _digest(answer: Mapping[str, Any]) -> str:
    """Return the response's digest, or the steps as JSON if the server sends no digest."""
    digest = answer.get("digest")
    if isinstance(digest, str):
        return digest
    return orjson.dumps(
        [item.get("steps") for item in answer.get("trajectories", [])], option=orjson.OPT_SORT_KEYS
    ).decode()
