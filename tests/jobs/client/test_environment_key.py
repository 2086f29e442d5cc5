"""Keys that are sealed for a backend: a scripted one opens the box with its private key."""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web
from nacl.public import PrivateKey, SealedBox

from taskapp_kit.errors import BackendError, BackendUnreachable, JobConfigError
from taskapp_kit.jobs.client.environment_key import mint_environment_api_key, setup_environment_api_key
from tests.client.listening import drop, listening
from tests.programs import printed

pytestmark = pytest.mark.server

ORG_KEY = "sk_your_org_key_0123456789"
TOKEN = "t0ken-Of-the-task-app-98765"


class Backend:
    url: str

    def __init__(self) -> None:
        self.private = PrivateKey.generate()
        self.public: dict[str, Any] = {"public_key": base64.b64encode(bytes(self.private.public_key)).decode()}
        self.stored: dict[str, Any] = {"stored": True, "id": "k1", "name": "ENVIRONMENT_API_KEY", "updated_at": "now"}
        self.seen: list[web.Request] = []
        self.bodies: list[dict[str, Any]] = []
        self.on_post = None

    def opened(self) -> str:
        return SealedBox(self.private).decrypt(base64.b64decode(self.bodies[-1]["ciphertext_b64"])).decode()

    async def key(self, request: web.Request) -> web.Response:
        self.seen.append(request)
        return web.json_response(self.public)

    async def take(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        self.bodies.append(await request.json())
        if self.on_post is not None:
            return self.on_post(request)
        if request.headers.get("Authorization") != f"Bearer {ORG_KEY}":
            return web.json_response({"detail": f"bad key {request.headers.get('Authorization')}"}, status=401)
        return web.json_response(self.stored)


@pytest.fixture
def backend() -> Iterator[Backend]:
    made, app = Backend(), web.Application()
    app.router.add_get("/api/v1/crypto/public-key", made.key)
    app.router.add_post("/api/v1/env-keys", made.take)
    with listening(app) as made.url:
        yield made


def test_a_minted_key_is_32_random_bytes_in_hexadecimal() -> None:
    keys = {mint_environment_api_key() for _ in range(50)}
    assert len(keys) == 50 and all(re.fullmatch(r"[0-9a-f]{64}", key) for key in keys)


def test_the_guides_call_mints_uploads_and_returns_the_token(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, backend: Backend
) -> None:
    caplog.set_level(logging.DEBUG)
    result = setup_environment_api_key(backend_base=backend.url, synth_api_key=ORG_KEY)
    assert re.fullmatch(r"[0-9a-f]{64}", result["token"]) and backend.opened() == result["token"]
    assert result == {"token": result["token"], **backend.stored}
    assert backend.bodies == [{"name": "ENVIRONMENT_API_KEY", "ciphertext_b64": backend.bodies[0]["ciphertext_b64"]}]
    told = "".join(capfd.readouterr()) + caplog.text
    assert result["token"][:8] not in told and ORG_KEY[:8] not in told


def test_the_token_is_the_argument_then_the_variable_then_a_new_one(
    monkeypatch: pytest.MonkeyPatch, backend: Backend
) -> None:
    backend.public["alg"] = "libsodium.sealedbox.v1"
    monkeypatch.setenv("ENVIRONMENT_API_KEY", "of-the-environment")
    assert setup_environment_api_key(backend.url, ORG_KEY, TOKEN)["token"] == TOKEN == backend.opened()
    assert setup_environment_api_key(backend.url, ORG_KEY)["token"] == "of-the-environment" == backend.opened()
    monkeypatch.delenv("ENVIRONMENT_API_KEY")
    assert setup_environment_api_key(backend.url, ORG_KEY)["token"] == backend.opened() != TOKEN


def test_a_token_may_have_8_kib(backend: Backend) -> None:
    assert len(setup_environment_api_key(backend.url, ORG_KEY, "x" * 8192)["token"]) == 8192 == len(backend.opened())


@pytest.mark.parametrize("token", ["", "  ", "a b-SECRET", "a,SECRET", "a\nSECRET", "SECRETé", 7, "x" * 8193])
def test_a_token_that_can_be_no_key_is_refused_before_anything_is_asked(token: Any, backend: Backend) -> None:
    with pytest.raises(JobConfigError) as caught:
        setup_environment_api_key(backend.url, ORG_KEY, token)
    assert "SECRET" not in str(caught.value) and not backend.seen


@pytest.mark.parametrize(
    "public",
    [
        {"public_key": "AAAA"},
        {"public_key": "no base64!"},
        {"public_key": base64.b64encode(b"x" * 33).decode()},
        {"public_key": base64.b64encode(b"\0" * 32).decode()},
        {"public_key": 7},
        {},
        {"public_key": base64.b64encode(b"x" * 32).decode(), "alg": "rot13"},
    ],
)
def test_a_public_key_that_cannot_be_used(public: dict[str, Any], backend: Backend) -> None:
    backend.public = public
    with pytest.raises(BackendError) as caught:
        setup_environment_api_key(backend.url, ORG_KEY, TOKEN)
    assert TOKEN[:6] not in repr(caught.value) + str(caught.value) and not backend.bodies


def test_a_wrong_backend_key_is_told_and_not_shown(backend: Backend) -> None:
    with pytest.raises(BackendError) as caught:
        setup_environment_api_key(backend.url, "wrong-key-of-the-org", TOKEN)
    assert caught.value.status == 401 and "wrong-key" not in str(caught.value) and caught.value.__cause__ is None
    with pytest.raises(JobConfigError):
        setup_environment_api_key("http://127.0.0.1:9", " ", TOKEN)


def test_what_a_backend_may_answer(backend: Backend) -> None:
    backend.stored = {"stored": False, "echo": TOKEN}
    with pytest.raises(BackendError) as caught:
        setup_environment_api_key(backend.url, ORG_KEY, TOKEN)
    assert TOKEN not in str(caught.value)
    for answer in (
        lambda _: web.Response(status=500, text=f"boom {TOKEN}"),
        lambda _: web.Response(status=307, headers={"Location": "http://evil.example/"}),
        lambda _: web.Response(text="<html>"),
        drop,
    ):
        backend.on_post = answer
        with pytest.raises(BackendError) as caught:
            setup_environment_api_key(backend.url, ORG_KEY, TOKEN)
        assert TOKEN not in str(caught.value)
    with pytest.raises(BackendUnreachable):
        setup_environment_api_key("http://127.0.0.1:9", ORG_KEY, TOKEN)
    with pytest.raises(JobConfigError):
        setup_environment_api_key("nowhere", ORG_KEY, TOKEN)


@pytest.mark.process
def test_without_pynacl_a_sentence_names_the_extra() -> None:
    code = """
import sys
sys.modules["nacl"] = None
from taskapp_kit.client import setup_environment_api_key
from taskapp_kit.errors import Unavailable
try:
    setup_environment_api_key("http://127.0.0.1:9", "k")
except Unavailable as error:
    print(error)
"""
    assert "pip install 'taskapp-kit[jobs]'" in printed(code)
