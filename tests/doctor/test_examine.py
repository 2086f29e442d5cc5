"""What an examination depends on: the app and named settings, but neither `.env` nor configured models."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskapp_kit.config import Settings
from taskapp_kit.doctor.finding import DoctorFinding
from taskapp_kit.testing import MockModel
from tests.doctor.gallery import COIN
from tests.doctor.test_gallery import findings

CALLING = COIN.replace('"coin", splits', '"coin", models=("user",), splits').replace(
    "def reset(self, seed: int) -> str:\n",
    "def reset(self, seed: int, context) -> str:\n"
    '        context.model("user").ask([{"role": "user", "content": "Hello?"}])\n',
)
VARIABLES = {
    "TASKAPP_USER_URL": "http://127.0.0.1:9/v1",
    "TASKAPP_USER_MODEL": "m",
    "TASKAPP_MAX_CALLS_PER_ANSWER": "3",
}


def shown(examined: list[DoctorFinding]) -> list[tuple[str, str]]:
    return [(item.name, item.status) for item in examined]


def settings_in(examined: list[DoctorFinding]) -> str:
    return " ".join(item.found for item in examined if item.name == "declarations")


@pytest.mark.server
def test_models_of_environments_are_called_only_with_judges(tmp_path: Path) -> None:
    file = tmp_path / "calling.py"
    file.write_text(CALLING, encoding="utf-8")
    with MockModel(["Hi."] * 100) as model:
        settings = Settings(variables={**VARIABLES, "TASKAPP_USER_URL": model.url})
        without = findings(file, settings, processes=False)
        assert model.requests == []
        by_name = {item.name: item for item in without}
        assert by_name["rollout"].status == "skipped" and "--judges" in by_name["rollout"].do
        assert {item.status for item in without} == {"ok", "skipped"}
        called = {item.name: item for item in findings(file, settings, processes=False, judges=True)}
        assert called["rollout"].status == "ok" and model.requests


def test_dot_env_changes_nothing_and_the_settings_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "coin.py"
    file.write_text(COIN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    before = findings(file, processes=False)
    (tmp_path / ".env").write_text("".join(f"{name}={value}\n" for name, value in VARIABLES.items()))
    after = findings(file, processes=False)
    assert shown(before) == shown(after)
    assert settings_in(before) == settings_in(after)
    monkeypatch.setenv("TASKAPP_MAX_CALLS_PER_ANSWER", "2")
    monkeypatch.setenv("ENVIRONMENT_API_KEY", "sk-not-to-be-shown")
    told = settings_in(findings(file, processes=False))
    assert "max_calls_per_answer = 2 (process environment" in told and "sk-not" not in told
    assert "environment_api_key" not in told
