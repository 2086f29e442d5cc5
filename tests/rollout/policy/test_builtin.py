"""random, noop, constant, replay and an app's own."""

from __future__ import annotations

import collections
import itertools
import math
import random
from typing import Any, Literal

import pytest

from taskapp_kit import RequestError, Step, TaskApp, action
from taskapp_kit.records.protocols import PolicyStops, View
from taskapp_kit.records.trajectory import Decision, Recording, ToolCall
from taskapp_kit.rollout.policy.builtin import PolicyError, ReplayPolicy, answer_from, policy_rng
from tests.rollouts import app_from, play


class Two:
    """Two tools."""

    def reset(self, seed: int) -> Any:
        return {"seen": [seed]}

    @action(noop={"n": 1})
    def one(self, n: Literal[1, 2, 3, 4]) -> Step:
        """One."""
        return Step({"seen": [n]})

    @action
    def two(self) -> Step:
        """Two."""
        return Step({"seen": []})


def app_of(cls: type = Two, **options: Any) -> TaskApp:
    app = TaskApp("a")
    app.environment("e", **{"max_steps": 10, "splits": {"train": range(1000), "test": range(1000, 2000)}, **options})(
        cls
    )
    return app


def actions(app: TaskApp, policy: str | None = "random", **given: Any) -> list[Any]:
    return [(step.tool, step.args) for step in play(app, policy, **given).trajectory.steps]


def test_random_is_reproducible_and_its_stream_is_named_by_environment_split_seed_and_sample() -> None:
    app = app_of()
    app.environment("f", max_steps=10)(Two)
    one = actions(app, seed=3)
    assert one == actions(app, seed=3) == actions(app, seed=3, policy_config={"sample": 0})
    others = [
        actions(app, seed=4),
        actions(app, seed=1003),
        actions(app, seed=3, policy_config={"sample": 1}),
        actions(app, seed=3, env_name="f"),
    ]
    assert all(other != one for other in others)
    streams = {policy_rng(*parts).random() for parts in itertools.product("ef", ("train", "test"), (0, 1), (0, 1))}
    assert len(streams) == 16


def test_random_is_uniform_over_tools_then_over_fields() -> None:
    app = app_of(max_steps=40)
    drawn = [step for seed in range(50) for step in actions(app, seed=seed)]
    tools = collections.Counter(tool for tool, _ in drawn)
    fields = collections.Counter(args["n"] for tool, args in drawn if tool == "one")
    assert sum((tools[tool] - 1000) ** 2 / 1000 for tool in ("one", "two")) < 11
    expected = tools["one"] / 4
    assert sum((fields[n] - expected) ** 2 / expected for n in (1, 2, 3, 4)) < 16.3


def test_author_sampler_replaces_missing_bounds() -> None:
    def word(rng: random.Random) -> dict[str, Any]:
        return {"word": rng.choice(("crane", "slate"))}

    class Game:
        """Words."""

        def reset(self, seed: int) -> str:
            return ""

        @action(sample=word)
        def guess(self, word: str) -> Step:
            """Guess."""
            return Step(word)

        @action(text=True, sample=lambda rng: "hello")
        def say(self, text: str) -> Step:
            """Say."""
            return Step(text)

    drawn = actions(app_of(Game, max_steps=30), seed=1)
    assert {tool: {str(a) for t, a in drawn if t == tool} for tool, _ in drawn} == {
        "guess": {"{'word': 'crane'}", "{'word': 'slate'}"},
        "say": {"{'text': 'hello'}"},
    }


def test_noop_constant_and_what_they_need() -> None:
    assert actions(app_of(), "noop") == [("one", {"n": 1})] * 10
    assert actions(app_of(), "constant", action={"two": {}}) == [("two", {})] * 10
    assert actions(app_of(), "constant", action={"tool": "one", "args": {"n": 2}}) == [("one", {"n": 2})] * 10
    assert actions(app_of(), "constant", action=[{"two": {}}, {"one": {"n": 3}}])[:3] == [
        ("two", {}),
        ("one", {"n": 3}),
        ("two", {}),
    ]
    assert actions(app_of(), "constant", action={"two": None}) == [("two", {})] * 10

    class Plain:
        """No noop."""

        def reset(self, seed: int) -> str:
            return ""

        @action
        def go(self) -> Step:
            """Go."""
            return Step("")

    with pytest.raises(RequestError) as caught:
        play(app_of(Plain), "noop")
    assert caught.value.code == "policy_unavailable"
    assert " at test_builtin.py:" in caught.value.message, "the file and line, and no folder"
    with pytest.raises(RequestError) as caught:
        play(app_of(), "constant")
    assert caught.value.code == "policy_unavailable"


@pytest.mark.parametrize("wrong", [7, None, [], {}, [1], True, {"one": {"n": math.nan}}], ids=repr)
def test_a_constant_that_is_no_action(wrong: Any) -> None:
    with pytest.raises(RequestError) as caught:
        play(app_of(), "constant", action=wrong)
    assert caught.value.fields[0].loc == ("body", "policy", "config", "action")


@pytest.mark.parametrize("sample", [-1, True, 1.0, "0", 2**63], ids=repr)
def test_invalid_sample_is_rejected(sample: Any) -> None:
    with pytest.raises(RequestError) as caught:
        play(app_of(), "random", policy_config={"sample": sample})
    assert caught.value.fields[0].loc[-1] == "sample"


def test_app_policy_overrides_a_built_in_and_has_a_separate_random_stream() -> None:
    app = app_of()

    @app.policy("random")
    def mine(observation: Any, rng: random.Random) -> Any:
        observation["seen"].append("spoilt")
        return {"one": {"n": rng.choice((2, 3))}}

    rollout = play(app, "random", seed=1)
    assert {step.args["n"] for step in rollout.trajectory.steps} == {2, 3}
    assert rollout.policy == "random"
    assert rollout.trajectory.initial == {"seen": [1]}, "a policy does not reach the record"
    assert actions(app, seed=1) == actions(app, seed=1)


def test_gold_may_read_the_task_and_a_policy_may_be_async() -> None:
    app = TaskApp("a")
    app.tasks("t", prompt="{q}", train=[{"q": "x", "a": "right"}])

    @app.policy("gold")
    async def gold(task: Any, observation: str) -> str:
        return f"{observation} {task['a']}"

    assert play(app, "gold").trajectory.answer_text == "x right"


def test_policy_reads_observations_without_images() -> None:
    import numpy as np

    from taskapp_kit import Image, Text

    seen = []

    class Pictures:
        """Pictures."""

        def reset(self, seed: int) -> Any:
            return [Text("a"), Image(np.zeros((1, 1, 3), np.uint8)), Text("b")]

        @action
        def go(self) -> Step:
            """Go."""
            return Step([Text("c"), Image(np.zeros((1, 1, 3), np.uint8))], terminated=True)

    app = app_of(Pictures)

    @app.policy("look")
    def look(observation: Any) -> dict[str, Any]:
        seen.append(observation)
        return {"go": {}}

    play(app, "look")
    assert seen == [["a", "b"]]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("words", Decision(output="words")),
        ({"a": {"n": 1}}, Decision([ToolCall("a", {"n": 1})])),
        ({"a": {}, "b": {}}, Decision([ToolCall("a", {}), ToolCall("b", {})])),
        ([{"a": {}}, {"a": {}}], Decision([ToolCall("a", {}), ToolCall("a", {})])),
        ({"tool": "a", "args": {"n": 1}}, Decision([ToolCall("a", {"n": 1})])),
        ({"a": None}, Decision([ToolCall("a", {})])),
        ("", Decision(output="")),
    ],
)
def test_valid_answers_of_a_policy(value: Any, expected: Decision) -> None:
    assert answer_from(value, "it") == expected


@pytest.mark.parametrize("value", [None, 3, {}, [], [3], {"a": {"x": object()}}, {"a": {"x": math.inf}}])
def test_invalid_answer_of_a_policy_is_rejected(value: Any) -> None:
    with pytest.raises(PolicyError, match=r"^it"):
        answer_from(value, "it")


@pytest.mark.parametrize(("stop_reason", "end"), [("max_ops", PolicyStops), (None, PolicyError)])
def test_replay_skips_scripted_turns(stop_reason: str | None, end: type[Exception]) -> None:
    policy = ReplayPolicy(Recording([Decision(output="a"), Decision(output="b")], stop_reason))
    assert [policy.decide(View(turn, "", (), ())).output for turn in (1, 4)] == ["a", "b"]
    with pytest.raises(end) as caught:
        policy.decide(View(5, "", (), ()))
    assert getattr(caught.value, "stop_reason", None) == stop_reason


NEVER: list[tuple[str, Any]] = [
    ("tools", {"there": {}}),
    ("tools", {"one": 5}),
    ("tools", {"one": "words"}),
    ("tools", [{"there": {}}, {"two": [1]}]),
    ("tools", "words"),
    ("tools", ""),
    ("speech", {"there": {}}),
    ("speech", ""),
    ("question", {"there": {}}),
]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> TaskApp:
    return app_from(
        tmp_path_factory.mktemp("kinds"),
        """
        app = TaskApp("kinds")
        class Tools:
            def reset(self, seed: int) -> str:
                raise RuntimeError("nothing may run")
            @action
            def one(self, n: int) -> Step:
                "One."
                return Step("")
            @action
            def two(self) -> Step:
                "Two."
                return Step("")
        @app.environment("tools", max_steps=3)
        class Plain(Tools):
            "Tools."
        @app.environment("speech", max_steps=3)
        class Speech(Tools):
            "Words, too."
            def reset(self, seed: int) -> str:
                return ""
            @action(text=True)
            def say(self, text: str) -> Step:
                "Say."
                return Step("")
        app.tasks("question", prompt="{q}", train=[{"q": "France?"}])
        """,
    )


@pytest.mark.parametrize(("environment", "action"), NEVER, ids=repr)
def test_a_constant_that_could_never_act_is_refused_before_anything_runs(
    kinds: TaskApp, environment: str, action: Any
) -> None:
    with pytest.raises(RequestError) as caught:
        play(kinds, "constant", env_name=environment, seed=0, action=action)
    assert caught.value.code == "policy_unavailable"
    assert [item.loc for item in caught.value.fields] == [("body", "policy", "config", "action")]


@pytest.mark.parametrize(
    ("environment", "action", "refused"),
    [("speech", "words", 0), ("speech", [{"there": {}}, {"two": {}}], 2), ("speech", {"one": {"n": "x"}}, 3),
     ("question", "", 1), ("question", "words", 0)],
    ids=repr,
)  # fmt: skip
def test_a_constant_that_may_act_is_played(kinds: TaskApp, environment: str, action: Any, refused: int) -> None:
    trajectory = play(kinds, "constant", env_name=environment, seed=0, action=action).trajectory
    assert trajectory.metrics["invalid_actions"] == refused
