"""World generation equals stock; the cache pays for each world once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import crafter
import numpy as np
import opensimplex
import pytest

from environments.crafter import terrain
from environments.crafter.rules import CrafterGame
from environments.crafter.worlds import WorldCache


@pytest.mark.parametrize(
    ("seed", "episode", "area"),
    [
        (0, 1, (64, 64)),
        (2**40, 1, (64, 64)),
        (3, 2, (64, 64)),
        (5, 1, (40, 27)),
        *(pytest.param(seed, 1, (64, 64), marks=pytest.mark.exhaustive) for seed in range(1, 15)),
    ],
)
def test_worlds_equal_stock(seed: int, episode: int, area: tuple[int, int]) -> None:
    env = crafter.Env(seed=seed, area=area)
    for _ in range(episode):
        env.reset()
    blueprint = terrain.generate(seed, episode, area)
    assert blueprint.terrain == env._world._mat_map.T.tobytes()
    creatures = [(type(thing).__name__.lower(), *map(int, thing.pos)) for thing in env._world.objects[1:]]
    assert list(blueprint.creatures) == creatures
    state = env._world.random.get_state(legacy=False)["state"]
    assert np.array_equal(blueprint.random[0], state["key"])
    assert blueprint.random[1] == state["pos"]


def test_compiled_and_plain_noise_are_equal() -> None:
    simplex = opensimplex.OpenSimplex(seed=11)
    xs, ys = np.random.default_rng(0).uniform(0, 64, (2, 500))
    expected = np.array([simplex.noise3(x / 15, y / 15, 3) for x, y in zip(xs, ys, strict=True)])
    assert np.array_equal(terrain.Noise(simplex)(xs, ys, 3, 15), expected)
    plain = np.empty(500)
    terrain._fill_points(xs / 15, ys / 15, 3, plain, simplex._perm, simplex._perm_grad_index3)
    assert np.array_equal(plain, expected)


def test_a_group_pays_for_one_world() -> None:
    worlds = WorldCache()
    barrier = threading.Barrier(8)

    def first_sight(_: int) -> str:
        barrier.wait()
        return CrafterGame(77, worlds=worlds).observe()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(first_sight, range(8)))) == 1
    assert worlds.generated == 1
    CrafterGame(77, length=5, worlds=worlds)  # the length decides nothing about the world
    assert worlds.generated == 1
    CrafterGame(77, area=(64, 32), worlds=worlds)
    assert worlds.generated == 2


def test_the_cache_is_bounded_and_drops_the_least_recently_used() -> None:
    worlds = WorldCache(max_worlds=2)
    for seed in (1, 2, 1, 3):
        worlds.get(seed, 1, (9, 9))
    assert (len(worlds), worlds.generated) == (2, 3)
    worlds.get(1, 1, (9, 9))
    assert worlds.generated == 3
    worlds.get(2, 1, (9, 9))
    assert worlds.generated == 4
    with pytest.raises(ValueError, match="max_worlds"):
        WorldCache(0)


def test_a_failed_generation_is_not_kept() -> None:
    worlds = WorldCache()
    unhashable: Any = []
    with pytest.raises(TypeError):
        worlds.get(1, 1, ("wide", "high"))  # type: ignore[arg-type]
    assert len(worlds) == 0
    with pytest.raises(TypeError):
        worlds.get(unhashable, 1, (9, 9))
    assert len(worlds.get(1, 1, (9, 9)).terrain) == 81


def test_an_episode_never_writes_into_the_shared_world() -> None:
    worlds = WorldCache()
    before = worlds.get(4, 1, (64, 64))
    words = before.random[0].copy()
    game = CrafterGame(4, worlds=worlds)
    for _ in range(120):
        if not game.over:
            game.step("do")
    assert worlds.get(4, 1, (64, 64)) is before
    assert np.array_equal(before.random[0], words)
    assert CrafterGame(4, worlds=worlds).observe() == CrafterGame(4, worlds=WorldCache()).observe()
