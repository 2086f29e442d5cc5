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
from taskapp_kit.sandbox import capabilities
from taskapp_kit.testing import play
from tests.interop.harbor.harbor_tasks import TASKS, write_tasks
from tests.interop.peers import peer

ROOT = Path(__file__).parents[2]
APPS = Path(__file__).parent / "foreign" / "apps.py"
LIBRARY_APPS = APPS.with_name("library_apps.py")
OPENENV_APPS = APPS.with_name("openenv_apps.py")
ORS_APPS = APPS.with_name("ors_apps.py")
VERIFIERS_APPS = APPS.with_name("verifiers_apps.py")
HARBOR_APPS = APPS.with_name("harbor_apps.py")
GRADER_APPS = APPS.with_name("graders")
PAGE = ROOT / "docs/environments/doctor.md"
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
REAL, FALSE = True, False
GRADERS: dict[str, dict[str, bool]] = {
    "bfcl_call": {"private": FALSE},
    "bleu_threshold": {"attack": REAL},
    "chrf_translation": {"attack": REAL},
    "countdown_tinyzero": {"attack": REAL, "right-refused": REAL},
    "cruxeval_output": {"attack": REAL, "right-refused": REAL},
    "drop_numbers": {"attack": REAL, "private": FALSE},
    "gsm8k_final_number": {"attack": REAL},
    "humaneval_check": {"attack": REAL},
    "ifeval_constraints": {"attack": REAL},
    "json_match": {"private": FALSE},
    "math_boxed": {"attack": REAL},
    "mmlu_letter": {"attack": REAL},
    "ner_f1": {"attack": FALSE},
    "r1_format": {"attack": REAL},
    "rouge_l": {"attack": REAL},
    "sql_execution": {},
    "squad_f1": {"attack": REAL, "private": FALSE},
    "sudoku_cells": {"attack": FALSE},
    "triviaqa_aliases": {},
    "wordle_feedback": {},
}
"""Written from public descriptions (foreign/graders/): each finding, and whether it is real. docs/environments/doctor.md says
why. After a change of the doctor, run `pytest -m large tests/doctor/test_foreign.py`: a test that fails
shows the evidence of each finding. Judge it by hand, then change this table and the page."""
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
    "game_of_life_halting": {"blind-actions", "gold-better", "idle-scores"},
    **GAMES,
    **OPENENV,
    **ORS,
    **{name: set() for name in VERIFIERS},
    **{name: set(findings) for name, findings in GRADERS.items()},
}
"""App to the names of the findings. All are real except those that GRADERS calls false; docs/environments/doctor.md says why."""


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
    elif name in GRADERS:
        if "taskapp_kit.sandbox" in (GRADER_APPS / f"{name}.py").read_text("utf-8") and not capabilities().safe:
            pytest.skip("This machine cannot confine code.")
        file = GRADER_APPS / f"{name}.py"
    elif name not in TEN_CALLABLES:
        pytest.importorskip("gymnasium", reason="needs taskapp-kit[gymnasium]")
    evidence = _found(str(file) if name in GRADERS else f"{file}:{_attribute(name)}")
    assert set(evidence) == BY_HAND[name], evidence


def _attribute(name: str) -> str:
    return f"ask_{name}" if name in TEN_CALLABLES else name.replace("-", "_")


def _found(reference: str) -> dict[str, str]:
    """The names of the findings of the full examination, with their evidence."""

    async def found() -> dict[str, str]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of ids that Gymnasium calls out of date
            app = find_app(reference)
        lines = [line async for line in examine(app, DoctorOptions())]
        return {line.name: line.found for line in lines if line.status in ("warning", "wrong")}

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
    assert set(_found(f"{ORS_APPS}:{name}")) == BY_HAND[name]


@pytest.mark.large
@pytest.mark.exhaustive
@pytest.mark.process
@pytest.mark.parametrize("name", OPENENV)
def test_what_is_found_in_openenv_s_environments(name: str, openenv_url: str) -> None:
    assert set(_found(f"{OPENENV_APPS}:{name}")) == BY_HAND[name]


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
    page = PAGE.read_text("utf-8")
    for name, findings in BY_HAND.items():
        row = re.search(rf"^\| (?:[^|]*, )?`{re.escape(name)}`[^|]*\|([^|]*)\|", page, re.MULTILINE)
        assert row is not None, name
        assert set(re.findall(r"`([\w-]+)`", row[1])) == findings, name
        false = {finding for finding, real in GRADERS.get(name, {}).items() if not real}
        assert set(re.findall(r"`([\w-]+)` \(false\)", row[1])) == false, name


def test_the_page_states_the_rate_of_false_alarms() -> None:
    verdicts = [real for findings in GRADERS.values() for real in findings.values()]
    count = sum(map(len, BY_HAND.values()))
    alarmed = sum(not all(findings.values()) for findings in GRADERS.values())
    low, high = _wilson(alarmed, len(BY_HAND))
    sentence = (
        f"We verified the {count} findings by hand: {count - verdicts.count(FALSE)} are real. {alarmed} of {len(BY_HAND)} "
        f"environments have a false finding ({alarmed / len(BY_HAND):.1%}, 95% interval {low:.1%} to {high:.1%})."
    )
    assert sentence in PAGE.read_text("utf-8")


def _wilson(count: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson interval of a share."""
    center = (count + z * z / 2) / (total + z * z)
    half = z / (total + z * z) * (count * (total - count) / total + z * z / 4) ** 0.5
    return center - half, center + half


def test_each_grader_states_its_source_and_pays_good_play() -> None:
    assert sorted(path.stem for path in GRADER_APPS.glob("*.py")) == sorted(GRADERS)
    for name in GRADERS:
        file = GRADER_APPS / f"{name}.py"
        assert re.search(r"^Source: https://\S+$", file.read_text("utf-8"), re.MULTILINE), name
        if "taskapp_kit.sandbox" not in file.read_text("utf-8"):
            assert play(file, seed=0, policy="gold").reward == 1.0, name
