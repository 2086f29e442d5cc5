"""Rollouts in worker processes: the same episodes, and every fault costs one rollout with a typed failure."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit import RequestError, RolloutFailed, TaskApp
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import Saturated, Unavailable
from taskapp_kit.records.events import Event, fold, from_json, to_json
from taskapp_kit.records.protocols import StoredRollout
from taskapp_kit.rollout.response import response_body
from taskapp_kit.rollout.service import Service
from taskapp_kit.store import open_store
from taskapp_kit.wire.rollout import RolloutResponse
from tests.rollouts import a_request, app_from, serving
from tests.waiting import until_async

pytestmark = [pytest.mark.anyio, pytest.mark.process]

SECRET = "sentinel-private"
HOSTILE = Path(__file__).parents[2] / "hostile_app.py"


@pytest.fixture(scope="module")
def hostile() -> TaskApp:
    return find_app(str(HOSTILE))


@pytest.fixture(scope="module")
async def service(hostile: TaskApp, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """A service with one worker and a store, which tests share that leave it as they found it."""
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('shared')}/w.db")
    async with serving(hostile, workers=1, store=store) as service:
        yield service


async def failing(service: Service, **given: Any) -> RolloutFailed:
    with pytest.raises(RolloutFailed) as caught:
        await service.rollout(a_request("noop", **given))
    return caught.value


async def fine(service: Service, environment: str) -> None:
    rollout = await service.rollout(a_request("noop", env_name=environment, seed=1))
    assert (rollout.trajectory.length, rollout.scorecard.reward) == (5, 1.0)


async def stored(service: Service, rollout_id: str) -> StoredRollout:
    kept = await service.store.load(rollout_id)
    assert kept is not None
    return kept


# -- the same episodes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "seed", "image"), [("shared", 3, False), ("shared", 12, True), ("alone", 4, True)])
async def test_worker_and_thread_play_the_same_episode(
    hostile: TaskApp, service: Service, name: str, seed: int, image: bool
) -> None:
    request = a_request("random", env_name=name, seed=seed, config={"image": image})
    far = await service.rollout(request)
    async with serving(hostile) as other:
        near = await other.rollout(request)
    assert far.digest == near.digest == far.trajectory.digest()
    assert far.observation_digest == near.observation_digest == far.trajectory.observation_digest()
    assert far.trajectory.final_state == {"db": SECRET}
    assert [event.kind for event in far.events] == [event.kind for event in near.events]
    assert fold(far.events[:-1]) == far.trajectory
    assert replace(far.row(), rollout_id="", seconds=0.0) == replace(near.row(), rollout_id="", seconds=0.0)
    assert far.versions == near.versions
    assert far.ops_executed == near.ops_executed
    assert [item.score for item in far.scorecard.criteria] == [item.score for item in near.scorecard.criteria]
    assert set(far.timing) == {"environment", "policy", "scoring", "framework", "total"}
    assert far.timing["total"] == pytest.approx(sum(far.timing.values()) / 2)


@pytest.mark.exhaustive
async def test_whole_crafter_episodes_with_pictures_are_the_same_everywhere() -> None:
    pytest.importorskip("crafter", reason="needs taskapp-kit[crafter]")
    requests = [a_request("random", seed=seed, config={"image": seed % 2 == 0}) for seed in range(4)]
    played = []
    for workers in (0, 1, 2):
        async with serving(find_app("crafter"), workers=workers) as service:
            played.append(await asyncio.gather(*map(service.rollout, requests)))
    for near, one, two in zip(*played, strict=True):
        assert near.digest == one.digest == two.digest == two.trajectory.digest()
        assert near.observation_digest == one.observation_digest == two.trajectory.observation_digest()
        assert (near.observation_digest == near.digest) == (near.trajectory.seed % 2 == 1), "half of them have pictures"
        assert timeless(near.events) == timeless(one.events) == timeless(two.events)
        assert near.trajectory.steps


def timeless(events: Sequence[Event]) -> list[Any]:
    """The events as JSON, pictures by their hash, without times: those alone may differ."""
    return [_timeless(to_json(seq, event)) for seq, event in enumerate(events)]


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(part) for name, part in value.items() if name != "seconds"}
    if isinstance(value, (list, tuple)):
        return [_timeless(part) for part in value]
    return value if not dataclasses.is_dataclass(value) else _timeless(dataclasses.asdict(value))  # type: ignore[arg-type]


async def test_worker_and_parent_encode_the_same_response(service: Service) -> None:
    request = a_request(
        "random", seed=3, config={"image": True}, record={"return_trace": True}, group_id="g", run_id="ü"
    )
    rollout = await service.rollout(request, written=True)
    assert rollout.body is not None
    told = json.loads(rollout.body)
    RolloutResponse.model_validate(told)
    own = json.loads(json.dumps(response_body(rollout)))
    assert told == own
    assert SECRET not in rollout.body.decode()


async def test_the_front_draws_seeds_and_reads_splits(service: Service) -> None:
    rollouts = await asyncio.gather(*(service.rollout(a_request("noop", config={"split": "test"})) for _ in range(20)))
    assert len({rollout.trajectory.seed for rollout in rollouts}) > 2
    assert {rollout.trajectory.split for rollout in rollouts} == {"test"}
    assert all("split" not in rollout.trajectory.config for rollout in rollouts)
    assert (await service.rollout(a_request("noop", config={"index": 3}))).trajectory.seed == 3


async def test_a_stored_rollout_is_replayed_in_a_worker(service: Service) -> None:
    first = await service.rollout(a_request("random", seed=3))
    config = {"rollout_id": first.rollout_id}
    again = await service.rollout(a_request("replay", seed=3, policy_config=config))
    assert (again.digest, again.policy) == (first.digest, "replay")
    kept = await stored(service, again.rollout_id)
    assert kept.private == {"final_state": {"db": SECRET}}
    assert SECRET not in json.dumps(list(kept.events))
    assert fold(map(from_json, kept.events)).steps == again.trajectory.steps


@pytest.mark.parametrize("environment", ["shared", "alone"])
async def test_events_are_told_as_they_happen(service: Service, environment: str) -> None:
    told: list[Any] = []
    request = a_request("noop", env_name=environment, config={"slow": 0.1, "image": True})
    task = asyncio.create_task(service.rollout(request, listener=told.append))
    await until_async(lambda: sum(event.kind == "stepped" for event in told) >= 2)
    assert not task.done()
    rollout = await task
    assert [event.kind for event in told] == [event.kind for event in rollout.events]
    assert SECRET not in repr(told)
    assert timeless(told[:-2]) == timeless(rollout.events[:-2])


# -- faults ---------------------------------------------------------------------------------------------------------

FAULTS = {
    "segfault": ("environment", "worker_died", "segmentation fault (SIGSEGV)"),
    "exit": ("environment", "worker_died", "exited 3"),
    "hang": ("timeout", "step_timeout", "step_timeout_seconds of 0.4 s"),
    "hang in C": ("timeout", "step_timeout", "step_timeout_seconds of 0.4 s"),
    "step": ("environment", "environment_raised", "Hostile raised RuntimeError"),
    "reset": ("environment", "environment_raised", "Hostile raised RuntimeError"),
    "rubric": ("scoring", "criterion_failed", "fifth"),
}


@pytest.mark.ci(keep=1)
@pytest.mark.parametrize("environment", ["shared", "alone"])
async def test_each_fault_fails_one_rollout_with_its_boundary(service: Service, environment: str) -> None:
    await fine(service, environment)
    before = service.health()["workers"]
    for breaks, (boundary, code, words) in FAULTS.items():
        began = time.monotonic()
        error = await failing(service, env_name=environment, config={"breaks": breaks})
        assert (error.failure.boundary, error.failure.code) == (boundary, code), breaks
        assert words in error.failure.message
        assert SECRET not in str(error)
        kept = await stored(service, error.rollout_id)
        assert (kept.status, kept.failure["code"], kept.reward) == ("failed", code, None)
        assert kept.failure["error_id"] == error.failure.error_id
        if environment == "alone" and breaks not in ("reset", "rubric"):
            kinds = [event["kind"] for event in kept.events]
            assert kinds.count("stepped") == 1, (breaks, kinds)
            assert kinds.count("acted") == 2, "what was told until the crash is kept"
            assert kinds[-1] in ("failed", "ended")
        await fine(service, environment)
        assert time.monotonic() - began < 8
    counted = service.health()["workers"]
    assert counted["replaced"] - before["replaced"] >= 4
    assert counted["hung"] - before["hung"] >= 2
    assert counted["killed"] - before["killed"] >= 1
    assert service.health()["healthy"] is True


async def test_a_refused_config_is_the_callers_mistake(service: Service) -> None:
    before = await service.store.recent()
    for environment in ("shared", "alone"):
        with pytest.raises(RequestError, match="this colour does not exist") as caught:
            await service.rollout(a_request("noop", env_name=environment, config={"breaks": "config"}))
        assert caught.value.code == "bad_config"
        assert caught.value.fields[0].loc == ("body", "env", "config")
    assert await service.store.recent() == before


@pytest.mark.ci(keep=1)
@pytest.mark.parametrize("environment", ["shared", "untimed"])
async def test_the_deadline_stops_a_slow_episode_and_kills_a_hung_one(service: Service, environment: str) -> None:
    await service.rollout(a_request("noop", env_name=environment))
    slow = await failing(service, env_name=environment, config={"slow": 0.15}, safety={"max_time_s": 0.4})
    assert (slow.failure.boundary, slow.failure.code) == ("timeout", "deadline")
    assert 1 <= (await stored(service, slow.rollout_id)).length < 5
    if environment == "untimed":
        hung = await failing(service, env_name=environment, config={"breaks": "hang in C"}, safety={"max_time_s": 0.4})
        assert (hung.failure.boundary, hung.failure.code) == ("timeout", "deadline")
        assert (await stored(service, hung.rollout_id)).length == 1
    await fine(service, environment)


@pytest.mark.parametrize("environment", ["shared", "untimed"])
async def test_a_cancelled_rollout_ends_within_a_second_and_is_kept(
    service: Service, environment: str, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    before = {row.rollout_id for row in await service.store.recent()}
    request = a_request("noop", env_name=environment, config={"slow": 0.2, "mark": str(mark)})
    task = asyncio.create_task(service.rollout(request))
    await until_async(mark.exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert service.in_flight == 0
    assert service.worker_pool is not None and service.worker_pool._pool is not None
    pool = service.worker_pool._pool
    await until_async(lambda: not pool.counters()["in_flight"], 20)
    await asyncio.sleep(0.01)
    (kept,) = (row for row in await service.store.recent() if row.rollout_id not in before)
    assert (kept.status, kept.failure["boundary"], kept.reward) == ("failed", "cancelled", None)
    await fine(service, environment)


# -- the processes -------------------------------------------------------------------------------------------------


async def test_a_worker_has_the_environment_but_none_of_the_servers_keys(
    hostile: TaskApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = ("ENVIRONMENT_API_KEY", "ENVIRONMENT_API_KEY_ALIASES", "DEV_ENVIRONMENT_API_KEY", "TASKAPP_KEYS_FILE",
               "TASKAPP_STORE", "TASKAPP_JUDGE_KEY")  # fmt: skip
    for name in (*servers, "AUTHORS_OWN", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "sentinel")

    async with serving(hostile, workers=1) as service:
        for environment in ("shared", "alone"):
            rollout = await service.rollout(a_request("noop", env_name=environment, config={"breaks": "keys", "at": 9}))
            seen = rollout.trajectory.steps[0].observation
            assert {"AUTHORS_OWN", "OPENAI_API_KEY"} <= set(seen["environment"]), "an author's own"
            assert not set(servers) & set(seen["environment"])
            assert seen["pid"] != os.getpid()


async def test_isolation_holds_without_workers_and_its_processes_start_when_needed(hostile: TaskApp) -> None:
    async with serving(hostile) as service:
        await service.start()
        assert service.health()["workers"]["alive"] == 0
        near = await service.rollout(a_request("noop", config={"breaks": "who", "at": 9}))
        assert near.trajectory.steps[0].observation["pid"] == os.getpid()
        far = await service.rollout(a_request("noop", env_name="alone", config={"breaks": "who", "at": 9}))
        assert far.trajectory.steps[0].observation["pid"] != os.getpid()
        assert service.health()["workers"]["alive"] >= 1


async def test_app_without_an_importable_reference_is_rejected() -> None:
    app = TaskApp("local")

    @app.environment(isolation="process")
    class Local:
        def reset(self) -> str:
            return ""

        from taskapp_kit import action  # type: ignore[misc]

        @action
        def go(self) -> str:
            """Go."""
            return ""

    async with serving(app) as service:
        with pytest.raises(Unavailable, match="'local'") as caught:
            await service.rollout(a_request("random"))
        assert "at the top level of a file" in caught.value.hint


GOOD = """
app = TaskApp("halves")

class Good:
    def reset(self): return ""
    @action
    def go(self) -> str:
        "Go."
        return ""

app.environment("good", max_steps=2)(Good)
"""
IMPORTED_ONCE = """
import pathlib
mark = pathlib.Path(__file__).with_suffix(".mark")
if mark.exists():
    raise LookupError("imported twice")
mark.touch()
"""
NO_SETUP = """
class Bad(Good):
    @classmethod
    def setup_worker(cls) -> None:
        raise OSError("no data here")

app.environment("bad", max_steps=2)(Bad)
"""


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (IMPORTED_ONCE + GOOD, r"app\.py:.* LookupError: imported twice"),
        (GOOD + NO_SETUP, r"'bad' .*Bad\.setup_worker .*OSError: no data"),
    ],
    ids=["import", "setup"],
)
async def test_app_that_fails_in_workers_is_reported_at_start(tmp_path: Path, source: str, told: str) -> None:
    async with serving(app_from(tmp_path, source), workers=1) as service:
        with pytest.raises(Unavailable, match=told):
            await service.start()


async def test_a_closed_service_refuses(hostile: TaskApp) -> None:
    async with serving(hostile, workers=1) as service:
        await fine(service, "shared")
        await service.close()
        with pytest.raises(Saturated):
            await service.rollout(a_request("noop"))


async def test_cancelled_start_leaves_no_process(hostile: TaskApp) -> None:
    async with serving(hostile, workers=1) as service:
        task = asyncio.create_task(service.rollout(a_request("noop")))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await fine(service, "shared")
        assert service.health()["workers"]["alive"] <= 2
