"""Which episode a request asks for, and how every wrong way of asking is answered."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit import RequestError
from taskapp_kit.declare.episode_selection import find_environment, find_instance, read_config, seed_of_index
from taskapp_kit.declare.specs import AppSpec
from tests.rollouts import app_from, play

SOURCE = """
app = TaskApp("a")
@app.environment("adder", splits={"train": range(0, 100), "test": range(100, 120, 2)})
class Adder:
    '''Adds.'''
    def __init__(self, low: int = 5, mode: Literal["a", "b"] = "a", words: list[str] = []):
        if low > 100:
            raise ValueError("low is above 100")
        self.low, self.mode, self.words = low, mode, words
    def reset(self, seed: int, split: str) -> str:
        return f"{split} {seed} {self.low} {self.mode} {len(self.words)}"
    @action
    def go(self) -> Step:
        '''Go.'''
        return Step("", 1.0, True)
@app.environment("free")
class Free(Adder):
    '''Any seed.'''
    def __init__(self): super().__init__()
@app.rubric(environment="adder")
def low(config): return config["low"] / 100
"""


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> AppSpec:
    return app_from(tmp_path_factory.mktemp("app"), SOURCE).freeze()


def test_first_environment_is_the_default_and_unknown_name_suggests_one(spec: AppSpec) -> None:
    assert find_environment(spec, None).name == "adder"
    assert find_environment(spec, "free").name == "free"
    with pytest.raises(RequestError) as caught:
        find_environment(spec, "addr")
    assert caught.value.hint == "Did you mean 'adder'?"
    assert "adder, free" in caught.value.message
    assert caught.value.fields[0].loc == ("body", "env", "env_name")


@given(st.integers(0, 99) | st.sampled_from(range(100, 120, 2)))
def test_the_seed_implies_the_split(spec: AppSpec, seed: int) -> None:
    adder = spec.environments["adder"]
    instance = find_instance(adder, None, seed, random.Random(0))
    assert instance.split == ("train" if seed < 100 else "test")
    assert find_instance(adder, instance.split, seed, random.Random(0)) == instance


def test_an_absent_seed_is_drawn_from_the_split(spec: AppSpec) -> None:
    rng = random.Random(1)
    drawn = {find_instance(spec.environments["adder"], "test", None, rng).seed for _ in range(300)}
    assert drawn == set(range(100, 120, 2))
    assert find_instance(spec.environments["adder"], None, None, rng).split == "train"
    far = find_instance(spec.environments["free"], None, None, rng)
    assert 0 <= far.seed < 2**63
    assert far.split == "default"


@pytest.mark.parametrize(
    ("split", "seed", "words"),
    [
        (None, 101, "train 0 to 99; test 100 to 118"),
        (None, 120, "train 0 to 99; test 100 to 118"),
        (None, -1, "train 0 to 99"),
        (None, 2**63, "train 0 to 99"),
        ("test", 5, "Seed 5 belongs to split 'train'. Split 'test' has the seeds 100 to 118"),
    ],
)
def test_a_seed_out_of_range_names_the_range(spec: AppSpec, split: str | None, seed: int, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        find_instance(spec.environments["adder"], split, seed, random.Random(0))
    assert words in caught.value.message
    assert str(seed) in caught.value.message
    assert caught.value.code == "seed_out_of_range"
    assert caught.value.fields[0].loc == ("body", "env", "seed")


@pytest.mark.parametrize("seed", [-1, 2**63, True, 1.5, "7"])
def test_what_is_no_seed_does_not_even_become_a_request(seed: Any) -> None:
    import pydantic

    from tests.rollouts import a_request

    with pytest.raises(pydantic.ValidationError) as caught:
        a_request(seed=seed)
    assert caught.value.errors()[0]["loc"] == ("env", "seed")


def test_the_index_counts_in_the_split(spec: AppSpec) -> None:
    adder = spec.environments["adder"]
    assert seed_of_index(adder, "test", 3) == 106
    assert seed_of_index(adder, None, 3) == 3
    with pytest.raises(RequestError, match=r"\b118\b"):
        seed_of_index(adder, "test", 10)


def test_the_config_is_read_leniently_and_split_and_index_never_reach_the_constructor(spec: AppSpec) -> None:
    read = read_config(
        spec.environments["adder"], {"split": "test", "index": 1, "low": "7", "step_rewards": {}, "difficulty": 1}
    )
    assert (read.split, read.index, read.given) == ("test", 1, {"low": "7"})
    assert read.arguments == {"low": 7, "mode": "a", "words": []}
    assert len(read.warnings) == 2
    assert "env.config.step_rewards" in read.warnings[0]


@pytest.mark.parametrize(
    ("config", "loc", "words"),
    [
        ({"lwo": 1}, "lwo", "accepts low, mode, words"),
        ({"low": "many"}, "low", "valid integer"),
        ({"low": True}, "low", "boolean"),
        ({"mode": "c"}, "mode", "'a' or 'b'"),
        ({"words": ["a", 1, {}]}, 2, "valid string"),
    ],
)
def test_a_wrong_config_names_the_member_and_the_known_ones(
    spec: AppSpec, config: dict[str, Any], loc: Any, words: str
) -> None:
    with pytest.raises(RequestError) as caught:
        read_config(spec.environments["adder"], config)
    assert words in caught.value.message
    assert caught.value.fields[0].loc[:3] == ("body", "env", "config")
    assert caught.value.fields[0].loc[-1] == loc
    with pytest.raises(RequestError, match="'free'"):
        read_config(spec.environments["free"], config)


def test_a_rollout_plays_the_instance_and_rubrics_see_the_whole_config(tmp_path: Path) -> None:
    app = app_from(tmp_path, SOURCE)
    rollout = play(app, config={"split": "test", "index": 2, "low": "7", "step_rewards": 1})
    assert rollout.trajectory.initial == "test 104 7 a 0"
    assert rollout.warnings == ["env.config.step_rewards is not known here and was ignored"]
    assert rollout.scorecard.outcome_score == 0.07
    assert play(app).scorecard.outcome_score == 0.05, "a member that the caller left out has its default"


def test_a_value_error_in_the_constructor_is_the_callers(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        play(app_from(tmp_path, SOURCE), config={"low": 101})
    assert caught.value.message == "Environment 'adder' rejects this env.config: low is above 100."
    assert caught.value.fields[0].loc == ("body", "env", "config")
