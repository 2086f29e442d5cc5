"""The loop of a training job, before a task app that does what a test says and a sampler that answers by a script."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from taskapp_kit.errors import BadArgument, JobError, TrainingError
from taskapp_kit.train.driver.driver_settings import DriverSettings
from taskapp_kit.train.loops.loop_settings import LoopSettings
from taskapp_kit.train.rows import RowOptions
from tests.train.driver.losing_wire import LosingWire
from tests.train.driver.peers import (
    DRIVER,
    JOB,
    PLAN,
    BreakingLearner,
    CountingLearner,
    Driven,
    MemoryCheckpoints,
    MemoryLedger,
    drive,
    evaluated,
)
from tests.train.driver.scripted_app import (
    Answer,
    CallingApp,
    RolloutAsked,
    failed,
    for_ever,
    one_call,
    one_call_scored,
)
from tests.train.gateway.peers import SETTINGS, ScriptedSampler

pytestmark = pytest.mark.server


def driven(app: CallingApp, sampler: ScriptedSampler | None = None, **options: Any) -> Driven:
    sampler = sampler or ScriptedSampler(version=0)
    with app.serving() as url:
        return asyncio.run(drive(url, sampler, options.pop("learner", None) or CountingLearner(sampler), **options))


def ended(app: CallingApp, sampler: ScriptedSampler | None = None, **options: Any) -> Driven:
    job = driven(app, sampler, **options)
    assert job.error is None, job.error
    assert job.open_after == 0
    return job


def failed_job(app: CallingApp, code: str, **options: Any) -> Driven:
    job = driven(app, **options)
    assert isinstance(job.error, JobError), job.error
    assert (job.error.code, job.open_after) == (code, 0)
    return job


def order(app: CallingApp) -> list[str]:
    """Phase and number of each unit, as their rollouts were requested."""
    units = [".".join(asked.body["group_id"].split(".")[1:3]) for asked in app.asked]
    return [unit for at, unit in enumerate(units) if at == 0 or units[at - 1] != unit]


def advantages(job: Driven) -> list[list[float]]:
    """Those of the rows of each update, sorted."""
    return [sorted(max(row.advantages, key=abs) for row in rows) for rows in job.learner.batches]


def test_groups_of_one_seed_at_addresses_of_their_own_become_one_update_for_each_iteration() -> None:
    app, sampler = CallingApp(), ScriptedSampler(version=0)
    job = ended(app, sampler)
    assert len(app.asked) == job.ledger.total == 12
    groups: dict[str, list[dict[str, Any]]] = {}
    for asked in app.asked:
        assert asked.body["mode"] == "rl"
        assert "policy_name" not in asked.body["policy"]
        assert asked.body["trace_correlation_id"] == asked.key
        groups.setdefault(asked.body["group_id"], []).append(asked.body)
    assert [len(group) for group in groups.values()] == [3] * 4
    for group in groups.values():
        assert sorted(body["policy"]["config"]["sample"] for body in group) == [0, 1, 2]
        assert len({body["env"]["seed"] for body in group}) == 1
    assert len({body["policy"]["config"]["inference_url"] for group in groups.values() for body in group}) == 12
    for number, rows in enumerate(job.learner.batches):
        assert len(rows) == 6
        assert {version for row in rows for version, on in zip(row.versions, row.mask, strict=True) if on} == {number}
    assert advantages(job) == [[-1.0, -1.0, 0.0, 0.0, 1.0, 1.0]] * 2
    assert job.outcome is not None
    assert (job.outcome.final_reward, job.outcome.results["rollouts"]["played"]) == (1.0, 12)
    assert json.loads(json.dumps(job.ledger.state)) == job.ledger.state


def test_keys_name_job_incarnation_place_sample_and_attempt_and_draws_neither_of_the_two() -> None:
    app, sampler = CallingApp(), ScriptedSampler(version=0)
    ended(app, sampler, settings=replace(DRIVER, incarnation=4))
    assert {asked.key for asked in app.asked} == {
        f"{JOB}.4.train.{number}.{place}.{sample}.1" for number in (1, 2) for place in (0, 1) for sample in (0, 1, 2)
    }
    draws = sorted(call.draw for call in sampler.calls)
    assert {draw.rsplit("/", 2)[0] for draw in draws} == {
        f"{JOB}/train.{number}.{place}/{sample}" for number in (1, 2) for place in (0, 1) for sample in (0, 1, 2)
    }
    again = ScriptedSampler(version=0)
    ended(CallingApp(), again)
    assert sorted(call.draw for call in again.calls) == draws


def test_no_more_attempts_are_open_than_the_plan_allows() -> None:
    app = CallingApp()
    ended(app, plan=replace(PLAN, samples=8, at_once=3))
    assert app.most == 3


def test_a_policy_that_the_task_app_plays_is_not_named_and_a_label_is() -> None:
    app = CallingApp(policies=("clever", "random"))
    plan = replace(PLAN, policy_name="clever", policy_config={"policy": "random", "top_p": 0.5})
    job = ended(app, plan=plan)
    for asked in app.asked:
        assert "policy_name" not in asked.body["policy"]
        assert "policy" not in asked.body["policy"]["config"]
        assert asked.body["policy"]["config"]["top_p"] == 0.5
    assert [event.data["policy"] for event in job.ledger.of("rl.job.warning")] == ["clever", "random"]

    app = CallingApp()
    job = ended(app, plan=replace(PLAN, policy_name="my-label"))
    assert {asked.body["policy"]["policy_name"] for asked in app.asked} == {"my-label"}
    assert job.ledger.of("rl.job.warning") == []


@pytest.mark.ci(keep=2)
@pytest.mark.parametrize(
    ("changes", "shared"),
    [
        ({}, []),
        ({"eval_seeds": (1001, 3, 999)}, [3]),
        ({"seeds": (5, 1001), "eval_seeds": (1000, 1001)}, [1001]),
        ({"seeds": tuple(range(1000, 1100))}, None),
        ({"seeds": (5, 6), "eval_instances": 0, "eval_every": 0}, []),
    ],
)
def test_seeds_of_both_are_a_warning_in_the_results(changes: dict[str, Any], shared: list[int] | None) -> None:
    job = ended(CallingApp(), plan=replace(evaluated(PLAN, eval_every=2), **changes))
    assert job.outcome is not None
    warnings = job.ledger.of("rl.job.warning")
    assert job.outcome.results["warnings"] == [event.message for event in warnings]
    if shared == []:
        assert warnings == []
    else:
        (warning,) = warnings
        found = warning.data["shared_seeds"]
        assert (found == shared) if shared else (found and 1000 <= min(found) <= max(found) < 1100)
        assert str(found[0]) in warning.message


def test_evaluation_0_comes_before_the_first_update_and_the_others_by_their_cadence() -> None:
    app, sampler = CallingApp(), ScriptedSampler(version=0)
    plan = evaluated(replace(PLAN, iterations=5), eval_every=2)
    settings = replace(DRIVER, evaluation_temperature=0.0)
    job = ended(app, sampler, plan=plan, settings=settings)
    assert order(app) == ["eval.0", "train.1", "train.2", "eval.2", "train.3", "train.4", "eval.4", "train.5"]
    assert job.ledger.total == 5 * 6 + 3 * 2 == len(app.asked)
    evaluations = [asked for asked in app.asked if asked.body["mode"] == "eval"]
    assert len({asked.body["env"]["seed"] for asked in evaluations}) == 2
    assert all(1000 <= asked.body["env"]["seed"] < 1100 for asked in evaluations)
    temperatures = {(call.draw.split("/")[1].split(".")[0], call.temperature) for call in sampler.calls}
    assert temperatures == {("train", SETTINGS.temperature), ("eval", 0.0)}
    assert [event.data["temperature"] for event in job.ledger.of("rl.eval.summary")] == [0.0] * 3
    assert [point.step for point in job.ledger.points if point.name == "eval_reward"] == [0, 2, 4]
    assert len(job.learner.batches) == 5
    assert job.outcome is not None
    assert job.outcome.results["final_reward_of"] == "the last evaluation"


def test_a_failure_is_none_with_its_cause_and_its_group_is_compared_without_it() -> None:
    async def play(asked: RolloutAsked) -> Answer:
        return failed() if asked.sample == 2 else await one_call(asked)

    app = CallingApp(play)
    job = ended(app, settings=replace(DRIVER, attempts=5))
    assert len(app.asked) == 12, "a failure of the episode is not attempted again"
    assert advantages(job) == [[-0.5, -0.5, 0.5, 0.5]] * 2
    lost = [one for one in job.ledger.rollouts if one.failed]
    assert {(one.reward, one.boundary, one.code) for one in lost} == {(None, "environment", "environment_raised")}
    assert job.ledger.curve("failed_share") == [2 / 6, 2 / 6]
    assert job.ledger.state["failures"] == {"environment": 4}


def test_a_reward_that_a_judge_could_not_give_is_not_a_zero() -> None:
    job = ended(CallingApp(one_call_scored(lambda asked: float(asked.sample) if asked.sample else None)))
    assert advantages(job) == [[-0.5, -0.5, 0.5, 0.5]] * 2
    assert job.ledger.curve("reward") == [1.5, 1.5]
    assert job.ledger.curve("undefined") == [2, 2]


def test_a_share_of_failures_stops_the_job_with_its_causes() -> None:
    async def play(asked: RolloutAsked) -> Answer:
        return failed() if asked.sample else await one_call(asked)

    job = failed_job(CallingApp(play), "too_many_failed")
    assert "environment 4" in str(job.error)
    assert job.learner.batches == []


def test_what_failed_outside_of_its_episode_is_attempted_again_under_another_key_with_the_same_draw() -> None:
    async def play(asked: RolloutAsked) -> Answer:
        await asked.call()
        attempt = int(asked.key.rsplit(".", 1)[1])
        return failed(None, "store_failing", 500) if attempt == 1 else asked.scored(1.0)

    app, sampler = CallingApp(play), ScriptedSampler(version=0)
    job = ended(app, sampler, settings=replace(DRIVER, attempts=2))
    assert len({asked.key for asked in app.asked}) == 24
    assert len(sampler.calls) == 24
    assert len({call.draw for call in sampler.calls}) == 12
    assert job.ledger.state["failed"] == 0
    assert [len(rows) for rows in job.learner.batches] == [6, 6]


@pytest.mark.ci
def test_a_task_app_that_is_restarted_fails_no_rollout() -> None:
    """Its rollouts break off, once after a call of the model. They are new attempts with the draws of the ones before."""
    away, back = threading.Event(), threading.Event()
    waiting: list[str] = []

    async def play(asked: RolloutAsked) -> Answer:
        await asked.call()
        if "train.2" in asked.body["group_id"] and not away.is_set():
            waiting.append(asked.key)
            if len(waiting) == PLAN.at_once:
                away.set()
            await for_ever()
        return asked.scored(float(asked.sample))

    def lose(wire: LosingWire) -> None:
        away.wait()
        wire.lose()
        time.sleep(1.5)  # some looks of the driver
        wire.restore()
        back.set()

    app, sampler = CallingApp(play), ScriptedSampler(version=0)
    with app.serving() as url, LosingWire(int(url.rsplit(":", 1)[1])) as wire:
        losing = threading.Thread(target=lose, args=(wire,))
        losing.start()
        job = asyncio.run(drive(f"http://127.0.0.1:{wire.port}", sampler, CountingLearner(sampler)))
        losing.join()
    assert back.is_set()
    assert job.error is None, job.error
    assert job.ledger.state["failed"] == 0
    assert [len(rows) for rows in job.learner.batches] == [6, 6]
    assert len(app.asked) == 12 + PLAN.at_once
    draws = Counter(call.draw for call in sampler.calls)
    assert sorted(draws.values()) == [1] * 8 + [2] * 4
    rows = [row for batch in job.learner.batches for row in batch]
    assert len({row.rollout for row in rows}) == len(rows) == 12, "nothing of the episodes that broke off"


def test_a_score_without_a_call_of_the_model_is_a_failure() -> None:
    async def play(asked: RolloutAsked) -> Answer:
        return asked.scored(1.0) if asked.sample == 2 else await one_call(asked)

    job = ended(CallingApp(play), settings=replace(DRIVER, attempts=3))
    assert job.ledger.state["failures"] == {"no_model_calls": 4}
    assert [len(rows) for rows in job.learner.batches] == [4, 4]


def test_an_iteration_of_them_stops_the_job() -> None:
    """Also where most rollouts before it called the model."""

    async def play(asked: RolloutAsked) -> Answer:
        return asked.scored(1.0) if asked.body["group_id"].startswith(f"{JOB}.train.3.") else await one_call(asked)

    settings = replace(DRIVER, failed_share=0.9)
    job = failed_job(CallingApp(play), "no_model_calls", plan=replace(PLAN, iterations=4), settings=settings)
    assert len(job.learner.batches) == 2


LOOPS = {
    "one after the other": DRIVER,
    "ahead": replace(DRIVER, loops=LoopSettings(ahead=1)),
    "credit per turn": replace(DRIVER, rows=RowOptions(credit="turn")),
    "failures": replace(DRIVER, failed_share=1.0),
}


@pytest.mark.parametrize("name", LOOPS)
def test_an_iteration_without_a_reward_stops_the_job(name: str) -> None:
    async def play(asked: RolloutAsked) -> Answer:
        answer = await asked.call()
        assert answer is not None
        status, body = asked.scored(float(asked.sample) if ".train.1." in asked.body["group_id"] else None)
        body["trajectories"] = [{"steps": [{"reward": float(asked.sample)}]}]
        lost = name == "failures" and ".train.2." in asked.body["group_id"]
        return failed() if lost else (status, body)

    job = failed_job(CallingApp(play), "no_rewards", plan=replace(PLAN, iterations=3), settings=LOOPS[name])
    assert len(job.learner.batches) == 1


def test_a_job_without_an_update_fails_at_its_end() -> None:
    sampler = ScriptedSampler(lambda call: "and so on" * 9, version=0)
    settings = replace(DRIVER, rows=RowOptions(mask_truncated=True), generation=replace(SETTINGS, max_tokens=2))
    job = failed_job(CallingApp(), "no_updates", sampler=sampler, settings=settings)
    assert job.learner.batches == [] and job.ledger.curve("truncated_share") == [1.0, 1.0]


@pytest.mark.parametrize(("reward", "credit"), [(1.0, "episode"), (0.0, "turn")])
def test_a_job_in_which_rewards_never_differ_has_a_warning(reward: float, credit: Any) -> None:
    async def play(asked: RolloutAsked) -> Answer:
        await asked.call()
        status, body = asked.scored(reward + asked.body["env"]["seed"])
        return status, {**body, "trajectories": [{"steps": [{"reward": reward + asked.body["env"]["seed"]}]}]}

    settings = replace(DRIVER, rows=RowOptions(credit=credit))
    job = ended(CallingApp(play), settings=settings)
    (warning,) = job.ledger.of("rl.job.warning")
    assert warning.data == {"groups_without_spread": 1.0}
    assert job.outcome is not None and job.outcome.results["warnings"] == [warning.message]
    assert not ended(CallingApp(play), plan=replace(PLAN, samples=1), settings=settings).ledger.of("rl.job.warning")
    assert not ended(CallingApp(), settings=DRIVER).ledger.of("rl.job.warning")


@pytest.mark.ci
def test_a_straggler_is_left_out_and_its_reward_is_counted_when_it_ends() -> None:
    release = asyncio.Event()
    released: list[RolloutAsked] = []

    async def play(asked: RolloutAsked) -> Answer:
        await asked.call()
        if asked.place == ("rl", f"{JOB}.train.1.0", 0):
            released.append(asked)
            await release.wait()
            return asked.scored(7.0)
        if "train.2" in asked.body["group_id"]:
            release.set()
        if "train.3" in asked.body["group_id"]:
            await replace(asked, body=released[0].body).attempt_ended()
        return asked.scored(float(asked.sample))

    settings = replace(DRIVER, straggler_seconds=5.0)
    job = ended(CallingApp(play), plan=replace(PLAN, iterations=3), settings=settings)
    assert [len(rows) for rows in job.learner.batches] == [5, 6, 6]
    assert job.ledger.curve("stragglers") == [1, 0, 0]
    assert job.ledger.curve("late_reward") == [7.0]
    assert job.ledger.state["stragglers"] == {"given_up": 1, "ended": 1, "scored": 1, "reward": 7.0}
    assert job.ledger.state["failures"] == {"straggler": 1}
    assert [one.code for one in job.ledger.rollouts if one.failed] == ["straggler"]


@pytest.mark.ci
def test_a_rollout_that_hangs_is_given_up_and_its_attempt_ends_with_the_job() -> None:
    async def play(asked: RolloutAsked) -> Answer:
        if asked.place == ("rl", f"{JOB}.train.1.0", 0):
            await for_ever()
        return await one_call(asked)

    job = ended(CallingApp(play), settings=replace(DRIVER, straggler_seconds=5.0))
    assert job.ledger.state["stragglers"] == {"given_up": 1, "ended": 0, "scored": 0, "reward": 0.0}

    short = replace(DRIVER, rollout_seconds=5.0)
    job = ended(CallingApp(play), settings=short)
    assert [(one.boundary, one.code) for one in job.ledger.rollouts if one.failed] == [("timeout", "too_long")]


@pytest.mark.ci
def test_a_job_in_which_nothing_moves_stops_and_names_what_does_not_answer() -> None:
    async def hang(asked: RolloutAsked) -> Answer:
        await for_ever()
        return asked.scored(0.0)

    job = failed_job(CallingApp(hang), "", settings=replace(DRIVER, stall_seconds=0.5))
    assert "The task app does not respond" in str(job.error)

    sampler = ScriptedSampler(version=0, held=True)
    stalled = replace(DRIVER, stall_seconds=3.0)
    job = failed_job(CallingApp(), "", sampler=sampler, settings=stalled)
    assert "The sampler does not respond" in str(job.error)
    assert sampler.cancelled == PLAN.at_once


@pytest.mark.ci
def test_a_job_that_moves_slowly_is_not_stopped() -> None:
    """Longer than the limit in all, with something that moves in between."""

    async def slowly(asked: RolloutAsked) -> Answer:
        for number in range(12):
            await asked.call({"role": "user", "content": f"{number}"})
            await asyncio.sleep(0.5)
        return asked.scored(1.0)

    plan = replace(PLAN, iterations=1, at_once=6)
    assert ended(CallingApp(slowly), plan=plan, settings=replace(DRIVER, stall_seconds=5.0)).outcome is not None


def test_it_goes_on_from_its_state() -> None:
    sampler, ledger, plan = ScriptedSampler(version=0), MemoryLedger(), evaluated(replace(PLAN, iterations=3))
    first = CallingApp()
    job = driven(first, sampler, plan=plan, ledger=ledger, learner=BreakingLearner(sampler, breaks=2))
    assert isinstance(job.error, TrainingError)
    assert order(first) == ["eval.0", "train.1", "eval.1", "train.2"]
    assert ledger.state["done"] == 3

    second = CallingApp(one_call_scored(lambda asked: 10.0 * asked.sample))
    settings = replace(DRIVER, incarnation=1)
    job = ended(second, sampler, plan=plan, ledger=ledger, state=ledger.state, settings=settings)
    assert order(second) == ["train.2", "eval.2", "train.3", "eval.3"]
    assert not {asked.key for asked in first.asked} & {asked.key for asked in second.asked}
    assert [point.step for point in ledger.points if point.name == "reward"] == [1, 2, 3]
    assert len(ledger.of("rl.train.started")) == 1
    # the ledger has the first incarnation's rollouts of iteration 2; those that made these rows have other rewards
    assert advantages(job) == [[-10.0, -10.0, 0.0, 0.0, 10.0, 10.0]] * 2


@pytest.mark.ci(keep=2)
@pytest.mark.parametrize(
    ("every", "eval_every", "saved", "scored"),
    [
        (1, 0, [1, 2, 3, 4, 5], []),
        (2, 0, [2, 4, 5], []),
        (2, 2, [2, 4, 5], [2, 4]),
        (9, 1, [5], [5]),
        (3, 2, [3, 5], []),
    ],
)
def test_checkpoints_come_after_their_iteration_was_reported_and_evaluated(
    every: int, eval_every: int, saved: list[int], scored: list[int]
) -> None:
    sampler = ScriptedSampler(version=0)
    checkpoints = MemoryCheckpoints(sampler)
    plan = replace(PLAN, iterations=5)
    plan = evaluated(plan, eval_every=eval_every) if eval_every else plan
    job = ended(
        CallingApp(), sampler, plan=plan, settings=replace(DRIVER, checkpoint_every=every), checkpoints=checkpoints
    )
    assert [each.at.iteration for each, _ in checkpoints.saved] == saved
    assert [version for _, version in checkpoints.saved] == saved
    assert [each.at.iteration for (each, _), score in zip(checkpoints.saved, checkpoints.scores, strict=True)
            if score is not None] == scored  # fmt: skip
    for each, _ in checkpoints.saved:
        before = job.ledger.events[each.position - 1]
        assert (before.type, before.data["step"]) == (
            "rl.eval.summary" if each.at.iteration in scored else "rl.train.step",
            each.at.iteration,
        )
        assert each.state["held"] == []
        assert each.state in job.ledger.states
    assert [event.data["iteration"] for event in job.ledger.of("rl.checkpoint.saved")] == saved
    assert job.outcome is not None
    assert job.outcome.results["model"] == "checkpoint-5"


def test_it_goes_back_to_its_last_checkpoint() -> None:
    sampler, ledger, plan = ScriptedSampler(version=0), MemoryLedger(), evaluated(replace(PLAN, iterations=5))
    checkpoints, settings = MemoryCheckpoints(sampler), replace(DRIVER, checkpoint_every=2)
    first, learner = CallingApp(), BreakingLearner(sampler, breaks=4)
    options: dict[str, Any] = {"plan": plan, "ledger": ledger, "checkpoints": checkpoints}
    job = driven(first, sampler, learner=learner, settings=settings, **options)
    assert isinstance(job.error, TrainingError)
    assert order(first)[-3:] == ["train.3", "eval.3", "train.4"]

    fresh = ScriptedSampler(version=0)  # of a new process, whose weights are those of the base model
    checkpoints.sampler = fresh
    second, settings = CallingApp(), replace(settings, incarnation=1)
    job = ended(second, fresh, state=ledger.state, settings=settings, **options)
    assert order(second) == ["train.3", "eval.3", "train.4", "eval.4", "train.5", "eval.5"]
    assert not {asked.key for asked in first.asked} & {asked.key for asked in second.asked}
    assert [point.step for point in ledger.points if point.name == "reward"] == [1, 2, 3, 4, 5]
    assert ledger.curve("version") == [1, 2, 3, 4, 5]
    assert len(ledger.rollouts) == ledger.total == ledger.state["finished"] == 5 * 6 + 6 * 2
    assert ledger.state["incarnation"] == 1
    (event,) = ledger.of("rl.train.resumed")
    assert event.data == {
        "incarnation": 1,
        "iteration": 2,
        "after_seq": ledger.superseded[0],
        "checkpoint": "checkpoint-2",
    }
    assert job.outcome is not None
    assert [unit["iteration"] for unit in job.outcome.results["iterations"]] == [1, 2, 3, 4, 5]


def test_a_job_that_stopped_before_its_first_checkpoint_begins_again() -> None:
    sampler, ledger = ScriptedSampler(version=0), MemoryLedger()
    options: dict[str, Any] = {"ledger": ledger, "plan": evaluated(), "checkpoints": MemoryCheckpoints(sampler)}
    job = driven(CallingApp(), sampler, learner=BreakingLearner(sampler), **options)
    assert isinstance(job.error, TrainingError)
    assert ledger.state["done"] == 1
    app = CallingApp()
    ended(app, sampler, state=ledger.state, settings=replace(DRIVER, incarnation=1), **options)
    assert order(app) == ["eval.0", "train.1", "eval.1", "train.2", "eval.2"]
    assert ledger.superseded == [0]
    assert [event.type for event in ledger.events[:2]] == ["rl.train.resumed", "rl.train.started"]
    assert ledger.curve("version") == [1, 2]
    assert len(ledger.rollouts) == ledger.total


def test_one_answer_for_two_rollouts_counts_once() -> None:
    async def play(asked: RolloutAsked) -> Answer:
        status, answer = await one_call(asked)
        return status, {**answer, "rollout_id": f"ro-{asked.body['group_id']}-{min(asked.sample, 1)}"}

    job = ended(CallingApp(play))
    assert [len(rows) for rows in job.learner.batches] == [4, 4]
    assert job.ledger.state["failures"] == {"repeated_rollout": 4}


def test_points_of_an_iteration_come_with_those_of_its_evaluation() -> None:
    """A caller that asks for points after a step would miss what comes later for that step."""
    job = ended(CallingApp(), plan=evaluated())
    assert [bool(state["held"]) for state in job.ledger.states] == [False, False, True, False, True, False]
    assert {point.name for point in job.ledger.points if point.step == 1} >= {
        "reward", "groups_without_spread", "failed_share", "truncated_share", "turns", "sampled_tokens",
        "tokens_per_second", "calls_exact", "calls_forked", "calls_refused", "stragglers", "late", "loss", "entropy",
        "clip_fraction", "gradient_norm", "version", "eval_reward", "eval_failed_share", "eval_calls_exact",
        "outcome_score", "eval_outcome_score",
    }  # fmt: skip
    assert not any(point.name == "kl" for point in job.ledger.points)


def test_lengths_cuts_and_faithfulness_are_counted() -> None:
    async def play(asked: RolloutAsked) -> Answer:
        first = await asked.call()
        await asked.call({**first, "content": first["content"].strip()}, {"role": "user", "content": "More."})
        await asked.call({"role": "assistant", "content": "another"}, {"role": "user", "content": "More."})
        return asked.scored(float(asked.sample))

    sampler = ScriptedSampler(lambda call: " ok " if "More." not in call.prompt else "x" * 500, version=0)
    job = ended(CallingApp(play), sampler, plan=replace(PLAN, iterations=1))
    values = {point.name: point.value for point in job.ledger.points}
    assert (values["turns"], values["truncated_share"]) == (3.0, 2 / 3)
    assert values["sampled_tokens"] == 5 + 2 * SETTINGS.max_tokens
    assert (values["calls_exact"], values["calls_continued"], values["calls_forked"]) == (6, 6, 6)
    assert (values["rows"], values["forks"]) == (12, 6)
    assert values["tokens_per_second"] > 0


def test_settings_that_cannot_hold_are_refused() -> None:
    with pytest.raises(BadArgument, match="stall_seconds"):
        DriverSettings(SETTINGS, stall_seconds=0.0)


def test_turns_of_another_model_at_the_address_are_left_out_and_reported_once() -> None:
    async def play(asked: RolloutAsked) -> Answer:
        url = asked.body["policy"]["config"]["inference_url"]
        for model in (asked.body["policy"]["config"]["model"], "simulator"):
            messages = [{"role": "system", "content": model}, {"role": "user", "content": "Hi."}]
            body = {"model": model, "messages": messages}
            (await asked.http.post(f"{url}/chat/completions", json=body)).raise_for_status()
        return asked.scored(float(asked.sample))

    job = ended(CallingApp(play))
    assert job.ledger.curve("auxiliary_turns") == [6.0, 6.0]
    assert job.ledger.curve("suspected_turns") == [0.0, 0.0]
    assert [len(rows) for rows in job.learner.batches] == [6, 6]
    assert len(job.ledger.of("rl.job.warning")) == 1
    assert job.ledger.state["warned"] == ["auxiliary_turns"]
