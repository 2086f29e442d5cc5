"""Rubric files: TOML, YAML, JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit import DeclarationError
from taskapp_kit.declare.rubric_file import read_rubric_file
from tests.rollouts import app_from, play

APP = """
app = TaskApp("a")
@app.environment("e")
class E:
    '''E.'''
    def reset(self, seed: int) -> str: return ""
    @action
    def go(self, n: int) -> Step:
        '''Go.'''
        return Step(str(n), float(n), n == 0)
@app.rubric
def reached(trajectory): return 0.5
@app.rubric(of="events", weight=9)
def paid(step): return step.reward
"""
TOML = """
version = "1"
goal_text = "Get there"
[[criteria]]
id = "reached"
description = "There."
weight = 2.5
required = true
[[criteria]]
id = "paid"
weight = 1
accumulate = false
[[criteria]]
id = "style"
description = "Is it elegant?"
weight = 0
"""
ENTRIES: list[dict[str, Any]] = [
    {"id": "reached", "description": "There.", "weight": 2.5, "required": True},
    {"id": "paid", "weight": 1, "accumulate": False},
    {"id": "style", "description": "Is it elegant?", "weight": 0},
]


@pytest.mark.parametrize("suffix", ["toml", "json", "yaml", "yml"])
def test_the_same_rubric_in_each_form(suffix: str, tmp_path: Path) -> None:
    text = TOML if suffix == "toml" else json.dumps({"criteria": ENTRIES})  # JSON is YAML
    (tmp_path / f"r.{suffix}").write_text(text)
    spec = app_from(tmp_path, APP + f'app.load_rubric("r.{suffix}")\n').freeze()
    assert [(c.name, c.description, c.weight, c.required, c.accumulate) for c in spec.criteria] == [
        ("reached", "There.", 2.5, True, True),
        ("paid", "paid", 1.0, False, False),
    ]
    assert [(judge.name, judge.description, judge.weight) for judge in spec.judges] == [
        ("style", "Is it elegant?", 0.0)
    ]


def test_without_accumulate_the_last_event_counts(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps({"criteria": [{"id": "paid", "accumulate": False}]}))
    app = app_from(tmp_path, APP + 'app.load_rubric("r.json")\n')
    ops = [{"type": "env", "tool": "go", "args": {"n": n}} for n in (3, 2, 1)]
    assert play(app, ops=ops).scorecard.events_score == 1.0
    assert play(app_from(tmp_path, APP, name="b.py"), ops=ops).scorecard.events_score == 54.0


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("r.toml", "criteria = [", "does not parse"),
        ("r.json", "{", "does not parse"),
        ("r.yaml", "a: [", "does not parse"),
        ("r.txt", "x", "ends in '.txt'"),
        ("r.json", "[]", "has no list `criteria`"),
        ("r.json", '{"criteria": []}', "has no list `criteria`"),
        ("r.json", '{"criteria": [3]}', "has no id"),
        ("r.json", '{"criteria": [{"id": ""}]}', "has no id"),
        ("r.json", '{"criteria": [{"id": "a", "wieght": 1}]}', "unknown key 'wieght'"),
        ("r.json", '{"criteria": [{"id": "a"}, {"id": "a"}]}', "repeats the id 'a'"),
        ("r.json", '{"criteria": [{"id": "a", "weight": -1}]}', "has weight -1"),
        ("r.json", '{"criteria": [{"id": "a", "weight": NaN}]}', "has weight nan"),
        ("r.json", '{"criteria": [{"id": "a", "weight": true}]}', "has weight True"),
        ("r.json", '{"criteria": [{"id": "a"}], "aggregation": "mean"}', "has aggregation 'mean'"),
        ("r.json", '{"criteria": [{"id": "a", "weight": 0, "required": true}]}', "required but has weight 0"),
        ("r.json", '{"criteria": [{"id": "a", "required": "no"}]}', "has required 'no'"),
        ("r.json", f'{{"criteria": [{{"id": "a", "weight": 1{"0" * 400}}}]}}', "has weight 1"),
        ("r.yaml", "criteria: [{id: x, 1: 2, y: 4}]", "unknown key"),
        ("r.yaml", "criteria: [!!python/object/apply:os.system [echo]]", "does not parse"),
        ("r.yaml", "a: &a [1]\nb: *a\ncriteria: [{id: a}]", "does not parse"),
        ("r.yaml", "criteria: &c [{id: a, description: [*c]}]", "does not parse"),
        ("r.yaml", "[" * 5000, "does not parse"),
        ("r.json", "[" * 5000, "does not parse"),
        ("r.json", '{"criteria": [{"id": "a", "description": ["b"]}]}', "has a description that is a list"),
        ("r.json", '{"criteria": [{"id": "a"}], "weights": {}}', "unknown key 'weights'"),
        ("r.toml", "#" * (1 << 20) + "\n", "is not a regular file"),
    ],
)
def test_invalid_rubric_file_names_file_and_entry(name: str, text: str, found: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DeclarationError) as caught:
        read_rubric_file(tmp_path / name, "app")
    assert found in caught.value.problems[0].found
    assert caught.value.problems[0].place.startswith(str(tmp_path / name))


def test_a_question_for_a_judge_needs_words(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"criteria": [{"id": "style", "weight": 0}]}')
    with pytest.raises(DeclarationError, match=r"'style' .*@app\.rubric"):
        app_from(tmp_path, APP + 'app.load_rubric("r.json")\n').freeze()


def test_unsafe_yaml_runs_nothing(tmp_path: Path) -> None:
    target = tmp_path / "made"
    (tmp_path / "r.yaml").write_text(f"criteria: [!!python/object/apply:os.mkdir ['{target}']]")
    with pytest.raises(DeclarationError):
        read_rubric_file(tmp_path / "r.yaml", "app")
    assert not target.exists()


def test_the_spec_hash_does_not_depend_on_the_folder_of_the_app(tmp_path: Path) -> None:
    def spec_hash(folder: Path) -> str:
        folder.mkdir()
        path = folder / "rubric.toml"
        path.write_text("[[criteria]]\nid = 'polite'\ndescription = 'Is it polite?'\nscale = [0, 10]\ncall = 'tone'\n")
        app = app_from(folder, APP)
        app.load_rubric(path)
        spec = app.freeze()
        assert [judge.call for judge in spec.judges] == [(str(path), "tone")]
        return spec.hash

    assert spec_hash(tmp_path / "here") == spec_hash(tmp_path / "there")
