"""Two processes, two hash seeds, pictures in one of them: the same episodes, step by step."""

import os
from pathlib import Path

import pytest

from tests.programs import printed

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]

EPISODES = """
import hashlib, random, sys
from environments.crafter.names import ACTIONS
from environments.crafter.rules import CrafterGame
from environments.crafter.scripted import scripted

sizes, junk = [int(size) for size in sys.argv[1].split(",") if size], [object() for _ in range(int(sys.argv[2]))]
for seed in range(2):
    for policy in ("random", "scripted"):
        game, rng, digest = CrafterGame(seed), random.Random(seed), hashlib.sha256()
        while not game.over:
            text = game.observe()
            actions = [rng.choice(ACTIONS)] if policy == "random" else scripted(text, rng)["interact"]["actions"]
            outcome = game.interact(actions)
            for size in sizes:
                game.render(size)
            digest.update(repr((text, outcome)).encode())
        print(seed, policy, game.steps, digest.hexdigest())
"""


def run(hash_seed: str, sizes: str, junk: int) -> str:
    return printed(EPISODES, sizes, str(junk), cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": hash_seed})


@pytest.mark.ci
def test_whole_episodes_are_equal_between_processes() -> None:
    plain = run("1", "", 0)
    assert len(plain.splitlines()) == 4
    assert run("2", "64,90", 12_345) == plain
