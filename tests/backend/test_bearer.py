"""Whose key it is."""

from __future__ import annotations

import hashlib

import pytest

from taskapp_kit.backend.bearer import LOCAL, BearerKeys
from taskapp_kit.errors import ConfigError


def test_each_key_has_its_organisation() -> None:
    keys = BearerKeys(["sk-one", " sk-two "], minted="made-here")
    assert keys.org([b"sk-one"]) == hashlib.sha256(b"sk-one").hexdigest()
    assert keys.org([b"no", b"sk-two"]) == hashlib.sha256(b"sk-two").hexdigest()
    assert keys.org([b"made-here"]) == LOCAL
    assert keys.org([b"sk-on"]) is keys.org([]) is keys.org([b""]) is None
    assert "sk" not in repr(keys)


@pytest.mark.parametrize("given", [[], [""], ["two words"], ["a,b"], ["ü"], ["x" * 600]])
def test_keys_that_nobody_can_send_are_refused(given: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        BearerKeys(given)
    assert "words" not in str(refused.value)
