"""A full context ends an episode: truncated, scored, and trained on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from taskapp_kit import Step, TaskApp, action
from taskapp_kit.errors import JobError
from tests.train.driver.peers import DRIVER, PLAN, CountingLearner, drive
from tests.train.driver.scripted_app import KEY, served
from tests.train.gateway.peers import SETTINGS, ScriptedSampler

pytestmark = pytest.mark.server

app = TaskApp("rambling", version="1")


@app.environment("rambling", splits={"train": range(10), "test": range(10, 20)}, max_steps=50)
class Rambling:
    """It speaks much."""

    def reset(self, seed: int) -> str:
        return "Speak."

    @action(text=True, noop={"text": ""})
    def say(self, text: str) -> Step:
        """Say it."""
        return Step("So it goes on. " * 40, reward=0.25)


def test_it_is_truncated_and_scored_with_its_stop_reason(tmp_path: Path) -> None:
    sampler = ScriptedSampler(version=0)
    plan = replace(PLAN, iterations=1, per_epoch=1, ops=["agent", "env"] * 50)
    driving = replace(DRIVER, generation=replace(SETTINGS, context_tokens=3000))
    with served(app, store=f"sqlite:///{tmp_path}/store.db") as url:
        job = asyncio.run(drive(url, sampler, CountingLearner(sampler), plan=plan, settings=driving, key=KEY))
        assert job.error is None, job.error
        stored = [
            httpx.get(f"{url}/rollouts/{one.rollout_id}", headers={"X-API-Key": KEY}).json()
            for one in job.ledger.rollouts
        ]
    assert [one.status for one in job.ledger.rollouts] == ["truncated"] * 6
    (reward,) = {one.reward for one in job.ledger.rollouts}
    assert reward is not None
    assert reward > 0.5
    assert {(one["status"], one["stop_reason"]) for one in stored} == {("truncated", "context_overflow")}
    assert job.ledger.curve("truncated_rollouts") == [6.0]
    assert job.ledger.curve("failed_share") == [0.0]
    assert job.ledger.curve("calls_refused") == [6.0]
    assert len(job.learner.batches[0]) == 6


def test_an_episode_whose_first_prompt_is_too_long_is_scored_and_teaches_nothing() -> None:
    sampler = ScriptedSampler(version=0)
    driving = replace(DRIVER, generation=replace(SETTINGS, context_tokens=20))
    with served(app) as url:
        plan = replace(PLAN, iterations=1, per_epoch=1)
        job = asyncio.run(drive(url, sampler, CountingLearner(sampler), plan=plan, settings=driving, key=KEY))
    assert isinstance(job.error, JobError) and job.error.code == "no_updates"
    assert {(one.status, one.reward) for one in job.ledger.rollouts} == {("truncated", 0.0)}
    assert sampler.calls == job.learner.batches == []
