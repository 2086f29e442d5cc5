from __future__ import annotations

from pathlib import Path

import pytest

from taskapp_kit.cli.policy_options import chosen_model, chosen_policy, is_here
from taskapp_kit.config import Settings, load
from taskapp_kit.errors import ConfigError

BACKEND = {"BACKEND_BASE_URL": "http://127.0.0.1:8500", "SYNTH_API_KEY": "sk-1"}


def settings(folder: Path, **variables: str) -> Settings:
    return load({"models_file": folder / "models.toml"}, folder=folder, environ=variables)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models.toml").write_text(
        '[small]\nurl = "http://127.0.0.1:1/v1"\nmodel = "m"\nkey = "SMALL_KEY"\n["ft:mine"]\nurl = "http://127.0.0.1:2/v1"\n'
    )
    return tmp_path


def test_an_address_needs_no_name(folder: Path) -> None:
    assert chosen_model(settings(folder), None, "http://x/v1") == {"inference_url": "http://x/v1"}
    assert chosen_model(settings(folder), "m", "http://x/v1") == {"inference_url": "http://x/v1", "model": "m"}


def test_a_name_is_looked_up_with_its_key(folder: Path) -> None:
    assert chosen_model(settings(folder, SMALL_KEY="sk"), "small", None) == {
        "inference_url": "http://127.0.0.1:1/v1",
        "model": "m",
        "api_key": "sk",
    }
    with pytest.raises(ConfigError, match="SMALL_KEY"):
        chosen_model(settings(folder), "small", None)


@pytest.mark.parametrize("model", ["ft:other", "rl:Qwen-Qwen3-0.6B:job_1:checkpoint-epoch-1"])
@pytest.mark.parametrize("url", ["http://127.0.0.1:8500", "http://127.0.0.1:8500/api"])
def test_what_a_backend_trained_is_asked_for_there(folder: Path, model: str, url: str) -> None:
    found = chosen_model(settings(folder, **{**BACKEND, "BACKEND_BASE_URL": url}), model, None)
    assert found == {"inference_url": "http://127.0.0.1:8500/api/inference/v1", "model": model, "api_key": "sk-1"}


def test_unless_models_toml_has_the_name(folder: Path) -> None:
    found = chosen_model(settings(folder, **BACKEND), "ft:mine", None)
    assert found == {"inference_url": "http://127.0.0.1:2/v1", "model": "ft:mine"}


def test_a_model_of_this_machine_is_found_by_its_name(folder: Path) -> None:
    given = settings(folder, TASKAPP_MODELS=str(folder / "models"), TASKAPP_MODEL_ALIASES="Qwen/Qwen3-0.6B=tiny")
    trained = "rl:tiny:job_1:checkpoint-1"
    (folder / "models/base/small").mkdir(parents=True)
    (folder / "models/rl/tiny/job_1/checkpoint-1").mkdir(parents=True)
    for name in ("tiny", "small", "Qwen/Qwen3-0.6B", "./x", str(folder), trained):
        assert is_here(given, name), name
    for name in ("gpt-5", "../small/x/../../y:z"[3:], "rl:tiny:job_1:checkpoint-2", "rl:..:job_1:x", "ft:x", "small/x"):
        assert not is_here(given, name), name
    with pytest.raises(ConfigError, match=r"on this machine, .*https://app\.example cannot reach"):
        chosen_policy(given, None, "tiny", None, None, None, app="https://app.example")
    with pytest.raises(ConfigError, match="BACKEND_BASE_URL"):
        chosen_policy(given, None, trained, None, None, None, app="https://app.example")


def test_without_a_backend_it_says_what_to_set(folder: Path) -> None:
    with pytest.raises(ConfigError, match="BACKEND_BASE_URL"):
        chosen_model(settings(folder), "ft:other", None)


def test_the_backends_key_goes_to_no_server_elsewhere(folder: Path) -> None:
    given = settings(folder, **BACKEND)
    with pytest.raises(ConfigError, match=r"'ft:other'.*https://app\.example"):
        chosen_policy(given, None, "ft:other", None, None, None, app="https://app.example")
    for app in ("http://127.0.0.1:8001", "adder.py"):
        assert chosen_policy(given, None, "ft:other", None, None, None, app=app)[0]["api_key"] == "sk-1"


def test_it_is_told_who_gets_a_models_key(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = settings(folder, SMALL_KEY="sk-small")
    chosen_policy(given, None, "small", None, None, None, app="http://127.0.0.1:8001")
    assert capsys.readouterr().err == ""
    chosen_policy(given, None, "small", None, None, None, app="https://app.example")
    told = capsys.readouterr().err
    assert "https://app.example" in told
    assert "sk-small" not in told
