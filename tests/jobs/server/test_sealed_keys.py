"""Sealed keys, and the private key's file."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest
from nacl.public import PublicKey, SealedBox

from taskapp_kit.errors import ConfigError, RequestError
from taskapp_kit.jobs.server.sealed_keys import SealedKeys


def seal(box: SealedKeys, token: bytes) -> str:
    return base64.b64encode(SealedBox(PublicKey(base64.b64decode(box.public_key))).encrypt(token)).decode()


def test_what_was_sealed_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db.key"
    box = SealedKeys(path)
    ciphertext = seal(box, b"token-1")
    assert box.open(ciphertext) == "token-1"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SealedKeys(path).public_key == box.public_key
    assert SealedKeys(path).open(ciphertext) == "token-1"
    with pytest.raises(RequestError):
        SealedKeys(None).open(ciphertext)


@pytest.mark.parametrize("token", [b"", b"two words", b"line\n", b"\xff", b"x" * 9000])
def test_what_is_no_key_is_refused(token: bytes) -> None:
    box = SealedKeys(None)
    with pytest.raises(RequestError):
        box.open(seal(box, token))


def test_a_file_that_others_can_read_or_that_is_no_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    SealedKeys(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        SealedKeys(path)
    path.chmod(0o600)
    path.write_text("sentinel")
    with pytest.raises(ConfigError, match="sealed") as refused:
        SealedKeys(path)
    assert "sentinel" not in str(refused.value)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError):
        SealedKeys(path)


def test_a_box_shows_nothing_of_itself() -> None:
    assert repr(SealedKeys(None)) == "SealedKeys()"
