"""Which policy acts: the config's, else the named one if known, else the model, else 422 listing the names."""

from __future__ import annotations

from typing import Any

import pytest

from taskapp_kit import RequestError, TaskApp
from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.rollout.policy.options import BUILT_IN, MODEL, STORED_CONFIG, chosen_name, policy_names


@pytest.fixture(scope="module")
def spec() -> AppSpec:
    app = TaskApp("a")
    app.tasks("t", prompt="x", train=[{}])
    app.tasks("u", prompt="x", train=[{}])

    @app.policy("gold", environment="t")
    def gold(task: Any) -> str:
        return ""

    @app.policy("noop")
    def noop(observation: str) -> str:
        return ""

    return app.freeze()


def test_the_names_are_the_apps_own_first(spec: AppSpec) -> None:
    assert policy_names(spec, "t") == ["gold", "noop", "random", "constant", "replay"]
    assert policy_names(spec, "u") == ["noop", "random", "constant", "replay"]
    assert set(BUILT_IN) == {"random", "noop", "constant", "replay"}


@pytest.mark.parametrize(
    ("config", "name", "url", "chosen"),
    [
        ({"policy": "gold"}, "random", None, "gold"),
        ({"policy": "gold"}, "anything", "https://m", "gold"),
        ({}, "random", "https://m", "random"),
        ({}, "gold", None, "gold"),
        ({}, "my-label", "https://m", MODEL),
        ({"policy": "noop"}, "my-label", "https://m", "noop"),
    ],
)
def test_which_policy_acts(
    spec: AppSpec, config: dict[str, Any], name: str | None, url: str | None, chosen: str
) -> None:
    assert chosen_name(spec, "t", config, name, url) == chosen


@pytest.mark.parametrize(
    ("config", "name", "loc"),
    [
        ({"policy": "golden"}, "random", ("config", "policy")),
        ({}, "nopp", ("policy_name",)),
        ({}, None, ("policy_name",)),
        ({"policy": ["random"]}, None, ("config", "policy")),
        ({"policy": ""}, None, ("config", "policy")),
    ],
    ids=repr,
)
def test_an_unknown_policy_lists_the_names(
    spec: AppSpec, config: dict[str, Any], name: str | None, loc: tuple[str, ...]
) -> None:
    with pytest.raises(RequestError) as caught:
        chosen_name(spec, "t", config, name, None)
    assert "gold, noop, constant, replay" in caught.value.message
    assert caught.value.fields[0].loc == ("body", "policy", *loc)
    assert caught.value.code == "unknown_policy"
    assert ("policy.config.inference_url" in caught.value.hint) is ("policy" not in config), "no remedy there"
    assert ("'noop'" in caught.value.hint) is (name == "nopp")


def test_stored_config_has_no_key() -> None:
    assert not [name for name in STORED_CONFIG if "key" in name or "auth" in name or "url" in name or "header" in name]
