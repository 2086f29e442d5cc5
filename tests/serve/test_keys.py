"""Keys from settings and from a file, and how they reach a running server."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import sys
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.config import Settings
from taskapp_kit.errors import ConfigError
from taskapp_kit.serve import key_file
from taskapp_kit.serve.auth import LABEL, QUOTA, Keys, authenticator
from taskapp_kit.serve.key_file import KeyHolder
from tests.serve.running_server import ALIAS, KEY, fragments, opened
from tests.waiting import until


def labels(keys: Keys, *candidates: bytes) -> list[str | None]:
    found = [keys.match([candidate]) for candidate in candidates]
    return [holder and holder.label for holder in found]


def test_matched_key_has_its_label() -> None:
    keys = Keys.of(
        Settings(environment_api_key="aaa", environment_api_key_aliases=("bbb", "ccc"), dev_environment_api_key="ddd")
    )
    assert labels(keys, b"aaa", b"bbb", b"ccc", b"ddd", b"eee", b"") == [
        "environment", "alias1", "alias2", "development", None, None,
    ]  # fmt: skip
    assert keys.match([b"no", b"nope", b"ccc"]) == KeyHolder("alias2", None, admin=True)
    assert keys.match([]) is None


def test_empty_keys_match_nothing() -> None:
    keys = Keys.of(Settings())
    assert not keys.configured() and keys.match([b""]) is None and repr(keys) == "Keys(none configured)"


def test_key_file_accepts_bare_labelled_and_hashed_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    digest = hashlib.sha256(b"kept-nowhere").hexdigest()
    file.write_text(
        f"# who may come in\n\nbare-key\n  trainer   trainer-key  \nviewer sha256:{digest} max_in_flight=8\nodd#key\n"
        "few few-key max_in_flight=1\nclé\n"
    )
    keys = Keys(file=file)
    assert labels(keys, b"bare-key", b"trainer-key", b"kept-nowhere", b"odd#key", b"few-key") == [
        "file3", "trainer", "viewer", "file6", "few",
    ]  # fmt: skip
    assert labels(keys, "clé".encode(), "clé".encode("latin-1"), b"cle") == ["file8", "file8", None]
    assert keys.match([b"kept-nowhere"]) == KeyHolder("viewer", 8)
    assert keys.match([b"few-key"]) == KeyHolder("few", 1)
    for none in (b"trainer", b"sha256:" + digest.encode(), bytes.fromhex(digest), b"max_in_flight=8", b"viewer"):
        assert keys.match([none]) is None


def test_key_in_both_a_setting_and_the_file_has_the_files_label(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"trainer {KEY} max_in_flight=2\n")
    keys = Keys.of(Settings(environment_api_key=KEY, keys_file=file))
    assert keys.match([KEY.encode()]) == KeyHolder("trainer", 2)


def test_a_file_that_is_missing_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TASKAPP_KEYS_FILE"):
        Keys(file=tmp_path / "absent")


@pytest.mark.parametrize("where", ["first", "middle", "last", "nowhere"])
def test_every_candidate_is_compared_with_every_key(where: str) -> None:
    """Seen from the interpreter: as many comparisons, each of whole digests, wherever the right key stands, or not."""
    known = [secrets.token_urlsafe(8) for _ in range(7)]
    right = {"first": known[0], "middle": known[3], "last": known[6], "nowhere": "no"}[where]
    keys = Keys([(f"k{n}", key) for n, key in enumerate(known)])
    compared = 0

    def watch(_: object, event: str, argument: object) -> None:
        nonlocal compared
        compared += event == "c_call" and argument is hmac.compare_digest

    sys.setprofile(watch)
    try:
        found = keys.match([b"a", right.encode(), b"b"])
    finally:
        sys.setprofile(None)
    assert (found is None) == (where == "nowhere")
    assert compared == 3 * 7


def test_keys_never_show_a_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"trainer {ALIAS} max_in_flight=2\n")
    keys = Keys([("a", KEY)], file)
    assert keys.configured() and not fragments(repr(keys) + repr(vars(keys)), KEY, ALIAS)


def test_label_and_quota_reach_the_scope(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"trainer {KEY} max_in_flight=8\nviewer {ALIAS}\n")
    authenticate = authenticator(Keys.of(Settings(environment_api_key="plain", keys_file=file)))
    for key, label, quota in ((KEY, "trainer", 8), (ALIAS, "viewer", None), ("plain", "environment", None)):
        scope: dict[str, Any] = {"headers": [(b"x-api-key", key.encode())]}
        assert authenticate(scope) is None
        assert (scope[LABEL], scope[QUOTA]) == (label, quota)
    refused = authenticate({"headers": [(b"x-api-key", b"wrong")]})
    assert refused is not None and refused.code == "unauthorised"


@pytest.mark.ci
@pytest.mark.server
def test_running_server_accepts_minted_and_rejects_revoked_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    first, second = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    key_file.add(file, "first", first)
    with caplog.at_level(logging.DEBUG), opened(Settings(keys_file=file)) as one:

        def status(key: str) -> int:
            return one.stranger.get("/health", headers={"X-API-Key": key}).status_code

        assert (status(first), status(second)) == (200, 401)
        key_file.add(file, "second", second, max_in_flight=3)
        until(lambda: status(second) == 200, 6)
        assert status(first) == 200
        key_file.remove(file, "first")
        until(lambda: status(first) == 401, 6)
        assert status(second) == 200
        file.write_text(file.read_text() + f"oops {first} max_in_flight=many\n")
        until(lambda: status(second) == 503, 6)
        file.write_text("\n".join(file.read_text().splitlines()[:1]))
        until(lambda: status(second) == 200, 6)
        file.unlink()
        until(lambda: status(second) == 503, 6)
    told = [record.getMessage() for record in caplog.records if record.name == "taskapp_kit.serve"]
    error, gone = [line for line in told if "unusable" in line]
    assert f"{file}:2 is invalid" in error
    assert "No such file" in gone
    assert not fragments("".join(told) + caplog.text, first, second)
