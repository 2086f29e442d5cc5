"""Jobs with the settings of `train/loops`, before task apps and a sampler that answers by a script."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from taskapp_kit import Step, TaskApp, action
from taskapp_kit.errors import JobError, TrainingError
from taskapp_kit.train.loops.loop_settings import Curriculum, EarlyStopping, EnvironmentShare, LoopSettings
from taskapp_kit.train.rows import RowOptions
from taskapp_kit.train.turns import TrainingRow, UpdateMetrics
from tests.train.driver.peers import (
    DRIVER,
    PLAN,
    BreakingLearner,
    CountingLearner,
    Driven,
    MemoryCheckpoints,
    MemoryLedger,
    drive,
    evaluated,
)
from tests.train.driver.scripted_app import KEY, Answer, CallingApp, RolloutAsked, one_call_scored, served
from tests.train.driver.test_job_driver import ended, failed_job
from tests.train.gateway.peers import SampleCall, ScriptedSampler

pytestmark = pytest.mark.server

PER_TURN = replace(DRIVER, rows=RowOptions(credit="turn"))
app = TaskApp("agreeing", version="1")


@app.environment("agreeing", splits={"train": range(1000), "test": range(1000, 1010)}, max_steps=2)
class Agreeing:
    """Say yes, twice."""

    def reset(self, seed: int) -> str:
        return "Well?"

    @action(text=True, noop={"text": ""})
    def say(self, text: str) -> Step:
        """Say it."""
        return Step("And now?", reward=1.0) if text == "yes" else Step("Hm.")


def by_sample(call: SampleCall) -> str:
    """Sample 0 says yes first, sample 1 second, sample 2 never."""
    turn = call.prompt.count("<|im_start|>assistant") - 1
    return "yes" if int(call.draw.split("/")[2]) == turn else "no"


def driven(url: str, sampler: ScriptedSampler | None = None, **options: Any) -> Driven:
    sampler = sampler or ScriptedSampler(version=0)
    return asyncio.run(drive(url, sampler, CountingLearner(sampler), **options))


def turn_advantages(job: Driven, update: int = 0) -> dict[int, list[float]]:
    """The different advantages of each sample's row in one group, in the order of its turns."""
    found = {}
    for row in job.learner.batches[update][:3]:
        values = [value for value, on in zip(row.advantages, row.mask, strict=True) if on]
        turns = [value for at, value in enumerate(values) if at == 0 or values[at - 1] != value]
        found[int(row.rollout.split(".")[2])] = [round(value, 6) for value in turns]
    return found


@pytest.mark.parametrize(
    ("discount", "expected"),
    [
        # returns to go: (1, 0), (1, 1) and (0, 0)
        (1.0, {0: [1 / 3, -1 / 3], 1: [1 / 3, 2 / 3], 2: [-2 / 3, -1 / 3]}),
        # (1, 0), (0.5, 1) and (0, 0)
        (0.5, {0: [0.5, -1 / 3], 1: [0.0, 2 / 3], 2: [-0.5, -1 / 3]}),
    ],
)
def test_with_credit_per_turn_a_turn_is_compared_by_the_rewards_after_it(
    discount: float, expected: dict[int, list[float]]
) -> None:
    settings = replace(PER_TURN, rows=RowOptions(credit="turn", discount=discount))
    with served(app) as url:
        job = driven(url, ScriptedSampler(by_sample, version=0), key=KEY, settings=settings)
    assert job.error is None, job.error
    found = turn_advantages(job)
    assert found == {sample: [round(value, 6) for value in values] for sample, values in expected.items()}
    assert job.ledger.curve("without_turn_rewards") == [0.0, 0.0]
    assert job.ledger.curve("reward") == [pytest.approx(2 / 3)] * 2


def test_a_task_app_that_rewards_episodes_only_gives_no_credit_per_turn() -> None:
    job = failed_job(CallingApp(), "", settings=PER_TURN)
    assert "the response has no trajectory" in str(job.error)
    assert job.learner.batches == []


def test_a_rollout_whose_turns_cannot_be_matched_is_left_out_and_counted() -> None:
    async def play(asked: RolloutAsked) -> Answer:
        assert asked.body["record"] == {"trajectories": True, "return_trace": True}
        await asked.call()
        status, answer = asked.scored(float(asked.sample))
        steps = [{"reward": float(asked.sample)}] * (2 if asked.sample == 2 else 1)
        return status, {**answer, "trajectories": [{"steps": steps}]}

    job = ended(CallingApp(play), settings=PER_TURN)
    assert job.ledger.curve("without_turn_rewards") == [2.0, 2.0]
    assert {row.rollout.split(".")[2] for row in job.learner.batches[0]} == {"0", "1"}
    assert turn_advantages(job) == {0: [-0.5], 1: [0.5]}


async def grown(asked: RolloutAsked) -> Answer:
    """The reward of an evaluation is the version of the weights, up to 2."""
    answer = await asked.call()
    return asked.scored(min(float(answer["content"]), 2.0) if asked.body["mode"] == "eval" else float(asked.sample))


def growing() -> ScriptedSampler:
    sampler = ScriptedSampler(version=0)
    sampler.reply = lambda call: str(sampler.version)
    return sampler


@pytest.mark.ci(keep=2)
@pytest.mark.parametrize(
    ("rule", "last", "reason", "idle"),
    [
        (EarlyStopping(stop_at=2.0), 2, "its reward 2 reached 2", [0, 0, 0]),
        (EarlyStopping(patience=2), 4, "2 in a row were not better than 2", [0, 0, 0, 1, 2]),
        (EarlyStopping(stop_at=0.0), 0, "its reward 0 reached 0", [0]),
        (EarlyStopping(), 6, None, [0, 0, 0, 1, 2, 3, 4]),
    ],
)
def test_an_evaluation_ends_the_job(rule: EarlyStopping, last: int, reason: str | None, idle: list[float]) -> None:
    sampler, plan = growing(), evaluated(iterations=6, per_epoch=6)
    checkpoints = MemoryCheckpoints(sampler)
    settings = replace(DRIVER, loops=LoopSettings(stopping=rule), checkpoint_every=5)
    with CallingApp(grown).serving() as url:
        job = driven(url, sampler, plan=plan, settings=settings, checkpoints=checkpoints)
        assert job.error is None, job.error
        assert job.outcome is not None
        assert len(job.learner.batches) == last
        assert job.ledger.curve("evaluations_without_better") == idle
        assert job.outcome.results["stopped_early"] == reason
        assert [event.data["iteration"] for event in job.ledger.of("rl.train.stopped")] == ([last] if reason else [])
        assert job.ledger.total == job.outcome.results["rollouts"]["played"] == 2 + last * (6 + 2)
        numbers = [saved.at.iteration for saved, _ in checkpoints.saved]
        assert numbers == ([5, 6] if last == 6 else [last] if last else [])
        again = driven(url, sampler, plan=plan, settings=settings, ledger=job.ledger, state=job.ledger.state)
    assert again.error is None and again.learner.batches == []


LONG = replace(PLAN, iterations=5, per_epoch=5)


class LateLearner(CountingLearner):
    """Ends an update when all rollouts that may be played meanwhile have ended."""

    app: CallingApp
    ahead = 0

    async def learn(self, rows: Sequence[TrainingRow]) -> UpdateMetrics:
        number = len(self.batches) + 1
        async with asyncio.timeout(60):
            while len(self.app.asked) < 6 * min(number + self.ahead, LONG.iterations) or self.app.in_flight:
                await asyncio.sleep(0.01)
        return await super().learn(rows)


def versions_of(rows: Sequence[TrainingRow]) -> set[int]:
    return {version for row in rows for version, on in zip(row.versions, row.mask, strict=True) if on}


@pytest.mark.ci(keep=1)
@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_iterations_are_played_ahead_and_each_rollout_is_learned_from_once(ahead: int) -> None:
    app, sampler = CallingApp(), ScriptedSampler(version=0)
    learner = LateLearner(sampler)
    learner.app, learner.ahead = app, ahead
    settings = replace(DRIVER, loops=LoopSettings(ahead=ahead))
    job = ended(app, sampler, learner=learner, plan=LONG, settings=settings)
    for number, rows in enumerate(learner.batches):
        assert Counter(row.rollout for row in rows) == {
            f"{number + 1}.{at}.{n}": 1 for at in range(2) for n in range(3)
        }
        # the weights were those of the update before the first of the iterations that it was ahead of
        assert versions_of(rows) == {max(number - ahead, 0)}
    assert len(learner.batches) == 5
    assert len(app.asked) == len({asked.key for asked in app.asked}) == 30
    assert job.ledger.curve("waiting_rollouts")[-1:] == ([0.0] if ahead else [])


def test_an_evaluation_plays_the_weights_of_its_iteration_whatever_is_played_ahead() -> None:
    sampler = growing()
    settings = replace(DRIVER, loops=LoopSettings(ahead=2))
    job = ended(CallingApp(grown), sampler, plan=evaluated(LONG), settings=settings)
    assert job.ledger.curve("eval_reward") == [0.0, 1.0, 2.0, 2.0, 2.0, 2.0]
    assert all(max(versions_of(rows)) <= number for number, rows in enumerate(job.learner.batches))
    assert all(number - min(versions_of(rows)) <= 2 for number, rows in enumerate(job.learner.batches))


def test_a_job_that_fails_leaves_no_rollout_that_was_played_ahead() -> None:
    async def play(asked: RolloutAsked) -> Answer:
        if ".train.1." not in asked.body["group_id"]:
            await asyncio.Event().wait()
        return asked.scored(1.0)

    app = CallingApp(play)
    failed_job(app, "too_many_failed", plan=LONG, settings=replace(DRIVER, loops=LoopSettings(ahead=3)))


def test_a_curriculum_goes_up_and_down_and_evaluations_stay_as_they_are() -> None:
    app = CallingApp(one_call_scored(lambda asked: float(asked.body["env"]["config"].get("difficulty") == "easy")))
    rule = Curriculum(("easy", "hard"), up=0.8, down=0.2)
    job = ended(app, plan=evaluated(LONG), settings=replace(DRIVER, loops=LoopSettings(curriculum=rule)))
    played = {
        (asked.body["mode"], int(asked.body["group_id"].split(".")[2]), asked.body["env"]["config"].get("difficulty"))
        for asked in app.asked
    }
    trained = ["easy", "hard", "easy", "hard", "easy"]
    assert played == {("rl", number, level) for number, level in enumerate(trained, start=1)} | {
        ("eval", number, None) for number in range(6)
    }
    assert job.ledger.curve("level") == [0.0, 1.0, 0.0, 1.0, 0.0]
    assert [event.data["level"] for event in job.ledger.of("rl.train.level")] == [*trained[1:], "hard"]
    assert job.ledger.state["curriculum"] == {"level": 1, "rewards": []}


class Word(BaseModel):
    word: str
    difficulty: str


words = TaskApp("words", version="1")
words.tasks(
    "words",
    row=Word,
    prompt="Say {word}.",
    train=[Word(word=f"w{number}", difficulty="hard" if number % 3 else "easy") for number in range(30)],
    test=[Word(word="x", difficulty="hard")] * 2,
)


@words.rubric
def said(answer_text: str, task: Word) -> float:
    """It is an easy word."""
    return float(task.difficulty == "easy")


def test_a_curriculum_chooses_rows_by_their_difficulty() -> None:
    rule = Curriculum(("easy", "hard"), up=0.8, down=0.2)
    with served(words) as url:
        settings = replace(DRIVER, loops=LoopSettings(curriculum=rule))
        job = driven(url, plan=LONG, settings=settings, key=KEY)
    assert job.error is None, job.error
    assert job.ledger.curve("reward") == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert {one.seed % 3 for one in job.ledger.rollouts if one.iteration in (1, 3, 5)} == {0}
    assert {one.seed % 3 for one in job.ledger.rollouts if one.iteration in (2, 4)} == {1, 2}


@pytest.mark.parametrize(
    ("task_app", "levels", "said"),
    [
        (words, ("easy", "medium"), "has the difficulty medium"),
        (app, ("easy", "hard"), "has no setting for the difficulty"),
    ],
)
def test_a_curriculum_needs_tasks_of_each_level(task_app: TaskApp, levels: tuple[str, ...], said: str) -> None:
    settings = replace(DRIVER, loops=LoopSettings(curriculum=Curriculum(levels)))
    with served(task_app) as url:
        job = driven(url, plan=LONG, settings=settings, key=KEY)
    assert isinstance(job.error, JobError)
    assert said in str(job.error)


def test_two_task_apps_share_the_groups_by_weight() -> None:
    first, second = CallingApp(), CallingApp(one_call_scored(lambda asked: asked.sample - 10.0))
    with first.serving() as url, second.serving() as other:
        shares = (EnvironmentShare("a", 3), EnvironmentShare("b", 1, "there", other, {"x": 1}, eval_seeds=(7,)))
        plan = evaluated(replace(LONG, iterations=4, groups=2), eval_instances=4, eval_every=2)
        job = driven(url, plan=plan, settings=replace(DRIVER, loops=LoopSettings(environments=shares)))
    assert job.error is None, job.error
    played = {
        name: Counter((asked.body["mode"], asked.body["group_id"]) for asked in each.asked)
        for name, each in (("a", first), ("b", second))
    }
    # 8 groups of 3, and three evaluations of 4: the third of each four is the second's
    assert {name: sum(mode == "rl" for mode, _ in groups) for name, groups in played.items()} == {"a": 6, "b": 2}
    assert {group for mode, group in played["b"] if mode == "rl"} == {"job-1.train.2.0", "job-1.train.4.0"}
    assert {group for mode, group in played["b"] if mode == "eval"} == {f"job-1.eval.{n}.2" for n in (0, 2, 4)}
    assert {asked.body["env"].get("env_name") for asked in second.asked} == {"there"}
    assert {asked.body["env"]["config"].get("x") for asked in second.asked} == {1}
    assert {asked.body["env"]["seed"] for asked in second.asked if asked.body["mode"] == "eval"} == {7}
    assert job.ledger.curve("reward_a") == [1.0] * 4
    assert job.ledger.curve("reward_b") == [-9.0] * 2
    assert job.ledger.curve("eval_reward_b") == [-10.0] * 3
    for rows in job.learner.batches:
        assert sorted(max(row.advantages, key=abs) for row in rows) == [-1.0, -1.0, 0.0, 0.0, 1.0, 1.0]


def test_what_is_ahead_is_played_anew_after_a_kill() -> None:
    sampler = ScriptedSampler(version=0)
    checkpoints = MemoryCheckpoints(sampler)
    learner, app = BreakingLearner(sampler, breaks=4), CallingApp()
    settings = replace(DRIVER, loops=LoopSettings(ahead=2), checkpoint_every=2)
    options: dict[str, Any] = {"plan": LONG, "checkpoints": checkpoints, "ledger": MemoryLedger()}
    with app.serving() as url:
        first = asyncio.run(drive(url, sampler, learner, settings=settings, **options))
        assert isinstance(first.error, TrainingError)
        settings, state = replace(settings, incarnation=1), first.ledger.state
        again = asyncio.run(drive(url, sampler, learner, settings=settings, state=state, **options))
    assert again.error is None, again.error
    names = [{row.rollout.split(".")[0] for row in rows} for rows in learner.batches]
    assert names == [{"1"}, {"2"}, {"3"}, {"3"}, {"4"}, {"5"}]
    assert all(
        max(versions_of(rows)) <= number for rows, number in zip(learner.batches, (0, 1, 2, 2, 3, 4), strict=True)
    )
    places = [(rollout.iteration, rollout.place, rollout.sample) for rollout in again.ledger.rollouts]
    assert len(places) == len(set(places)) == 30
    assert again.outcome is not None and again.outcome.results["rollouts"]["played"] == 30
