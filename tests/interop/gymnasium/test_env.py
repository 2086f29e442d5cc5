"""Task apps as Gymnasium environments: the same episodes as `/rollout`, here, at a URL and in vector environments."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from taskapp_kit.declare.discovery import find_app  # noqa: E402
from taskapp_kit.deploy.local.in_process import InProcessTaskApp  # noqa: E402
from taskapp_kit.errors import BadArgument, RequestError, RolloutFailed, TaskAppError, UndefinedReward  # noqa: E402
from taskapp_kit.interop.gymnasium.env import AnyText, GymnasiumEnv, make, numbered_calls  # noqa: E402
from taskapp_kit.records.content import text_of  # noqa: E402
from taskapp_kit.records.rollout import Rollout  # noqa: E402
from tests.machine import skip_if_it_cannot_play  # noqa: E402
from tests.rollouts import app_from, play  # noqa: E402

EXAMPLES = Path(__file__).parents[3] / "examples"
ADDER, CAPITALS = str(EXAMPLES / "adder.py"), str(EXAMPLES / "capitals.py")
KEY = "key-of-the-gymnasium-tests-0123456789"

WALK = """
app = TaskApp("walk", version="1.0.0", reward=Blend(env=1.0, outcome=2.0))

@app.environment("walk", splits={"train": range(10), "test": range(100, 130, 3)}, max_steps=6)
class Walk:
    '''Walk.'''
    def __init__(self, breaks: str = "", long: int = 0, image: bool = False, limit: int = 3) -> None:
        self.breaks, self.long, self.image, self.limit = breaks, long, image, limit

    def reset(self, seed: int) -> Any:
        self.at = 0
        if self.breaks == "reset":
            raise RuntimeError("no")
        return self.seen()

    def seen(self) -> Any:
        text = f"at {self.at} ü" + "x" * self.long
        if not self.image:
            return text
        import numpy
        return [Text(text), Image(numpy.full((8, 8, 3), self.at, numpy.uint8))]

    @action(noop={"by": 0})
    def go(self, by: int) -> Step:
        '''Walk.'''
        if by < 0:
            raise InvalidAction("not backwards")
        if self.breaks == "step":
            raise RuntimeError("no")
        self.at += by
        return Step(self.seen(), float(by), terminated=self.at >= self.limit, info={"at": self.at})

@app.rubric
def there(trajectory: Trajectory, config: dict[str, Any]) -> float | None:
    if config.get("breaks") == "rubric":
        raise RuntimeError("no")
    return None if config.get("breaks") == "undefined" else float(trajectory.status == "terminated")
"""

ROWS = """
app = TaskApp("rows", version="1.0.0")

class Row(BaseModel):
    question: str
    answer: Private[str]
    tags: list[str] = []

app.tasks("rows", row=Row, prompt="{question}", train=[
    Row(question=str(n), answer=str(n), tags=["odd"] if n % 2 else []) for n in range(9)
])

@app.rubric
def right(answer_text: str, task: Row) -> float:
    return float(answer_text == task.answer)
"""


def go(by: int) -> str:
    return json.dumps({"tool": "go", "args": {"by": by}})


@pytest.fixture
def walk(tmp_path: Path) -> str:
    app_from(tmp_path, WALK)
    return str(tmp_path / "app.py")


@pytest.fixture
def served(walk: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("ENVIRONMENT_API_KEY", KEY)
    with InProcessTaskApp(task_app_path=walk, port=0, tunnel_mode="local") as running:
        assert running.url is not None
        yield running.url


# -- Gymnasium's own checks ----------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("app", [ADDER, CAPITALS, "python_sandbox"])
def test_check_env_has_no_warnings_for_an_environment_with_a_spec(app: str) -> None:
    skip_if_it_cannot_play(app)
    env = make(app)
    assert env.spec is not None and not env.spec.nondeterministic
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    again = gymnasium.make(type(env.spec).from_json(env.spec.to_json()))
    assert env.reset(seed=1) == again.reset(seed=1)
    env.close()
    again.close()


def test_importing_registers_any_app_and_the_bundled_ones() -> None:
    assert {"taskapp/App-v0", "taskapp/crafter-v0", "taskapp/math-v0", "taskapp/python_sandbox-v0"} <= set(
        gymnasium.registry
    )
    pytest.importorskip("crafter")
    env = gymnasium.make("taskapp/crafter-v0")
    made: GymnasiumEnv = env.unwrapped
    assert env.action_space == gymnasium.spaces.Discrete(17)
    assert made.choices is not None and made.choices[5] == ("interact", {"actions": ["do"]})
    first = env.reset(seed=3)
    observation, reward, *_ = env.step(5)
    assert first[0] != observation and isinstance(reward, float)
    env.close()


@pytest.mark.process
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vector_environments_play_on_after_the_end(mode: str) -> None:
    options = {"shared_memory": False} if mode == "async" else {}
    vector = gymnasium.make_vec("taskapp/App-v0", num_envs=3, vectorization_mode=mode, vector_kwargs=options, app=ADDER)
    observations, infos = vector.reset(seed=4)
    assert infos["seed"].tolist() == [4, 5, 6] and [text.split(",")[1] for text in observations] == [" total 0"] * 3
    ended, rewards = 0, 0.0
    for _ in range(20):
        observations, paid, terminated, truncated, infos = vector.step([2, 2, 2])
        ended += int((terminated | truncated).sum())
        rewards += float(paid.sum())
    assert ended >= 3 and rewards > 0 and not any(math.isnan(paid_one) for paid_one in paid)
    vector.close()


# -- the same episodes ---------------------------------------------------------------------------------------------


def same_as_rollout(env: GymnasiumEnv, rollout: Rollout) -> None:
    """Take the rollout's actions, and compare everything."""
    observation, info = env.reset(seed=rollout.trajectory.seed)
    assert observation == text_of(rollout.trajectory.initial) and info["seed"] == rollout.trajectory.seed
    rewards, result = [], None
    for turn in rollout.trajectory.turns:
        (call,) = turn.answer.tool_calls
        if env.choices is None:
            action: Any = json.dumps({"tool": call.tool, "args": call.args})
        else:
            action = env.choices.index((call.tool, call.args))
        observation, reward, terminated, truncated, info = env.step(action)
        assert observation == text_of(turn.steps[-1].observation)
        rewards.append(reward)
        result = info.get("result")
    assert (terminated, truncated) == (rollout.status == "terminated", rollout.status == "truncated")
    assert result is not None
    assert (result["digest"], result["reward"]) == (rollout.digest, rollout.reward)
    assert math.isclose(math.fsum(rewards), float(rollout.reward or 0.0), abs_tol=1e-9)
    assert env.episode is not None and env.episode["rollout_id"] == env.rollout_id


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("actions", ["auto", "text"])
def test_the_same_seed_and_actions_are_the_same_episode_as_a_rollout(seed: int, actions: Any) -> None:
    rollout = play(find_app(ADDER), "random", seed=seed)
    env = GymnasiumEnv(ADDER, actions=actions)
    same_as_rollout(env, rollout)
    env.close()


@pytest.mark.server
@pytest.mark.parametrize("action", [1, 2])
def test_url_and_in_process_environments_are_equal(served: str, walk: str, action: int) -> None:
    rollout = play(find_app(walk), "constant", seed=3, action={"go": {"by": action}})
    remote, local = make(served), make(walk)
    for env in (remote.unwrapped, local.unwrapped):
        same_as_rollout(env, rollout)
    assert KEY not in str(remote.spec)
    for options in ({"config": {"limit": 9}}, {"split": "test"}):
        assert remote.reset(seed=5, options=options) == local.reset(seed=5, options=options)
        for text in (go(1), go(-1), "words", json.dumps({"tool": "fly"}), go(9)):
            assert remote.step(text) == local.step(text)
    remote.close()
    local.close()


# -- seeds ---------------------------------------------------------------------------------------------------------


def test_seeds_of_the_split_are_played_and_others_draw_a_seed(walk: str) -> None:
    env = GymnasiumEnv(walk)
    assert env.reset(seed=7)[1] == {"seed": 7, "split": "train"}
    drawn = [env.reset(seed=10**9)[1]["seed"], *(env.reset()[1]["seed"] for _ in range(6))]
    assert drawn == [env.reset(seed=10**9)[1]["seed"], *(env.reset()[1]["seed"] for _ in range(6))]
    assert set(drawn) <= set(range(10)) and len(set(drawn)) > 1
    assert env.reset(seed=7, options={"split": "test"})[1]["seed"] in range(100, 130, 3)
    assert env.reset(seed=106, options={"split": "test"})[1] == {"seed": 106, "split": "test"}
    assert env.reset(seed=7)[1]["split"] == "train"
    for options in ({"splits": "test"}, {"split": "exam"}):
        with pytest.raises(BadArgument):
            env.reset(options=options)
    with pytest.raises(RequestError):
        env.reset(options={"config": {"colour": 1}})
    env.close()


def test_drawn_rows_have_the_tags_of_the_config(tmp_path: Path) -> None:
    app = app_from(tmp_path, ROWS)
    env = GymnasiumEnv(app, config={"tags": ["odd"]})
    assert {env.reset(seed=99 if one == 0 else None)[1]["seed"] for one in range(12)} <= {1, 3, 5, 7}
    with pytest.raises(RequestError):
        env.reset(seed=2)
    env.reset(seed=3)
    assert env.step(json.dumps({"tool": "answer", "args": {"text": "3"}}))[1] == 1.0
    env.reset(seed=3)
    assert env.step("3")[1:3] == (1.0, True)
    env.close()


# -- refusals, failures, the end -----------------------------------------------------------------------------------


def test_refused_action_is_a_step_and_action_outside_the_space_raises(walk: str) -> None:
    env = GymnasiumEnv(walk)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(go(1))
    env.reset(seed=1)
    observation, reward, terminated, truncated, info = env.step(go(-1))
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert "not backwards" in observation and "not backwards" in info["refused"]
    assert env.step(go(1))[4]["step"] == {"at": 1}
    with pytest.raises(gymnasium.error.InvalidAction):
        env.step(3)
    assert env.step(go(5))[2]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(go(1))
    env.close()
    numbered = GymnasiumEnv(ADDER)
    numbered.reset(seed=1)
    for wrong in (-1, 3, "1"):
        with pytest.raises(gymnasium.error.InvalidAction):
            numbered.step(wrong)
    numbered.close()


def test_finish_truncates_and_scores(walk: str) -> None:
    env = GymnasiumEnv(walk, reward={"env": 2.0, "event": 0.0, "outcome": 1.0}, render_mode="ansi")
    env.reset(seed=1)
    assert env.step(go(2))[1] == 4.0
    _, reward, terminated, truncated, info = env.finish()
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["result"]["status"] == "truncated" and info["result"]["scores"] == {"there": 0.0}
    assert env.render() == "at 2 ü"
    env.close()


@pytest.mark.parametrize("place", ["walk", pytest.param("served", marks=pytest.mark.server)])
@pytest.mark.parametrize(
    "breaks,boundary,code",
    [
        ("step", "environment", "environment_raised"),
        ("rubric", "scoring", ""),
        ("undefined", "scoring", "reward_undefined"),
    ],
)
def test_a_failure_is_raised_or_masked_and_never_a_reward_of_zero(
    breaks: str, boundary: str, code: str, place: str, request: pytest.FixtureRequest
) -> None:
    app = request.getfixturevalue(place)
    env = GymnasiumEnv(app, config={"breaks": breaks})
    env.reset(seed=1)
    with pytest.raises((RolloutFailed, TaskAppError)) as raised:
        env.step(go(3))
    assert raised.value.boundary == boundary
    assert isinstance(raised.value, UndefinedReward) is (breaks == "undefined")
    env.reset(seed=2)  # the session continues
    env.close()
    masked = GymnasiumEnv(app, config={"breaks": breaks}, on_failure="truncate")
    masked.reset(seed=1)
    observation, reward, terminated, truncated, info = masked.step(go(3))
    assert math.isnan(reward) and (terminated, truncated) == (False, True)
    assert info["failure"]["boundary"] == boundary and (not code or info["failure"]["code"] == code)
    assert "result" not in info and masked.observation_space.contains(observation)
    assert masked.reset(seed=2)[1]["seed"] == 2
    with pytest.raises((RolloutFailed, TaskAppError)):
        masked.reset(options={"config": {"breaks": "reset"}})
    masked.close()


@pytest.mark.server
def test_reset_replaces_an_expired_session(served: str) -> None:
    env = GymnasiumEnv(served)
    env.reset(seed=1)
    env._game._loop.run(env._game._driver._session.close())  # type: ignore[attr-defined]
    with pytest.raises(TaskAppError) as raised:
        env.step(go(1))
    assert raised.value.code == "session_not_found"
    assert env.reset(seed=2)[1]["seed"] == 2
    env.close()
    env.close()


@pytest.mark.server
def test_wrong_key_and_unknown_name_are_rejected(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for environment in ("run", None):
        monkeypatch.setenv("ENVIRONMENT_API_KEY", "wrong" if environment is None else KEY)
        with pytest.raises(TaskAppError) as raised:
            GymnasiumEnv(served, environment)
        assert raised.value.status in (401, 403, 404, 422)
    for wrong in ({"actions": "numbers"}, {"on_failure": "zero"}, {"render_mode": "human"}):
        with pytest.raises(BadArgument):
            GymnasiumEnv(served, **wrong)


def test_images_are_in_info_and_too_long_a_text_raises(walk: str) -> None:
    pytest.importorskip("numpy")
    env = GymnasiumEnv(walk, config={"image": True}, text_length=100)
    observation, info = env.reset(seed=1)
    assert observation == "at 0 ü" and [image[:4] for image in info["images"]] == [b"\x89PNG"]
    with pytest.raises(BadArgument, match="text_length"):
        env.reset(options={"config": {"long": 200}})
    env.close()


@pytest.mark.process
def test_script_without_close_ends(walk: str) -> None:
    program = (
        "from taskapp_kit.interop.gymnasium.env import make\n"
        f"env = make({walk!r})\nenv.reset(seed=1)\nprint(env.step({go(1)!r})[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "at 1 ü\n" and "Traceback" not in done.stderr


# -- spaces --------------------------------------------------------------------------------------------------------


def test_text_space_contains_any_string_up_to_its_length() -> None:
    space = AnyText(20)
    assert all(space.contains(text) for text in ("", "a\nb", "größer 🎲", space.sample()))
    assert not space.contains("x" * 21) and not space.contains(3)
    assert space == AnyText(20) and space != AnyText(21)
    env = GymnasiumEnv(CAPITALS)
    env.action_space.seed(1)
    drawn = [env.action_space.sample() for _ in range(3)]
    env.action_space.seed(1)
    assert drawn == [env.action_space.sample() for _ in range(3)] and env.observation_space != env.action_space
    env.close()


def test_actions_with_enumerable_arguments_are_numbered() -> None:
    def of(**properties: Any) -> Any:
        schema = {
            "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False
        }  # fmt: skip
        return numbered_calls([{"name": "go", "parameters": schema}])

    assert of() == [("go", {})]
    pair = of(to={"enum": ["n", "s"]}, fast={"type": "boolean"})
    assert pair == [("go", {"to": to, "fast": fast}) for to in ("n", "s") for fast in (False, True)]
    assert len(of(n={"type": "integer", "minimum": 3, "maximum": 9})) == 7
    assert of(n={"type": "array", "minItems": 2, "items": {"const": 1}}) == [("go", {"n": [1, 1]})]
    for endless in ({"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "number"}):
        assert of(n=endless) is None
    assert of(n={"type": "integer", "minimum": 0, "maximum": 1000}) is None
    optional = {"type": "object", "properties": {"n": {"const": 1}}, "additionalProperties": False}
    assert numbered_calls([{"name": "go", "parameters": optional}]) is None
