"""The doctor on environments that were not written for it: what it finds is what was checked by hand, and nothing else.

`make doctor-foreign` runs it; the table is in docs/environments/doctor.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from taskapp_kit.declare.discovery import find_app
from taskapp_kit.doctor.doctor_options import DoctorOptions
from taskapp_kit.doctor.examine import examine
from tests.interop.harbor.harbor_tasks import TASKS, write_tasks
from tests.interop.peers import peer

ROOT = Path(__file__).parents[2]
APPS = Path(__file__).parent / "foreign" / "apps.py"
LIBRARY_APPS = APPS.with_name("library_apps.py")
OPENENV_APPS = APPS.with_name("openenv_apps.py")
ORS_APPS = APPS.with_name("ors_apps.py")
VERIFIERS_APPS = APPS.with_name("verifiers_apps.py")
HARBOR_APPS = APPS.with_name("harbor_apps.py")
TEN_CALLABLES = (
    "gcd", "median", "fraction", "monthrange", "weekday", "shlex", "base64", "capwords", "shorten", "bisect",
)  # fmt: skip
GENERATORS = (
    "binary_matrix", "chain_sum", "complex_arithmetic", "countdown", "fraction_simplification", "game_of_life_halting",
    "gsm_symbolic", "knights_knaves", "lcm", "letter_counting", "maze", "mini_sudoku", "number_sorting",
    "polynomial_equations", "prime_factorization", "shortest_path", "simple_equations", "spell_backward", "syllogism",
    "word_sorting",
)  # fmt: skip
"""Of reasoning-gym 0.1.25."""
GAMES: dict[str, set[str]] = {
    "Blackjack-v0": set(),
    "FrozenLake-v0": set(),
    "GuessTheNumber-v0": {"prompt-limits", "seeds-differ"},
    "KuhnPoker-v0": set(),
    "LightsOut-v0": set(),
    "Mastermind-v0": set(),
    "Minesweeper-v0-small": set(),
    "Secretary-v0": set(),
    "TicTacToe-v0": {"nonsense-pays"},
    "TowerOfHanoi-v0": {"seeds-differ"},
}
"""Of TextArena 0.7.4."""
OPENENV: dict[str, set[str]] = {
    "openenv_echo": {"seeds-differ"},
    "openenv_tools": {"seeds-differ"},
}
"""At a server of openenv 0.10.0: the environment that `openenv init` writes, and the tools of its echo_env."""
ORS: dict[str, set[str]] = {"ors_basic": set()}
"""At a server of openreward 0.1.167: the environment that `orwd init` writes."""
VERIFIERS = (
    "verifiers_chain_sum", "verifiers_letter_counting", "verifiers_spell_backward", "stardata_verse", "stardata_lipogram",
)  # fmt: skip
"""With verifiers 0.3.1: ReasoningGymEnv, which it ships, and staros-stardata 0.1.1."""
BY_HAND: dict[str, set[str]] = {
    "Acrobot-v1": {"nonsense-pays"},
    "Blackjack-v1": {"nonsense-pays"},
    "CartPole-v0": set(),
    "CartPole-v1": set(),
    "CliffWalking-v1": {"ends", "seeds-differ", "nonsense-pays"},
    "CliffWalkingSlippery-v1": {"ends", "nonsense-pays"},
    "FrozenLake-v1": set(),
    "FrozenLake8x8-v1": set(),
    "MountainCar-v0": {"nonsense-pays"},
    "MountainCarContinuous-v0": {"nonsense-pays"},
    "Pendulum-v1": {"nonsense-pays"},
    "Taxi-v4": {"nonsense-pays"},
    **{name: set() for name in TEN_CALLABLES},
    **{name: set() for name in GENERATORS},
    "game_of_life_halting": {"gold-better", "idle-scores"},
    **GAMES,
    **OPENENV,
    **ORS,
    **{name: set() for name in VERIFIERS},
}
"""App to the names of the findings that are real; docs/environments/doctor.md says why."""


@pytest.mark.large
@pytest.mark.process
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.exhaustive) if name in (*GENERATORS[3:], *[*GAMES][3:]) else name
        for name in BY_HAND
        if name not in (*OPENENV, *ORS, *VERIFIERS)
    ],
)
def test_what_is_found_was_checked_by_hand(name: str) -> None:
    file = APPS
    if name in GENERATORS:
        pytest.importorskip("reasoning_gym", reason="needs taskapp-kit[reasoning-gym]")
        file = LIBRARY_APPS
    elif name in GAMES:
        pytest.importorskip("textarena", reason="needs taskapp-kit[textarena]")
        file = LIBRARY_APPS
    elif name not in TEN_CALLABLES:
        pytest.importorskip("gymnasium", reason="needs taskapp-kit[gymnasium]")
    assert _found(f"{file}:{_attribute(name)}") == BY_HAND[name]


def _attribute(name: str) -> str:
    return f"ask_{name}" if name in TEN_CALLABLES else name.replace("-", "_")


def _found(reference: str) -> set[str]:
    """The names of the findings of the full examination."""

    async def found() -> set[str]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of ids that Gymnasium calls out of date
            app = find_app(reference)
        lines = [line async for line in examine(app, DoctorOptions())]
        return {line.name for line in lines if line.status in ("warning", "wrong")}

    return asyncio.run(found())


@contextmanager
def _served(package: str, program: str, variable: str) -> Iterator[str]:
    """Run a program that serves a package's environments, in an environment of its own; the variable has its address."""
    command = [str(peer(package).python), str(ROOT / "tests/interop" / program)]
    with (
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as server,
        pytest.MonkeyPatch.context() as environment,
    ):
        assert server.stdin is not None and server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().split()[-1]}"
        environment.setenv(variable, url)
        yield url
        server.stdin.close()
        server.wait(30)


@pytest.fixture(scope="module")
def openenv_url() -> Iterator[str]:
    with _served("openenv-0.10.0", "openenv_served.py", "OPENENV_URL") as url:
        yield url


@pytest.fixture(scope="module")
def ors_url() -> Iterator[str]:
    with _served("openreward-0.1.167", "ors_template_served.py", "ORS_URL") as url:
        yield url


@pytest.mark.large
@pytest.mark.exhaustive
@pytest.mark.process
@pytest.mark.parametrize("name", ORS)
def test_what_is_found_in_environments_of_ors(name: str, ors_url: str) -> None:
    assert _found(f"{ORS_APPS}:{name}") == BY_HAND[name]


@pytest.mark.large
@pytest.mark.exhaustive
@pytest.mark.process
@pytest.mark.parametrize("name", OPENENV)
def test_what_is_found_in_openenv_s_environments(name: str, openenv_url: str) -> None:
    assert _found(f"{OPENENV_APPS}:{name}") == BY_HAND[name]


@pytest.mark.large
@pytest.mark.exhaustive
@pytest.mark.process
@pytest.mark.parametrize("name", VERIFIERS)
def test_what_is_found_in_environments_of_verifiers(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(peer("verifiers-0.3.1-environments").python), "-W", "ignore", str(VERIFIERS_APPS), name],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"app": name, "findings": sorted(BY_HAND[name])}, done.stderr


INCOMING = {
    **dict.fromkeys(("CartPole-v1", "FrozenLake-v1", "FrozenLake8x8-v1", "Taxi-v4", "MountainCarContinuous-v0"), APPS),
    **dict.fromkeys(("chain_sum", "knights_knaves", "maze", "Mastermind-v0", "TicTacToe-v0"), LIBRARY_APPS),
    "openenv_echo": OPENENV_APPS,
    **{f"harbor_{name.replace('-', '_')}": HARBOR_APPS for name in TASKS},
}
"""Five Gymnasium environments, three generators of reasoning-gym, two games of TextArena, OpenEnv's echo environment, and
five tasks in Harbor's format."""


@pytest.mark.large
@pytest.mark.exhaustive
@pytest.mark.process
@pytest.mark.parametrize("name", INCOMING)
def test_what_comes_in_passes_taskapp_check(name: str, openenv_url: str, tmp_path: Path) -> None:
    """The command itself: status 0, so there is no WRONG."""
    write_tasks(tmp_path / "tasks")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "taskapp_kit", "doctor", f"{INCOMING[name]}:{_attribute(name)}", "--quick"],
        env={**os.environ, "OPENENV_URL": openenv_url, "HARBOR_TASKS": str(tmp_path / "tasks")},
        cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "same-seed" in done.stdout


def test_the_page_has_a_row_for_each_of_them() -> None:
    page = (Path(__file__).parents[2] / "docs/environments/doctor.md").read_text()
    for name, real in BY_HAND.items():
        row = re.search(rf"^\| (?:[^|]*, )?`{re.escape(name)}`[^|]*\|([^|]*)\|", page, re.MULTILINE)
        assert row is not None, name
        assert set(re.findall(r"`([\w-]+)`", row[1])) == real, name
