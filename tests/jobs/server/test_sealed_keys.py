"""Sealed keys, and the private key's file."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from taskapp_kit.errors import ConfigError, RequestError
from taskapp_kit.jobs.server.sealed_keys import SealedKeys
from tests.jobs.server.exchange import seal


def test_what_was_sealed_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db.key"
    box = SealedKeys(path)
    ciphertext = seal(box.public_key, b"token-1")
    assert box.open(ciphertext) == "token-1"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SealedKeys(path).public_key == box.public_key
    assert repr(box) == "SealedKeys()"
    assert SealedKeys(path).open(ciphertext) == "token-1"
    with pytest.raises(RequestError):
        SealedKeys(None).open(ciphertext)


@pytest.mark.parametrize("token", [b"", b"two words", b"line\n", b"\xff", b"x" * 9000])
def test_what_is_no_key_is_refused(token: bytes) -> None:
    box = SealedKeys(None)
    with pytest.raises(RequestError):
        box.open(seal(box.public_key, token))


def test_a_file_that_others_can_read_or_that_is_no_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    SealedKeys(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError):
        SealedKeys(path)
    path.chmod(0o600)
    path.write_text("sentinel")
    with pytest.raises(ConfigError) as refused:
        SealedKeys(path)
    assert "sentinel" not in str(refused.value)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError):
        SealedKeys(path)
