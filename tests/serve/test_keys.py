"""Keys from settings and from a file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from taskapp_kit.config import Settings
from taskapp_kit.errors import ConfigError
from taskapp_kit.serve.keys import Keys


def test_labels_say_which_key_it_was() -> None:
    keys = Keys.of(
        Settings(environment_api_key="aaa", environment_api_key_aliases=("bbb", "ccc"), dev_environment_api_key="ddd")
    )
    assert [keys.match([key]) for key in (b"aaa", b"bbb", b"ccc", b"ddd", b"eee", b"")] == [
        "environment", "alias1", "alias2", "development", None, None,
    ]  # fmt: skip
    assert keys.match([b"no", b"nope", b"ccc"]) == "alias2"
    assert keys.match([]) is None


def test_no_key_is_no_key() -> None:
    keys = Keys.of(Settings())
    assert not keys.configured() and keys.match([b""]) is None and repr(keys) == "Keys(none configured)"


def test_the_file_takes_bare_labelled_and_hashed_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    digest = hashlib.sha256(b"kept-nowhere").hexdigest()
    file.write_text(f"# who may come in\n\nbare-key\n  trainer   trainer-key  \nviewer sha256:{digest}\nodd#key\n")
    keys = Keys(file=file)
    assert [keys.match([key]) for key in (b"bare-key", b"trainer-key", b"kept-nowhere", b"odd#key")] == [
        "file3", "trainer", "viewer", "file6",
    ]  # fmt: skip
    assert keys.match([b"trainer"]) is None and keys.match([b"sha256:" + digest.encode()]) is None


@pytest.mark.parametrize(
    ("content", "place"),
    [("a b c\n", ":1"), ("fine\nx,y\n", ":2"), ("label " + "k" * 513 + "\n", ":1")],
)
def test_a_line_that_is_no_key_is_named_but_not_shown(tmp_path: Path, content: str, place: str) -> None:
    file = tmp_path / "keys"
    file.write_text(content)
    with pytest.raises(ConfigError, match=place) as caught:
        Keys(file=file)
    assert "x,y" not in str(caught.value) and "kkkk" not in str(caught.value)


def test_a_file_that_is_missing_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TASKAPP_KEYS_FILE"):
        Keys(file=tmp_path / "absent")
