"""One rollout from request to result: identity, failures, deadlines, cancellation, saturation, what is kept."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taskapp_kit import Image, RequestError, RolloutFailed, RolloutSummary, Step, TaskApp, Text, Trajectory, action
from taskapp_kit.errors import Saturated, StoreError, Unavailable
from taskapp_kit.records.events import fold, from_json
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.admission import HUNG_LIMIT, Caller, RunningRollout
from taskapp_kit.rollout.response import response_body
from taskapp_kit.rollout.service import Service
from taskapp_kit.store.open import open_store
from tests.plain_store import PlainStore
from tests.rollouts import a_request, app_from, served, serving
from tests.waiting import until_async

pytestmark = pytest.mark.anyio
SECRET = "sentinel-private"


class Gate:
    """Holds the environments that name it in their steps until it is opened."""

    def __init__(self, name: str) -> None:
        self.entered, self.leave, self.closed = threading.Event(), threading.Event(), threading.Event()
        self.request = a_request("noop", config={"gate": name})
        self.short_request = a_request("noop", config={"gate": name}, safety={"max_time_s": 0.05})


GATES: dict[str, Gate] = {}


class Env:
    """Does what env.config says."""

    def __init__(self, gate: str = "", slow: float = 0.0, breaks: str = "", image: bool = False):
        if breaks == "config":
            raise ValueError("no such thing")
        self.gate, self.slow, self.breaks, self.image = GATES.get(gate), slow, breaks, image

    def reset(self, seed: int) -> Any:
        self.n = 0
        if self.breaks == "reset":
            raise RuntimeError(SECRET)
        return f"seed {seed}"

    @action(noop={})
    def go(self, words: str = "") -> Step:
        """Go."""
        self.n += 1
        if self.gate is not None:
            self.gate.entered.set()
            self.gate.leave.wait(20)
        time.sleep(self.slow)
        picture = [Text(str(self.n)), Image(np.full((2, 2, 3), self.n, np.uint8))]
        return Step(picture if self.image else str(self.n), 1.0)

    def final_state(self) -> dict[str, str]:
        return {"db": SECRET}

    def close(self) -> None:
        if self.gate is not None:
            self.gate.closed.set()


@pytest.fixture
def app() -> TaskApp:
    app = TaskApp("served", version="2.0")
    app.environment("e", max_steps=3, splits={"train": range(10)}, version="5")(Env)

    @app.rubric
    def third(trajectory: Trajectory, config: dict[str, Any]) -> float:
        if config.get("breaks") == "rubric":
            raise RuntimeError(SECRET)
        return trajectory.length / 3

    @app.aggregate
    def mean(rollouts: Any) -> float:
        return float(sum(item.total_reward for item in rollouts) / len(rollouts))

    return app


@pytest.fixture
def store() -> PlainStore:
    return PlainStore()


@pytest.fixture
async def service(app: TaskApp, store: PlainStore) -> AsyncIterator[Service]:
    async with serving(app, store=store) as service:
        yield service


@pytest.fixture
def gate(request: pytest.FixtureRequest) -> Iterator[Gate]:
    """Named after the services among a test's arguments: it is opened before they are closed."""
    name = request.node.name
    GATES[name] = Gate(name)
    yield GATES[name]
    GATES[name].leave.set()


def test_a_rollout_from_request_to_result(app: TaskApp) -> None:
    rollout = served(app, a_request("noop", seed=4))
    assert rollout.trajectory.initial == "seed 4"
    assert rollout.scorecard.reward == 1.0
    assert rollout.digest == rollout.trajectory.digest()
    assert rollout.policy == "noop"
    assert rollout.ops_executed == 6
    assert rollout.versions["app"] == "2.0"
    assert rollout.versions["environment"] == "5"
    assert rollout.trajectory.version == "5"
    timing = rollout.timing
    assert timing["total"] == pytest.approx(
        sum(timing[part] for part in ("environment", "policy", "scoring", "framework"))
    )
    again = fold(event for event in rollout.events if event.kind != "scored")
    assert again == rollout.trajectory


async def test_each_rollout_has_its_id_and_the_same_digest(service: Service) -> None:
    one, two, three = [await service.rollout(a_request("noop", seed=seed)) for seed in (1, 1, 2)]
    assert one.rollout_id != two.rollout_id
    assert one.digest == two.digest != three.digest


async def test_missing_seed_is_drawn_and_reported(service: Service) -> None:
    seeds = {(await service.rollout(a_request("noop"))).trajectory.seed for _ in range(40)}
    assert seeds <= set(range(10))
    assert len(seeds) > 3


async def test_concurrent_rollouts_do_not_touch_each_other(app: TaskApp) -> None:
    async with serving(app, threads=8) as service:
        rollouts = await asyncio.gather(
            *(service.rollout(a_request("noop", seed=seed % 10, config={"slow": 0.002})) for seed in range(30))
        )
    assert [rollout.trajectory.initial for rollout in rollouts] == [f"seed {seed % 10}" for seed in range(30)]
    assert {len(rollout.trajectory.steps) for rollout in rollouts} == {3}


async def test_the_loop_stays_free_while_an_environment_works(service: Service, gate: Gate) -> None:
    task = asyncio.create_task(service.rollout(gate.request))
    await until_async(gate.entered.is_set)
    assert service.health()["in_flight"] == 1
    assert (await service.rollout(a_request("noop"))).trajectory.length == 3
    gate.leave.set()
    assert (await task).trajectory.length == 3
    assert service.health()["in_flight"] == 0


async def test_saturated_server_rejects_immediately(app: TaskApp, gate: Gate) -> None:
    async with serving(app, max_concurrent=2) as service:
        running = [asyncio.create_task(service.rollout(gate.request)) for _ in range(2)]
        await until_async(lambda: service.in_flight == 2)
        with pytest.raises(Saturated) as caught:
            await service.rollout(a_request("noop"))
        assert caught.value.retry_after_seconds >= 1
        gate.leave.set()
        await asyncio.gather(*running)
        assert (await service.rollout(a_request("noop"))).trajectory.length == 3


@pytest.mark.parametrize(
    ("config", "boundary", "code"),
    [({"breaks": "reset"}, "environment", "environment_raised"), ({"breaks": "rubric"}, "scoring", "criterion_failed")],
)
def test_failure_has_one_error_id_in_store_response_and_log(
    app: TaskApp, store: PlainStore, config: dict[str, Any], boundary: str, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(RolloutFailed) as caught:
        served(app, a_request("noop", config=config), store=store)
    failure = caught.value.failure
    stored = store.rollouts[caught.value.rollout_id]
    assert (failure.boundary, failure.code) == (boundary, code)
    assert SECRET not in str(caught.value)
    assert SECRET in caplog.text
    assert failure.error_id in caplog.text
    assert stored.status == "failed"
    assert stored.failure is not None
    assert stored.failure == {name: getattr(failure, name) for name in ("boundary", "code", "message", "error_id")}
    assert stored.reward is None
    assert stored.scorecard is None
    assert isinstance(caught.value.__cause__, RuntimeError)
    if boundary == "scoring":
        assert stored.length == 3, "what was played is kept"
        assert stored.digest


@pytest.mark.parametrize(("safety", "of_server"), [({"max_time_s": 0.07}, 3600.0), ({}, 0.07)])
def test_the_deadline_fails_and_is_never_scored(
    app: TaskApp, store: PlainStore, safety: dict[str, float], of_server: float
) -> None:
    request = a_request("noop", config={"slow": 0.05}, safety=safety)
    with pytest.raises(RolloutFailed) as caught:
        served(app, request, store=store, max_time_seconds=of_server)
    assert (caught.value.failure.boundary, caught.value.failure.code) == ("timeout", "deadline")
    assert 1 <= store.last().length < 3
    assert (store.last().status, store.last().stop_reason) == ("failed", "deadline")


async def test_hung_environment_fails_only_its_own_rollout(service: Service, store: PlainStore, gate: Gate) -> None:
    service.pinned_threads.grace_seconds = 0.05
    with pytest.raises(RolloutFailed) as caught:
        await service.rollout(gate.short_request)
    assert (caught.value.failure.boundary, caught.value.failure.code) == ("timeout", "environment_hung")
    assert store.last().failure is not None
    assert store.last().events[0]["kind"] == "started"
    assert service.health()["hung_threads"] == 1
    assert service.health()["status"] == "healthy"
    assert (await service.rollout(a_request("noop"))).trajectory.length == 3
    gate.leave.set()
    await until_async(lambda: service.health()["hung_threads"] == 0)
    await until_async(gate.closed.is_set)


async def test_so_many_hung_threads_drain_the_server(service: Service, gate: Gate) -> None:
    service.pinned_threads.grace_seconds = 0.05
    requests = [gate.short_request] * HUNG_LIMIT
    failed = await asyncio.gather(*map(service.rollout, requests), return_exceptions=True)
    assert all(isinstance(item, RolloutFailed) for item in failed)
    assert service.health()["status"] == "draining"
    with pytest.raises(Saturated, match="threads") as caught:
        await service.rollout(a_request("noop"))
    assert caught.value.code == "draining"
    assert service.in_flight == 0
    gate.leave.set()
    await until_async(lambda: service.health()["status"] == "healthy")
    assert (await service.rollout(a_request("noop"))).trajectory.length == 3


async def test_rollout_without_a_free_thread_fails_with_no_thread(app: TaskApp, store: PlainStore, gate: Gate) -> None:
    async with serving(app, threads=1, store=store) as service:
        first = asyncio.create_task(service.rollout(gate.request))
        await until_async(gate.entered.is_set)
        with pytest.raises(RolloutFailed) as caught:
            await service.rollout(a_request("noop", safety={"max_time_s": 0.05}))
        assert (caught.value.failure.boundary, caught.value.failure.code) == ("timeout", "no_thread")
        assert store.last().length == 0
        assert service.health()["hung_threads"] == 0
        gate.leave.set()
        await first


async def test_a_cancelled_rollout_stops_closes_and_is_kept(service: Service, store: PlainStore, gate: Gate) -> None:
    task = asyncio.create_task(service.rollout(gate.request))
    await until_async(gate.entered.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert service.in_flight == 0
    assert service.health()["hung_threads"] == 0, "it has not hung: it was not given the time to notice"
    gate.leave.set()
    await until_async(gate.closed.is_set)
    stored = store.last()
    assert (stored.status, stored.failure["boundary"]) == ("failed", "cancelled")
    assert stored.reward is None
    assert stored.seconds > 0


async def test_stored_row_has_every_column(app: TaskApp, store: PlainStore) -> None:
    config = {
        "inference_url": "https://user:pw@host/v1?cid=c1&key=k",
        "api_key": SECRET,
        "temperature": 0.5,
        "model": "m",
        "extra_headers": {"Authorization": SECRET},
    }
    request = a_request("noop", seed=1, policy_config=config, group_id="g")
    async with serving(app, store=store) as service:
        rollout = await service.rollout(request, caller=Caller(key_label="blue"))
    stored = store.rollouts[rollout.rollout_id]
    assert stored.policy == {
        "name": "noop",
        "model": "m",
        "temperature": 0.5,
        "inference_url": "https://host/v1?cid=c1",
    }
    assert SECRET not in json.dumps([stored.policy, list(stored.events), stored.scorecard])
    assert stored.private == {"final_state": {"db": SECRET}}
    assert (stored.key_label, stored.group_id, stored.split, stored.seed) == ("blue", "g", "train", 1)
    assert stored.spec_hash == app.freeze().hash
    assert (stored.digest, stored.reward, stored.status) == (rollout.digest, 1.0, "truncated")
    assert [event["kind"] for event in stored.events][-2:] == ["ended", "scored"]
    assert fold(map(from_json, stored.events)).steps == rollout.trajectory.steps
    assert store.closed


@pytest.mark.parametrize("config", [{}, {"rollout_id": 3}, {"rollout_id": "none"}], ids=repr)
def test_a_replay_of_nothing_is_the_callers_mistake(app: TaskApp, store: PlainStore, config: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        served(app, a_request("replay", policy_config=config), store=store)
    assert caught.value.fields[0].loc[-1] == "rollout_id"


def test_a_replay_without_a_store(app: TaskApp) -> None:
    with pytest.raises(Unavailable, match="'replay' .*--store"):
        served(app, a_request("replay", policy_config={"rollout_id": "x"}))


@pytest.mark.parametrize("stored", [True, False])
async def test_pictures_are_served_by_name_with_and_without_a_store(app: TaskApp, stored: bool) -> None:
    async with serving(app, store=PlainStore() if stored else None) as service:
        rollout = await service.rollout(a_request("noop", config={"image": True}))
        for step in rollout.trajectory.steps:
            picture = step.observation[1]
            assert await service.stored.blob(picture.hash) == picture.png
        assert await service.stored.blob("0" * 64) is None


PICTURES = """
app = TaskApp("pictures")
class Pixels:
    shape, dtype = (2, 3, 3), "uint8"
    def __init__(self, shade): self.shade = shade
    def copy(self): return self
    def tobytes(self): return bytes([self.shade]) * 18
@app.environment("gallery", max_steps=2)
class Gallery:
    '''Look.'''
    def __init__(self, shade: int = 0): self.shade = shade
    def reset(self, context):
        self.drawn = context.wants_images
        return "a door"
    @action(noop={})
    def look(self):
        '''Look.'''
        return [Text("a picture"), Image(Pixels(self.shade))] if self.drawn else "a picture"
"""


async def test_observation_digest_distinguishes_images_from_actions(tmp_path: Path) -> None:
    async with serving(app_from(tmp_path, PICTURES), store=open_store(f"sqlite:///{tmp_path}/w.db")) as service:

        async def told(**given: Any) -> tuple[str, str | None]:
            rollout = await service.rollout(a_request("noop", seed=1, **given))
            kept = await service.store.load(rollout.rollout_id)
            assert kept is not None
            body = response_body(rollout)
            assert (kept.digest, kept.observation_digest) == (body["digest"], body["observation_digest"])
            return rollout.digest, rollout.observation_digest

        black, again = await told(), await told()
        grey = await told(config={"shade": 9})
        blind = await told(policy_config={"images": False})
        assert black == again
        assert {one[0] for one in (grey, blind)} == {black[0]}
        assert None not in (black[1], grey[1])
        assert black[1] != grey[1]
        assert blind[1] is None


def test_a_request_whose_every_action_is_scripted_needs_no_policy(app: TaskApp) -> None:
    request = a_request(None, ops=[{"type": "env", "tool": "go", "args": {}}] * 2)
    rollout = served(app, request)
    assert (rollout.trajectory.length, rollout.ops_executed, rollout.trajectory.stop_reason) == (2, 2, "ops")
    with pytest.raises(RequestError, match=r"policy\.config\.inference_url"):
        served(app, a_request(None, ops=["agent"]))


def test_a_wrong_request_runs_nothing(app: TaskApp, store: PlainStore) -> None:
    for wrong in (
        {"seed": 10},
        {"env_name": "f"},
        {"config": {"colour": 1}},
        {"config": {"split": "test"}},
        {"ops": ["jump"]},
        {"config": {"index": 1}, "seed": 2},
    ):
        with pytest.raises(RequestError) as caught:
            served(app, a_request("noop", **wrong), store=store)
        assert caught.value.fields
    assert not store.rollouts


def test_a_judge_that_weighs_something_is_refused_at_start_naming_the_variable(app: TaskApp) -> None:
    @app.judge(weight=0.5)
    def style(trajectory: Trajectory) -> str:
        """Is it elegant?"""
        return ""

    with pytest.raises(Unavailable) as caught:
        served(app, a_request("noop"))
    assert "'style'" in caught.value.message
    assert "test_service.py:" in caught.value.message
    assert "TASKAPP_JUDGE_URL" in caught.value.message
    assert "weight=0" in caught.value.hint


async def test_a_judge_that_only_measures_warns_once_at_start(app: TaskApp, caplog: pytest.LogCaptureFixture) -> None:
    @app.judge(weight=0)
    def style(trajectory: Trajectory) -> str:
        """Is it elegant?"""
        return ""

    with caplog.at_level(logging.WARNING):
        async with serving(app) as service:
            rollouts = [await service.rollout(a_request("noop")) for _ in range(3)]
    assert caplog.text.count("not_configured") == 1
    assert [(c.name, c.score, c.reason) for c in rollouts[0].scorecard.criteria][1] == ("style", None, "not_configured")
    assert rollouts[0].scorecard.reward == 1.0


async def test_health_and_instances_and_aggregates(service: Service) -> None:
    health = service.health()
    figures = [health[name] for name in ("healthy", "capacity", "in_flight", "hung_threads")]
    assert figures == [True, 1024, 0, 0]
    assert service.instance(None, None, 3).split == "train"
    with pytest.raises(RequestError, match=r"\b99\b.*'e': train 0 .*\b9\b"):
        service.instance(None, None, 99)
    summaries = [(await service.rollout(a_request("noop"))).row() for _ in range(2)]
    assert all(isinstance(item, RolloutSummary) for item in summaries)
    assert service.aggregate(summaries) == {"mean": 3.0}
    with pytest.raises(RolloutFailed, match="aggregate 'mean'"):
        service.aggregate([])


async def test_events_are_told_as_they_happen(service: Service) -> None:
    told: list[str] = []
    await service.rollout(a_request("noop"), listener=lambda event: told.append(event.kind))
    assert told[0] == "started"
    assert told[-2:] == ["ended", "scored"]
    assert told.count("stepped") == 3


async def test_many_rollouts_leave_no_threads_behind(app: TaskApp) -> None:
    before = threading.active_count()

    async with serving(app, threads=4) as service:
        await asyncio.gather(*(service.rollout(a_request("noop")) for _ in range(50)))
    await until_async(lambda: threading.active_count() <= before)


# -- places, quotas, the end ---------------------------------------------------------------------------------------


async def at_the_gate(service: Service, gate: Gate, count: int = 1, caller: Caller | None = None) -> list[Any]:
    """So many rollouts, all of them waiting in their first step."""
    tasks = [asyncio.create_task(service.rollout(gate.request, caller=caller or Caller())) for _ in range(count)]
    await until_async(gate.entered.is_set)
    await until_async(lambda: service.in_flight >= count)
    return tasks


async def test_a_drain_with_nothing_to_wait_for_is_over_at_once(service: Service) -> None:
    await service.rollout(a_request("noop"))
    async with asyncio.timeout(0.5):
        await service.drain(60.0)
        await service.drain(60.0)
    assert service.health()["status"] == "draining"
    with pytest.raises(Saturated, match="stopping") as caught:
        await service.rollout(a_request("noop"))
    assert caught.value.code == "draining"
    assert caught.value.retry_after_seconds >= 1


async def test_drain_waits_for_running_rollouts(service: Service, store: PlainStore, gate: Gate) -> None:
    running = await at_the_gate(service, gate, 3)
    draining = asyncio.create_task(service.drain(20.0))
    await until_async(lambda: service.health()["status"] == "draining")
    with pytest.raises(Saturated):
        await service.rollout(a_request("noop"))
    assert not draining.done()
    gate.leave.set()
    assert [rollout.trajectory.length for rollout in await asyncio.gather(*running)] == [3, 3, 3]
    async with asyncio.timeout(20):
        await draining
    assert [row.status for row in store.rollouts.values()] == ["truncated"] * 3


async def test_drain_cancels_and_stores_rollouts_after_the_grace_period(
    app: TaskApp, store: PlainStore, gate: Gate
) -> None:
    async with serving(app, store=store, threads=1) as service:
        running = await at_the_gate(service, gate, 3)  # one in a step that hangs, two in line for its thread
        began = time.monotonic()
        await service.drain(0.1)
        assert time.monotonic() - began >= 0.1
        assert service.in_flight == 0
        for task in running:
            with pytest.raises(RolloutFailed) as caught:
                await task
            failure = caught.value.failure
            assert (failure.boundary, failure.code) == ("cancelled", "server_stopping")
            stored = store.rollouts[caught.value.rollout_id]
            assert (stored.status, stored.failure["error_id"]) == ("failed", failure.error_id)
            assert stored.events[-1]["code"] == "server_stopping"
            assert stored.reward is None
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
        gate.leave.set()
    assert len(store.rollouts) == 3
    assert max(len(row.events) for row in store.rollouts.values()) > 4, "with what was played"


async def test_a_second_drain_may_be_less_patient(service: Service, gate: Gate) -> None:
    running = await at_the_gate(service, gate)
    patient = asyncio.create_task(service.drain(60.0))
    await asyncio.sleep(0.02)
    await service.drain(0.0)
    async with asyncio.timeout(1):
        await patient
    with pytest.raises(RolloutFailed):
        await running[0]


async def test_client_that_disconnects_during_a_drain_cancels_its_rollout(
    service: Service, store: PlainStore, gate: Gate
) -> None:
    running = await at_the_gate(service, gate)
    draining = asyncio.create_task(service.drain(20.0))
    await asyncio.sleep(0.02)
    running[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await running[0]
    async with asyncio.timeout(20):
        await draining
    gate.leave.set()
    assert store.last().stop_reason == "cancelled"


BLUE, RED = Caller("blue", max_in_flight=2), Caller("red", max_in_flight=2)


async def test_a_key_has_its_quota_and_others_theirs(service: Service, gate: Gate) -> None:
    running = await at_the_gate(service, gate, 2, BLUE)
    with pytest.raises(Saturated, match="'blue'") as caught:
        await service.rollout(a_request("noop"), caller=BLUE)
    assert caught.value.code == "key_quota_reached"
    for other in (RED, Caller("blue-2", 1), Caller(), Caller(None, 1), Caller("blue", None)):
        assert (await service.rollout(a_request("noop"), caller=other)).trajectory.length == 3
    gate.leave.set()
    await asyncio.gather(*running)
    assert (await service.rollout(a_request("noop"), caller=BLUE)).trajectory.length == 3


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"config": {"breaks": "reset"}}, RolloutFailed),
        ({"config": {"breaks": "rubric"}}, RolloutFailed),
        ({"config": {"breaks": "config"}}, RequestError),
        ({"config": {"slow": 0.1}, "safety": {"max_time_s": 0.05}}, RolloutFailed),
        ({"seed": 1000}, RequestError),
        ({"policy": "replay", "policy_config": {"rollout_id": "x"}}, Unavailable),
    ],
    ids=str,
)
async def test_a_place_is_given_back_however_it_ends(
    app: TaskApp, given: dict[str, Any], error: type[Exception]
) -> None:
    one = Caller("blue", max_in_flight=1)

    async with serving(app, max_concurrent=1) as service:
        request = a_request(given.pop("policy", "noop"), **given)
        for _ in range(3):
            with pytest.raises(error) as caught:
                await service.rollout(request, caller=one)
            assert not isinstance(caught.value, Saturated)
        assert service.in_flight == 0
        await service.rollout(a_request("noop"), caller=one)


@pytest.mark.ci
async def test_capacity_is_released_after_a_disconnect_or_a_store_failure(
    service: Service, store: PlainStore, gate: Gate
) -> None:
    one = Caller("blue", max_in_flight=1)
    (running,) = await at_the_gate(service, gate, 1, one)
    running.cancel()
    await asyncio.wait((running,))
    gate.leave.set()
    store.full = True
    with pytest.raises(StoreError):
        await service.rollout(a_request("noop"), caller=one)
    with pytest.raises(Saturated) as refused:  # before it is played
        await service.rollout(a_request("noop"), caller=one)
    assert refused.value.code == "store_failing"
    store.full = False
    await until_async(lambda: not service.store_state.failing)
    await service.rollout(a_request("noop"), caller=one)
    assert service.in_flight == 0


async def test_a_watcher_is_given_each_rollout_that_is_over_once(
    service: Service, store: PlainStore, gate: Gate
) -> None:
    seen: list[tuple[RunningRollout, Rollout]] = []

    def watch(course: RunningRollout, finished: Rollout) -> None:
        assert course.rollout_id in store.rollouts, "what it is given is kept"
        seen.append((course, finished))

    service.watchers.append(watch)
    rollout = await service.rollout(a_request("noop", seed=3), caller=BLUE)
    course, finished = seen[-1]
    assert (course.rollout_id, course.caller) == (rollout.rollout_id, BLUE)
    assert finished is rollout
    assert finished.failure is None
    for config, code in (({"breaks": "reset"}, "environment_raised"), ({"breaks": "rubric"}, "criterion_failed")):
        with pytest.raises(RolloutFailed):
            await service.rollout(a_request("noop", config=config))
        assert seen[-1][1].failure is not None
        assert seen[-1][1].failure.code == code
    (running,) = await at_the_gate(service, gate)
    running.cancel()
    await asyncio.wait((running,))
    assert seen[-1][1].failure is not None
    assert seen[-1][1].failure.boundary == "cancelled"
    gate.leave.set()
    for refused in (a_request("noop", seed=1000), a_request("noop", config={"breaks": "config"})):
        with pytest.raises(RequestError):
            await service.rollout(refused)
    store.full = True
    with pytest.raises(StoreError):
        await service.rollout(a_request("noop"))
    assert len(seen) == len({course.rollout_id for course, _ in seen}) == 4
