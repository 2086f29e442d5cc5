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
from taskapp_kit.records.events import Event, Failed, fold
from taskapp_kit.records.protocols import PolicyStops, SystemClock, View
from taskapp_kit.records.trajectory import Decision, ToolCall
from taskapp_kit.rollout.episode.episode import Episode
from taskapp_kit.rollout.episode.plan import Control, EpisodePlan
from taskapp_kit.rollout.play_and_score import drive
from taskapp_kit.rollout.request import NoPolicy
from tests.rollouts import a_request, app_from, play, served, serving

pytestmark = pytest.mark.anyio
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

    app.policy("exits")(lambda observation: sys.exit(1))
    app.policy("talks")(lambda observation: "I would rather talk")
    app.policy("odd")(lambda observation: 7)
    return app


METHODS = ["init", "reset", "actions", "step", "final_state", "close"]


@pytest.mark.parametrize("where", [*METHODS, "reset_exit", "step_exit", "close_exit", "step_stop", "reset_stop"])
def test_any_exception_fails_the_environment_and_closes_it(
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
    with pytest.raises(RequestError) as caught:
        play(app, "noop", config={"breaks": "init_value"})
    assert caught.value.fields[0].loc == ("body", "env", "config")


@pytest.mark.parametrize("policy", ["bad", "exits", "odd"])
def test_a_policy_that_breaks(app: TaskApp, policy: str) -> None:
    with pytest.raises(RolloutFailed) as caught:
        play(app, policy)
    assert (caught.value.failure.boundary, caught.value.failure.code) == ("policy", "policy_raised")
    assert SECRET not in str(caught.value)
    assert Counter.closed == [""]


def add(n: int) -> dict[str, Any]:
    """An operation that adds `n`, whatever the policy says."""
    return {"type": "env", "tool": "add", "args": {"n": n}}


LIMITS: list[tuple[dict[str, Any], str, str, int, int]] = [
    # members of the request, status, stop_reason, steps, ops_executed
    ({"config": {"end": 3}}, "terminated", "environment", 3, 6),
    ({"config": {"end": 5}}, "terminated", "environment", 5, 10),
    ({}, "truncated", "max_steps", 5, 10),
    ({"ops": ["agent", "env"] * 2}, "truncated", "ops", 2, 4),
    ({"ops": ["policy", {"type": "model"}, "environment"]}, "truncated", "ops", 2, 4),
    ({"ops": ["agent"] * 9}, "truncated", "max_steps", 5, 10),
    ({"ops": [add(7), "agent"]}, "truncated", "ops", 2, 3),
    ({"ops": [add(3)] * 2, "config": {"end": 3}}, "terminated", "environment", 1, 1),
    ({"safety": {"max_ops": 4}}, "truncated", "max_ops", 2, 4),
    ({"safety": {"max_ops": 5}}, "truncated", "max_ops", 2, 4),
    ({"safety": {"max_ops": 1}}, "truncated", "max_ops", 0, 0),
    ({"ops": [add(1)] * 4, "safety": {"max_ops": 3}}, "truncated", "max_ops", 3, 3),
    ({"env_name": "turns"}, "truncated", "max_turns", 3, 6),
]


@pytest.mark.parametrize(("members", "status", "reason", "steps", "ops"), LIMITS, ids=repr)
def test_limits_truncate_and_are_scored(
    app: TaskApp, members: dict[str, Any], status: str, reason: str, steps: int, ops: int
) -> None:
    app.environment("turns", max_turns=3)(Counter)
    rollout = play(app, "noop", **members)
    trajectory = rollout.trajectory
    assert ended(rollout) == (status, reason, steps, ops)
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


def test_text_instead_of_a_tool_call_gets_a_reply(app: TaskApp) -> None:
    trajectory = play(app, "talks").trajectory
    assert trajectory.steps[0].observation == "Nothing was done: answer with a tool call. The tools are: add."


def test_coercions_are_counted(app: TaskApp) -> None:
    trajectory = play(app, "constant", action={"add": {"n": "1"}}).trajectory
    assert trajectory.metrics["coerced_arguments"] == 5.0
    assert trajectory.steps[0].coerced == 1
    assert trajectory.steps[0].args == {"n": "1"}, "recorded as it was asked for"


def plan_for(app: TaskApp, **given: Any) -> EpisodePlan:
    spec = app.freeze().environments["e"]
    return EpisodePlan(
        a_request("noop"), NoPolicy(), spec, "default", 0, {}, {"breaks": "", "end": 0}, Path(), max_steps=5, **given
    )


class Scripted:
    """Answers from a list; an exception in it is raised."""

    name = "scripted"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.views: list[View] = []

    def decide(self, view: View) -> Decision:
        self.views.append(view)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return Decision([ToolCall("add", {"n": answer})])


def driven(app: TaskApp, policy: Scripted, control: Control | None = None) -> tuple[Episode, list[Event]]:
    events: list[Event] = []
    episode = Episode(plan_for(app), SystemClock(), control)
    drive(episode, policy, events.append)
    return episode, events


def test_a_policy_sees_the_newest_observation_and_the_last_turns_steps(app: TaskApp) -> None:
    policy = Scripted(1, 2, 3, 4, 5)
    driven(app, policy)
    assert [view.observation for view in policy.views] == ["0", "1", "3", "6", "10"]
    assert [view.turn for view in policy.views] == [0, 1, 2, 3, 4]
    assert [[step.args["n"] for step in view.results] for view in policy.views] == [[], [1], [2], [3], [4]]
    assert [tool.name for tool in policy.views[0].tools] == ["add"]


def test_a_policy_may_stop(app: TaskApp) -> None:
    episode, events = driven(app, Scripted(1, PolicyStops("left")))
    trajectory = fold(events)
    assert (trajectory.status, trajectory.stop_reason, trajectory.length) == ("truncated", "left", 1)
    assert episode.ops == 2, "the turn in which it stopped does not count"
    assert Counter.closed == [""]


@pytest.mark.parametrize("stop", ["timeout", "cancelled"])
def test_the_outside_may_stop_it(app: TaskApp, stop: Any) -> None:
    control = Control()

    class Stopping(Scripted):
        def decide(self, view: View) -> Decision:
            if view.turn == 2:
                control.stop = stop
            return super().decide(view)

    _, events = driven(app, Stopping(1, 1, 1, 1), control)
    failed = next(event for event in events if isinstance(event, Failed))
    assert failed.boundary == stop
    trajectory = fold(events)
    assert (trajectory.status, trajectory.length, trajectory.final_state) == ("failed", 2, None)
    assert Counter.closed == [""]
    assert control.closed.is_set()


def test_abandoned_generator_closes_the_environment(app: TaskApp) -> None:
    events = Episode(plan_for(app), SystemClock()).events()
    next(events)
    next(events)
    events.close()
    assert Counter.closed == [""]


DIGESTS = """
import asyncio, numpy
from typing import Literal
from taskapp_kit import Image, Step, TaskApp, Text, action
from taskapp_kit.wire.rollout import RolloutRequest
from taskapp_kit.rollout.service import Service
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


@pytest.mark.process
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


def test_text_action_as_tool_call_is_the_assistants_text(tmp_path: Path) -> None:
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


# -- limits of one answer ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> TaskApp:
    """Environments whose limits differ, and policies that are refused."""
    return app_from(
        tmp_path_factory.mktemp("limited"),
        """
        import threading
        app = TaskApp("limited")
        went_on = threading.Event()

        class Base:
            '''Counts.'''
            def __init__(self, pause: float = 0.0):
                self.pause = pause
            def reset(self, seed: int) -> str:
                self.n = 0
                return "0"
            @action(noop={"n": 1})
            def add(self, n: int) -> Step:
                '''Add.'''
                if self.pause:
                    went_on.wait(self.pause)
                if n == 13:
                    raise InvalidAction("not thirteen")
                if n == 14:
                    raise InvalidAction("fourteen is the end", end=True)
                self.n += n
                return Step(str(self.n), float(n))

        app.environment("free")(Base)
        app.environment("endless", max_turns=None, max_refusals=None)(Base)
        app.environment("long", max_turns=1500)(Base)
        app.environment("patient", max_steps=2000, max_refusals=None)(Base)
        app.environment("strict", max_steps=50, max_refusals=3)(Base)

        ANSWERS = {
            "floods": lambda turn: [{"add": {"n": 1}}] * 1000,
            "talks": lambda turn: "I would rather talk",
            "unknown": lambda turn: {"jump": {}},
            "misfits": lambda turn: {"add": {"n": "many"}},
            "several": lambda turn: [{"jump": {}}, {"add": {}}, {"add": {"n": 13}}],
            "refused": lambda turn: {"add": {"n": 13}},
            "ends": lambda turn: {"add": {"n": 14 if turn == 2 else 1}},
            "sometimes": lambda turn: [{"jump": {}}, {"add": {"n": 1}}] if turn % 3 == 2 else {"jump": {}},
        }
        for name, answer in ANSWERS.items():
            def policy(observation, rng, answer=answer, turns={}):
                turns[id(rng)] = turn = turns.get(id(rng), -1) + 1
                return answer(turn)
            app.policy(name)(policy)

        @app.rubric(environment="free")
        def earned(trajectory: Trajectory) -> float:
            '''Earned something.'''
            return float(trajectory.total_reward > 0)
        """,
    )


def ended(rollout: Any) -> tuple[str, str, int, int]:
    trajectory = rollout.trajectory
    return trajectory.status, trajectory.stop_reason, trajectory.length, rollout.ops_executed


COSTLY = '''
app = TaskApp("costly")
@app.environment("costly", splits={{"train": range(9)}}, max_steps=3{bounds})
class Costly:
    """Three times."""
    def reset(self, seed: int) -> str:
        return ""
    @action
    def go(self) -> Step:
        """Go."""
        raise InvalidAction("not here", reward={reward})
'''


@pytest.mark.parametrize("reward", ["-0.25", "0", "-0.25, end=True", "numpy"])
def test_a_refused_action_may_cost_something(reward: str, tmp_path: Path) -> None:
    if reward == "numpy":
        pytest.importorskip("numpy", reason="needs numpy, of taskapp-kit[crafter]")
        reward = "__import__('numpy').float32(-0.25)"
    app = app_from(tmp_path, COSTLY.format(bounds=", reward_range=(-1.0, 1.0)", reward=reward))
    rollout = play(app, seed=3)
    steps = rollout.trajectory.steps
    assert {(step.refused, step.reward) for step in steps} == {("not here", 0.0 if reward == "0" else -0.25)}
    assert rollout.reward == sum(step.reward or 0.0 for step in steps)
    assert rollout.trajectory.metrics["invalid_actions"] == len(steps) == (1 if "end" in reward else 3)
    assert fold(rollout.events).steps[0].reward == steps[0].reward


@pytest.mark.parametrize(
    ("reward", "bounds", "code"),
    [
        ("0.5", "", "reward_out_of_range"),
        ("-2.0", ", reward_range=(-1.0, 1.0)", "reward_out_of_range"),
        ("-0.1", ", reward_range=(0.0, 1.0)", "reward_out_of_range"),
        ("float('-inf')", "", "reward_not_finite"),
        ("'much'", "", "not_a_number"),
    ],
)
def test_the_cost_of_a_refused_action_is_checked(reward: str, bounds: str, code: str, tmp_path: Path) -> None:
    app = app_from(tmp_path, COSTLY.format(bounds=bounds, reward=reward))
    with pytest.raises(RolloutFailed) as failed:
        play(app, seed=3)
    assert (failed.value.boundary, failed.value.failure.code) == ("environment", code)


def test_calls_beyond_the_limit_of_one_reply_are_refused_together(limited: TaskApp) -> None:
    rollout = play(limited, "floods", ops=["agent"])
    assert ended(rollout) == ("truncated", "ops", 65, 66)
    assert rollout.trajectory.total_reward == 64.0
    assert [step.index for step in rollout.trajectory.steps if step.refused] == [64]
    assert rollout.trajectory.metrics["invalid_actions"] == 1
    answer = rollout.trajectory.turns[0].answer
    assert (len(answer.tool_calls), answer.details["left_out_calls"]) == (65, 935)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_how_many_calls_are_done_is_a_setting(limited: TaskApp, workers: int) -> None:
    request = a_request("floods", ops=["agent"] * 2)
    assert ended(served(limited, request, max_calls=3, workers=workers)) == ("truncated", "ops", 8, 10)


def test_max_ops_and_max_steps_also_limit_one_reply(limited: TaskApp) -> None:
    assert ended(play(limited, "floods", safety={"max_ops": 10})) == ("truncated", "max_ops", 9, 10)
    strict = play(limited, "floods", env_name="strict")
    assert ended(strict) == ("truncated", "max_steps", 50, 51)
    spoken = play(limited, "talks", ops=["agent"] * 3)
    assert spoken.ops_executed == 6, "a turn without an action costs 2"


async def test_deadline_is_checked_between_actions_of_one_reply(limited: TaskApp) -> None:
    events: list[Event] = []
    request = a_request("floods", config={"pause": 0.1}, safety={"max_time_s": 0.6})
    async with serving(limited) as service:
        with pytest.raises(RolloutFailed) as caught:
            await service.rollout(request, listener=events.append)
    assert (caught.value.failure.boundary, caught.value.failure.code) == ("timeout", "deadline")
    trajectory = fold(events)
    assert len(trajectory.turns) == 1
    assert 0 < trajectory.length < 64


def test_slow_scoring_is_not_blamed_on_the_environment(tmp_path: Path) -> None:
    app = app_from(
        tmp_path,
        """
        import threading
        app = TaskApp("a")
        let_go = threading.Event()
        app.tasks("q", prompt="{q}", train=[{"q": "France?"}])
        @app.rubric
        def slow(trajectory: Trajectory) -> float:
            '''Slow.'''
            let_go.wait(60)
            return 1.0
        """,
    )
    try:
        with pytest.raises(RolloutFailed) as caught:
            play(app, "constant", action="Paris", safety={"max_time_s": 0.3})
    finally:
        next(d.target for d in app.declared if d.kind == "rubric").__globals__["let_go"].set()
    assert (caught.value.failure.boundary, caught.value.failure.code) == ("timeout", "deadline")


# -- refusals ---------------------------------------------------------------------------------------------------------

REFUSALS: list[tuple[str, dict[str, Any], tuple[str, str, int, int]]] = [
    ("talks", {}, ("truncated", "max_refusals", 10, 20)),
    ("unknown", {}, ("truncated", "max_refusals", 10, 20)),
    ("misfits", {}, ("truncated", "max_refusals", 10, 20)),
    ("refused", {}, ("truncated", "max_refusals", 10, 20)),
    ("several", {}, ("truncated", "max_refusals", 30, 40)),  # three calls in each of ten answers
    ("refused", {"env_name": "strict"}, ("truncated", "max_refusals", 3, 6)),
    ("refused", {"env_name": "strict", "safety": {"max_refusals": 2}}, ("truncated", "max_refusals", 2, 4)),
    ("refused", {"env_name": "strict", "safety": {"max_refusals": 99}}, ("truncated", "max_refusals", 3, 6)),
    ("refused", {"env_name": "patient"}, ("truncated", "max_steps", 2000, 4000)),
    ("refused", {"env_name": "patient", "safety": {"max_refusals": 7}}, ("truncated", "max_refusals", 7, 14)),
    ("sometimes", {"env_name": "strict", "ops": ["agent"] * 9}, ("truncated", "ops", 12, 21)),
    ("sometimes", {"env_name": "strict", "safety": {"max_refusals": 2}}, ("truncated", "max_refusals", 2, 4)),
]


@pytest.mark.parametrize(("policy", "given", "wanted"), REFUSALS, ids=repr)
def test_answers_that_are_refused_in_a_row_end_the_episode(
    limited: TaskApp, policy: str, given: dict[str, Any], wanted: tuple[str, str, int, int]
) -> None:
    rollout = play(limited, policy, **given)
    assert ended(rollout) == wanted
    assert rollout.scorecard.reward is not None, "truncated episodes are scored"


def test_actions_of_the_caller_are_no_refusals_of_the_policy(limited: TaskApp) -> None:
    wrong, right = add(13), add(1)
    assert ended(play(limited, None, env_name="strict", ops=[wrong] * 9)) == ("truncated", "ops", 9, 9)
    mixed = play(limited, "refused", env_name="strict", ops=["agent", wrong, right, "agent", right, "agent", "agent"])
    assert ended(mixed) == ("truncated", "max_refusals", 6, 9)


def test_an_invalid_action_may_end_the_episode(limited: TaskApp) -> None:
    rollout = play(limited, "ends")
    assert ended(rollout) == ("terminated", "invalid_action", 3, 6)
    last = rollout.trajectory.steps[-1]
    assert (last.refused, last.terminated) == ("fourteen is the end", True)
    assert (rollout.trajectory.metrics["invalid_actions"], rollout.scorecard.reward) == (1.0, 1.0)


# -- the default limit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.process)])
def test_environment_without_a_limit_gets_a_default_with_a_warning(limited: TaskApp, workers: int) -> None:
    cut = served(limited, a_request("noop"), workers=workers)
    assert ended(cut) == ("truncated", "default_max_turns", 1000, 2000)
    assert ["max_turns" in sentence for sentence in cut.warnings] == [True]


@pytest.mark.parametrize(
    ("members", "end"),
    [
        ({"ops": ["agent"] * 1100}, ("truncated", "ops", 1100, 2200)),
        ({"env_name": "long"}, ("truncated", "max_turns", 1500, 3000)),
        ({"env_name": "endless", "safety": {"max_ops": 3000}}, ("truncated", "max_ops", 1500, 3000)),
    ],
)
def test_environment_with_another_limit_gets_no_default(limited: TaskApp, members: dict[str, Any], end: Any) -> None:
    rollout = play(limited, "noop", **members)
    assert (ended(rollout), rollout.warnings) == (end, [])


# -- one answer -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> TaskApp:
    return app_from(
        tmp_path_factory.mktemp("asked"),
        """
        app = TaskApp("asked")
        app.tasks("one", prompt="{q}", train=[{"q": "France?"}])
        app.tasks("two", prompt="{q}", train=[{"q": "France?"}], max_turns=2)
        app.tasks("many", prompt="{q}", train=[{"q": "France?"}], max_turns=20)
        ANSWERS = {"blank": "", "calls": {"jump": {}}, "misfits": {"answer": {"words": "x"}},
                   "twice": [{"jump": {}}, {"answer": {"text": "Paris"}}, {"answer": {"text": "Rome"}}]}
        for name, answer in ANSWERS.items():
            app.policy(name)(lambda observation, answer=answer: answer)

        @app.policy("learns")
        def learns(observation):
            return "Paris" if observation.startswith("Nothing") else ""

        @app.rubric
        def right(trajectory: Trajectory, answer_text: str) -> float:
            '''Right.'''
            answers = trajectory.actions("answer")
            assert not answers or answers[-1].args["text"] == answer_text
            return float(answer_text == "Paris")
        """,
    )


@pytest.mark.parametrize(
    ("policy", "said", "invalid"), [("blank", "", 1), ("calls", "", 1), ("misfits", "", 1), ("twice", "Paris", 0)]
)
def test_task_episode_is_exactly_one_reply(asked: TaskApp, policy: str, said: str, invalid: int) -> None:
    rollout = play(asked, policy, seed=0, env_name="one")
    assert ended(rollout) == ("terminated", "environment", 1, 2)
    assert [(step.tool, step.args) for step in rollout.trajectory.steps] == [("answer", {"text": said})]
    assert rollout.trajectory.metrics["invalid_actions"] == invalid
    assert rollout.scorecard.reward == float(said == "Paris")


def test_with_several_turns_a_refused_answer_may_be_given_again(asked: TaskApp) -> None:
    learnt = play(asked, "learns", seed=0, env_name="two")
    assert (ended(learnt), learnt.scorecard.reward) == (("terminated", "environment", 2, 4), 1.0)
    never = play(asked, "blank", seed=0, env_name="many")
    assert (ended(never), never.scorecard.reward) == (("truncated", "max_turns", 20, 40), 0.0)


# -- metrics ----------------------------------------------------------------------------------------------------------


def test_reserved_metric_is_dropped_with_a_warning(tmp_path: Path) -> None:
    app = app_from(
        tmp_path,
        """
        app = TaskApp("a")
        @app.environment("e", max_steps=4)
        class E:
            '''E.'''
            def reset(self, seed: int) -> str:
                return ""
            @action(noop={})
            def go(self) -> Step:
                '''Go.'''
                return Step("", metrics={"steps": 100.0, "invalid_actions": 7.0, "seed": 1.0, "own": 2.0})
        @app.metric
        def numbers(trajectory: Trajectory) -> dict[str, float]:
            return {"turns": 50.0, "other": 3.0}
        """,
    )
    rollout = play(app, "noop", seed=5)
    summary = rollout.row()
    assert (summary.metrics["steps"], summary.metrics["turns"], summary.metrics["invalid_actions"]) == (4.0, 4.0, 0.0)
    assert (summary.metrics["own"], summary.metrics["other"]) == (8.0, 3.0)
    assert "seed" not in summary.metrics
    assert [all(name in line for name in ("invalid_actions", "seed", "steps")) for line in rollout.warnings] == [True]
    assert [item.name for item in rollout.scorecard.criteria if item.error] == ["numbers"]
