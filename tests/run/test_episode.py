"""One episode as events: limits, statuses, failures, and that the environment is always closed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit import RequestError, RolloutFailed, Step, TaskApp, action
from taskapp_kit.contract.events import Event, Failed, fold
from taskapp_kit.contract.ports import PolicyStops, SystemClock, View
from taskapp_kit.contract.trajectory import Answer, ToolCall
from taskapp_kit.run.episode import Episode, drive
from taskapp_kit.run.plan import Control, EpisodePlan
from tests.rollouts import app_from, play

SECRET = "sentinel-in-an-exception"


class Counter:
    """Counts; `close` is told to whoever listens."""

    closed: list[str] = []

    def __init__(self, breaks: str = "", end: int = 0):
        self.breaks, self.end = breaks, end
        if breaks == "init_value":
            raise ValueError("that config is wrong")
        if breaks == "init":
            raise RuntimeError(SECRET)

    def _break(self, where: str) -> None:
        if self.breaks == where:
            raise RuntimeError(SECRET)
        if self.breaks == f"{where}_exit":
            sys.exit(3)
        if self.breaks == f"{where}_stop":
            raise StopIteration

    def reset(self, seed: int) -> str:
        self.n = 0
        self._break("reset")
        return "0"

    def actions(self) -> list[str]:
        self._break("actions")
        return ["add"]

    @action(noop={"n": 1})
    def add(self, n: int) -> Step:
        """Add."""
        self.n += n
        if self.n >= 2:
            self._break("step")
        return Step(str(self.n), float(n), self.n == self.end)

    def final_state(self) -> Any:
        self._break("final_state")
        return {"n": self.n}

    def close(self) -> None:
        self.closed.append(self.breaks)
        self._break("close")


@pytest.fixture
def app() -> TaskApp:
    app = TaskApp("a")
    app.environment("e", max_steps=5)(Counter)
    Counter.closed.clear()

    @app.policy("bad")
    def bad(observation: str) -> dict[str, Any]:
        if observation == "1":
            raise RuntimeError(SECRET)
        return {"add": {"n": 1}}

    @app.policy("exits")
    def exits(observation: str) -> dict[str, Any]:
        sys.exit(1)

    @app.policy("odd")
    def odd(observation: str) -> Any:
        return 7

    return app


BROKEN = [
    "init",
    "reset",
    "actions",
    "step",
    "final_state",
    "close",
    "reset_exit",
    "step_exit",
    "close_exit",
    "step_stop",
    "reset_stop",
]


@pytest.mark.parametrize("where", BROKEN)
def test_whatever_breaks_is_a_failure_of_the_environment_and_it_is_closed(
    app: TaskApp, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(RolloutFailed) as caught:
        play(app, "noop", config={"breaks": where})
    failure = caught.value.failure
    assert (failure.boundary, failure.code) == ("environment", "environment_raised")
    assert SECRET not in str(caught.value)
    assert failure.error_id in caplog.text
    assert "Traceback" in caplog.text
    assert "exit" in where or "stop" in where or SECRET in caplog.text
    assert Counter.closed == ([] if where == "init" else [where])


def test_a_value_error_of_the_constructor_is_the_callers(app: TaskApp) -> None:
    with pytest.raises(RequestError, match=r"refuses this env\.config: that config is wrong"):
        play(app, "noop", config={"breaks": "init_value"})


@pytest.mark.parametrize(
    ("policy", "words"), [("bad", "raised RuntimeError"), ("exits", "raised SystemExit"), ("odd", "gave '7'; expected")]
)
def test_a_policy_that_breaks(app: TaskApp, policy: str, words: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(RolloutFailed) as caught:
        play(app, policy)
    assert (caught.value.failure.boundary, caught.value.failure.code) == ("policy", "policy_raised")
    assert words in caught.value.failure.message
    assert SECRET not in str(caught.value)
    assert Counter.closed == [""]


LIMITS: list[tuple[dict[str, Any], str, str, int, int]] = [
    # request, status, stop_reason, steps, ops_executed
    ({"config": {"end": 3}}, "terminated", "environment", 3, 6),
    ({"config": {"end": 5}}, "terminated", "environment", 5, 10),
    ({}, "truncated", "max_steps", 5, 10),
    ({"ops": ["agent", "env"] * 2}, "truncated", "ops", 2, 4),
    ({"ops": ["policy", {"type": "model"}, "environment"]}, "truncated", "ops", 2, 4),
    ({"ops": ["agent"] * 9}, "truncated", "max_steps", 5, 10),
    ({"ops": [{"type": "env", "tool": "add", "args": {"n": 7}}, "agent"]}, "truncated", "ops", 2, 3),
    (
        {"ops": [{"type": "env", "tool": "add", "args": {"n": 3}}] * 2, "config": {"end": 3}},
        "terminated",
        "environment",
        1,
        1,
    ),
    ({"safety": {"max_ops": 4}}, "truncated", "max_ops", 2, 4),
    ({"safety": {"max_ops": 5}}, "truncated", "max_ops", 2, 4),
    ({"safety": {"max_ops": 1}}, "truncated", "max_ops", 0, 0),
    (
        {"ops": [{"type": "env", "tool": "add", "args": {"n": 1}}] * 4, "safety": {"max_ops": 3}},
        "truncated",
        "max_ops",
        3,
        3,
    ),
    ({"env_name": "turns"}, "truncated", "max_turns", 3, 6),
]


@pytest.mark.parametrize(("given", "status", "reason", "steps", "ops"), LIMITS, ids=repr)
def test_limits_truncate_and_are_scored(
    app: TaskApp, given: dict[str, Any], status: str, reason: str, steps: int, ops: int
) -> None:
    app.environment("turns", max_turns=3)(Counter)
    rollout = play(app, "noop", **given)
    trajectory = rollout.trajectory
    assert (trajectory.status, trajectory.stop_reason, trajectory.length, rollout.ops_executed) == (
        status,
        reason,
        steps,
        ops,
    )
    assert rollout.scorecard.reward == trajectory.total_reward
    kinds = [event.kind for event in rollout.events]
    assert ("limited" in kinds) == (status == "truncated")
    assert kinds[-2:] == ["ended", "scored"]
    assert trajectory.final_state == {"n": int(trajectory.total_reward)}


def test_max_turns_counts_turns_and_max_steps_steps() -> None:
    app = TaskApp("a")
    app.environment("t", max_turns=2)(Counter)
    app.environment("s", max_steps=3)(Counter)
    two = [{"add": {"n": 1}}, {"add": {"n": 1}}]
    assert play(app, "constant", action=two, env_name="t").trajectory.length == 4
    rollout = play(app, "constant", action=two, env_name="s")
    assert (rollout.trajectory.length, len(rollout.trajectory.turns)) == (3, 2)
    assert rollout.trajectory.metrics["turns"] == 1.0


def test_parallel_calls_stop_at_the_end_of_the_episode(app: TaskApp) -> None:
    rollout = play(app, "constant", action=[{"add": {"n": 1}}] * 4, config={"end": 3})
    assert [step.observation for step in rollout.trajectory.steps] == ["1", "2", "3"]
    assert rollout.trajectory.status == "terminated"
    assert len(rollout.trajectory.turns[0].answer.tool_calls) == 4


def test_the_order_of_events(app: TaskApp) -> None:
    kinds = [event.kind for event in play(app, "noop", config={"end": 2}).events]
    assert kinds == ["started", "observed", *["called", "answered", "acted", "stepped"] * 2, "ended", "scored"]


def test_words_where_a_tool_was_due_are_answered_and_counted(app: TaskApp) -> None:
    trajectory = play(app, "constant", action="I would rather talk").trajectory
    assert trajectory.length == 5
    assert trajectory.steps[0].observation == "Nothing was done: answer with a tool call. The tools are: add."
    assert trajectory.metrics["invalid_actions"] == 5.0


def test_coercions_are_counted(app: TaskApp) -> None:
    trajectory = play(app, "constant", action={"add": {"n": "1"}}).trajectory
    assert trajectory.metrics["coerced_arguments"] == 5.0
    assert trajectory.steps[0].coerced == 1
    assert trajectory.steps[0].args == {"n": "1"}, "recorded as it was asked for"


def plan_for(app: TaskApp, **given: Any) -> EpisodePlan:
    spec = app.freeze().environments["e"]
    return EpisodePlan(spec, "default", 0, {}, {"breaks": "", "end": 0}, "p", Path(), max_steps=5, **given)


class Scripted:
    """Answers from a list; an exception in it is raised."""

    name = "scripted"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.views: list[View] = []

    def decide(self, view: View) -> Answer:
        self.views.append(view)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return Answer([ToolCall("add", {"n": answer})])


def driven(app: TaskApp, policy: Scripted, control: Control | None = None) -> list[Event]:
    events: list[Event] = []
    drive(Episode(plan_for(app), SystemClock(), control), policy, events.append)
    return events


def test_a_policy_sees_the_newest_observation_and_the_last_turns_steps(app: TaskApp) -> None:
    policy = Scripted(1, 2, 3, 4, 5)
    driven(app, policy)
    assert [view.observation for view in policy.views] == ["0", "1", "3", "6", "10"]
    assert [view.turn for view in policy.views] == [0, 1, 2, 3, 4]
    assert [[step.args["n"] for step in view.results] for view in policy.views] == [[], [1], [2], [3], [4]]
    assert [tool.name for tool in policy.views[0].tools] == ["add"]


def test_a_policy_may_stop(app: TaskApp) -> None:
    trajectory = fold(driven(app, Scripted(1, PolicyStops("left"))))
    assert (trajectory.status, trajectory.stop_reason, trajectory.length) == ("truncated", "left", 1)
    assert Counter.closed == [""]


@pytest.mark.parametrize(("stop", "boundary"), [("timeout", "timeout"), ("cancelled", "cancelled")])
def test_the_outside_may_stop_it(app: TaskApp, stop: Any, boundary: str) -> None:
    control = Control()

    class Stopping(Scripted):
        def decide(self, view: View) -> Answer:
            if view.turn == 2:
                control.stop = stop
            return super().decide(view)

    events = driven(app, Stopping(1, 1, 1, 1), control)
    failed = next(event for event in events if isinstance(event, Failed))
    assert failed.boundary == boundary
    trajectory = fold(events)
    assert (trajectory.status, trajectory.length, trajectory.final_state) == ("failed", 2, None)
    assert Counter.closed == [""]
    assert control.closed.is_set()


def test_nobody_reading_on_closes_the_environment(app: TaskApp) -> None:
    events = Episode(plan_for(app), SystemClock()).events()
    next(events)
    next(events)
    events.close()
    assert Counter.closed == [""]


DIGESTS = """
import asyncio, numpy
from typing import Literal
from taskapp_kit import Image, Step, TaskApp, Text, action
from taskapp_kit.contract.wire import RolloutRequest
from taskapp_kit.service import Service
app = TaskApp("a")
@app.environment("e", max_steps=6)
class E:
    "E."
    def __init__(self, image: bool = False): self.image = image
    def reset(self, seed: int, context): self.rng = context.rng; return self.see()
    def see(self):
        words = " ".join(sorted({"a", "b", "c", "d", str(self.rng.random())}))
        return [Text(words), Image(numpy.zeros((2, 2, 3), numpy.uint8))] if self.image else words
    @action
    def go(self, word: Literal["x", "y", "z"]) -> Step:
        "Go."
        return Step(self.see(), self.rng.random(), info={word: 1, "b": 2})
async def main():
    service = Service(app)
    for seed in range(3):
        for image in (False, True):
            body = dict(run_id="r", mode="rl", ops=[], env=dict(seed=seed, config=dict(image=image)), policy=dict(policy_name="random"))
            print((await service.rollout(RolloutRequest.model_validate(body))).digest)
asyncio.run(main())
"""


def test_the_digest_is_the_same_in_every_process_with_and_without_pictures() -> None:
    printed = [
        subprocess.run(
            [sys.executable, "-c", DIGESTS],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout.split()
        for seed in ("0", "7")
    ]
    assert printed[0] == printed[1]
    assert printed[0][0::2] == printed[0][1::2], "image on or off"
    assert len(set(printed[0])) == 3, "different seeds differ"


def test_words_given_as_a_tool_call_are_the_assistants_words(tmp_path: Path) -> None:
    app = app_from(
        tmp_path,
        """
        app = TaskApp("q")
        app.tasks("q", prompt="{q}", train=[{"q": "France?", "a": "Paris"}])

        @app.rubric
        def right(answer_text: str, task: dict) -> float:
            '''Right.'''
            return float(answer_text == task["a"])
        """,
    )
    said = play(app, "constant", action="Paris")
    called = play(app, "constant", action={"answer": {"text": "Paris"}})
    assert [said.scorecard.reward, called.scorecard.reward] == [1.0, 1.0]
    assert said.digest == called.digest
