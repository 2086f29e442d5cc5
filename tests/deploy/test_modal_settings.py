"""Settings for Modal: each is checked, and a later place wins."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.deploy.modal.modal_settings import DEFAULTS, NAMES, RULES, ModalSettings, wrong
from taskapp_kit.errors import ConfigError


def test_every_setting_has_a_rule_and_every_default_keeps_it() -> None:
    assert set(RULES) == set(NAMES)
    for name, value in DEFAULTS.said().items():
        assert wrong(name, value) is None


def test_the_secrets_name_follows_the_apps() -> None:
    assert ModalSettings(app_name="my-app", store="none").completed().secret_name == "my-app-env"
    assert ModalSettings(app_name="my-app", store="none", secret_name="shared").completed().secret_name == "shared"


@pytest.mark.parametrize(
    "wrong",
    [
        {"app_name": ""},
        {"app_name": "my app"},
        {"app_name": "a" * 64},
        {"secret_name": "a/b"},
        {"extra_secrets": "vendor"},
        {"required_keys": "ENVIRONMENT_API_KEY"},
        {"required_keys": ("OPENAI_API_KEY",)},
        {"store": "sqlite"},
        {"timeout_seconds": 0},
        {"timeout_seconds": True},
        {"startup_timeout_seconds": 1.5},
        {"min_containers": -1},
        {"scaledown_window_seconds": 1},
        {"max_inputs": 0},
        {"cpu": float("nan")},
        {"cpu": "two"},
        {"memory_mib": -1},
        {"region": "us-east"},
        {"volumes": {"data": "words"}},
        {"volumes": {"/root": "words"}},
        {"volumes": {"/data/../root": "words"}},
        {"volumes": {"/data": "a b"}},
        {"apt_packages": ("git; rm -rf /",)},
        {"custom_domains": ("https://games.example.org",)},
        {"memory_snapshot": 1},
        {"python_version": "3.9"},
        {"python_version": "3"},
        {"rehearse": "no"},
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=f"ModalSettings.{name}") as caught:
        ModalSettings(**wrong)
    assert "Expected" in caught.value.hint


@pytest.mark.parametrize("name", ["required_keys", "extra_packages"])
def test_a_key_given_where_its_name_belongs_is_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ModalSettings(**{name: ("ENVIRONMENT_API_KEY", "sk-canary-5c1f", "\n")})  # type: ignore[arg-type]
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"min_containers": 9}, "min_containers .*9.*max_containers.*8"),
        ({"max_inputs": 8}, "target_inputs .*24.*max_inputs.*8"),
        ({"app_name": None}, "app_name"),
    ],
)
def test_settings_that_contradict_each_other_or_lack_a_name_are_refused(said: dict[str, Any], words: str) -> None:
    whole: dict[str, Any] = {"app_name": "my-app", "store": "none", **said}
    with pytest.raises(ConfigError, match=words):
        ModalSettings(**whole).completed()


def test_a_store_in_the_secret_makes_its_address_a_required_key() -> None:
    kept = ModalSettings(app_name="x", store="postgres-secret").completed()
    assert kept.all_required_keys() == ("ENVIRONMENT_API_KEY", "TASKAPP_STORE")
    assert ModalSettings(app_name="x", store="none").completed().all_required_keys() == ("ENVIRONMENT_API_KEY",)


said = st.fixed_dictionaries(
    {},
    optional={
        "timeout_seconds": st.integers(1, 100),
        "cpu": st.floats(0.1, 8),
        "region": st.just(("us",)),
        "memory_snapshot": st.booleans(),
        "min_containers": st.integers(0, 3),
    },
)


@given(flags=said, code=said, declared=said)
def test_flags_stand_above_code_and_code_above_what_the_app_declares(
    flags: dict[str, Any], code: dict[str, Any], declared: dict[str, Any]
) -> None:
    merged = ModalSettings(**flags).over(ModalSettings(**code).over(ModalSettings(**declared)))
    assert merged.said() == ModalSettings(**{**declared, **code, **flags}).said()


def test_what_is_said_survives_json() -> None:
    import json

    settings = ModalSettings(app_name="x", store="none", volumes={"/data": "words"}, region=("us",)).completed()
    assert ModalSettings(**json.loads(json.dumps(settings.said()))) == settings
