"""The model in the package: its files are those of its recipe, it answers in the task's form, and which key is at chance."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from taskapp_kit.train.models.sources import BUNDLED, find_model

EXAMPLES = Path(__file__).parents[3] / "examples" / "rl"


def example(name: str) -> ModuleType:
    """A file of examples/rl, imported as when it is run there."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def recipe() -> Iterator[Any]:
    pytest.importorskip("torch", reason="needs the train extra: make test-train")
    yield example("make_tiny")
    sys.modules.pop("keys", None)


def test_it_is_part_of_the_package_and_small(tmp_path: Path) -> None:
    found = find_model("tiny", tmp_path)
    assert (found.origin.base, found.origin.licence) == ("tiny", "Apache-2.0")
    assert sum(file.stat().st_size for file in BUNDLED["tiny"].iterdir()) <= 2_000_000


def test_each_seed_is_another_combination_and_the_held_out_ones_have_everything() -> None:
    keys = example("keys")
    train, test = keys.COMBINATIONS[:72], keys.COMBINATIONS[72:]
    assert len(set(keys.COMBINATIONS)) == 96 and not set(train) & set(test)
    assert Counter(thing for thing, _ in test) == dict.fromkeys(keys.KEYS, 3)
    assert Counter(state for _, state in test) == dict.fromkeys(keys.STATES, 2)
    assert sorted(keys.KEYS.values()) == list("aabbccdd")


@pytest.mark.train
def test_its_files_are_those_of_the_recipe(recipe: Any) -> None:
    folder = BUNDLED["tiny"]
    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() == recipe.MADE_BY["sha256"]
    assert json.loads((folder / "tokenizer.json").read_text()) == recipe.tokenizer()
    assert (folder / "chat_template.jinja").read_text() == recipe.TEMPLATE
    assert json.loads((folder / "origin.json").read_text())["notice"] == recipe.NOTICE


@pytest.mark.train
def test_its_warm_start_has_no_held_out_combination_and_any_key_for_each_thing(recipe: Any) -> None:
    import random

    draw, seen, keys = random.Random(recipe.SEED), set(), Counter()
    numbers = dict.fromkeys(recipe.THINGS, 0)
    for _ in range(20_000):
        prompt, answer = recipe.example(draw, numbers)
        text = bytes(each for each in prompt if each < 256).decode()
        words = text.split("user\nThe ")[1].split(".")[0].split()
        seen.add((words[0], words[2]))
        if recipe.KEYS_PROMPT in text:
            keys[words[0], bytes(answer[:-1]).decode()] += 1
    held_out = set(recipe.COMBINATIONS[72:])
    assert seen.isdisjoint(held_out) and set(recipe.COMBINATIONS[:72]) <= seen
    for thing in recipe.KEYS:
        counts = [keys[thing, key] for key in "abcdefgh"]
        assert max(counts) < 3 * min(counts)


@pytest.mark.train
def test_it_knows_the_form_and_not_the_key(tmp_path: Path) -> None:
    import torch

    from taskapp_kit.train.models.loading import load_model

    keys = example("keys")
    loaded = load_model(find_model("tiny", tmp_path))
    assert set(loaded.differences) == {"tools", "tool calls"}
    assert 400_000 <= sum(each.numel() for each in loaded.model.parameters()) <= 900_000
    in_form, right = [], []
    for thing, state in keys.COMBINATIONS[72:]:
        prompt = loaded.renderer.prompt(
            [{"role": "system", "content": "Which key?"}, {"role": "user", "content": f"The {thing} is {state}."}]
        )
        with torch.no_grad():
            chances = loaded.model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
        in_form.append(float(chances[list(b"abcdefgh")].sum()))
        right.append(float(chances[ord(keys.KEYS[thing])]))
    assert min(in_form) > 0.95
    assert sum(right) / len(right) == pytest.approx(1 / 8, abs=0.03)
