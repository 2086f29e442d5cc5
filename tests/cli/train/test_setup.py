"""`taskapp setup` as a person meets it: what it asks, what it writes, what it never shows."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nacl", reason="needs taskapp-kit[jobs]")

from dotenv import dotenv_values

from taskapp_kit.client import BackendClient
from taskapp_kit.jobs.server.app import create_backend
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from tests.cli.conftest import Run, assert_no_key
from tests.cli.terminals import NAMES, Terminal

pytestmark = pytest.mark.process

SYNTH, TASK_APP = "canary-synth-key-4455", "canary-task-app-key-6677"
NOTHING = dict.fromkeys(NAMES, "")


@pytest.fixture(scope="module")
def backend() -> Iterator[str]:
    with BackgroundServer(create_backend([SYNTH])) as server:
        yield server.url


def written(folder: Path, name: str = ".env") -> dict[str, str | None]:
    assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    return dotenv_values(folder / name, interpolate=False)


def test_at_a_terminal_it_asks_for_what_is_missing_and_shows_no_key(tmp_path: Path) -> None:
    with Terminal(tmp_path, "setup") as terminal:
        terminal.wait("Backend [http://127.0.0.1:8500]: ")
        terminal.type("backend.example")
        terminal.wait("Error: The URL does not begin with http")
        terminal.type("http://backend.example:8500")
        terminal.wait("the backend's key (leave empty to set it later): ")
        terminal.type(SYNTH)
        terminal.wait("Task app (leave empty to set it later): ")
        terminal.type("http://127.0.0.1:8001/")
        assert terminal.end() == 0
    values = written(tmp_path)
    minted = values.pop("ENVIRONMENT_API_KEY")
    assert values == {
        "BACKEND_BASE_URL": "http://backend.example:8500",
        "SYNTH_API_KEY": SYNTH,
        "TASK_APP_URL": "http://127.0.0.1:8001",
    }
    assert minted is not None and len(minted) == 64
    assert "ENVIRONMENT_API_KEY  created" in terminal.text
    assert "Not set" not in terminal.text
    assert_no_key(terminal.text, SYNTH, TASK_APP, minted)


def test_at_a_terminal_all_may_be_left_for_later(tmp_path: Path) -> None:
    with Terminal(tmp_path, "setup") as terminal:
        for question, answer in (
            ("Backend [", "https://backend.example"),
            ("the backend's key (leave empty to set it later): ", ""),
            ("Task app (leave empty to set it later): ", ""),
        ):
            terminal.wait(question)  # what is typed ahead of a hidden question is thrown away
            terminal.type(answer)
        assert terminal.end() == 0
    assert sorted(written(tmp_path)) == ["BACKEND_BASE_URL", "ENVIRONMENT_API_KEY"]
    assert "Not set: SYNTH_API_KEY, TASK_APP_URL." in terminal.text


def test_the_key_of_a_backend_on_this_machine_is_made_and_not_shown(run: Run, tmp_path: Path) -> None:
    done = run("setup", "--backend-url", "http://127.0.0.1:8500", status=0, **NOTHING)
    made = written(tmp_path)["SYNTH_API_KEY"]
    assert len(made) == 64
    assert made[:8] not in done.output + done.stderr
    assert "SYNTH_API_KEY  created" in done.stdout
    again = run("setup", **NOTHING)
    assert written(tmp_path)["SYNTH_API_KEY"] == made
    assert "SYNTH_API_KEY  set" in again.stdout


def test_ctrl_c_at_a_question_writes_nothing(tmp_path: Path) -> None:
    with Terminal(tmp_path, "setup") as terminal:
        terminal.wait("Backend [http://127.0.0.1:8500]: ")
        assert terminal.leave() == 1
    assert list(tmp_path.iterdir()) == []
    assert "Traceback" not in terminal.text


def test_without_a_terminal_it_asks_nothing_and_says_what_is_missing(run: Run, tmp_path: Path) -> None:
    done = run("setup", status=0, **NOTHING)
    assert sorted(written(tmp_path)) == ["ENVIRONMENT_API_KEY"]
    assert "Not set: BACKEND_BASE_URL, SYNTH_API_KEY, TASK_APP_URL." in done.stderr


def test_an_env_file_that_is_there_is_kept_and_completed(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"# mine\nOPENAI_API_KEY=canary-openai-key\nexport ENVIRONMENT_API_KEY={TASK_APP}\n")
    (tmp_path / ".env").chmod(0o644)
    args = ("--backend-url", "http://127.0.0.1:8500", "--task-url", "http://127.0.0.1:8001")
    done = run("setup", *args, status=0, **{**NOTHING, "SYNTH_API_KEY": SYNTH})
    assert written(tmp_path) == {
        "OPENAI_API_KEY": "canary-openai-key",
        "ENVIRONMENT_API_KEY": TASK_APP,
        "BACKEND_BASE_URL": "http://127.0.0.1:8500",
        "SYNTH_API_KEY": SYNTH,
        "TASK_APP_URL": "http://127.0.0.1:8001",
    }
    assert (tmp_path / ".env").read_text().startswith("# mine\n")
    assert_no_key(done.output + done.stderr, SYNTH, TASK_APP, "canary-openai-key")
    before = (tmp_path / ".env").read_bytes()
    assert run("setup", **NOTHING).exit_code == 0
    assert (tmp_path / ".env").read_bytes() == before


def test_another_file_and_values_from_a_third(run: Run, tmp_path: Path) -> None:
    (tmp_path / "team.env").write_text(f"SYNTH_API_KEY={SYNTH}\n")
    run("setup", "--file", "run.env", "--env-file", "team.env", status=0, **NOTHING)
    assert written(tmp_path, "run.env")["SYNTH_API_KEY"] == SYNTH
    assert not (tmp_path / ".env").exists()


@pytest.mark.parametrize("url", ["nowhere", "ftp://a", "http://me:canary-password@a", "http://a?key=canary-password"])
def test_an_address_that_nobody_could_use_is_refused_before_anything_is_written(
    run: Run, tmp_path: Path, url: str
) -> None:
    for flag in ("--backend-url", "--task-url"):
        done = run("setup", flag, url, status=2, **NOTHING)
        assert "canary" not in done.stderr
        assert list(tmp_path.iterdir()) == []


@pytest.mark.server
def test_the_key_is_left_with_a_backend(run: Run, tmp_path: Path, backend: str) -> None:
    import asyncio

    done = run("setup", "--backend-url", backend, "--upload-key", status=0, **{**NOTHING, "SYNTH_API_KEY": SYNTH})
    assert f"Uploaded ENVIRONMENT_API_KEY to the backend at {backend}" in done.stdout
    minted = written(tmp_path)["ENVIRONMENT_API_KEY"]
    assert minted is not None
    assert_no_key(done.output + done.stderr, SYNTH, TASK_APP, minted)

    async def key_names() -> object:
        async with BackendClient(backend, SYNTH) as client:
            return await client.verify_task_app("http://127.0.0.1:1")

    assert "ENVIRONMENT_API_KEY (uploaded)" in str(asyncio.run(key_names()))


@pytest.mark.server
def test_a_backend_that_refuses_or_is_away_leaves_the_file_and_ends_with_1(
    run: Run, tmp_path: Path, backend: str
) -> None:
    for url, key, words in (
        (backend, TASK_APP, "rejects the key"),
        ("http://127.0.0.1:1", SYNTH, "No server responds"),
    ):
        done = run("setup", "--backend-url", url, "--upload-key", status=1, **{**NOTHING, "SYNTH_API_KEY": key})
        assert words in done.stderr
        assert_no_key(done.output + done.stderr, SYNTH, TASK_APP)
        assert written(tmp_path)["SYNTH_API_KEY"] in (TASK_APP, SYNTH)


def test_no_backend_and_no_key_to_upload_to(run: Run, tmp_path: Path) -> None:
    run("setup", "--upload-key", status=2, **NOTHING)


def test_a_file_that_git_would_take_is_warned_of(run: Run, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, capture_output=True)
    assert "git does not ignore .env" in run("setup", **NOTHING).stderr
    (tmp_path / ".gitignore").write_text(".env\n")
    assert "git would take" not in run("setup", **NOTHING).stderr


def test_a_place_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    run("setup", "--file", "none/.env", status=2, **NOTHING)
