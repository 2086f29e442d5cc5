"""The rollouts engine, through a real backend, before a task app that does as it is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taskapp_kit.jobs.server.engine import REPEATED
from tests.jobs.server.exchange import (
    APP_KEY,
    Answer,
    Gate,
    ScriptedApp,
    a_config,
    backend,
    episode,
    failure,
    played,
    serving,
)
from tests.waiting import until

pytestmark = pytest.mark.server


def of(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event["data"] for event in events if event["type"] == kind]


def test_groups_of_one_seed_are_asked_for_with_samples_and_keys() -> None:
    app = ScriptedApp()
    status, _ = played(app, a_config(training={"iterations_per_epoch": 2, "num_epochs": 2}))
    assert status["status"] == "succeeded"
    assert status["progress"] == {"completed": 16, "total": 16, "unit": "rollouts"}
    keys = [key for key, _ in app.requests]
    assert len(set(keys)) == len(keys) == 16
    groups: dict[str, list[dict[str, Any]]] = {}
    for key, body in app.requests:
        assert body["run_id"] == status["job_id"]
        assert body["mode"] == "rl"
        assert body["policy"]["policy_name"] == "scripted"
        assert body["env"]["env_name"] == "counter"
        assert 0 <= body["env"]["seed"] < 1000
        assert body["trace_correlation_id"] == body["policy"]["config"]["trace_correlation_id"] == key
        assert body["ops"] == ["agent", "env"] * 3
        groups.setdefault(body["group_id"], []).append(body)
    assert len(groups) == 8
    for group in groups.values():
        assert sorted(body["policy"]["config"]["sample"] for body in group) == [0, 1]
        assert len({body["env"]["seed"] for body in group}) == 1
    assert len({body["env"]["seed"] for _, body in app.requests}) > 2


def test_it_says_everywhere_that_no_weights_are_updated() -> None:
    status, events = played(ScriptedApp(), a_config(evaluation={"instances": 1, "every_n_iters": 1, "seeds": [3]}))
    assert (status["engine"], status["updates_weights"]) == ("rollouts", False)
    assert (status["results"]["engine"], status["results"]["updates_weights"]) == ("rollouts", False)
    assert "no weights are updated" in status["results"]["note"]
    for event in events:
        assert event["data"]["updates_weights"] is False, event
        assert event["data"]["engine"] == "rollouts"
    for kind in ("rl.job.created", "rl.train.started", "rl.train.step", "rl.eval.summary", "rl.job.completed"):
        assert all("weights" in event["message"] for event in events if event["type"] == kind)


def test_the_given_seeds_are_played_in_turn() -> None:
    app = ScriptedApp(info={})  # nothing has to be asked
    config = a_config(training={"iterations_per_epoch": 2, "batch_size": 2, "group_size": 1}, data={"seeds": [5, 6, 7]})
    config["rollout"]["max_concurrent_rollouts"] = 1
    played(app, config)
    assert [body["env"]["seed"] for _, body in app.requests] == [5, 6, 7, 5]


@pytest.mark.parametrize(("semaphore", "rollouts", "most"), [(3, 8, 3), (50, 2, 2)])
def test_no_more_rollouts_are_in_flight_than_the_smaller_limit(semaphore: int, rollouts: int, most: int) -> None:
    full = asyncio.Event()

    async def until_full(_: dict[str, Any]) -> Answer:
        if app.most >= most:
            full.set()
        await full.wait()
        await asyncio.sleep(0.02)  # one too many would come now
        return episode()

    app = ScriptedApp(play=until_full)
    config = a_config(training={"batch_size": 6, "async_semaphore_max": semaphore})
    config["rollout"]["max_concurrent_rollouts"] = rollouts
    status, _ = played(app, config)
    assert status["status"] == "succeeded"
    assert app.most == most


def test_rewards_are_the_apps_own_and_null_is_no_zero() -> None:
    rewards: dict[int, float | None] = {0: 1.0, 1: None}
    app = ScriptedApp(play=lambda body: episode(rewards[body["policy"]["config"]["sample"]]))
    status, events = played(app)
    assert status["final_reward"] == 1.0
    step = of(events, "rl.train.step")[0]
    assert (step["scored"], step["undefined"], step["failed"]) == (2, 2, 0)


def test_a_job_whose_rewards_are_all_undefined_has_no_final_reward() -> None:
    status, _ = played(ScriptedApp(play=lambda body: episode(None)))
    assert (status["status"], status["final_reward"]) == ("succeeded", None)


def test_the_reward_blend_of_the_config_counts() -> None:
    scores = {"metrics": {"mean_return": 2.0, "events_score": 3.0, "outcome_score": 0.5}}
    app = ScriptedApp(play=lambda body: episode(99.0, metrics=dict(scores["metrics"])))
    config = a_config(judge={"enabled": True, "reward_blend": {"env": 0.5, "event": 1.0, "outcome": 2.0}})
    status, events = played(app, config)
    assert status["final_reward"] == 0.5 * 2 + 3 + 2 * 0.5
    assert of(events, "rl.train.started")[0]["reward"] == "0.5·mean_return + 1·events_score + 2·outcome_score"


def test_each_score_is_a_point_and_an_undefined_one_counts_in_no_mean() -> None:
    def play(body: dict[str, Any]) -> Answer:
        first = body["policy"]["config"]["sample"] == 0
        criteria = [
            {"name": "polite", "score": 0.5},
            {"name": "brief", "score": 1.0 if first else None},
            {"name": "reward", "score": 9.0},
            {"name": "broken", "score": "1"},
            {"score": 1.0},
            "x",
        ]
        metrics = {"mean_return": 1.0, "outcome_score": 0.25 if first else 0.75, "events_score": 2.0}
        return episode(1.0, metrics=metrics, scorecard={"criteria": criteria})

    config = a_config(evaluation={"instances": 1, "every_n_iters": 1, "seeds": [3]})
    with serving(ScriptedApp(play=play).app()) as url, backend() as back:
        job_id = back.submit(url, config)
        back.ended(job_id)
        points = back.http.get(f"/rl/jobs/{job_id}/metrics").json()["points"]
    values = {point["name"]: point["value"] for point in points if "score" in point["name"]}
    trained = {"outcome_score": 0.5, "events_score": 2.0, "score_polite": 0.5, "score_brief": 1.0, "score_reward": 9.0}
    assert values == trained | {f"eval_{name}": value for name, value in trained.items()} | {"eval_outcome_score": 0.25}


def test_failures_are_counted_by_boundary_and_never_averaged() -> None:
    def play(body: dict[str, Any]) -> Answer:
        number = int(body["group_id"].rpartition(".")[2])
        return failure("policy", "model_unreachable", 502) if number == 0 else episode(0.25)

    status, events = played(ScriptedApp(play=play), a_config(training={"batch_size": 4, "group_size": 1}))
    assert status["status"] == "succeeded"
    assert status["final_reward"] == 0.25
    assert status["results"]["rollouts"] == {"played": 4, "failed": 1, "undefined": 0, "failures": {"policy": 1}}
    step = next(event for event in events if event["type"] == "rl.train.step")
    assert step["level"] == "warning"
    assert step["data"]["failures"] == {"policy": 1}


@pytest.mark.parametrize("share", ["all", "most"])
def test_a_job_most_of_whose_rollouts_fail_ends_failed_with_the_cause(share: str) -> None:
    def play(body: dict[str, Any]) -> Answer:
        good = share == "most" and body["policy"]["config"]["sample"] == 0
        return episode() if good else failure("environment")

    app = ScriptedApp(play=play)
    config = a_config(training={"group_size": 4, "batch_size": 5}, rollout={"max_concurrent_rollouts": 1})
    status, events = played(app, config)
    assert (status["status"], status["final_reward"]) == ("failed", None)
    assert "environment" in status["error"] and "It broke." in status["error"]
    assert (events[-1]["type"], events[-1]["message"]) == ("rl.job.failed", status["error"])
    assert len(app.requests) < 20, "it stops when the rest cannot matter"


def test_one_episode_in_two_answers_counts_once() -> None:
    """A task app that gives the same rollout again for another place of the job: once it is a rollout, then a failure."""

    def play(body: dict[str, Any]) -> Answer:
        if body["group_id"].endswith(".1"):
            return episode(1.0, rollout_id="always the same")
        return episode(0.0)

    status, events = played(ScriptedApp(play=play), a_config(training={"group_size": 3}))
    assert (status["status"], status["final_reward"]) == ("succeeded", 0.25)
    (step,) = of(events, "rl.train.step")
    assert (step["scored"], step["failed"], step["failures"]) == (4, 2, {REPEATED: 2})


def test_evaluations_are_played_at_the_cadence_on_their_seeds() -> None:
    app = ScriptedApp(play=lambda body: episode(0.75 if body["mode"] == "eval" else 0.25))
    config = a_config(
        training={"iterations_per_epoch": 5}, evaluation={"instances": 3, "every_n_iters": 2, "seeds": [11, 12]}
    )
    status, events = played(app, config)
    kinds = [(event["type"], event["data"]["step"]) for event in events if "step" in event["data"]]
    assert kinds == [
        ("rl.train.step", 1), ("rl.train.step", 2), ("rl.eval.started", 2), ("rl.eval.summary", 2),
        ("rl.train.step", 3), ("rl.train.step", 4), ("rl.eval.started", 4), ("rl.eval.summary", 4), ("rl.train.step", 5),
    ]  # fmt: skip
    asked = [
        (body["env"]["seed"], body["policy"]["config"]["sample"]) for _, body in app.requests if body["mode"] == "eval"
    ]
    assert sorted(asked) == sorted([(11, 0), (12, 0), (11, 1)] * 2)
    assert status["final_reward"] == 0.75
    assert status["metrics"]["reward"] == 0.25
    assert status["results"]["final_reward_of"] == "the last evaluation"


def test_points_of_a_step_come_whole() -> None:
    """A client that asks for what comes after the last step that it saw must not miss that step's evaluation."""
    gate = Gate()

    async def play(body: dict[str, Any]) -> Answer:
        if body["mode"] == "eval":
            await gate.passed()
        return episode()

    app = ScriptedApp(play=play)
    config = a_config(evaluation={"instances": 1, "every_n_iters": 1, "seeds": [1]})
    with serving(app.app()) as url, backend() as back:
        job_id = back.submit(url, config)
        until(lambda: any(body["mode"] == "eval" for _, body in app.requests))
        assert back.http.get(f"/rl/jobs/{job_id}/metrics?after_step=-1").json() == {"points": []}
        assert back.status(job_id)["metrics"]["reward"] == 1.0
        gate.open()
        back.ended(job_id)
        points = back.http.get(f"/rl/jobs/{job_id}/metrics?after_step=-1").json()["points"]
        assert {point["step"] for point in points} == {1}
        assert {"reward", "eval_reward", "failed", "eval_failed"} <= {point["name"] for point in points}
        assert back.http.get(f"/rl/jobs/{job_id}/metrics?after_step=1").json() == {"points": []}


def test_a_job_that_fails_in_its_evaluation_keeps_the_iterations_points() -> None:
    app = ScriptedApp(play=lambda body: failure() if body["mode"] == "eval" else episode())
    config = a_config(evaluation={"instances": 9, "every_n_iters": 1, "seeds": [1]})
    with serving(app.app()) as url, backend() as back:
        job_id = back.submit(url, config)
        assert back.ended(job_id)["status"] == "failed"
        points = back.http.get(f"/rl/jobs/{job_id}/metrics").json()["points"]
    assert [point["value"] for point in points if point["name"] == "reward"] == [1.0]


def test_a_models_address_and_its_sampling_reach_the_task_app() -> None:
    app = ScriptedApp()
    config = a_config(policy={"inference_url": "http://127.0.0.1:9/v1", "temperature": 0.5, "max_tokens": 64})
    config["rollout"]["policy_config"] = {"temperature": 0.25}
    played(app, config)
    sent = app.requests[0][1]["policy"]["config"]
    assert sent["inference_url"] == "http://127.0.0.1:9/v1"
    assert (sent["temperature"], sent["max_tokens"], sent["model"]) == (0.25, 64, "Qwen/Qwen3-4B")


def test_a_job_that_names_no_player_gets_random_and_is_told_so() -> None:
    app = ScriptedApp()
    with serving(app.app()) as url, backend() as back:
        body = {"model": "Qwen/Qwen3-0.6B", "endpoint_base_url": url, "trainer_id": "rollouts",
                "trainer": {"batch_size": 1, "group_size": 3}}  # fmt: skip
        job_id = back.http.post("/rl/jobs", json=body).json()["job_id"]
        status, events = back.ended(job_id), back.events(job_id)
    assert status["status"] == "succeeded"
    assert status["model"] == "Qwen/Qwen3-0.6B"
    assert [body["policy"]["policy_name"] for _, body in app.requests] == ["random"] * 3
    assert any(event["level"] == "warning" and "random" in event["message"] for event in events)


def test_rows_carry_their_split() -> None:
    app = ScriptedApp()
    app.info = {"taskset": {"kind": "rows", "default_split": "train", "seeds": {"train": [0, 9], "test": [0, 4]}}}
    played(app, a_config(evaluation={"instances": 2, "every_n_iters": 1, "seeds": [0, 1]}))
    splits = {body["mode"]: body["env"]["config"].get("split") for _, body in app.requests}
    assert splits == {"rl": "train", "eval": None}  # a given seed is the caller's own


def test_a_task_app_that_is_not_there_or_refuses_the_key_fails_the_job() -> None:
    with serving(ScriptedApp().app()) as url:
        pass
    with backend() as back:
        assert back.ended(back.submit(url))["status"] == "failed"
    status, events = played(ScriptedApp(key="another"))
    assert status["status"] == "failed"
    assert APP_KEY not in str((status, events))
