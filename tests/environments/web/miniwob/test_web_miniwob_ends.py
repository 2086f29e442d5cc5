"""How an episode ends: by what the page says, and by nothing else."""

from __future__ import annotations

import math
from typing import Any

import pytest

from environments.web.miniwob import environment as miniwob
from environments.web.miniwob import pages
from environments.web.miniwob.episode import Outcome, read_outcome
from environments.web.miniwob.rows import TASKS
from environments.web.view import View
from taskapp_kit import TaskApp
from taskapp_kit.errors import Unavailable
from taskapp_kit.testing import play
from tests.environments.web.miniwob.episodes import BROWSER, act, begun, goal_of
from tests.environments.web.miniwob.solutions import SOLUTIONS

NOTHING = {"type": "env", "tool": "noop", "args": {}}
ALSO = pytest.mark.exhaustive
NORMAL = {
    "choose-list", "click-button-sequence", "click-checkboxes", "click-color", "click-dialog",
    "click-link", "click-tab", "drag-box", "email-inbox-delete", "enter-date", "grid-coordinate", "login-user",
    "read-table",
}  # fmt: skip


def browser(function: Any) -> Any:
    for mark in BROWSER:
        function = mark(function)
    return function


def app() -> TaskApp:
    found = TaskApp("miniwob")
    miniwob.declare(found)
    return found


def seed_of(name: str) -> int:
    return list(TASKS).index(name)


@browser
@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=ALSO) for seed in (4, 5, 6))])
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in NORMAL else [ALSO]) for name in SOLUTIONS])
def test_a_solution_gets_1(name: str, seed: int) -> None:
    with begun(name, seed) as (environment, seen):
        goal = goal_of(seen)
        for turn in range(30):
            step = act(environment, SOLUTIONS[name](goal, View(seen), turn))
            if step.terminated:
                break
            assert step.reward is None
            seen = str(step.observation)
        assert environment.final_state() == {"done": True, "raw_reward": 1.0, "left": False}
        assert step.reward == 1.0


@browser
@pytest.mark.parametrize("name", ["click-test-2", "click-link", "click-color", "enter-text", "click-option"])
def test_a_wrong_answer_ends_it_with_no_more_than_0(name: str) -> None:
    with begun(name) as (environment, seen):
        goal, view = goal_of(seen), View(seen)
        right = SOLUTIONS[name](goal, view, 0)["click"]["bid"] if "enter" not in name else None
        wrong = {
            "click-test-2": lambda: view.find("button", "TWO"),
            "click-link": lambda: next(item for item in view.all("link") if item.name not in goal),
            "click-color": lambda: next(
                item for item in view.all("img") if item.name.startswith("color, ") and item.bid != right
            ),
            "enter-text": lambda: view.find("button", "Submit"),
            "click-option": lambda: view.find("button", "Submit"),
        }[name]()
        step = act(environment, {"click": {"bid": wrong.bid}})
        assert step.terminated
        assert step.reward is not None
        assert step.reward <= 0
        assert environment.final_state()["raw_reward"] <= 0


@browser
def test_time_does_not_run_out() -> None:
    """The page's own limit is 10 s; its clock moves by half a second with an action."""
    with begun("click-test") as (environment, _):
        for _ in range(21):
            assert not environment.noop().terminated
        assert act(environment, {"click": {"bid": 1}}).reward == 1.0


@browser
def test_nothing_that_follows_the_end_counts() -> None:
    with begun("click-test-2") as (environment, seen):
        view = View(seen)
        assert act(environment, {"click": {"bid": view.find("button", "TWO").bid}}).reward == -1.0
        assert act(environment, {"mouse_click": {"x": 80, "y": 100}}).reward == -1.0
        assert act(environment, {"click": {"bid": view.find("button", "ONE").bid}}).reward == -1.0


@browser
def test_a_page_that_was_opened_again_is_another_one() -> None:
    with begun("click-test") as (environment, _):
        environment.goto(pages.url("click-test"))  # not among the actions
        assert environment.outcome == Outcome(done=True, raw=0.0, left=True)


@browser
def test_the_rubric_is_1_where_the_reward_is_above_0() -> None:
    played = app()
    right = play(played, seed=seed_of("click-test"), action={"click": {"bid": 1}})
    assert (right.reward, right.trajectory.total_reward, right.trajectory.status) == (1.0, 1.0, "terminated")
    wrong = play(played, seed=seed_of("enter-text"), action={"click": {"bid": 2}})
    assert (wrong.reward, wrong.trajectory.total_reward) == (0.0, -1.0)
    assert wrong.scorecard.metrics["raw_reward"] == -1.0
    nothing = play(played, seed=seed_of("click-test"), ops=[NOTHING], config={"only": ["noop", "click"]})
    assert (nothing.reward, nothing.trajectory.total_reward) == (0.0, 0.0)


@browser
def test_a_picture_comes_with_each_observation_if_it_is_asked_for() -> None:
    played = play(app(), seed=seed_of("click-shades"), ops=[NOTHING], config={"screenshot": True})
    assert played.trajectory.steps[0].observation[1].png.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("done", "raw", "expected"),
    [(False, 1.0, 0.0), (True, 0.4, 0.4), (True, -3.5, -1.0), (True, 2.0, 1.0), (True, math.nan, 0.0)],
)
def test_the_page_s_number_becomes_a_reward(done: bool, raw: float, expected: float) -> None:
    assert read_outcome(done, raw) == Outcome(done, expected)


def test_episode_without_the_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise Unavailable("environment 'miniwob' needs the package miniwob")

    monkeypatch.setattr(pages, "check", missing)
    environment = miniwob.Miniwob()
    with pytest.raises(Unavailable, match="needs the package miniwob"):
        environment.reset(miniwob.rows(range(1))[0])
    environment.close()
