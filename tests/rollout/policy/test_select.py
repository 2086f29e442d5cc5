"""Which policy acts: the config's, else the named one if known, else the model, else 422 listing the names."""

from __future__ import annotations

from typing import Any

import pytest

from taskapp_kit import RequestError, TaskApp
from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.rollout.policy.select import BUILT_IN, MODEL, STORED_CONFIG, chosen_name, policy_names


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
    ],
)
def test_which_policy_acts(
    spec: AppSpec, config: dict[str, Any], name: str | None, url: str | None, chosen: str
) -> None:
    assert chosen_name(spec, "t", config, name, url) == chosen


@pytest.mark.parametrize(
    ("config", "name", "loc", "words"),
    [
        ({"policy": "golden"}, "random", ("body", "policy", "config", "policy"), "there is no policy 'golden'"),
        ({}, "nopp", ("body", "policy", "policy_name"), "there is no policy 'nopp'"),
        ({}, None, ("body", "policy", "policy_name"), "no policy is named in the request"),
        ({"policy": ["random"]}, None, ("body", "policy", "config", "policy"), "there is no policy"),
        ({"policy": ""}, None, ("body", "policy", "config", "policy"), "there is no policy ''"),
    ],
    ids=repr,
)
def test_an_unknown_policy_lists_the_names(
    spec: AppSpec, config: dict[str, Any], name: str | None, loc: Any, words: str
) -> None:
    with pytest.raises(RequestError) as caught:
        chosen_name(spec, "t", config, name, None)
    assert words in caught.value.message
    assert "the policies are gold, noop, constant, replay" in caught.value.message
    assert caught.value.fields[0].loc == loc
    assert caught.value.code == "unknown_policy"
    assert ("policy.config.inference_url" in caught.value.hint) is ("policy" not in config), (
        "it would be no remedy there"
    )
    if name == "nopp":
        assert caught.value.hint.startswith("Did you mean 'noop'?")


def test_a_model_acts_where_an_address_is_given_and_no_policy_is_named(spec: AppSpec) -> None:
    assert chosen_name(spec, "t", {}, "my-label", "https://m") == MODEL
    assert chosen_name(spec, "t", {}, "gold", "https://m") == "gold"
    assert chosen_name(spec, "t", {"policy": "noop"}, "my-label", "https://m") == "noop"


def test_no_key_is_among_what_a_store_keeps() -> None:
    assert not [name for name in STORED_CONFIG if "key" in name or "auth" in name or "url" in name or "header" in name]
