"""Whose key it is."""

from __future__ import annotations

import hashlib

import pytest

from taskapp_kit.errors import ConfigError
from taskapp_kit.jobs.server.auth import LOCAL, BearerKeys, org_of


def test_each_key_has_its_organisation_whose_name_is_no_plain_hash_of_it() -> None:
    keys = BearerKeys(["sk-one", " sk-two "], minted="made-here")
    assert keys.org([b"sk-one"]) == org_of(b"sk-one") != hashlib.sha256(b"sk-one").hexdigest()
    assert keys.org([b"no", b"sk-two"]) == org_of(b"sk-two")
    assert keys.org([b"made-here"]) == LOCAL
    assert keys.org([b"sk-on"]) is keys.org([]) is keys.org([b""]) is None
    assert "sk" not in repr(keys)


def test_keys_of_two_callers_in_one_request_are_nobodys() -> None:
    keys = BearerKeys(["sk-one", "sk-two"])
    assert keys.org([b"sk-one", b"sk-two"]) is None
    assert keys.org([b"sk-one", b"sk-one"]) == org_of(b"sk-one")


@pytest.mark.parametrize("given", [[], [""], ["two words"], ["a,b"], ["ü"], ["x" * 600]])
def test_keys_that_nobody_can_send_are_refused(given: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        BearerKeys(given)
    assert "words" not in str(refused.value)
