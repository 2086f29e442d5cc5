"""How Modal's own errors are told. What an account has is asked in tests/cli/test_deploy.py."""

from __future__ import annotations

import pytest

from taskapp_kit.deploy.modal_account import refusal


@pytest.mark.parametrize(
    ("kind", "told", "environment", "words"),
    [
        ("AuthError", "Token validation failed", "", "nobody is signed in"),
        ("ExecutionError", "Token missing. Could not authenticate client.", "", "nobody is signed in"),
        ("ConnectionError", "Could not connect to the Modal server.", "", "Modal cannot be reached."),
        ("NotFoundError", "Environment 'staging' not found.", "staging", "no Modal environment 'staging'"),
        ("NotFoundError", "Secret 'x' not found in environment 'staging'.", "staging", "Modal refused (NotFoundError)"),
        ("ResourceExhaustedError", "quota\n", "", "Modal refused (ResourceExhaustedError): quota"),
    ],
)
def test_modals_errors_become_one_sentence(kind: str, told: str, environment: str, words: str) -> None:
    assert words in str(refusal(kind, told, environment))
