"""The text shows what the picture shows, and no more; it reads back as it was written."""

import random
import re

import crafter
import numpy as np
import pytest

from environments.crafter.names import ACTIONS, DIRECTIONS, ITEMS, VITALS
from environments.crafter.rules import CrafterGame
from environments.crafter.scripted import scripted
from environments.crafter.sight import ME, read
from environments.crafter.view import COLUMNS, ROWS, SYMBOLS

FORM = re.compile(
    r"step \d+ of \d+, daylight \d+%, (awake|asleep)\n"
    r"health \d/9, food \d/9, drink \d/9, energy \d/9\n"
    r"inventory: (nothing|[a-z_]+ \d(, [a-z_]+ \d)*)\n"
    r"achievements \d+ of 22: (none|[a-z_]+(, [a-z_]+)*)\n"
    r"facing (left|right|up|down): [a-z ]+\n"
    r"view, 9 columns x 7 rows, you are @:\n"
    r"(?P<view>(\S( \S){8}\n){7})"
    r"legend: (?P<legend>.*)"
)


def window(text: str) -> list[list[str]]:
    found = FORM.fullmatch(text)
    assert found is not None, text
    return [line.split(" ") for line in found["view"].splitlines()]


@pytest.mark.parametrize("seed", [0, 1, 4])
def test_the_window_is_the_published_one(seed: int) -> None:
    env, game, rng = crafter.Env(seed=seed), CrafterGame(seed), random.Random(seed)
    env.reset()
    semantic = env._sem_view()
    materials = [None, *crafter.constants.materials]
    things = {13: "@", 14: "C", 15: "Z", 16: "S"}
    rows = window(game.observe())
    left, top = game.position[0] - 4, game.position[1] - 3
    for row in range(ROWS):
        for column in range(COLUMNS):
            number = int(semantic[left + column, top + row])
            expected = things.get(number) or next(s for s, n in SYMBOLS.items() if n == materials[number])
            assert rows[row][column] == expected
    while not game.over:
        game.step(rng.choice(ACTIONS))
        text = game.observe()
        found = FORM.fullmatch(text)
        assert found is not None, text
        assert window(text)[3][4] == "@"
        symbols = {symbol for line in window(text) for symbol in line}
        assert found["legend"] == ", ".join(f"{s} {name}" for s, name in SYMBOLS.items() if s in symbols)


def test_it_reads_back() -> None:
    game, rng = CrafterGame(12), random.Random(12)
    while not game.over:
        game.interact(scripted(game.observe(), rng)["interact"]["actions"])
        sight, inventory = read(game.observe()), game.inventory
        assert sight.step == game.steps
        assert sight.asleep == game.sleeping
        assert sight.unlocked == frozenset(game.unlocked)
        assert all(sight.amount(name) == max(0, inventory[name]) for name in (*VITALS, *ITEMS))
        assert sight.facing in DIRECTIONS.values()
        assert sight.window[ME] == "@"
        ahead = sight.window[ME[0] + sight.facing[0], ME[1] + sight.facing[1]]
        assert sight.ahead == ("the edge of the world" if ahead == "x" else SYMBOLS[ahead])


def test_the_edge_of_the_world() -> None:
    game = CrafterGame(1, area=(9, 9))
    for corner, place, outside in (((0, 0), (3, 4), (2, 3)), ((8, 8), (3, 4), (4, 5))):
        thing = game._world[corner][1]
        if thing is not None and thing is not game._player:
            game._world.remove(thing)
        game._world.move(game._player, corner)
        rows = window(game.observe())
        assert rows[place[0]][place[1]] == "@"
        assert rows[outside[0]][outside[1]] == "x"
        assert sum(line.count("x") for line in rows) == 63 - 5 * 4
    game._player.facing = (1, 0)
    assert "facing right: the edge of the world\n" in game.observe()


def test_text_shows_plants_arrows_and_sleep() -> None:
    game = CrafterGame(1)
    world, (x, y) = game._world, game.position
    for thing in world.objects[1:]:
        world.remove(thing)
    for dx in range(-4, 5):
        world[(x + dx, y)] = "grass"
    plant = crafter.objects.Plant(world, (x + 1, y))
    world.add(plant)
    for dx, facing in ((-1, (-1, 0)), (-2, (1, 0)), (-3, (0, -1)), (-4, (0, 1))):
        world.add(crafter.objects.Arrow(world, (x + dx, y), facing))
    assert "".join(window(game.observe())[3]) == "v^><@p..."
    plant.grown = 301
    game._player.facing = (1, 0)
    game._player.sleeping = True
    text = game.observe()
    assert "".join(window(text)[3]) == "v^><@P..."
    assert "facing right: ripe plant\n" in text
    assert ", asleep\n" in text


def test_symbols_are_one_character_and_distinct() -> None:
    assert all(len(symbol) == 1 for symbol in SYMBOLS)
    assert len(set(SYMBOLS.values())) == len(SYMBOLS)
    assert np.prod((COLUMNS, ROWS)) == 63
