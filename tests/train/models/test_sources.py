"""A model's name leads to its files on this machine, or to a sentence; nothing is fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskapp_kit.errors import ConfigError
from taskapp_kit.train.checkpoints.facts import ModelOrigin
from taskapp_kit.train.checkpoints.stored import ADAPTER, WEIGHTS
from taskapp_kit.train.checkpoints.writer import CheckpointPart, CheckpointWriter
from taskapp_kit.train.models.sources import described_by, find_model
from tests.train.checkpoints.facts import facts


def folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "tokenizer.json").write_text("{}")
    return path


def trained(models: Path, base: str, weights: str, job: str = "job_1") -> str:
    """Save a checkpoint at its place in the models folder; return its name."""
    found = facts(job=job, origin=ModelOrigin(base, "MIT", "Trained by us."))
    parts = {weights: CheckpointPart.of(b"weights")}
    if weights == WEIGHTS:
        parts |= {name: CheckpointPart.of(b"{}") for name in ("config.json", "tokenizer.json")}
    with CheckpointWriter(models / "rl" / found.name.model / job) as writer:
        writer.save(found, parts)
    return str(found.name)


def test_a_folder_is_found_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = folder(tmp_path / "own")
    found = find_model(str(own), tmp_path / "models")
    assert (found.name, found.folder, found.origin.base) == (str(own), own, "own")
    assert (found.origin.licence, found.checkpoint, found.alias_note) == ("unknown", None, "")
    monkeypatch.chdir(tmp_path)
    assert find_model("./own", Path("models")).origin.base == "own"


def test_a_prepared_model_is_found_by_its_name_and_says_what_it_was_made_from(tmp_path: Path) -> None:
    own = folder(tmp_path / "base" / "small")
    (own / "origin.json").write_text('{"licence": "Apache-2.0", "notice": "Dequantised."}')
    assert find_model("small", tmp_path).origin == ModelOrigin("small", "Apache-2.0", "Dequantised.")
    assert set(described_by(find_model("small", tmp_path))) == {"config.json", "tokenizer.json", "origin.json"}
    (own / "origin.json").write_text('{"author": 1}')
    with pytest.raises(ConfigError, match=r"origin\.json"):
        find_model("small", tmp_path)


def test_an_alias_stands_for_another_name_and_says_so(tmp_path: Path) -> None:
    folder(tmp_path / "base" / "small")
    aliases = {"Qwen/Qwen3-0.6B": "small", "other": "Qwen/Qwen3-0.6B"}
    found = find_model("Qwen/Qwen3-0.6B", tmp_path, aliases)
    assert (found.name, found.alias_note) == ("small", "Qwen/Qwen3-0.6B is an alias of small.")
    with pytest.raises(ConfigError, match="no model 'Qwen"):  # an alias of an alias is not followed
        find_model("other", tmp_path, aliases)


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "..", "base", "a/../small", "", "no\nsuch", "small/"])
def test_another_name_is_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    folder(tmp_path / "base" / "small")
    with pytest.raises(ConfigError) as refused:
        find_model(name, tmp_path)
    if not name.startswith("."):
        assert "small" in refused.value.hint
        assert "TASKAPP_MODEL_ALIASES" in refused.value.hint


@pytest.mark.parametrize("name", ["./own", "/etc", "../x", "~", "~/x", "."])
def test_a_path_of_a_request_is_not_opened(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="only accepts names"):
        find_model(name, tmp_path, paths=False)


def test_an_operators_alias_may_stand_for_a_path(tmp_path: Path) -> None:
    own = folder(tmp_path / "own")
    assert find_model("alias", tmp_path, {"alias": str(own)}, paths=False).folder == own


def test_a_folder_without_a_model_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"no config\.json\."):
        find_model(str(tmp_path), tmp_path)


def test_a_trained_model_is_found_by_its_name(tmp_path: Path) -> None:
    name = trained(tmp_path, "Qwen/small", WEIGHTS)
    assert name == "rl:Qwen-small:job_1:checkpoint-1"
    found = find_model("alias", tmp_path, {"alias": name})
    assert found.folder == tmp_path / "rl/Qwen-small/job_1/checkpoint-1"
    assert found.checkpoint is not None and found.checkpoint.facts.origin.base == "Qwen/small"
    assert found.origin == ModelOrigin(name, "MIT", "Trained by us.")  # of a job that starts from it


def test_an_adapter_needs_its_base(tmp_path: Path) -> None:
    name = trained(tmp_path, "small", ADAPTER)
    with pytest.raises(ConfigError, match="base small cannot be found"):
        find_model(name, tmp_path)
    own = folder(tmp_path / "base" / "small")
    found = find_model(name, tmp_path)
    assert found.base is not None
    assert (found.folder, found.base.folder, found.base.checkpoint) == (own, own, None)


def test_an_adapter_may_lie_on_a_trained_model_but_not_on_itself(tmp_path: Path) -> None:
    first = trained(tmp_path, "small", WEIGHTS)
    second = trained(tmp_path, first, ADAPTER, "job_2")
    found = find_model(second, tmp_path)
    assert found.base is not None and found.base.name == first
    own = "rl:rl-loop:job_3:checkpoint-1"
    place = facts(job="job_3", origin=ModelOrigin(own, "MIT", ""))
    with CheckpointWriter(tmp_path / "rl/rl-loop/job_3") as writer:
        writer.save(place, {ADAPTER: CheckpointPart.of(b"")})
    with pytest.raises(ConfigError, match="chain of more than 8 adapters"):
        find_model(own, tmp_path)


def test_an_adapters_base_is_never_a_path(tmp_path: Path) -> None:
    outside = folder(tmp_path / "outside")
    name = trained(tmp_path / "models", str(outside), ADAPTER)
    with pytest.raises(ConfigError, match="cannot be found"):
        find_model(name, tmp_path / "models")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rl:small:job_1", "not the name of a trained model"),
        ("rl:../x:job_1:checkpoint-1", "cannot be a part"),
        ("rl:small:job_9:checkpoint-1", "does not exist"),
    ],
)
def test_a_trained_model_that_is_not_there_is_refused(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        find_model(name, tmp_path)
