"""One episode: equal to stock, the same in every process, and closed to every known trap."""

import copy
import json
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import crafter
import numpy as np
import pytest

from environments.crafter.names import ACHIEVEMENTS, ACTIONS
from environments.crafter.rules import CrafterGame, EpisodeOverError, UnknownActionError
from environments.crafter.scripted import scripted

Agent = Callable[[CrafterGame, random.Random], list[str]]


def randomly(game: CrafterGame, rng: random.Random) -> list[str]:
    return [rng.choice(ACTIONS)]


def by_script(game: CrafterGame, rng: random.Random) -> list[str]:
    return scripted(game.observe(), rng)["interact"]["actions"]


def trace(seed: int, agent: Agent = randomly, sizes: tuple[int, ...] = ()) -> list[Any]:
    game, rng, seen = CrafterGame(seed), random.Random(seed), []
    while not game.over:
        outcome = game.interact(agent(game, rng))
        for size in sizes:
            game.render(size)
        seen.append((outcome, game.observe(), game.position))
    return seen


@pytest.mark.parametrize(
    ("seed", "agent"),
    [
        (33, randomly),
        (2, by_script),
        *(
            pytest.param(seed, agent, marks=pytest.mark.exhaustive)
            for seed, agent in ((2, randomly), (5, randomly), (5, by_script), (33, by_script))
        ),
    ],
)
def test_every_step_equals_stock_with_ordered_chunks(seed: int, agent: Agent, ordered_env: Any) -> None:
    env, game, rng = ordered_env(seed=seed), CrafterGame(seed), random.Random(seed)
    assert np.array_equal(env.reset(), game.render())
    while not game.over:
        for action in agent(game, rng):
            picture, reward, done, info = env.step(ACTIONS.index(action))
            outcome = game.step(action)
            assert (outcome.reward, outcome.terminated) == (reward, info["discount"] == 0)
            assert (outcome.terminated or outcome.truncated) == done
            assert game.inventory == info["inventory"]
            assert game.achievements == info["achievements"]
            assert game.position == tuple(info["player_pos"])
            assert game.sleeping == env._player.sleeping
            if outcome.step % 5 == 0:
                game.render(41)  # another size in between changes nothing
                assert np.array_equal(picture, game.render())
            if done:
                break
    assert bytes(game._world.terrain) == env._world._mat_map.T.tobytes()
    stock = [(type(thing).__name__, *map(int, thing.pos)) for thing in env._world.objects]
    assert [(type(thing).__name__, *thing.pos) for thing in game._world.objects] == stock
    words, position = game._world.random.save()
    state = env._world.random.get_state(legacy=False)["state"]
    assert (position, words.tolist()) == (state["pos"], state["key"].tolist())


def test_two_unlocks_in_one_step_pay_once_as_in_stock(ordered_env: Any) -> None:
    env, game = ordered_env(seed=3), CrafterGame(3)
    env.reset()
    for player in (env._player, game._player):
        player.achievements["collect_coal"] = player.achievements["collect_iron"] = 1
    _, reward, _, _ = env.step(ACTIONS.index("noop"))
    outcome = game.step("noop")
    assert outcome.reward == reward == 1.0
    assert outcome.unlocked == ("collect_coal", "collect_iron")
    assert game.step("noop").reward == 0.0


def test_pictures_interleaving_and_threads_change_nothing() -> None:
    seeds = [0, 1, 2, 3]
    plain = [trace(seed) for seed in seeds]
    assert [trace(seed, sizes=(64, 100, 18)) for seed in seeds[:2]] == plain[:2]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(trace, seeds)) == plain

    games = {seed: (CrafterGame(seed), random.Random(seed)) for seed in seeds}
    seen: dict[int, list[Any]] = {seed: [] for seed in seeds}
    while any(not game.over for game, _ in games.values()):
        for seed, (game, rng) in games.items():
            if not game.over:
                outcome = game.interact(randomly(game, rng))
                seen[seed].append((outcome, game.observe(), game.position))
    assert [seen[seed] for seed in seeds] == plain


def test_stock_crafter_is_left_alone(ordered_env: Any) -> None:
    modules = [crafter, crafter.constants, crafter.engine, crafter.env, crafter.objects, crafter.worldgen]
    before = [dict(vars(module)) for module in modules]
    classes = [vars(value).copy() for module in modules for value in vars(module).values() if isinstance(value, type)]
    tables = copy.deepcopy([getattr(crafter.constants, name) for name in ("actions", "items", "walkable", "make")])

    def stock() -> list[Any]:
        env, rng, seen = ordered_env(seed=8), random.Random(8), []
        env.reset()
        for _ in range(60):
            picture, reward, done, info = env.step(rng.randrange(17))
            seen.append((picture.tobytes(), reward, done, info["inventory"], info["semantic"].tobytes()))
        return seen

    first = stock()
    trace(8, by_script, sizes=(64,))
    assert stock() == first
    assert [dict(vars(module)) for module in modules] == before
    now = [vars(value).copy() for module in modules for value in vars(module).values() if isinstance(value, type)]
    assert now == classes
    assert [getattr(crafter.constants, name) for name in ("actions", "items", "walkable", "make")] == tables


@pytest.mark.parametrize("action", [-1, 0, 17, 3.0, None, True, "", "Noop", "move_north", ("noop",), np.int64(1)])
def test_what_is_not_a_name_is_refused_and_does_nothing(action: Any) -> None:
    game = CrafterGame(1)
    before = game.observe()
    with pytest.raises(UnknownActionError, match=r"\b17\b.*: noop"):
        game.step(action)
    with pytest.raises(UnknownActionError):
        game.interact(["noop", action])
    assert (game.steps, game.observe()) == (0, before)


@pytest.mark.parametrize("actions", [[], ["noop"] * 9, "noop", ""])
def test_a_call_takes_one_to_eight_names(actions: Any) -> None:
    game = CrafterGame(1)
    with pytest.raises(ValueError, match="1 to 8"):
        game.interact(actions)
    assert game.steps == 0


def test_the_limit_truncates_and_nothing_steps_after_it() -> None:
    game = CrafterGame(1, length=3)
    outcome = game.interact(["noop"] * 8)
    assert (outcome.truncated, outcome.terminated, outcome.step) == (True, False, 3)
    assert outcome.actions == ("noop",) * 3
    assert len(outcome.rewards) == 3
    for again in (lambda: game.step("noop"), lambda: game.interact(["noop"])):
        with pytest.raises(EpisodeOverError, match="step 3: .*limit"):
            again()
    assert game.steps == 3


def test_death_terminates_with_the_published_return() -> None:
    seen = trace(0)
    last, text, _ = seen[-1]
    assert (last.terminated, last.truncated) == (True, False)
    assert "health 0/9" in text
    unlocking = sum(bool(outcome.unlocked) for outcome, _, _ in seen)
    assert sum(outcome.reward for outcome, _, _ in seen) == pytest.approx(unlocking - 0.9)
    game, rng = CrafterGame(0), random.Random(0)
    while not game.over:
        game.step(rng.choice(ACTIONS))
    with pytest.raises(EpisodeOverError, match="died"):
        game.step("noop")


def test_death_at_the_limit_is_death() -> None:
    steps = trace(0)[-1][0].step
    game, rng = CrafterGame(0, length=steps), random.Random(0)
    while not game.over:
        outcome = game.step(rng.choice(ACTIONS))
    assert (outcome.terminated, outcome.truncated, outcome.step) == (True, False, steps)


def test_a_call_sums_what_its_steps_bring() -> None:
    single, several = CrafterGame(7), CrafterGame(7)
    actions = ["move_left", "do", "move_up", "sleep", "do", "do", "noop", "move_down"]
    for _ in range(8):
        outcomes = [single.step(action) for action in actions]
        whole = several.interact(actions)
        assert whole.rewards == tuple(outcome.reward for outcome in outcomes)
        assert whole.reward == sum(whole.rewards)
        assert whole.unlocked == tuple(name for outcome in outcomes for name in outcome.unlocked)
    assert set(several.unlocked) == {name for name, count in several.achievements.items() if count}
    assert set(several.achievements) == set(ACHIEVEMENTS)


def test_answers_are_plain_numbers_and_copies() -> None:
    game = CrafterGame(3)
    outcome = game.interact(["move_left", "do"])
    plain = [outcome.rewards, outcome.reward, outcome.step, outcome.terminated, game.position, game.inventory]
    json.dumps([*plain, game.achievements, game.sleeping])
    where = game.position
    game.inventory["wood"] = 9
    game.achievements["wake_up"] = 1
    game.interact(["move_left"] * 3)
    assert game.position == (28, 32)
    assert game.inventory["wood"] == 0
    assert game.achievements["wake_up"] == 0
    assert where == (31, 32)


@pytest.mark.parametrize(
    "options",
    [
        {"seed": -1},
        {"seed": True},
        {"seed": 1.5},
        {"seed": "1"},
        {"seed": 2**63},
        {"seed": 1, "length": 0},
        {"seed": 1, "area": (8, 64)},
        {"seed": 1, "initial_episode": 0},
    ],
)
def test_what_cannot_be_a_game_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{[*options][-1]} "):
        CrafterGame(**options)


def test_numpy_seeds_are_seeds() -> None:
    assert CrafterGame(np.int64(5)).observe() == CrafterGame(5).observe()  # type: ignore[arg-type]


def test_each_episode_of_stock_can_be_had(ordered_env: Any) -> None:
    env = ordered_env(seed=6)
    env.reset()
    assert np.array_equal(env.reset(), CrafterGame(6, initial_episode=2).render())


def test_a_copied_game_is_a_branch() -> None:
    game, rng = CrafterGame(9), random.Random(9)
    while game._night is None:
        game.step(rng.choice(ACTIONS))
    branches = [copy.deepcopy(game), pickle.loads(pickle.dumps(game))]
    steps = [rng.choice(ACTIONS) for _ in range(8)]
    expected = game.interact(steps)
    for branch in branches:
        assert branch.interact(steps) == expected
        assert branch.observe() == game.observe()
        assert np.array_equal(branch.render(), game.render())


def test_crafting_in_the_first_column_finds_no_table_as_published() -> None:
    game = CrafterGame(1)
    world, player = game._world, game._player
    for x in (0, 1):
        world[(x, 30)] = "grass"
        world[(x, 31)] = "table"
        thing = world[(x, 30)][1]
        if thing is not None:
            world.remove(thing)
        world.move(player, (x, 30))
        assert ("table" in world.nearby(player.pos, 1)[0]) == (x == 1)
