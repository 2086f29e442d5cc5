"""What is asked twice is answered once, from a folder."""

from __future__ import annotations

import logging
import stat
import threading
from pathlib import Path

import pytest

from taskapp_kit.rollout.models.cache import ResponseCache
from taskapp_kit.wire.chat.conversation import ChatReply

URL = "https://h.example/v1/chat/completions"


def reply(text: str = "hello", **more: object) -> ChatReply:
    return ChatReply({"role": "assistant", "content": text}, "stop", "m", {"prompt_tokens": 3}, **more)  # type: ignore[arg-type]


def test_the_key_is_the_whole_request_but_the_query() -> None:
    key = ResponseCache.key
    one = key(URL, "m", {"messages": [], "temperature": 1})
    assert one == key(URL + "?cid=7", "m", {"temperature": 1, "messages": []})
    others = {
        key("https://g.example/v1/chat/completions", "m", {"messages": [], "temperature": 1}),
        key("https://h.example/v2/chat/completions", "m", {"messages": [], "temperature": 1}),
        key(URL, "n", {"messages": [], "temperature": 1}),
        key(URL, None, {"messages": [], "temperature": 1}),
        key(URL, "m", {"messages": [], "temperature": 0}),
        key(URL, "m", {"messages": [{"role": "user", "content": ""}], "temperature": 1}),
        key(URL, "m", {"messages": [], "temperature": 1}, sample=1),
    }
    assert len(others) == 7 and one not in others


def test_cached_reply_is_unchanged(tmp_path: Path) -> None:
    cache = ResponseCache(tmp_path / "made" / "when needed")
    kept = reply(
        token_ids=[1],
        logprobs=[-0.5],
        prompt_token_ids=[2],
        policy_version="7",
        cost=0.5,
        seconds=2.0,
        attempts=3,
        retries=[{"kind": "hung"}],
    )
    key = cache.key(URL, "m", {})
    assert cache.load(key) is None
    cache.save(key, kept)
    found = cache.load(key)
    assert found == reply(
        token_ids=[1], logprobs=[-0.5], prompt_token_ids=[2], policy_version="7", cost=0.0, cached=True
    )
    assert kept.attempts == 3 and not kept.cached
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in files] == [f"{key}.json"]
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"message": {}, "surprise": 1}', b"null"])
def test_unreadable_cache_file_is_a_miss_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    cache = ResponseCache(tmp_path)
    key = cache.key(URL, "m", {})
    cache.save(key, reply())
    next(tmp_path.rglob("*.json")).write_bytes(content)
    assert cache.load(key) is None
    cache.save(key, reply("again"))
    found = cache.load(key)
    assert found is not None and found.message["content"] == "again"


def test_unwritable_cache_directory_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("no folder")
    cache = ResponseCache(tmp_path / "file")
    with caplog.at_level(logging.WARNING, "taskapp_kit.policy"):
        cache.save(cache.key(URL, "m", {}), reply())
        cache.save(cache.key(URL, "n", {}), reply())
    assert len(caplog.records) == 1 and "is not writable" in caplog.text
    assert cache.load(cache.key(URL, "m", {})) is None


def test_concurrent_readers_see_complete_replies(tmp_path: Path) -> None:
    cache = ResponseCache(tmp_path)
    key = cache.key(URL, "m", {})
    texts = {letter * 20_000 for letter in "ab"}

    def write(text: str) -> None:
        for _ in range(50):
            cache.save(key, reply(text))

    writers = [threading.Thread(target=write, args=(text,)) for text in texts]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        found = cache.load(key)
        if found is not None:
            seen.add(found.message["content"])
    for writer in writers:
        writer.join()
    assert seen and seen <= texts
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".json"]
