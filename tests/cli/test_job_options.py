"""Where a job's addresses and keys come from, and the one question that is asked at a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskapp_kit.cli.job_options import JobSettings, job_settings
from taskapp_kit.errors import ConfigError

from .conftest import Run
from .terminals import NAMES, Terminal

KEYS = {"SYNTH_API_KEY": "canary-backend-1122", "ENVIRONMENT_API_KEY": "canary-task-app-3344"}


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def test_flag_process_later_file_earlier_file_dot_env(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    layers = [tmp_path / ".env", tmp_path / "a.env", tmp_path / "b.env"]
    for path in layers:
        path.write_text(f"BACKEND_BASE_URL=http://{path.name.strip('.')}\nSYNTH_API_KEY={path.name}-key\n")
    assert job_settings().backend_url == "http://env"
    assert job_settings(env_files=["a.env"]).backend_url == "http://a.env"
    assert job_settings(env_files=["a.env", "b.env"]).backend_url == "http://b.env"
    assert job_settings(env_files=["b.env", "a.env"]).backend_key == "a.env-key"
    monkeypatch.setenv("BACKEND_BASE_URL", "http://process")
    assert job_settings(env_files=["a.env"]).backend_url == "http://process"
    monkeypatch.setenv("BACKEND_BASE_URL", "")
    assert job_settings(env_files=["a.env"]).backend_url == "http://a.env", "empty is not set"
    assert job_settings(env_files=["a.env"], backend_url="http://flag").backend_url == "http://flag"


def test_the_second_name_of_a_variable_comes_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROD_BACKEND_URL", "http://prod")
    monkeypatch.setenv("TASK_APP_BASE_URL", "http://old")
    found = job_settings()
    assert (found.backend_url, found.task_app_url) == ("http://prod", "http://old")
    monkeypatch.setenv("BACKEND_BASE_URL", "http://base")
    monkeypatch.setenv("TASK_APP_URL", "http://new")
    found = job_settings()
    assert (found.backend_url, found.task_app_url) == ("http://base", "http://new")


def test_odd_files_are_read_as_they_are_meant(tmp_path: Path) -> None:
    (tmp_path / "odd.env").write_bytes(
        b"\xef\xbb\xbfexport SYNTH_API_KEY='sk $HOME ${HOME}'\r\n\r\nENVIRONMENT_API_KEY = \"ek#1\" # why\r\n"
        b"BACKEND_BASE_URL=http://h:1#no-comment\r\n"
    )
    found = job_settings(env_files=["odd.env"])
    assert (found.backend_key, found.task_app_key) == ("sk $HOME ${HOME}", "ek#1")
    assert found.backend_url == "http://h:1#no-comment"


def test_what_is_missing_is_named_and_no_key_is_shown() -> None:
    empty = JobSettings(None, None)
    for needed, words in (
        (empty.needed_backend, "taskapp backend serve"),
        (empty.needed_backend_key, "SYNTH_API_KEY"),
        (empty.needed_task_app_key, "ENVIRONMENT_API_KEY"),
    ):
        with pytest.raises(ConfigError, match=words):
            needed()
    assert "canary" not in repr(JobSettings("http://b", None, *KEYS.values()))


def test_a_file_that_is_not_there_or_not_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "latin.env").write_bytes(b"A=\xff\n")
    for name, words in (("none.env", r"none\.env"), ("latin.env", r"latin\.env .*UTF-8")):
        with pytest.raises(ConfigError, match=words):
            job_settings(env_files=[name])


TRAIN = ("train", "--config", "rl.toml", "--backend-url", "http://127.0.0.1:1", "--task-url", "http://127.0.0.1:1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = Path(__file__).parents[2] / "examples" / "rl_in_process_config.toml"
    (tmp_path / "rl.toml").write_text(config.read_text())
    (tmp_path / "keys.env").write_text("".join(f"{name}={value}\n" for name, value in KEYS.items()))
    return tmp_path


@pytest.mark.process
def test_at_a_terminal_the_file_with_the_keys_is_asked_for_once(folder: Path) -> None:
    with Terminal(folder, *TRAIN) as terminal:
        terminal.wait("Not set: SYNTH_API_KEY, ENVIRONMENT_API_KEY")
        terminal.wait("Path of an .env file with these variables")
        terminal.type("keys.env")
        assert terminal.end() == 1
    assert "The job was not submitted, because of the problems above (task app" in terminal.text
    assert "canary" not in terminal.text


@pytest.mark.process
@pytest.mark.parametrize(("typed", "words"), [("", "SYNTH_API_KEY"), ("none.env", "The file none.env does not exist")])
def test_no_file_or_a_wrong_one_ends_with_a_sentence(folder: Path, typed: str, words: str) -> None:
    with Terminal(folder, *TRAIN) as terminal:
        terminal.wait("Path of an .env file with these variables")
        terminal.type(typed)
        assert terminal.end() == 2
    assert words in terminal.text


def test_without_a_terminal_nothing_is_asked(run: Run, folder: Path) -> None:
    done = run(*TRAIN, folder=folder, status=2, **dict.fromkeys(NAMES, ""))
    assert "An .env file" not in done.output
