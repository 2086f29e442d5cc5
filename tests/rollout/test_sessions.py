"""Sessions in one process: the same episodes as `/rollout`, one call at a time, replays, ends, capacity, expiry."""

from __future__ import annotations

import asyncio
import gc
import math
import weakref
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import IdempotencyKeyReused, RequestError, RolloutFailed, Saturated, SessionError
from taskapp_kit.records.events import content_to_json
from taskapp_kit.records.protocols import SystemClock
from taskapp_kit.rollout.admission import Caller
from taskapp_kit.rollout.service import Service
from taskapp_kit.rollout.session import EnvironmentSession, SessionStep
from taskapp_kit.store.open import open_store
from tests import live_app
from tests.machine import skip_if_it_cannot_play
from tests.rollouts import a_request, app_from, serving
from tests.waiting import until_async

SCORED = """
app = TaskApp("scored", version="1.0.0", reward=Blend(env=1.0, event=0.5, outcome=2.0))

@app.environment("walk", splits={"train": range(10)}, max_steps=4)
class Walk:
    def __init__(self, to: int = 3, undefined: bool = False, breaks: str = "") -> None:
        self.to, self.breaks = to, breaks

    def reset(self, seed: int) -> str:
        self.at = 0
        if self.breaks == "reset":
            raise RuntimeError("no")
        return f"at 0 of {self.to}"

    @action(noop={"by": 0})
    def go(self, by: int) -> Step:
        '''Walk.'''
        if by < 0:
            raise InvalidAction("not backwards")
        if self.breaks == "step" and self.at:
            raise RuntimeError("no")
        self.at += by
        return Step(f"at {self.at}", float(by), terminated=self.at >= self.to, metrics={"moved": by})

@app.rubric(of="events", weight=2.0)
def bold(step) -> float:
    return 1.0 if step.args.get("by", 0) > 1 else 0.0

@app.rubric(of="events", weight=1.0)
def late(step, trajectory: Trajectory) -> float | None:
    return 0.25 if trajectory.length > 2 else None

@app.rubric
def there(trajectory: Trajectory, config: dict[str, Any]) -> float | None:
    if config.get("breaks") == "rubric":
        raise RuntimeError("no")
    return None if config.get("undefined") else float(trajectory.status == "terminated")
"""


pytestmark = pytest.mark.anyio


class HandClock(SystemClock):
    """The system's clock, moved forward by hand."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


def scored(folder: Path, source: str = SCORED, **options: Any) -> AbstractAsyncContextManager[Service]:
    return serving(app_from(folder, source), store=open_store(str(folder / "s.db")), **options)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service of the app above."""
    async with scored(tmp_path) as service:
        yield service


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Service]:
    """A service of an app that waits, breaks and leaves marks as its config says."""
    async with serving(live_app.app, store=open_store(str(tmp_path / "live.db"))) as service:
        yield service


async def played(session: EnvironmentSession, *actions: tuple[str, Any]) -> list[SessionStep]:
    return [await session.step([action]) for action in actions]


async def same_as_rollout(service: Service, *, seed: int, environment: str, config: dict[str, Any]) -> None:
    """Play an episode by the random policy, then drive a session with its actions, and compare everything."""
    rollout = await service.rollout(a_request("random", env_name=environment, seed=seed, config=config))
    session = await service.sessions.open(environment)
    start = await session.reset(seed, config=config)
    assert content_to_json(start.observation) == content_to_json(rollout.trajectory.initial)
    assert start.end is None and start.seed == seed
    rewards, last = [], None
    for turn in rollout.trajectory.turns:
        calls = [(call.tool, call.args) for call in turn.answer.tool_calls]
        last = await session.step(calls, text=turn.answer.output)
        rewards.append(last.reward)
        assert [(content_to_json(step.observation), step.reward, step.refused) for step in last.steps] == [
            (content_to_json(step.observation), step.reward, step.refused) for step in turn.steps
        ]
    end = last.end or (await session.finish()).end
    assert end is not None
    if last.end is None:  # the random policy was cut by a limit of the request
        return
    assert content_to_json(last.observation) == content_to_json(rollout.trajectory.steps[-1].observation)
    assert (end.digest, end.status, end.stop_reason) == (rollout.digest, rollout.status, rollout.stop_reason)
    assert end.reward == rollout.reward
    if rollout.reward is None:
        assert rewards[-1] is None
    else:
        assert math.isclose(math.fsum(rewards), rollout.reward, rel_tol=1e-9, abs_tol=1e-9)
    stored = await service.stored.load(end.rollout_id, Caller(admin=True))
    assert stored is not None and stored.policy["name"] == "session" and stored.digest == rollout.digest
    await session.close()


EXAMPLES = Path(__file__).parents[2] / "examples"
APPS = {"adder": str(EXAMPLES / "adder.py"), "crafter": "crafter", "math": "math", "python_sandbox": "python_sandbox"}
"""Apps by name, and how they are found."""


@pytest.mark.process
@pytest.mark.parametrize("name", APPS)
async def test_the_same_actions_give_the_same_episode_as_a_rollout(name: str, tmp_path: Path) -> None:
    skip_if_it_cannot_play(name)
    store = open_store(str(tmp_path / "s.db"))
    async with serving(find_app(APPS[name]), skip_judges=True, store=store) as service:
        for environment, spec in service.spec.environments.items():
            config: dict[str, Any] = {"length": 60} if "length" in spec.config.schema.get("properties", {}) else {}
            for seed in (0, 3):
                await same_as_rollout(service, seed=seed, environment=environment, config=config)


ISOLATED = """
app = TaskApp("apart", version="1.0.0")

@app.environment("alone", splits={"train": range(10)}, max_steps=5, isolation="process")
class Alone:
    def reset(self, seed: int) -> str:
        return f"seed {seed}"

    @action(noop={})
    def go(self) -> Step:
        '''Go.'''
        return Step("gone", 1.0)
"""


@pytest.mark.ci(keep=1)
@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 1, 4])
async def test_worker_processes_drive_the_same_episodes(workers: int, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "s.db"))
    async with serving(find_app(live_app.__file__), workers=workers, store=store) as service:
        drivers = [same_as_rollout(service, seed=seed, environment="show", config={"image": True}) for seed in range(6)]
        await asyncio.gather(*drivers)
        session = await service.sessions.open()
        start = await session.reset(7, config={"gate": str(tmp_path / "gate"), "at": 0})
        with pytest.raises(RolloutFailed) as slow:
            await session.step([("go", {})], seconds=0.1)
        assert slow.value.failure.code == "step_timeout" and slow.value.rollout_id == start.rollout_id
        (tmp_path / "gate").touch()
        assert (await session.reset(8)).observation == "seed 8, number 0, ü"
        assert (await session.step([("go", {})])).reward == 0.0  # the app's formula has the outcome only
        assert (await session.finish()).truncated
        await session.close()
        assert service.in_flight == 0


@pytest.mark.process
async def test_an_isolated_environment_has_a_process_for_each_session(tmp_path: Path) -> None:
    async with scored(tmp_path, ISOLATED) as service:
        for seed in (0, 1):
            await same_as_rollout(service, seed=seed, environment="alone", config={})
        open_now = [await service.sessions.open() for _ in range(2)]
        await asyncio.gather(*(session.reset(seed) for seed, session in enumerate(open_now)))
        assert [(await session.step([("go", {})])).observation for session in open_now] == ["gone", "gone"]


async def test_step_rewards_sum_to_the_rollouts_reward_and_name_their_parts(service: Service) -> None:
    session = await service.sessions.open("walk")
    start = await session.reset(1)
    assert (start.observation, start.formula) == (
        "at 0 of 3",
        "reward = 1 · return + 0.5 · events_score + 2 · outcome_score",
    )
    assert [action["name"] for action in start.actions] == ["go"] and start.tools[0]["function"]["name"] == "go"
    assert start.messages[-1] == {"role": "user", "content": "at 0 of 3"} and start.limits["max_steps"] == 4
    first, refused, last = await played(session, ("go", {"by": 0}), ("go", {"by": -1}), ("go", {"by": 3}))
    assert (first.reward, first.parts, first.terminated) == (0.0, {"env": 0.0, "event": 0.0}, False)
    assert refused.steps[0].refused == refused.observation == "not backwards" and refused.reward == 0.0
    # 3 of the environment, 0.5 · 2 for a bold step, 0.5 · 0.75 of the criterion that reads the whole episode, 2 for the end
    assert last.terminated and last.parts == {"env": 3.0, "event": 1.375, "outcome": 2.0} and last.reward == 6.375
    assert last.end is not None and last.end.reward == 6.375 and last.end.metrics["moved"] == 3
    with pytest.raises(SessionError, match="has ended") as over:
        await session.step([("go", {"by": 1})])
    assert over.value.code == "episode_over"
    assert await session.finish() is last


async def test_an_undefined_reward_is_none_and_a_failure_has_none(service: Service) -> None:
    session = await service.sessions.open()
    await session.reset(1, config={"undefined": True})
    last = await session.step([("go", {"by": 3})])
    assert last.terminated and last.reward is None and last.parts["outcome"] is None
    failed = {"rubric": "scoring", "step": "environment"}
    for where, boundary in failed.items():
        await session.reset(1, config={"breaks": where})
        await session.step([("go", {"by": 1})])
        with pytest.raises(RolloutFailed) as failure:
            await session.step([("go", {"by": 2})])
        assert failure.value.boundary == boundary
        for again in (partial(session.step, [("go", {"by": 1})]), session.finish):
            with pytest.raises(RolloutFailed) as repeated:
                await again()
            assert repeated.value.failure is failure.value.failure
        assert session.state == "over"
    with pytest.raises(RolloutFailed):
        await session.reset(1, config={"breaks": "reset"})
    assert (await session.reset(1)).end is None


async def test_finish_truncates_and_scores(service: Service) -> None:
    session = await service.sessions.open()
    with pytest.raises(SessionError) as none:
        await session.finish()
    assert none.value.code == "no_episode"
    await session.reset(1)
    await session.step([("go", {"by": 2})])
    last = await session.finish()
    assert last.truncated and last.end is not None and last.end.stop_reason == "finished"
    # 2 of the environment and 0.5 · 2 of the bold step were paid; one step is too few for `late`, which then has no score
    assert last.end.reward == 3.0 and last.reward == 0.0
    stored = await service.stored.load(last.end.rollout_id, Caller(admin=True))
    assert stored is not None and stored.policy == {
        "name": "session",
        "session_id": session.session_id,
        "protocol": "python",
    }
    assert (stored.status, stored.stop_reason, stored.run_id) == ("truncated", "finished", session.session_id)


async def test_limits_end_the_episode_with_the_step_that_reaches_them(service: Service) -> None:
    session = await service.sessions.open()
    await session.reset(1)
    steps = await played(session, *[("go", {"by": 0})] * 4)
    assert [step.truncated for step in steps] == [False, False, False, True]
    assert steps[-1].end is not None and steps[-1].end.stop_reason == "max_steps"


async def test_a_repeated_request_id_replays_the_last_answer(service: Service) -> None:
    session = await service.sessions.open()
    start = await session.reset(1, request_id="a")
    assert await session.reset(1, request_id="a") is start
    step = await session.step([("go", {"by": 1})], request_id="b")
    assert await session.step([("go", {"by": 1})], request_id="b") is step and session.turn == 1
    with pytest.raises(IdempotencyKeyReused):
        await session.step([("go", {"by": 2})], request_id="b")
    with pytest.raises(IdempotencyKeyReused):
        await session.finish(request_id="b")


async def test_disconnected_caller_can_repeat_a_step(live: Service, tmp_path: Path) -> None:
    session = await live.sessions.open()
    gate, mark = tmp_path / "gate", tmp_path / "mark"
    await session.reset(0, config={"gate": str(gate), "at": 0, "mark": str(mark)})
    call = asyncio.create_task(session.step([("go", {})], request_id="1"))
    await until_async(lambda: live_app.marks(mark, "waiting"))
    with pytest.raises(SessionError) as busy:
        await session.step([("go", {})], request_id="2")
    assert busy.value.code == "session_busy" and session.busy
    call.cancel()
    await asyncio.wait((call,))
    gate.touch()
    step = await session.step([("go", {})], request_id="1")
    assert step.observation == "seed 0, number 1, ü" and session.turn == 1
    await live.close()
    assert live_app.marks(mark, "close") == 1


async def test_a_step_past_its_time_limit_fails_the_episode_and_not_the_session(live: Service, tmp_path: Path) -> None:
    session = await live.sessions.open()
    gate = tmp_path / "gate"
    start = await session.reset(0, config={"gate": str(gate), "at": 0})
    with pytest.raises(RolloutFailed, match="time limit of 0.05 s") as slow:
        await session.step([("go", {})], seconds=0.05)
    assert (slow.value.failure.boundary, slow.value.failure.code) == ("timeout", "step_timeout")
    stored = await live.stored.load(start.rollout_id, Caller(admin=True))
    assert stored is not None and stored.status == "failed" and stored.reward is None
    gate.touch()
    assert (await session.reset(1)).observation == "seed 1, number 0, ü"
    assert live.in_flight == 1


async def test_an_episode_that_is_left_is_stored_as_cancelled(live: Service) -> None:
    session = await live.sessions.open("show", run_id="my-run")
    left = [await session.reset(0)]
    await session.step([("go", {})])
    left.append(await session.reset(1))
    await session.close()
    await session.close()
    for start, steps in zip(left, (1, 0), strict=True):
        stored = await live.stored.load(start.rollout_id, Caller(admin=True))
        assert stored is not None and stored.failure is not None and stored.run_id == "my-run"
        assert (stored.failure["boundary"], stored.failure["code"]) == ("cancelled", "session_left")
        assert (stored.length, stored.reward) == (steps, None)
    with pytest.raises(SessionError) as gone:
        await session.step([("go", {})])
    assert gone.value.code == "session_not_found" and session.state == "closed"
    assert (len(live.sessions), live.in_flight, live.sessions.ended["closed"]) == (0, 0, 1)


async def test_rejected_reset_names_its_own_fields(service: Service, live: Service) -> None:
    with pytest.raises(RequestError):
        await service.sessions.open("run")
    session = await service.sessions.open()
    refused: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"seed": -1}, ("body", "seed")),
        ({"seed": 99}, ("body", "seed")),
        ({"config": {"to": "x"}}, ("body", "config", "to")),
        ({"split": "exam"}, ("body", "config", "split")),
        ({"config": {"to": {1, 2}}}, ("body", "config")),
    ]
    for given, place in refused:
        with pytest.raises(RequestError) as error:
            await session.reset(given.pop("seed", 0), **given)
        assert error.value.fields[0].loc == place
    assert session.state == "open" and service.in_flight == 0
    with pytest.raises(RequestError):
        await session.step([("go", {"by": math.nan})])
    refusing = await live.sessions.open()
    with pytest.raises(RequestError) as constructor:
        await refusing.reset(0, config={"breaks": "config"})
    assert constructor.value.code == "bad_config" and refusing.state == "open" and live.in_flight == 0
    with pytest.raises(SessionError):
        await session.step([("go", {"by": 1})])


async def test_only_the_key_that_opened_a_session_drives_it(service: Service) -> None:
    ann, bob, root = Caller("ann"), Caller("bob"), Caller("root", admin=True)
    session = await service.sessions.open(caller=ann)
    assert service.sessions.find(session.session_id, ann) is session
    for caller, drives in ((bob, True), (bob, False), (root, True)):
        with pytest.raises(SessionError) as unknown:
            service.sessions.find(session.session_id, caller, drives=drives)
        assert unknown.value.code == "session_not_found"
    assert service.sessions.find(session.session_id, root, drives=False) is session
    assert service.sessions.listed(root) == service.sessions.listed(ann) == [session]
    assert service.sessions.listed(bob) == []


async def test_idle_sessions_and_sessions_of_revoked_keys_end_as_failed(tmp_path: Path) -> None:
    clock = HandClock()
    async with scored(tmp_path, clock=clock) as service:
        idle, used, revoked = [await service.sessions.open(caller=Caller(name)) for name in ("a", "b", "c")]
        starts = {name: await session.reset(0) for name, session in (("idle", idle), ("revoked", revoked))}
        await used.reset(0)
        clock.ahead = 899.0
        service.sessions.find(used.session_id, Caller("b"))  # a ping
        await service.sessions.expire()
        assert len(service.sessions) == 3
        service.sessions.is_valid = lambda caller: caller.key_label != "c"
        clock.ahead = 901.0
        await until_async(lambda: len(service.sessions) == 1)  # noticed by itself
        assert service.sessions.listed() == [used]
        for name, code, boundary in (("idle", "session_idle", "timeout"), ("revoked", "key_revoked", "cancelled")):
            stored = await service.stored.load(starts[name].rollout_id, Caller(admin=True))
            assert stored is not None and stored.failure is not None and stored.status == "failed"
            assert (stored.failure["code"], stored.failure["boundary"]) == (code, boundary)
        assert service.sessions.ended == {"closed": 0, "session_idle": 1, "key_revoked": 1}


async def test_capacity_has_a_short_queue_and_then_refuses(tmp_path: Path) -> None:
    async with scored(tmp_path, max_concurrent=4) as service:
        service.sessions.queue_seconds = 0.05
        taken = [await service.sessions.open() for _ in range(3)]  # three quarters; the rest is for rollouts
        with pytest.raises(Saturated) as full:
            await service.sessions.open()
        assert full.value.retry_after_seconds == 5
        service.sessions.queue_seconds = 60.0
        waits = asyncio.create_task(service.sessions.open())
        await asyncio.sleep(0)
        await taken[0].close()
        assert (await waits).state == "open"
        mine = Caller("mine", max_in_flight=1)
        await taken[1].close()
        await service.sessions.open(caller=mine)
        with pytest.raises(Saturated) as quota:
            await service.sessions.open(caller=mine)
        assert quota.value.code == "key_quota_reached"
        small = Caller("small", max_in_flight=1)
        service.sessions.queue_seconds = 60.0
        waits = asyncio.create_task(service.sessions.open(caller=small))
        await asyncio.sleep(0)
        with pytest.raises(Saturated) as waiting:
            await service.sessions.open(caller=small)
        assert waiting.value.code == "key_quota_reached", "what waits counts"
        await taken[2].close()
        assert (await waits).state == "open"


async def test_a_thousand_abandoned_sessions_leave_nothing(tmp_path: Path) -> None:
    clock = HandClock()
    async with serving(live_app.app, max_concurrent=400, clock=clock) as service:
        mark = tmp_path / "mark"
        opened: weakref.WeakSet[EnvironmentSession] = weakref.WeakSet()

        async def abandoned(seed: int) -> None:
            session = await service.sessions.open()
            opened.add(session)
            await session.reset(seed % 100, config={"mark": str(mark)})
            await session.step([("go", {})])

        for closed in (250, 500, 750, 1000):
            await asyncio.gather(*(abandoned(seed) for seed in range(250)))
            assert len(service.sessions) == service.in_flight == 250
            clock.ahead += 901.0
            await service.sessions.expire()
            assert (len(service.sessions), service.in_flight, service.health()["hung_threads"]) == (0, 0, 0)
            await until_async(lambda closed=closed: live_app.marks(mark, "close") == closed)  # type: ignore[misc]
        gc.collect()
        assert not opened


def _is_freed(referred: weakref.ref[Any]) -> bool:
    return referred() is None


async def test_an_ended_episode_is_freed_without_the_collector(live: Service) -> None:
    gc.collect()
    gc.disable()
    try:
        for end in ("left", "finished"):
            session = await live.sessions.open()
            await session.reset(0)
            await session.step([("go", {})])
            episode = weakref.ref(session._episode)
            if end == "finished":
                await session.finish()
            await session.close()
            del session
            await until_async(partial(_is_freed, episode))
    finally:
        gc.enable()


async def test_a_server_that_stops_ends_sessions_as_stopped(live: Service) -> None:
    session = await live.sessions.open()
    await session.reset(0)
    draining = asyncio.create_task(live.drain(0.0))
    await asyncio.sleep(0)
    with pytest.raises(RolloutFailed) as stopped:  # of a step that finds the episode stopped
        while True:
            await session.step([("go", {})])
    await draining
    assert stopped.value.failure.code == "server_stopping"
    with pytest.raises(Saturated):
        await live.sessions.open()
