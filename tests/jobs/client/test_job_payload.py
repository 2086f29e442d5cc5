"""The request that creates a job: what the SDK 0.3.9 was recorded to send, and what the other forms become."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.errors import JobConfigError
from taskapp_kit.jobs.client.config.review import Review, read_document
from taskapp_kit.jobs.client.config.rl_config import RlConfig, load_rl_config, review_rl_document
from taskapp_kit.jobs.client.config.schema import RlDocument
from taskapp_kit.jobs.client.job_payload import build_rl_payload, settled

DATA = Path(__file__).parent / "data"
RECORDED = json.loads((DATA / "rl_job_request_0.3.9.json").read_text())
BACKEND = "http://127.0.0.1:8500"
SHORT = {
    "trainer": {"batch_size": 2, "group_size": 4},
    "env": {"max_steps_per_episode": 3},
    "job": {"model": "Qwen/Qwen3-0.6B"},
    "runner": {"stream_seconds": 0},
}


@pytest.fixture
def contract() -> RlConfig:
    return load_rl_config(DATA / "rl_config.toml")


def config_of(document: dict[str, Any]) -> RlConfig:
    return RlConfig(document, RlDocument.model_validate(document), Path("rl.toml"))


def build(config: RlConfig, **more: Any) -> dict[str, Any]:
    return build_rl_payload(config, **{"task_app_url": "http://127.0.0.1:8001", "backend_url": BACKEND, **more})


@pytest.mark.parametrize("backend", [BACKEND, f"{BACKEND}/", f"{BACKEND}/api", f"{BACKEND}/api/"])
def test_it_is_what_the_real_client_sends(backend: str, contract: RlConfig) -> None:
    before = copy.deepcopy(contract.document)
    assert build_rl_payload(contract, task_app_url=None, backend_url=backend) == RECORDED
    assert contract.document == before


def test_the_task_apps_address_is_the_argument_then_the_variable_then_the_file(
    contract: RlConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def url(given: str | None) -> str:
        data = build(contract, task_app_url=given)["data"]
        assert data["config"]["services"]["task_url"] == data["endpoint_base_url"]
        return str(data["endpoint_base_url"])

    assert url(None) == "http://127.0.0.1:8401"
    monkeypatch.setenv("TASK_APP_URL", "https://from-env.example/")
    assert url(None) == "https://from-env.example"
    assert url("http://argument:1/") == "http://argument:1"
    assert url("  ") == "https://from-env.example"


@pytest.mark.parametrize("url", ["ftp://h", "h:8001", "http://u:SECRETpw@h", "http://h?key=SECRETpw"])
def test_an_address_that_cannot_be_used_is_told_with_its_source(
    url: str, contract: RlConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASK_APP_URL", url)
    for source, more in (("task_app_url", {"task_app_url": url}), ("TASK_APP_URL", {"task_app_url": None}),
                         ("backend", {"backend_url": url})):  # fmt: skip
        with pytest.raises(JobConfigError, match=source) as caught:
            build(contract, **more)
        assert "SECRET" not in str(caught.value)


def test_no_task_app_at_all() -> None:
    with pytest.raises(JobConfigError):
        build(config_of(SHORT), task_app_url=None)


def test_a_source_stands_as_model_and_a_base_as_base_model(contract: RlConfig) -> None:
    source = contract.with_overrides({"model": {"source": "ft:mine"}})
    data = build(source)["data"]
    assert data["model"] == "ft:mine" and "base_model" not in data
    assert data["config"]["model"] == {"source": "ft:mine", "trainer_mode": "full", "label": "counter-check"}


@pytest.mark.parametrize(("model", "key"), [("ft:x", "model"), ("rl:y", "model"), ("Qwen/Qwen3-0.6B", "base_model")])
def test_a_models_name_given_apart_replaces_the_files(model: str, key: str, contract: RlConfig) -> None:
    for config in (contract, config_of(SHORT)):
        data = build(config, model=f" {model} ")["data"]
        assert {name: data[name] for name in ("model", "base_model") if name in data} == {key: model}
        named = data["config"]["model"]
        assert named["source" if key == "model" else "base"] == model and not {"source", "base"} <= set(named)
    assert contract.model == "Qwen/Qwen3-4B"
    with pytest.raises(JobConfigError):
        build(contract, model=" ")


def test_policy_stands_in_for_model_and_stays(contract: RlConfig) -> None:
    document = {
        **contract.document,
        "policy": {"model_name": "m", "trainer_mode": "lora", "label": "l", "temperature": 0.5},
    }
    del document["model"]
    data = build(config_of(document))["data"]
    assert data["base_model"] == "m" and data["config"]["model"] == {"base": "m", "trainer_mode": "lora", "label": "l"}
    assert data["config"]["policy"] == document["policy"]


def test_the_smoke_test_form_is_written_in_the_words_that_trainers_read() -> None:
    payload = build(config_of({**SHORT, "smoke": {"x": 1}, "tags": {"team": "a", "source": "mine"}}))
    config = payload["data"]["config"]
    assert config["model"] == {"base": "Qwen/Qwen3-0.6B"} and payload["data"]["base_model"] == "Qwen/Qwen3-0.6B"
    assert config["training"] == {"batch_size": 2, "group_size": 4} and config["rollout"] == {"max_turns": 3}
    assert {name: config[name] for name in SHORT} == SHORT and "smoke" not in config and payload["compute"] == {}
    assert payload["tags"] == {"team": "a", "source": "mine"}
    assert settled(config) == config and "algorithm" not in config
    full = settled({**SHORT, "rollout": {"max_turns": 9}, "training": {"group_size": 4}})
    assert full["rollout"] == {"max_turns": 9} and full["training"] == {"batch_size": 2, "group_size": 4}


def test_the_topology_of_its_own_section_stands_in_compute_too(contract: RlConfig) -> None:
    document = copy.deepcopy(contract.document)
    document["topology"] = document["compute"].pop("topology")
    payload = build(config_of(document))
    assert payload["compute"] == RECORDED["compute"]
    assert payload["data"]["config"]["topology"] == RECORDED["compute"]["topology"]
    document["topology"]["reference_placement"] = "dedicated"
    document["reference"] = {"placement": "dedicated"}
    payload = build(config_of(document))
    assert payload["compute"]["topology"]["reference_placement"] == "dedicated"
    assert payload["data"]["config"]["reference"] == {"placement": "dedicated"}
    document["compute"]["topology"] = {"reference_placement": "dedicated"}  # as SDK 0.3.9 writes it next to the section
    assert build(config_of(document)) == payload


def test_trainer_id_and_allow_experimental_have_their_places(contract: RlConfig) -> None:
    payload = build(contract, trainer_id=" t-1 ", allow_experimental=False)
    assert payload["trainer_id"] == "t-1" and payload["metadata"]["allow_experimental"] is False
    plain = build(contract, trainer_id=" ")
    assert "trainer_id" not in plain and set(plain["metadata"]) == {"backend_base_url"}


@pytest.mark.parametrize("overrides", [{}, {"policy": {"model_name": "m"}, "model": None}, {"topology": None}])
def test_a_backend_can_check_what_it_is_sent_with_the_same_validator(
    overrides: dict[str, Any], contract: RlConfig
) -> None:
    sent = build(contract.with_overrides(overrides))["data"]["config"]
    received = json.loads(json.dumps(sent))
    assert review_rl_document(received, *read_document(RlDocument, received)) == Review()
    assert settled(received) == sent


def test_no_part_of_the_payload_is_the_configs_own(contract: RlConfig) -> None:
    payload = build(contract)
    payload["data"]["config"]["rollout"]["ops"].append("x")
    payload["compute"]["topology"]["type"] = "x"
    assert payload["data"]["config"]["compute"]["topology"]["type"] == "single_node_split"
    assert build_rl_payload(contract, task_app_url=None, backend_url=BACKEND) == RECORDED
