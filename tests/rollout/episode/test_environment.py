"""The gate between an author's environment and recorded data: each mistake at the first step has its sentence."""

from __future__ import annotations

import dataclasses
import enum
import logging
import math
import re
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel, Field, model_validator

from taskapp_kit import Image, RolloutFailed, Step, TaskApp, Text, action
from taskapp_kit.records.protocols import Tool
from tests.rollouts import play


def app_of(cls: type, **options: Any) -> TaskApp:
    app = TaskApp("a")
    app.environment("e", **{"max_steps": 3, **options})(cls)
    return app


def returning(*values: Any, first: Any = "start", **options: Any) -> TaskApp:
    """An environment whose steps return these values, in order; callables are called."""

    class Env:
        """Env."""

        def reset(self, seed: int) -> Any:
            self.left = list(values)
            return first() if callable(first) else first

        @action(noop={})
        def go(self) -> Any:
            """Go."""
            value = self.left.pop(0)
            return value() if callable(value) and not isinstance(value, type) else value

    return app_of(Env, **{"max_steps": len(values), **options})


class Quiet:
    """An environment in which nothing happens, for tests of one of its methods."""

    def reset(self, seed: int) -> str:
        return ""

    @action(noop={})
    def go(self) -> Step:
        """Go."""
        return Step("")


class Level(enum.Enum):
    A = "a"


class Board(BaseModel):
    n: int = 1


@dataclasses.dataclass
class Place:
    x: int = 1


SHARED = {"n": 1}
DEEP: Any = "x"
for _ in range(70):
    DEEP = {"d": DEEP}

MISTAKES: dict[str, tuple[Any, str, str]] = {
    "not json": (object(), "observation_not_json", "observation is of type object"),
    "a set": ({"s": {1}}, "observation_not_json", "observation.s is of type set"),
    "bytes": (b"x", "observation_not_json", "bytes"),
    "nan": ({"a": [math.nan]}, "observation_not_json", "observation.a[0] is nan"),
    "numpy inf": ({"a": np.array([1, np.inf])}, "observation_not_json", "observation.a[1] is inf"),
    "too deep": (DEEP, "observation_not_json", "nested more than 64 deep"),
    "a number": (7, "observation_not_json", "observation is a int"),
    "gym's tuple": (("obs", 1.0, False, {}), "observation_not_json", "observation is a tuple"),
    "a list": ([1, 2], "observation_not_json", "put other lists and numbers into a dict"),
    "a lone surrogate": ("\ud800", "observation_not_json", "lone surrogate"),
    "reward nan": (Step("x", math.nan), "reward_not_finite", "the reward is nan"),
    "reward inf": (Step("x", -math.inf), "reward_not_finite", "the reward is -inf"),
    "numpy reward nan": (Step("x", np.float32("nan")), "reward_not_finite", "the reward is nan"),
    "reward words": (Step("x", "1"), "not_a_number", "the reward is '1'"),
    "reward list": (Step("x", [1]), "not_a_number", "the reward is '[1]'"),
    "reward too large": (Step("x", 10**400), "not_a_number", "expected a finite number"),
    "reward out of range": (Step("x", 1.5), "reward_out_of_range", "the reward 1.5"),
    "terminated 1": (Step("x", terminated=1), "flag_not_bool", "terminated is 1, expected True or False"),
    "truncated None": (Step("x", truncated=None), "flag_not_bool", "truncated is None"),
    "info not json": (Step("x", info={"a": object()}), "info_not_json", "info.a is of type object"),
    "info nan": (Step("x", info={"a": math.nan}), "info_not_json", "info.a is nan"),
    "info list": (Step("x", info=[1]), "info_not_json", "info is a list, expected a dict"),
    "metric nan": (Step("x", metrics={"m": math.nan}), "not_a_number", "metric 'm' is nan"),
    "metric words": (Step("x", metrics={"m": "1"}), "not_a_number", "metric 'm' is '1'"),
    "metrics list": (Step("x", metrics=[1]), "not_a_number", "metrics is a list"),
}  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_the_first_step_is_a_failure_with_a_sentence(name: str) -> None:
    value, code, words = MISTAKES[name]
    with pytest.raises(RolloutFailed) as caught:
        play(returning(lambda: value, reward_range=(-1, 1)), "noop")
    failure = caught.value.failure
    assert (failure.boundary, failure.code) == ("environment", code)
    assert words in failure.message
    assert re.match(r"Env\.go \(test_environment\.py:\d+\): ", failure.message)
    assert failure.hint == "Fix the environment's code."


SHARING: dict[str, tuple[Any, list[Any]]] = {
    "reset and step": (SHARED, [SHARED]),
    "two steps": ("start", [SHARED, SHARED]),
    "in Steps": ("start", [Step(SHARED), Step(SHARED)]),
    "with nothing between": ("start", [Step(SHARED), Step(None), Step(SHARED)]),
    "a model": ("start", [one := Board(), one]),
    "blocks": ("start", [blocks := [Text("a"), Text("b")], blocks]),
    "info": ("start", [Step("a", info=SHARED), Step("b", info=SHARED)]),
}


@pytest.mark.parametrize("name", SHARING)
def test_object_shared_between_steps_is_an_error(name: str) -> None:
    first, values = SHARING[name]
    with pytest.raises(RolloutFailed) as caught:
        play(returning(*values, first=first), "noop")
    assert caught.value.failure.code == "shared_object"
    assert "return a copy in each step" in caught.value.failure.message


@pytest.mark.parametrize(
    "same", ["x", None, Level.A, Text("x"), Image(np.zeros((1, 1, 3), np.uint8)), (Text("a"), Text("b"))], ids=repr
)
def test_immutable_objects_may_be_shared(same: Any) -> None:
    assert play(returning(same, same, same), "noop").trajectory.length == 3


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ("x", "x"),
        (None, None),
        ({"a": np.arange(3), "b": np.float32(0.5)}, {"a": [0, 1, 2], "b": 0.5}),
        (Board(), {"n": 1}),
        (Place(), {"x": 1}),
        (Level.A, "a"),
        ({"l": Level.A, "p": Place(2), "b": [Board(n=2)]}, {"l": "a", "p": {"x": 2}, "b": [{"n": 2}]}),
        ([Text("a"), Text("b")], ["a", "b"]),
    ],
    ids=repr,
)
def test_valid_observations(value: Any, seen: Any) -> None:
    assert play(returning(value), "noop").trajectory.steps[0].observation == seen
    assert play(returning("x", first=value), "noop").trajectory.initial == seen


def test_numbers_of_numpy_and_booleans_are_fine() -> None:
    step = Step("x", np.float32(0.5), np.bool_(True), info={"a": np.int64(1)}, metrics={"m": np.int8(2)})  # type: ignore[arg-type]
    played = play(returning(step), "noop").trajectory.steps[0]
    assert (played.reward, played.terminated, played.info, played.metrics) == (0.5, True, {"a": 1}, {"m": 2.0})
    assert type(played.reward) is float
    assert type(played.terminated) is bool
    assert play(returning(Step("x", True)), "noop").trajectory.steps[0].reward == 1.0


@pytest.mark.parametrize(
    ("first", "code", "words"),
    [
        (Step("x"), "reset_returned_step", "Env.reset returned a Step, expected only the first observation"),
        (object(), "observation_not_json", "): observation is of type object"),
        (("obs", {}), "observation_not_json", "): observation is a tuple"),
    ],
    ids=["step", "object", "gym"],
)
def test_mistakes_of_reset(first: Any, code: str, words: str) -> None:
    with pytest.raises(RolloutFailed) as caught:
        play(returning("x", first=lambda: first), "noop")
    assert caught.value.failure.code == code
    assert words in caught.value.failure.message


def test_an_environment_is_recorded_by_value() -> None:
    class Env:
        """Env."""

        def reset(self, seed: int) -> dict[str, Any]:
            self.board = [0, 0, 0]
            return {"board": self.board}

        @action
        def go(self, n: Literal[0, 1, 2]) -> Step:
            """Go."""
            self.board[n] += 1
            return Step({"board": self.board}, info={"board": self.board})

    trajectory = play(app_of(Env), "constant", action={"go": {"n": 1}}).trajectory
    assert trajectory.initial == {"board": [0, 0, 0]}
    assert [step.observation["board"] for step in trajectory.steps] == [[0, 1, 0], [0, 2, 0], [0, 3, 0]]


class Async:
    """All methods async."""

    log: list[str] = []

    async def reset(self, seed: int) -> str:
        import asyncio

        await asyncio.sleep(0)
        self.loop = asyncio.get_running_loop()
        return "start"

    @action(noop={})
    async def go(self) -> Step:
        """Go."""
        import asyncio

        assert asyncio.get_running_loop() is self.loop, "one loop for all of an instance's calls"
        await asyncio.sleep(0)
        return Step("there", 1.0)

    async def actions(self) -> list[str]:
        return ["go"]

    async def final_state(self) -> dict[str, int]:
        return {"secret": 1}

    async def close(self) -> None:
        self.log.append("closed")


def test_async_environments() -> None:
    Async.log.clear()
    rollout = play(app_of(Async), "noop")
    assert rollout.trajectory.length == 3
    assert rollout.trajectory.final_state == {"secret": 1}
    assert Async.log == ["closed"]


class Move(BaseModel):
    dx: int = Field(ge=-1, le=1, description="Columns.")
    dy: int = Field(0, ge=-1, le=1)

    @model_validator(mode="after")
    def moves(self) -> Move:
        if not (self.dx or self.dy):
            raise ValueError("a move of nothing")
        return self


def stepping(kind: Any) -> TaskApp:
    class Env:
        """Env."""

        def reset(self, seed: int) -> str:
            return ""

        def step(self, action: Any) -> Step:
            """Step."""
            return Step(f"{type(action).__name__} {action}")

    Env.step.__annotations__["action"] = kind
    return app_of(Env, max_steps=1)


@pytest.mark.parametrize(
    ("kind", "args", "seen"),
    [
        (Move, {"dx": "1"}, "Move dx=1 dy=0"),
        (dict[str, int], {"a": 1}, "dict {'a': 1}"),
        (Literal["up", "down"], {"action": "up"}, "str up"),
        (int, {"action": "3"}, "int 3"),
        (Move | None, {"action": {"dx": 1}}, "Move dx=1 dy=0"),
        (list[int], {"action": [1]}, "list [1]"),
    ],
)
def test_a_class_may_define_step(kind: Any, args: Any, seen: str) -> None:
    assert play(stepping(kind), "constant", action={"step": args}).trajectory.steps[0].observation == seen


def test_a_model_that_does_not_fit_is_feedback_and_no_failure() -> None:
    for args, words in (
        ({"dx": 0}, "a move of nothing"),
        ({"dx": 5}, "less than or equal to 1"),
        ({}, "dx: is missing"),
    ):
        step = play(stepping(Move), "constant", action={"step": args}).trajectory.steps[0]
        assert step.refused is not None
        assert words in step.refused


def test_the_tool_of_a_step_has_the_models_members() -> None:
    schema = stepping(Move).freeze().environments["e"].actions["step"].tool.parameters
    assert schema["properties"]["dx"] == {"type": "integer", "minimum": -1, "maximum": 1, "description": "Columns."}
    assert schema["required"] == ["dx"]


class Masked:
    """Tools that depend on the seed."""

    named: Any = staticmethod(lambda seed: ["left"])

    def reset(self, seed: int) -> str:
        self.seed = seed
        return ""

    @action
    def left(self) -> Step:
        """Left."""
        return Step("l")

    @action
    def right(self) -> Step:
        """Right."""
        return Step("r")

    def actions(self) -> Any:
        return self.named(self.seed)


def test_actions_narrows_the_tools_of_this_episode() -> None:
    rollout = play(app_of(Masked), "random", seed=1)
    assert {step.tool for step in rollout.trajectory.steps} == {"left"}
    step = play(app_of(Masked), "constant", action={"right": {}}).trajectory.steps[0]
    assert step.refused == "Nothing was done: there is no tool 'right' in this episode. The tools are: left."
    step = play(app_of(Masked), ops=[{"type": "env", "tool": "jump"}], seed=1).trajectory.steps[0]
    assert step.refused == "Nothing was done: there is no tool 'jump' here. The tools are: left."


@pytest.mark.parametrize(
    ("named", "code"),
    [(["left", "up"], "unknown_action"), ([], "no_action"), ([Tool("up", "", {})], "unknown_action")],
    ids=["unknown", "none", "unknown spec"],
)
def test_actions_that_name_nothing(named: Any, code: str) -> None:
    cls = type("Env", (Masked,), {"named": staticmethod(lambda seed: named), "__doc__": "Env."})
    with pytest.raises(RolloutFailed) as caught:
        play(app_of(cls))
    assert caught.value.failure.code == code


def test_actions_may_give_specs() -> None:
    tool = Tool("left", "Only left today.", {"type": "object", "properties": {}})
    cls = type("Env", (Masked,), {"named": staticmethod(lambda seed: [tool]), "__doc__": "Env."})
    assert play(app_of(cls)).trajectory.length == 3


def test_the_worker_is_set_up_once() -> None:
    calls = []

    class Env(Quiet):
        """Env."""

        @classmethod
        def setup_worker(cls) -> None:
            calls.append(cls.__name__)

    app = app_of(Env)
    for _ in range(3):
        play(app, "noop")
    assert calls == ["Env"]


def test_a_worker_that_cannot_be_set_up_fails_each_rollout_until_it_can() -> None:
    calls = []

    class Env(Quiet):
        """Env."""

        @classmethod
        def setup_worker(cls) -> None:
            calls.append(1)
            if len(calls) < 3:
                raise OSError("no data yet")

    app = app_of(Env)
    for _ in range(2):
        with pytest.raises(RolloutFailed, match="Env .*OSError"):
            play(app, "noop")
    assert play(app, "noop").trajectory.length == 3


def test_the_context(caplog: pytest.LogCaptureFixture) -> None:
    drawn = []

    class Env(Quiet):
        """Env."""

        def reset(self, context: Any, seed: int, split: str) -> str:
            context.log.warning("resetting %s", seed)
            drawn.append((seed, split, context.wants_images, context.path("x.txt").name, context.rng.random()))
            return ""

    app = app_of(Env)
    with caplog.at_level(logging.WARNING):
        play(app, "noop", seed=1)
    play(app, "noop", seed=1, policy_config={"images": False})
    play(app, "noop", seed=2)
    assert "resetting 1" in caplog.text
    assert drawn[0][:4] == (1, "default", True, "x.txt")
    assert drawn[0][4] == drawn[1][4] != drawn[2][4]
    assert drawn[1][2] is False


def test_a_final_state_that_is_not_json() -> None:
    class Env(Async):
        """Env."""

        async def final_state(self) -> Any:
            return {"x": object()}

    with pytest.raises(RolloutFailed) as caught:
        play(app_of(Env), "noop")
    assert caught.value.failure.code == "final_state_not_json"
    assert "): final_state.x is of type object" in caught.value.failure.message


def test_the_environments_stream_is_that_of_its_name_split_and_seed() -> None:
    """Pinned: with other numbers every author's episodes would be others."""

    class Drawing:
        """Draws."""

        def reset(self, context: Any) -> str:
            return " ".join(str(context.rng.randrange(1_000_000)) for _ in range(3))

        @action(noop={})
        def go(self) -> Step:
            """Go."""
            return Step("", terminated=True)

    app = TaskApp("a")
    rows = {"train": [{"q": 1}, {"q": 2}], "test": [{"q": 3}]}
    for name in ("one", "two"):
        app.environment(name, tasks=rows)(Drawing)

    def drawn(name: str, split: str, seed: int) -> Any:
        return play(app, "noop", env_name=name, config={"split": split}, seed=seed).trajectory.initial

    assert [drawn("one", "train", 0), drawn("one", "train", 1), drawn("one", "test", 0), drawn("two", "train", 0)] == [
        "770894 756414 346508",
        "680702 583884 912344",
        "761249 442157 190650",
        "662304 383354 732197",
    ]
