"""How Modal's own errors are told. What an account has is asked in tests/cli/train/test_deploy.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskapp_kit.deploy.modal.account import ModalRefused, look, refusal


@pytest.mark.parametrize(
    ("kind", "told", "environment", "words"),
    [
        ("AuthError", "Token validation failed", "", "not signed in to Modal"),
        ("ExecutionError", "Token missing. Could not authenticate client.", "", "not signed in to Modal"),
        ("ConnectionError", "Could not connect to the Modal server.", "", "Modal cannot be reached."),
        ("NotFoundError", "Environment 'staging' not found.", "staging", "Modal environment 'staging' does not exist"),
        (
            "NotFoundError",
            "Secret 'x' not found in environment 'staging'.",
            "staging",
            "Modal rejected the request (NotFoundError)",
        ),
        ("ResourceExhaustedError", "quota\n", "", "Modal rejected the request (ResourceExhaustedError): quota"),
    ],
)
def test_modals_errors_become_one_sentence(kind: str, told: str, environment: str, words: str) -> None:
    assert words in str(refusal(kind, told, environment))


@pytest.mark.process
def test_unreachable_modal_is_reported_after_connect_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("modal", reason="needs taskapp-kit[modal]")
    for name, value in (("SERVER_URL", "http://127.0.0.1:9"), ("TOKEN_ID", "ak-1"), ("TOKEN_SECRET", "as-1")):
        monkeypatch.setenv(f"MODAL_{name}", value)
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(tmp_path / "none"))
    with pytest.raises(ModalRefused, match=r"https://status\.modal\.com"):
        look("mine", ["mine-env"], [], connect_seconds=0.5)
