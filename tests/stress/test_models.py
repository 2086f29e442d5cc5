"""A real server whose policy is a model that fails: each rollout is right or says why not, none is wrong, none is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.testing import Faults, MockModel
from tests.stress.app import note
from tests.stress.load import Told, ask, ask_all, session
from tests.stress.server import Server, body, stored_failure
from tests.waiting import until

pytestmark = [pytest.mark.ci, pytest.mark.server]

IN_FLIGHT = 64
ROUNDS = 5
SHARE = 0.1
KINDS = ("408", "429", "500", "502", "503", "reset_early", "reset_late", "truncated", "hang", "slow", "close", "malformed",
         "content_type", "error_200", "redirect", "empty")  # fmt: skip
"""Faults of the way and of the host. Those that change what the model says (a cut answer, a refusal) make another episode."""
DECLARED = {("policy", 502), ("timeout", 504)}
VENDOR_KEY = "sk-stress-vendor-0123456789"


@pytest.fixture(params=["threads", pytest.param("workers", marks=pytest.mark.exhaustive)])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


def asked(
    url: str, *, seed: int = 3, run_id: str = "r", seconds: float | None = None, policy: dict[str, Any] | None = None,
    **config: Any,
) -> dict[str, Any]:  # fmt: skip
    """A rollout of the model at `url`. policy: further members of policy.config; config: of env.config."""
    request = body(seed=seed, run_id=run_id, max_time_seconds=seconds, **config)
    return {**request, "policy": {"config": {"inference_url": url, "model": "mock", **(policy or {})}}}


def answers(server: Server, requests: list[dict[str, Any]]) -> list[Told]:
    """Theirs, all asked for at once."""
    return asyncio.run(ask_all(server, requests))


def digests(server: Server, seeds: range, journal: Path | None = None) -> dict[int, tuple[str, float]]:
    """Seed to digest and reward with a model that does not fail."""
    with MockModel() as model:
        told = answers(server, [asked(model.url, seed=seed, journal=str(journal or "")) for seed in seeds])
    assert {one.status for one in told} == {200}, [one.body for one in told if one.status != 200][:1]
    return {seed: (one.body["digest"], one.body["reward"]) for seed, one in zip(seeds, told, strict=True)}


def lines(journal: Path, what: str) -> int:
    return sum(line[0] == what for line in note(journal))


@pytest.mark.process
def test_equal_conversations_give_equal_episodes(threads: Server, workers: Server) -> None:
    seeds = range(100, 132)
    played = digests(threads, seeds)
    assert digests(workers, seeds) == played
    assert len({digest for digest, _ in played.values()}) == len(seeds), "they are different episodes"


def test_with_every_kind_of_fault_none_is_wrong_and_none_lost(server: Server, tmp_path: Path) -> None:
    seeds = range(IN_FLIGHT)
    expected = digests(server, seeds)
    journal = tmp_path / "journal"
    faults = Faults({kind: SHARE / len(KINDS) for kind in KINDS}, seed=7, retry_after_seconds=None, slow_seconds=0.3)

    async def load(url: str) -> list[tuple[int, Told]]:
        told: list[tuple[int, Told]] = []

        async def caller(number: int) -> None:
            for turn in range(ROUNDS):
                seed = seeds[(number + 7 * turn) % IN_FLIGHT]
                request = asked(url, seed=seed, seconds=3, journal=str(journal))
                told.append((seed, await ask(client, request)))

        async with session(server) as client:
            await asyncio.gather(*(caller(number) for number in range(IN_FLIGHT)))
        return told

    with MockModel(faults=faults, latency_seconds=0.01) as model:
        told = asyncio.run(load(model.url))
        met = Counter({str(kind): count for kind, count in dict(model.stats["faults"]).items()})
    assert len(told) == IN_FLIGHT * ROUNDS, "none is lost"
    declared: Counter[str] = Counter()
    for seed, one in told:
        if one.status == 200:
            assert (one.body["digest"], one.body["reward"]) == expected[seed]
            assert one.body["aborted"] is False
        else:
            assert (one.error["boundary"], one.status) in DECLARED, one.body
            assert "reward" not in one.body
            declared[one.error["code"]] += 1
            stored_failure(server.store, one.error)
    assert len(met) == len(KINDS), "every fault was met"
    codes = {"deadline", "model_redirected", "model_unreachable", "model_malformed", "model_rate_limited"}
    assert set(declared) <= codes
    assert declared["model_redirected"] == met["redirect"], "a redirect is never followed and ends each rollout"
    assert declared.total() <= met["redirect"] + 2 * met["hang"] + 5, "whatever may be asked again is asked again"
    assert dict(model.stats)["redirects_followed"] == 0
    until(lambda: lines(journal, "close") == lines(journal, "reset"), 10, "every environment closed")
    assert server.health()["hung_threads"] == 0


def test_no_key_of_the_server_reaches_a_model(server: Server) -> None:
    with MockModel(watch=[server.key, VENDOR_KEY]) as model:
        told = answers(server, [asked(model.url, seed=seed, policy={"api_key": VENDOR_KEY}) for seed in range(8)])
        calls = model.stats["requests"]
        assert {one.status for one in told} == {200}
        refused = [
            server.post(asked(model.url, policy={"api_key": server.key})),
            server.post(asked(f"{model.url}?api_key={server.key}")),
            server.post(asked(model.url, policy={"extra_body": {"key": server.key}})),
        ]
        for answer in refused:
            assert answer.status_code in (422, 502), answer.text
            assert server.key not in answer.text
        assert model.stats["watched"] == [0, calls], "the caller's own key goes along, the server's never"
    assert server.key not in server.log()
    assert VENDOR_KEY not in server.log()
