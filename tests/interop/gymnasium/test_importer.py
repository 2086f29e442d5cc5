"""Gymnasium environments through the adapter, played by the service: whole episodes, real environments."""

import importlib.util
import json
import logging
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy
import pytest
from gymnasium import spaces

from taskapp_kit import DeclarationError, Image, InvalidAction, RolloutFailed, TaskApp, Text
from taskapp_kit.interop.gymnasium import from_gymnasium
from taskapp_kit.records.rollout import Rollout
from tests import rollouts
from tests.interop.shared.adapted_apps import PLAYED as PLAYED_CODE
from tests.interop.shared.adapted_apps import printed_by_processes

PLAYED = (
    "FrozenLake-v1",
    "Taxi-v4",
    "Blackjack-v1",
    "CliffWalking-v1",
    "CartPole-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "Acrobot-v1",
)


def app_of(made: Any, **limits: Any) -> TaskApp:
    app = TaskApp("played")
    app.environment("it", splits={"train": range(1000)}, **limits)(made)
    return app


def play(
    made: Any, *, seed: int = 0, policy: str = "random", action: Any = None, max_steps: int | None = 150, **config: Any
) -> Rollout:
    chosen = {} if action is None else {"action": {"step": {"action": action}}}
    return rollouts.play(app_of(made, max_steps=max_steps), policy, seed=seed, config=config, **chosen)


class Drawn(gymnasium.Env[Any, Any]):
    """Shows three numbers, draws a picture of its step; ends on a negative reward. Everything comes from the seed."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 1}
    observation_space = spaces.Box(-1, 1, (3,), numpy.float32)

    def __init__(
        self, action_space: Any = None, render_mode: str | None = None, goal: int = 5, shown: Any = None
    ) -> None:
        self.action_space = spaces.Discrete(2) if action_space is None else action_space
        self.render_mode, self.goal, self.shown = render_mode, goal, shown
        self.taken: list[Any] = []
        self.rendered = 0
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 0
        return self._see(), {"options": dict(options or {})}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken.append(action)
        self.at += 1
        info = {"at": numpy.int64(self.at), "same": self.observation_space.low, "thing": self, "odd": float("nan")}
        return self._see(), 1.0, self.at == self.goal, self.at == 3 and self.goal == 4, info

    def render(self) -> Any:
        self.rendered += 1
        return numpy.full((8, 10, 3), self.at, dtype=numpy.uint8)

    def close(self) -> None:
        self.closed = True

    def _see(self) -> Any:
        if self.shown is not None:
            return self.shown
        return self.np_random.uniform(-1, 1, 3).astype(numpy.float32)


def bare(made: Any, seed: int = 0, **config: Any) -> tuple[Any, Any]:
    """An episode without the service: the object and its first observation."""
    episode = made(**config)
    return episode, episode.reset(seed)


def spec_of(made: Any) -> Any:
    return app_of(made).freeze().environments["it"]


def schema_of(made: Any) -> Any:
    return spec_of(made).actions["step"].arguments.schema["properties"]["action"]


# -- whole episodes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLAYED)
def test_same_seed_plays_the_same_episode_and_another_seed_another(name: str) -> None:
    made = from_gymnasium(name)
    digests = [play(made, seed=seed).digest for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.ci
@pytest.mark.process
def test_digests_are_equal_in_two_processes() -> None:
    code = f"""{PLAYED_CODE}
from taskapp_kit.interop.gymnasium import from_gymnasium
print([digest(from_gymnasium(name), 7, max_steps=150) for name in {PLAYED!r}])"""
    assert printed_by_processes(code) == {f"{[play(from_gymnasium(name), seed=7).digest for name in PLAYED]}"}


def test_episode_equals_gymnasium_itself() -> None:
    rollout = play(from_gymnasium("Pendulum-v1"), seed=11, max_steps=None)
    env = gymnasium.make("Pendulum-v1")
    first, _ = env.reset(seed=11)
    assert json.loads(rollout.trajectory.initial) == [float(str(number)) for number in first]
    for step in rollout.trajectory.steps:
        seen, reward, terminated, truncated, _ = env.step(numpy.asarray(step.args["action"], dtype=numpy.float32))
        told = numpy.asarray(json.loads(step.observation), dtype=numpy.float32)
        assert (told == seen).all()  # the digits are short, and exact
        assert (step.reward, step.terminated, step.truncated) == (reward, terminated, truncated)
    env.close()


def test_random_state_of_the_process_is_unchanged() -> None:
    before = random.getstate(), numpy.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
    play(from_gymnasium("FrozenLake-v1"), seed=3)
    play(from_gymnasium("MountainCarContinuous-v0"), seed=3)
    assert before == (random.getstate(), numpy.random.get_state()[1].tolist())  # type: ignore[index,union-attr]


# -- the end ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "length", "name"),
    [
        (from_gymnasium("Pendulum-v1"), 200, "time limit of 200 steps"),
        (from_gymnasium("Pendulum-v1", max_episode_steps=7), 7, "time limit of 7 steps"),
        (from_gymnasium(Drawn, goal=4), 3, "the environment"),
    ],
    ids=["declared by Gymnasium", "declared by the author", "by itself"],
)
def test_cause_of_a_truncation_is_named(made: Any, length: int, name: str) -> None:
    trajectory = play(made, max_steps=None).trajectory
    last = trajectory.steps[-1]
    assert (trajectory.status, trajectory.length) == ("truncated", length)
    assert (last.terminated, last.truncated, last.info["truncated_by"]) == (False, True, name)


@pytest.mark.parametrize("name", ["terminated", "truncated"])
@pytest.mark.parametrize("flag", ["False", 0, 1.0, None])
def test_flag_that_is_not_a_boolean_is_a_failure(name: str, flag: Any) -> None:
    class Loose(Drawn):
        def step(self, action: Any) -> Any:
            observation, reward, terminated, truncated, info = super().step(action)
            flags = {"terminated": numpy.bool_(terminated), "truncated": truncated} | {name: flag}
            return observation, reward, flags["terminated"], flags["truncated"], info

    with pytest.raises(RolloutFailed) as failed:
        play(from_gymnasium(Loose))
    assert failed.value.failure.code == "flag_not_bool"


def test_no_step_runs_after_the_end_and_close_closes() -> None:
    made: list[Drawn] = []

    def factory() -> Drawn:
        made.append(Drawn(goal=1))
        return made[-1]

    episode, _ = bare(from_gymnasium(factory))
    assert made[0].closed  # the environment that was made to read its spaces
    assert episode.step(0).terminated
    with pytest.raises(InvalidAction):
        episode.step(0)
    assert len(made[1].taken) == 1
    episode.close()
    assert made[1].closed


# -- actions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "good", "bad"),
    [
        (spaces.Discrete(3, start=-1), -1, 2),
        (spaces.Discrete(100), 99, 100),
        (spaces.MultiDiscrete([2, 3]), [1, 2], [2, 0]),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), [[1, 2], [3, 4]], [[1, 2], [3, 5]]),
        (spaces.MultiBinary(3), [0, 1, 0], [0, 2, 0]),
        (spaces.MultiBinary((2, 2)), [[0, 1], [1, 0]], [0, 1, 1, 0]),
        (spaces.Box(-2, 2, (1,), numpy.float32), [-2.0], [2.1]),
        (spaces.Box(0, 1, (), numpy.float64), 0.5, [0.5]),
        (spaces.Box(numpy.array([0, -5]), numpy.array([1, 5]), dtype=numpy.float32), [0.5, -4.5], [-4.5, 0.5]),
        (spaces.Box(0, 9, (2, 2), numpy.int64), [[0, 9], [1, 2]], [[0, 9], [1, 10]]),
        (spaces.Box(-numpy.inf, numpy.inf, (2,), numpy.float32), [1e6, -3.0], [1.0]),
        (spaces.Box(0, numpy.inf, (1,), numpy.float32), [123.0], [-1.0]),
        (spaces.Text(5), "abc", "abcdef"),
        (spaces.Text(5, charset="ab"), "abba", "cafe"),
        (spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (1,))]), [1, [0.5]], [2, [0.5]]),
        (
            spaces.Dict({"move": spaces.Discrete(2), "in": spaces.Dict({"x-y": spaces.MultiBinary(2)})}),
            {"move": 1, "in": {"x-y": [0, 1]}},
            {"move": 1, "in": {"x-y": [0, 1], "more": 1}},
        ),
    ],
    ids=str,
)
def test_every_space_is_described_sampled_and_enforced(space: Any, good: Any, bad: Any) -> None:
    taken: list[Any] = []

    def factory() -> Drawn:
        env = Drawn(space, goal=5)
        env.taken = taken
        return env

    made = from_gymnasium(factory)
    assert play(made, policy="constant", action=good).trajectory.metrics["invalid_actions"] == 0
    assert taken
    assert all(space.contains(action) for action in taken)
    before = len(taken)
    refused = play(made, policy="constant", action=bad, max_steps=2)
    assert refused.trajectory.metrics["invalid_actions"] == 2
    assert len(taken) == before  # it never reached the environment
    drawn = play(made, seed=1)
    assert drawn.trajectory.metrics["invalid_actions"] == 0
    assert drawn.trajectory.status == "terminated"
    assert drawn.digest == play(made, seed=1).digest
    args = [json.dumps(step.args) for step in drawn.trajectory.steps]
    assert args != [json.dumps(step.args) for step in play(made, seed=2).trajectory.steps]


def test_schemas_contain_the_bounds() -> None:
    assert schema_of(from_gymnasium("CartPole-v1")) == {"enum": [0, 1], "type": "integer"}
    assert schema_of(from_gymnasium(lambda: Drawn(spaces.Discrete(50, start=3)))) == {
        "type": "integer", "minimum": 3, "maximum": 52,
    }  # fmt: skip
    assert schema_of(from_gymnasium("Pendulum-v1")) == {
        "type": "array", "items": {"type": "number", "minimum": -2.0, "maximum": 2.0}, "minItems": 1, "maxItems": 1,
    }  # fmt: skip
    assert schema_of(from_gymnasium(lambda: Drawn(spaces.Box(0, numpy.inf, (2,)))))["items"] == {
        "type": "number", "minimum": 0.0,
    }  # fmt: skip


def test_named_actions_and_noop() -> None:
    made = from_gymnasium(
        "CartPole-v1", actions=["left", "right"], noop="left", tool="push", description="Push the cart."
    )
    spec = spec_of(made).actions["push"]
    assert spec.tool.description == "Push the cart."
    assert spec.arguments.schema["properties"]["action"] == {"enum": ["left", "right"], "type": "string"}
    assert spec.tool.noop == {"action": "left"}
    episode, _ = bare(made, seed=5)
    plain, _ = bare(from_gymnasium("CartPole-v1"), seed=5)
    assert episode.step("right") == plain.step(1)


# -- observations and info ----------------------------------------------------------------------------------------


def test_observations_are_json_text() -> None:
    assert bare(from_gymnasium("Blackjack-v1"), seed=3)[1] == "[7, 10, 0]"
    assert bare(from_gymnasium("FrozenLake-v1"))[1] == "0"
    assert bare(from_gymnasium(Drawn, shown="north ÿ"))[1] == "north ÿ"
    nested = {"where": numpy.array([1, 2], dtype=numpy.int8), "held": (numpy.float32(0.1), True, None)}
    assert bare(from_gymnasium(Drawn, shown=nested))[1] == '{"where": [1, 2], "held": [0.1, true, null]}'


def test_describe_replaces_numbers_with_names() -> None:
    made = from_gymnasium("FrozenLake-v1", describe=lambda square: f"row {square // 4}, column {square % 4}")
    assert bare(made)[1] == "row 0, column 0"

    def with_all(square: int, info: dict[str, Any], env: Any) -> str:
        return f"{square} of {env.observation_space.n} ({info['prob']})"

    assert bare(from_gymnasium("FrozenLake-v1", describe=with_all))[1] == "0 of 16 (1)"
    assert bare(from_gymnasium("FrozenLake-v1", describe=json.dumps))[1] == "0"


def test_non_finite_observation_is_a_failure_with_its_path() -> None:
    with pytest.raises(RolloutFailed, match=r"observation\.observation\[1\] .*\bnan\b") as failed:
        play(from_gymnasium(Drawn, shown=numpy.array([0.5, numpy.nan])))
    assert failed.value.failure.code == "observation_not_json"


def test_array_observation_becomes_an_image() -> None:
    (block,) = bare(from_gymnasium(Drawn, shown=numpy.zeros((9, 11, 3), dtype=numpy.uint8)))[1]
    assert isinstance(block, Image)
    assert (block.width, block.height) == (11, 9)


def test_info_is_copied_and_logs_values_that_are_not_json_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    steps = play(from_gymnasium(Drawn, reset_options={"level": 2})).trajectory.steps
    assert steps[0].info == {"at": 1, "same": [-1.0, -1.0, -1.0], "reset_info": {"options": {"level": 2}}}
    assert steps[1].info == {"at": 2, "same": [-1.0, -1.0, -1.0]}
    notes = [record.getMessage() for record in caplog.records if "omitted" in record.getMessage()]
    assert len(notes) == 2
    assert "info.thing" in notes[0]
    assert "info.odd" in notes[1]


# -- images -------------------------------------------------------------------------------------------------------


def test_images_are_rendered_on_request_and_change_nothing() -> None:
    made_here: list[Drawn] = []

    def factory(render_mode: str | None = None) -> Drawn:
        made_here.append(Drawn(render_mode=render_mode))
        return made_here[-1]

    made = from_gymnasium(factory)
    without, with_pictures = play(made, seed=4), play(made, seed=4, image=True)
    assert [env.rendered for env in made_here] == [0, 0, 6]
    words, picture = with_pictures.trajectory.steps[2].observation
    assert words == without.trajectory.steps[2].observation
    assert picture.png.startswith(b"\x89PNG")
    assert with_pictures.digest == without.digest


def test_image_setting_requires_an_environment_that_renders() -> None:
    assert (
        spec_of(from_gymnasium(lambda goal=5: Drawn(goal=goal))).config.names == ()
    )  # it has no parameter to request rendering
    assert spec_of(from_gymnasium(Drawn)).config.names == ("image",)
    assert spec_of(from_gymnasium(Drawn, configurable={"goal": 5})).config.names == ("goal", "image")


@pytest.mark.skipif(importlib.util.find_spec("pygame") is not None, reason="pygame is installed, so CartPole can draw")
def test_missing_rendering_package_is_named() -> None:
    with pytest.raises(RolloutFailed, match="pygame"):
        play(from_gymnasium("CartPole-v1"), image=True)


# -- declarations -------------------------------------------------------------------------------------------------


def test_configurable_options_reach_the_environment() -> None:
    made = from_gymnasium("FrozenLake-v1", configurable={"is_slippery": True, "map_name": (str, "4x4")})
    steps = play(made, policy="constant", action=2, max_steps=3, is_slippery=False, map_name="8x8").trajectory.steps
    assert [step.observation for step in steps] == ["1", "2", "3"]


def test_a_subclass_keeps_the_action() -> None:
    class Lake(from_gymnasium("FrozenLake-v1", is_slippery=False)):  # type: ignore[misc]
        """Lake with a greeting."""

        def reset(self, seed: int) -> Any:
            return [Text(f"Hello. {super().reset(seed)}")]

    rollout = play(Lake, policy="constant", action=2, max_steps=1)
    assert rollout.trajectory.initial == ["Hello. 0"]
    assert rollout.trajectory.steps[0].observation == "1"


def test_problems_point_at_the_authors_line() -> None:
    line = sys._getframe().f_lineno + 1
    made = from_gymnasium("CartPole-v1")
    assert spec_of(made).actions["step"].place.endswith(f"{Path(__file__).name}:{line}")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("CartPol-v1", {}), "CartPole"),
        (("CartPole-v1", {"actions": ["left"]}), "2 actions"),
        (("Pendulum-v1", {"actions": ["a", "b"]}), "Discrete"),
        (("CartPole-v1", {"render_mode": "human"}), "image"),
        (("CartPole-v1", {"no_such_option": 1}), "no_such_option"),
        (("FrozenLake-v1", {"map_name": "5x5"}), "KeyError('5x5')"),
        (("CartPole-v1", {"actions": 2}), "actions=2"),
        (("CartPole-v1", {"configurable": ["sutton_barto_reward"]}), "configurable=["),
        (("CartPole-v1", {"discription": "Balance."}), "did you mean 'description'?"),
        (("CartPole-v1", {"describe": lambda seen, other: ""}), "other"),
        (("CartPole-v1", {"describe": "words"}), "describe"),
        (("CartPole-v1", {"configurable": {"sutton_barto_reward": None}}), "annotation"),
        ((lambda: "no environment", {}), "returned a str"),
        ((lambda: Drawn(spaces.Graph(spaces.Discrete(2), None)), {}), "Graph"),
        ((lambda: Drawn(spaces.Dict({"in": spaces.Sequence(spaces.Discrete(2))})), {}), "action.in is a Sequence"),
    ],
)
def test_every_mistake_is_a_sentence_with_its_line(arguments: Any, sentence: str) -> None:
    source, options = arguments
    app = TaskApp("lakes")
    made = from_gymnasium(source, **options)
    app.environment("it")(made)
    app.rubric(wieght=2)(lambda trajectory: 1.0)
    with pytest.raises(DeclarationError, match="'lakes'") as wrong:
        app.freeze()
    (problem,) = [item for item in wrong.value.problems if "wieght" not in item.found]
    assert sentence in str(problem)
    assert f"{Path(__file__).name}:" in problem.place
    with pytest.raises(DeclarationError):
        made()


@pytest.mark.process
def test_without_gymnasium_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "from taskapp_kit.interop.gymnasium import from_gymnasium\n"
        "from_gymnasium('CartPole-v1')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'taskapp-kit[gymnasium]'" in done.stderr.splitlines()[-1]


def test_gymnasium_time_limit_is_used_or_else_the_default() -> None:
    app = TaskApp("a")
    app.environment("limited")(from_gymnasium("CartPole-v1"))
    app.environment("endless")(from_gymnasium("CliffWalking-v1"))
    app.environment("declared", max_turns=None)(from_gymnasium("CliffWalking-v1"))
    found = {name: spec.default_max_turns for name, spec in app.freeze().environments.items()}
    assert found == {"limited": None, "endless": 1000, "declared": None}
