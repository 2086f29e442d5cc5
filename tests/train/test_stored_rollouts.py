"""Stored rollouts: each is read as it was sampled, divided into groups of its seed, and refused where it does not fit."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.errors import ConfigError
from taskapp_kit.jobs.server.rollout_plan import Unit
from taskapp_kit.train.driver.stored_units import StoredUnits
from taskapp_kit.train.rows import RowOptions, TrainingEpisode, training_batch
from taskapp_kit.train.stored_rollouts import (
    HELD_OUT,
    OTHER_ENVIRONMENT,
    TOO_LONG,
    RolloutFit,
    StoredRollouts,
    find_rollouts,
)
from tests.train.driver.peers import PLAN

FIT = RolloutFit("keys", frozenset({90}), 1.0, 100, 8)


def line(seed: int = 0, reward: float = 1.0, **changes: Any) -> dict[str, Any]:
    return {
        "environment": "keys",
        "seed": seed,
        "rollout": f"r{seed}-{reward:g}",
        "status": "terminated",
        "reward": reward,
        "temperature": None,
        "sequences": [{"tokens": [5, 6, 7], "mask": [0, 1, 1], "logprobs": [0.0, -0.5, -0.25]}],
    } | changes


def stored(path: Path, *lines: Mapping[str, Any], fit: RolloutFit = FIT) -> StoredRollouts:
    file = path / "rollouts.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return StoredRollouts(file, fit)


def units(rollouts: StoredRollouts, groups: int = 2, samples: int = 2) -> StoredUnits:
    return StoredUnits(rollouts, replace(PLAN, groups=groups, samples=samples), "job")


def test_a_sequence_becomes_the_turns_that_sampled_it(tmp_path: Path) -> None:
    sequences = [
        {"tokens": [1, 2, 3, 4, 5], "mask": [0, 1, 0, 1, 1], "logprobs": [0, -0.1, 0, -0.2, -0.3]},
        {"tokens": [9, 8], "mask": [0, 1], "logprobs": [0, -0.4]},
    ]
    found = stored(tmp_path, line(sequences=sequences, status="truncated"))
    episode = found.episode(0)
    assert (episode.rollout, episode.reward, episode.status) == ("r0-1", 1.0, "truncated")
    turns = episode.turns
    assert [(each.prompt_ids, each.token_ids, each.log_probs, each.parent) for each in turns] == [
        ((1,), (2,), (-0.1,), None),
        ((1, 2, 3), (4, 5), (-0.2, -0.3), 0),
        ((9,), (8,), (-0.4,), None),
    ]
    batch = training_batch([TrainingEpisode("r", "g", turns, 1.0)], RowOptions())
    assert [(row.ids, row.mask) for row in batch.rows] == [
        ((1, 2, 3, 4, 5), (False, True, False, True, True)),
        ((9, 8), (False, True)),
    ]


def test_one_rollout_of_each_seed_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one rollout per seed"):
        units(stored(tmp_path, line(0), line(1)))
    assert units(stored(tmp_path, line(0), line(1), line(1, reward=0.0))).groups(1)


def test_a_file_that_changes_is_an_error(tmp_path: Path) -> None:
    found = stored(tmp_path, line(), line(1))
    assert found.sha256 == hashlib.sha256(found.path.read_bytes()).hexdigest()
    assert found.episode(0).seed == 0
    with found.path.open("a") as file:
        file.write("\n")
    with pytest.raises(ConfigError, match="changed while the job was learning from it"):
        found.episode(0)


def test_an_iteration_has_groups_of_one_seed_and_a_pass_has_every_rollout_once(tmp_path: Path) -> None:
    rollouts = stored(tmp_path, *[line(seed, reward) for seed in range(5) for reward in range(4)], line(7))
    made = units(rollouts)
    seen: Counter[str] = Counter()
    for number in range(1, 12):  # 5 · 2 + 1 groups: 11 iterations are two passes
        played = made.unit(Unit("train", number, 1))
        for place in (0, 1):
            group = [each.outcome for each in played if each.outcome.place == place]
            assert len({each.seed for each in group}) == 1 and len(group) == (1 if group[0].seed == 7 else 2)
        seen.update(each.outcome.rollout_id for each in played)
    assert set(seen.values()) == {2} and len(seen) == 21
    assert units(rollouts).groups(3) == made.groups(3)
    assert made.groups(1) != made.groups(6)


def test_what_does_not_fit_is_left_out_and_counted(tmp_path: Path) -> None:
    long = {"tokens": [1] * 9, "mask": [0] + [1] * 8, "logprobs": [0.0] * 9}
    found = stored(tmp_path, line(), line(90), line(1, environment="other"), line(2, sequences=[long]), line(0, 0.0))
    assert found.left_out == {HELD_OUT: 1, OTHER_ENVIRONMENT: 1, TOO_LONG: 1}
    assert found.facts["rollouts"] == 2 and found.facts["reward"] == 0.5
    assert found.sentence.startswith(
        "The job learns from 2 stored rollouts of 1 seed, with rewards from 0 to 1, 0.500 on average. 0 seeds"
    )
    assert HELD_OUT in found.sentence
    with pytest.raises(ConfigError, match="that this job can use. Omitted: 1 of seeds that the evaluation plays"):
        stored(tmp_path, line(90))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"seed": "1"}, "no seed"),
        ({"reward": None}, "no reward"),
        ({"status": None}, "`status`"),
        ({"sequences": []}, "no sequences"),
        ({"sequences": [{"tokens": [1, 2], "mask": [0, 1], "logprobs": [0.0]}]}, "an invalid sequence"),
        ({"sequences": [{"tokens": [1, 2], "mask": [1, 1], "logprobs": [0.0, 0.0]}]}, "an invalid sequence"),
        ({"sequences": [{"tokens": [1, 2.5], "mask": [0, 1], "logprobs": [0.0, 0.0]}]}, "an invalid sequence"),
        (
            {"sequences": [{"tokens": [1, 100], "mask": [0, 1], "logprobs": [0.0, 0.0]}]},
            "token ids that the model does not have",
        ),
        ({"temperature": 0.7}, "the temperature 0.7, but the job samples at 1"),
    ],
)
def test_a_line_that_cannot_be_learned_from_is_named(tmp_path: Path, changes: dict[str, Any], found: str) -> None:
    with pytest.raises(ConfigError, match="line 2 of .*rollouts.jsonl has ") as error:
        stored(tmp_path, line(), {**line(1), **changes})
    assert found in error.value.message


def test_a_file_is_anywhere_only_for_the_operators_own_jobs(tmp_path: Path) -> None:
    assert find_rollouts("a/b.jsonl", tmp_path, paths=True) == Path("a/b.jsonl")
    assert find_rollouts("b.jsonl", tmp_path, paths=False) == tmp_path / "rollouts" / "b.jsonl"
    for name in ("a/b.jsonl", "/etc/passwd", "..", ".hidden"):
        with pytest.raises(ConfigError, match="is a path, but this server only accepts file names"):
            find_rollouts(name, tmp_path, paths=False)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        StoredRollouts(tmp_path / "none.jsonl", FIT)
    (tmp_path / "text.jsonl").write_text("words\n")
    with pytest.raises(ConfigError, match="line 1 of .* has no JSON"):
        StoredRollouts(tmp_path / "text.jsonl", FIT)
