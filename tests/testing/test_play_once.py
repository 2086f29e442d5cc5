"""`play`: the rollout that a server would answer, in one line of a test."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit import DeclarationError, RequestError, RolloutFailed, TaskApp, Unavailable
from taskapp_kit.errors import ConfigError
from taskapp_kit.rollout.episode import global_random
from taskapp_kit.testing import Call, GlobalRandomnessWarning, MockModel, Reply, judge, play
from tests.rollouts import app_from

ADDER = Path(__file__).parents[2] / "examples" / "adder.py"
CAPITALS = Path(__file__).parents[2] / "examples" / "capitals.py"

JUDGED = """
app = TaskApp("judged")
app.tasks("judged", prompt="{q}", train=[{"q": "Hello?"}], test=[{"q": "Bye?"}])
@app.judge
def polite(answer_text):
    '''Is it polite?'''
    return answer_text
@app.judge(model="critic", scale=(0, 10))
def clear(answer_text):
    '''Is it clear?'''
    return answer_text
"""


def test_one_line_plays_and_scores() -> None:
    assert play(ADDER, seed=3, policy="gold").reward == 0.9625
    rollout = play(ADDER, seed=105, split="test", ops=2, config={"low": 12, "high": 15})
    assert (rollout.trajectory.split, rollout.trajectory.stop_reason, rollout.trajectory.length) == ("test", "ops", 2)
    assert play(ADDER, seed=3).digest == play(ADDER, seed=3, policy={"policy": "random", "sample": 0}).digest
    scripted = play(ADDER, seed=3, ops=[{"type": "env", "tool": "add", "args": {"amount": 3}}])
    assert scripted.trajectory.steps[0].args == {"amount": 3}
    assert play(CAPITALS, seed=1, action="Tokyo").reward == 1.0


@pytest.mark.server
def test_a_mock_model_plays_as_a_language_model() -> None:
    with MockModel([{"add": {"amount": 2}}] * 20) as model:
        rollout = play(ADDER, seed=3, policy=model)
    assert rollout.trajectory.actions("add")[0].args == {"amount": 2}
    assert len(model.requests) == rollout.trajectory.length


@pytest.mark.server
def test_judges_are_answered_for_or_skipped(tmp_path: Path) -> None:
    app = app_from(tmp_path, JUDGED)
    scores = {item.name: item.score for item in play(app, action="Hi", judges=judge(1)).scorecard.criteria}
    assert scores == {"polite": 1, "clear": 1}
    rollout = play(app, action="Hi", judges={"judge": judge(0.5), "critic": judge(10)})
    assert {item.name: item.score for item in rollout.scorecard.criteria} == {"polite": 0.5, "clear": 10}
    assert play(app, action="Hi", judges="skip").reward is None
    with pytest.raises(Unavailable, match="TASKAPP_JUDGE_URL"):
        play(app, action="Hi")


CALLING = """
app = TaskApp("calling")
@app.environment("calling", splits={"train": range(10)}, models=("user",), max_steps=2)
class Calling:
    '''Somebody speaks.'''
    def reset(self, seed: int, context: Any) -> str:
        return context.model("user").ask([{"role": "user", "content": "Say hello."}]).message["content"]
    @action
    def go(self) -> Step:
        '''Go.'''
        return Step("", reward=1.0, terminated=True)
"""


@pytest.mark.server
@pytest.mark.parametrize("from_file", [False, True])
def test_configured_models_are_called_only_if_asked_for(
    from_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged, calling = app_from(tmp_path, JUDGED), app_from(tmp_path, CALLING, name="calling.py")
    monkeypatch.chdir(tmp_path)
    with MockModel(judge(1)) as model:
        variables = {f"TASKAPP_{role}_URL": model.url for role in ("JUDGE", "CRITIC", "USER")}
        variables |= {f"TASKAPP_{role}_MODEL": "mock" for role in ("JUDGE", "CRITIC", "USER")}
        if from_file:
            (tmp_path / ".env").write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
        else:
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
        with pytest.raises(Unavailable) as missing:
            play(judged, action="Hi")
        assert "models=True" in missing.value.hint
        with pytest.raises(RolloutFailed) as failed:
            play(calling)
        assert failed.value.failure.code == "auxiliary_model_not_configured"
        assert "models=True" in failed.value.hint
        assert model.requests == []
        assert play(judged, action="Hi", judges={"critic": judge(10)}, models=True).reward == 1.0
        assert len(model.requests) == 1
        assert play(calling, models=True).reward == 1.0
        assert len(model.requests) == 2


def test_play_raises_failures_and_stores_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(ADDER.read_text().replace("self.total += amount", "self.total += amount / 0"))
    app = tmp_path / "app.py"
    with pytest.raises(RolloutFailed) as failed:
        play(app, seed=3, policy="gold")
    assert failed.value.failure.boundary == "environment"
    with pytest.raises(RequestError):
        play(ADDER, seed=100_000)
    with pytest.raises(RequestError):
        play(ADDER, policy="golden")
    with pytest.raises(DeclarationError):
        play(TaskApp("empty"))
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".pyc" and path.name != "__pycache__"] == [
        "app.py"
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        {"judges": 0.7},
        {"judges": "skp"},
        {"judges": {"judge": 0.7}},
        {"action": "x", "policy": "gold"},
        {"action": "x", "policy": {"policy": "constant"}},
        {"ops": 0},
        {"ops": -1},
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        play(CAPITALS, seed=1, **{"policy": "gold", **arguments})


@pytest.mark.server
def test_the_limit_of_calls_in_an_answer_is_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKAPP_MAX_CALLS_PER_ANSWER", "1")
    twice = Reply(calls=[Call.of("add", {"amount": 2}), Call.of("add", {"amount": 2})])
    with MockModel(lambda request: twice) as model:
        rollout = play(ADDER, seed=3, policy=model, ops=1)
    assert [step.refused is None for step in rollout.trajectory.steps] == [True, False]


def test_it_may_be_called_where_a_loop_runs() -> None:
    async def inside() -> Any:
        return play(ADDER, seed=3, policy="gold").reward

    assert asyncio.run(inside()) == 0.9625


GLOBAL = """
app = TaskApp("careless")
@app.environment("careless")
class Careless:
    '''Careless.'''
    def __init__(self, how: str = "seed"):
        self.how = how
    def reset(self, seed: int) -> str:
        if self.how == "seed":
            random.seed(seed)
        elif self.how == "draw":
            random.random()
        elif self.how == "numpy":
            import numpy
            numpy.random.seed(seed % 1000)
        return str(random.Random(seed).random())
    @action
    def go(self) -> Step:
        '''Go.'''
        return Step("", terminated=True)
"""


@pytest.mark.parametrize(("how", "named"), [("seed", "random"), ("draw", "random"), ("numpy", "numpy.random")])
def test_a_change_of_a_global_random_state_is_reported_once(how: str, named: str, tmp_path: Path) -> None:
    if how == "numpy":
        pytest.importorskip("numpy.random", reason="needs numpy, of taskapp-kit[crafter]")
    app = app_from(tmp_path, GLOBAL.replace('"careless"', f'"careless-{how}"'))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        play(app, seed=1, config={"how": "none"})
        with pytest.raises(GlobalRandomnessWarning, match=f"'careless-{how}' .* of {named},"):
            play(app, seed=1, config={"how": how})
        play(app, seed=2, config={"how": how})


def test_the_state_of_another_numpy_generator_is_compared_too() -> None:
    numpy_random = pytest.importorskip("numpy.random", reason="needs numpy, of taskapp-kit[crafter]")
    generator = numpy_random.get_bit_generator()
    try:
        numpy_random.set_bit_generator(numpy_random.PCG64(3))
        watch = global_random.GlobalRandomWatch()
        assert watch.changed("still") is None
        numpy_random.random()
        assert watch.changed("drawn") is not None
    finally:
        numpy_random.set_bit_generator(generator)
