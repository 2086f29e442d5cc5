"""TextArena's games through the adapter, played by the service."""

import random
import re
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textarena", reason="needs taskapp-kit[textarena]")

import textarena

from taskapp_kit import DeclarationError, RequestError, RolloutFailed, TaskApp
from taskapp_kit.errors import ConfigError
from taskapp_kit.interop.textarena import from_textarena
from taskapp_kit.testing import MockModel, Rollout, play
from tests.interop.shared.adapted_apps import PLAYED, printed_by_processes, wrong_findings


def app_of(game: str, max_turns: int = 30, **options: Any) -> TaskApp:
    app = TaskApp("played")
    app.environment("it", splits={"train": range(1000)}, max_turns=max_turns)(from_textarena(game, **options))
    return app


def digit(rng: random.Random) -> str:
    return f"[{rng.randint(1, 20)}]"


def played(game: str, seed: int = 3, **options: Any) -> Rollout:
    return play(app_of(game, sample=digit, **options), seed=seed)


def any_free(observation: str, rng: random.Random) -> str:
    return str(rng.choice(re.findall(r"'(\[\d\])'", observation)))


def first_free(observation: str, rng: random.Random) -> str:
    return next(f"[{cell}]" for cell in range(9) if f"'[{cell}]'" in observation.rpartition("Available Moves")[2])


@pytest.mark.ci
@pytest.mark.process
@pytest.mark.parametrize(
    "app",
    [
        app_of("GuessTheNumber-v0", sample=digit),
        app_of("TicTacToe-v0", players=2, opponent=any_free, sample=lambda rng: f"[{rng.randrange(9)}]"),
    ],
    ids=["guess", "tictactoe"],
)
def test_the_doctor_finds_nothing_wrong(app: TaskApp) -> None:
    assert wrong_findings(app) == {}


def test_game_equals_textarenas_own() -> None:
    seed, moves = 11, ["[7]", "[3]", "[12]", "[20]"]
    theirs = textarena.make("GuessTheNumber-v0")
    random.seed(5)
    made = from_textarena("GuessTheNumber-v0")()
    shown = [made.reset(seed, None)]
    theirs.reset(
        num_players=1, seed=seed
    )  # draws from the replacement outside an episode, which is the process's own generator
    assert made.env.state.game_state["game_number"] == theirs.state.game_state["game_number"]
    for move in moves:
        step = made.step(move)
        done, _ = theirs.step(move)
        shown.append(step.observation)
        assert step.terminated is done
        if done:
            assert step.reward == theirs.close()[0][0]
            break
    _, all_of_it = theirs.get_observation()
    for text in shown:
        for line in filter(None, text.splitlines()):
            assert line in all_of_it
    assert "[7]" not in shown[1]  # a move is not shown to the player who made it


@pytest.mark.filterwarnings("ignore::taskapp_kit.testing.GlobalRandomnessWarning")  # of a concurrent thread
def test_same_seed_gives_the_same_game_despite_other_random_draws() -> None:
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            random.seed(1)
            random.random()

    alone = [played("Mastermind-v0", seed).digest for seed in (1, 2)]
    assert alone[0] != alone[1]
    # takes `random.random` when it is made, before its seed is known
    first, again, other = (from_textarena("Secretary-v0")().reset(seed, None) for seed in (1, 1, 2))
    assert first == again != other
    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        assert [played("Mastermind-v0", seed).digest for seed in (1, 2)] == alone
    finally:
        stop.set()
        thread.join()


@pytest.mark.ci
@pytest.mark.process
def test_same_seed_gives_the_same_game_in_two_processes() -> None:
    games = ("Minesweeper-v0-small", "Bandit-v0", "Sudoku-v0-very-easy")
    code = f"""{PLAYED}
from taskapp_kit.interop.textarena import from_textarena
def number(rng): return f"[{{rng.randint(1, 20)}}]"
print([digest(from_textarena(name, sample=number), 3, max_turns=30) for name in {games!r}])"""
    assert printed_by_processes(code) == {f"{[played(name).digest for name in games]}"}


def test_the_process_keeps_its_random_state() -> None:
    played("Mastermind-v0")
    before = random.getstate()
    played("Mastermind-v0", 8)
    assert random.getstate() == before


# -- ends and other seats -----------------------------------------------------------------------------------------


def test_won_game_has_its_reward_at_the_end() -> None:
    made = from_textarena("TowerOfHanoi-v0")()
    made.reset(0, None)
    moves = ["[A C]", "[A B]", "[C B]", "[A C]", "[B A]", "[B C]", "[A C]"]
    steps = [made.step(move) for move in moves]
    assert [step.reward for step in steps] == [None] * 6 + [1.0]
    assert steps[-1].terminated and steps[-1].info["reason"].startswith("Congratulations")


def test_thoughts_are_not_part_of_the_move() -> None:
    made = from_textarena("TowerOfHanoi-v0")()
    made.reset(0, None)
    assert "You moved disk 1 from A to C" in made.say("<think>[A B]?</think> [A C]").observation


@pytest.mark.parametrize("seat", [0, 1])
def test_function_plays_the_other_seat(seat: int) -> None:
    app = app_of("TicTacToe-v0", players=2, seat=seat, opponent=first_free)
    rollout = play(app, seed=0, action={"move": {"move": "[8]"}})
    assert ("placed their symbol" in rollout.trajectory.initial) is (seat == 1)
    last = rollout.trajectory.steps[-1]
    assert last.terminated and last.reward == -1.0  # square 8 twice is an invalid move, twice is a lost game
    assert last.info["rewards"] == {str(seat): -1.0, str(1 - seat): 1.0}


@pytest.mark.server
def test_model_plays_the_other_seat_and_its_failure_has_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_of("TicTacToe-v0", players=2)

    def replies(request: Any) -> str:
        return first_free(request.messages[-1]["content"], random.Random(0))

    with MockModel(replies) as model:
        monkeypatch.setenv("TASKAPP_OPPONENT_URL", model.url)
        monkeypatch.setenv("TASKAPP_OPPONENT_MODEL", "mock")
        rollout = play(app, seed=0, action={"move": {"move": "[8]"}}, models=True)
    assert rollout.trajectory.metrics["calls_opponent"] >= 1
    monkeypatch.delenv("TASKAPP_OPPONENT_URL")
    with pytest.raises(RolloutFailed):
        play(app, seed=0, action={"move": {"move": "[8]"}}, models=True)


# -- declarations -------------------------------------------------------------------------------------------------


def test_options_and_env_config() -> None:
    app = app_of("TowerOfHanoi-v0", configurable={"num_disks": 3}, sample=lambda rng: "[A C]")
    assert "with 3 disks" in play(app, seed=0).trajectory.initial
    assert "with 5 disks" in play(app, seed=0, config={"num_disks": 5}).trajectory.initial
    with pytest.raises(RequestError):
        play(app, seed=0, config={"disks": 5})


def test_mistakes_are_reported() -> None:
    app = TaskApp("wrong")
    app.environment("it")(from_textarena("TicTacToe-v0", players=2, seat=2))
    with pytest.raises(DeclarationError, match=Path(__file__).name):
        app.freeze()
    for game, options, message in (
        ("TicTacTo-v0", {}, "not found in registry"),
        ("TicTacToe-v0", {}, "cannot begin a game with 1 players"),
        ("TowerOfHanoi-v0", {"disks": 3}, "disks"),
    ):
        with pytest.raises(ConfigError, match=message):
            from_textarena(game, **options).setup_worker()
