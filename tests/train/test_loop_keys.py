"""What is read of a config about its loops, and which of its values are refused."""

from __future__ import annotations

from typing import Any

import pytest

from taskapp_kit.client.config.review import Review, check_schema
from taskapp_kit.train.loop_keys import ASYNC_GSPO_CLIP, clip_range, read_loops
from taskapp_kit.train.loops.settings import Curriculum, EarlyStopping, LoopSettings


def reviewed(document: dict[str, Any]) -> Review:
    review = Review(document)
    check_schema(review, required_in=lambda _: False)
    assert not review.problems
    return review


def loops(document: dict[str, Any]) -> LoopSettings:
    review = reviewed(document)
    found = read_loops(review)
    assert not review.problems
    return found


def test_each_loop_is_off_unless_it_is_named() -> None:
    assert loops({}) == LoopSettings()


def test_what_is_named_is_read() -> None:
    found = loops(
        {
            "evaluation": {"stop_at": 0.9, "patience": 3},
            "training": {"iterations_ahead": 2},
            "curriculum": {"levels": ["easy", 2], "up": 0.7, "down": 0.1, "window": 4},
        }
    )
    assert found == LoopSettings(EarlyStopping(0.9, 3), Curriculum(("easy", 2), 0.7, 0.1, 4), ahead=2)


def test_an_offline_job_plays_evaluations_only() -> None:
    found = loops(
        {
            "algorithm": {"type": "offline"},
            "evaluation": {"patience": 3},
            "training": {"iterations_ahead": 2},
            "curriculum": {"levels": ["easy", "hard"]},
        }
    )
    assert found == LoopSettings(EarlyStopping(None, 3))


def test_several_environments_have_names_of_their_own() -> None:
    given = [
        {"env_name": "a", "weight": 3, "env_config": {"x": 1}, "seeds": [1]},
        {"env_name": "a", "weight": 1, "task_url": "http://127.0.0.1:2/"},
        {"weight": 1},
    ]
    found = loops({"rollout": {"environments": given}}).environments
    assert [(each.name, each.weight, each.env_name, each.task_url) for each in found] == [
        ("a", 3, "a", None),
        ("a_2", 1, "a", "http://127.0.0.1:2"),
        ("environment_3", 1, None, None),
    ]
    assert (found[0].env_config, found[0].seeds, found[1].seeds) == ({"x": 1}, (1,), None)


def test_the_address_of_a_served_file_is_used() -> None:
    given = [{"weight": 1}, {"weight": 1, "task_app": "keys.py", "task_url": "http://127.0.0.1:2"}]
    assert loops({"rollout": {"environments": given}}).environments[1].task_url == "http://127.0.0.1:2"


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            {"training": {"iterations_ahead": 1}, "sampler": {"deterministic": True}},
            "[sampler] deterministic: found true; expected false with [training] iterations_ahead.",
        ),
        ({"curriculum": {"levels": ["a", "a"]}}, "[curriculum] levels: found a list of 2; expected different ones."),
        (
            {"curriculum": {"levels": ["a", "b"], "up": 0.5, "down": 0.5}},
            "[curriculum] down: found 0.5; expected less than up, 0.5.",
        ),
        (
            {"curriculum": {"levels": ["a", "b"]}, "rollout": {"environments": [{"weight": 1}, {"weight": 1}]}},
            "[curriculum]: found beside [rollout] environments; expected one environment",
        ),
        (
            {"rollout": {"environments": [{"weight": 1}, {"weight": 1, "task_app": "keys.py"}]}},
            "[rollout] environments: the task_app of number 2 is a file, which `taskapp train --local` serves.",
        ),
    ],
)
def test_what_contradicts_itself_is_a_problem(document: dict[str, Any], expected: str) -> None:
    review = reviewed(document)
    read_loops(review)
    (problem,) = review.problems.values()
    assert problem.startswith(expected)


@pytest.mark.parametrize("loss", ["gspo", "grpo"])
@pytest.mark.parametrize("ahead", [0, 1])
def test_with_rollouts_ahead_gspo_clips_later(loss: Any, ahead: int) -> None:
    training: dict[str, Any] = {"iterations_ahead": ahead}
    assert clip_range(reviewed({"training": training}), loss) == (ASYNC_GSPO_CLIP if ahead and loss == "gspo" else None)
    assert clip_range(reviewed({"training": {**training, "clip": [0.1, 0.2]}}), loss) == (0.1, 0.2)
    narrow = reviewed({"training": {**training, "clip": [3e-4, 0.2]}})
    clip_range(narrow, loss)
    expected = (
        "[training] clip: found a list of 2; expected more than 0.0003 and 0.0004 with [training] iterations_ahead."
    )
    refused = [problem.startswith(expected) for problem in narrow.problems.values()]
    assert refused == ([True] if ahead and loss == "gspo" else [])
