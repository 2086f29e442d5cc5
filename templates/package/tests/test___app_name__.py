"""Tests of __app_title__: the rewards of the apps, and that each app can be served by its name."""

import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from __app_name__ import halving, questions

from taskapp_kit import TaskApp
from taskapp_kit.testing import play


@pytest.mark.parametrize("app", [questions.app, halving.app], ids=lambda app: app.name)
def test_gold_earns_most(app: TaskApp) -> None:
    assert all(play(app, seed=seed, policy="gold").reward >= 0.4 for seed in range(10))


@pytest.mark.parametrize("app", [questions.app, halving.app], ids=lambda app: app.name)
def test_the_same_seed_is_the_same_episode(app: TaskApp) -> None:
    assert play(app, seed=1, policy="gold").digest == play(app, seed=1, policy="gold").digest


def test_one_answer_to_all_questions_earns_little() -> None:
    rewards = [play(questions.app, seed=seed, action="12").reward for seed in range(12)]
    assert sum(rewards) / len(rewards) <= 0.25


def test_a_list_of_answers_earns_nothing() -> None:
    assert play(questions.app, seed=0, action="12, 24, 85").reward == 0.0


def test_each_entry_point_is_an_app() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    for name, target in project["entry-points"]["taskapp_kit.apps"].items():
        module, _, attribute = target.partition(":")
        assert getattr(import_module(module), attribute).name == name
