"""The list of tasks."""

from __future__ import annotations

from collections import Counter

from environments.web.miniwob import pages
from environments.web.miniwob.environment import ACTIONS, Miniwob
from environments.web.miniwob.rows import TASKS, TEST_SEEDS, TRAIN_SEEDS, rows
from tests.environments.web.miniwob.episodes import needs_pages

TIMED = {"button-delay", "chase-circle", "hover-shape", "moving-items", "simon-says"}
TAGS = {"click", "hover", "text", "choose", "drag", "mouse", "read", "search", "picture"}


@needs_pages
def test_of_the_pages_only_those_about_time_are_left_out() -> None:
    of_the_package = {path.split("/")[-1].removesuffix(".html") for path in pages._files() if path.endswith(".html")}
    assert of_the_package - set(TASKS) == TIMED
    assert set(TASKS) <= of_the_package


def test_each_task_has_known_tags() -> None:
    for name, (_, how) in TASKS.items():
        assert how.split(), name
        assert set(how.split()) <= TAGS, name


def test_a_split_poses_every_task_with_each_seed_and_shares_no_row_with_the_other() -> None:
    train, test = rows(TRAIN_SEEDS), rows(TEST_SEEDS)
    assert (len(train), len(test)) == (10_000, 1_000)
    assert [row.name for row in train[:125]] == list(TASKS) == [row.name for row in test[-125:]]
    assert set(Counter(row.name for row in train).values()) == {80}
    assert not {(row.name, row.seed) for row in train} & {(row.name, row.seed) for row in test}


def test_a_row_can_be_chosen_by_the_task_s_name() -> None:
    assert all(row.name in row.tags for row in rows(TEST_SEEDS))


def test_there_are_no_tabs_addresses_or_messages() -> None:
    assert not {"goto", "go_back", "new_tab", "send_msg_to_user", "report_infeasible"} & set(Miniwob().actions())
    assert set(Miniwob(only=["click", "noop"]).actions()) == {"click", "noop"} < set(ACTIONS)
