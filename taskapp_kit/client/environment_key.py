"""The key of a task app, left with a backend: sealed here, so that only the backend's private key opens it.

    result = setup_environment_api_key("https://your-backend", synth_api_key="sk_your_org_key")
    result["token"]    # the task app's ENVIRONMENT_API_KEY: keep it where the task app reads it

Nothing is printed, logged or kept here; `token` in the result is the one place where the key appears.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from typing import Any

from taskapp_kit.client.backend import BackendClient
from taskapp_kit.client.blocking_portal import run
from taskapp_kit.config import process_variable
from taskapp_kit.errors import BackendError, ConfigError, JobConfigError, Unavailable

NAME = "ENVIRONMENT_API_KEY"
TOKEN_BYTES = 32
MAX_TOKEN_BYTES = 8 * 1024
PUBLIC_KEY_BYTES = 32
TOLD = ("id", "name", "updated_at")
"""What of the backend's answer is passed on."""


def mint_environment_api_key() -> str:
    """A new key: 32 random bytes as 64 hexadecimal digits."""
    return secrets.token_hex(TOKEN_BYTES)


def setup_environment_api_key(
    backend_base: str, synth_api_key: str, token: str | None = None, *, timeout: float = 15.0
) -> dict[str, Any]:
    """Seals a key and leaves it with the backend; `{"token", "stored", "id", "name", "updated_at"}`.

    backend_base: with or without `/api`. synth_api_key: the backend's key. token: the task app's key; None takes
    ENVIRONMENT_API_KEY of the process environment, and mints one when that is not set. timeout: seconds for each of the
    two requests. `token` in the result is the key itself, the rest is the backend's answer.

    Raises JobConfigError for a value that cannot be used, BackendError (`status`) and BackendUnreachable, Unavailable
    without PyNaCl. No error shows the key.
    """
    return run(setup_environment_api_key_async(backend_base, synth_api_key, token, timeout=timeout))


async def setup_environment_api_key_async(
    backend_base: str,
    synth_api_key: str,
    token: str | None = None,
    *,
    timeout: float = 15.0,  # noqa: ASYNC109  (the guides' name)
) -> dict[str, Any]:
    """See `setup_environment_api_key`."""
    key = _checked(token) if token is not None else _checked(process_variable(NAME) or mint_environment_api_key())
    if not synth_api_key or not synth_api_key.strip():
        raise JobConfigError("The backend's key is empty.", hint="Give synth_api_key, or set SYNTH_API_KEY.")
    _sealed_box()  # before anything is asked
    try:
        client = BackendClient(backend_base, synth_api_key, timeout_seconds=timeout, retries=0)
    except ConfigError as error:
        raise JobConfigError(f"The backend cannot be asked. {error.message}", hint=error.hint) from None
    async with client:
        ciphertext = _seal(key, await client.public_key(), client.url)
        answer = await client.put_env_key(NAME, ciphertext)
    if answer.get("stored") is not True:
        raise BackendError(
            f"{client.url} took the sealed key and does not say that it is stored.",
            status=200,
            hint="Task apps would be called without it: look at the backend's log.",
        )
    return {"token": key, "stored": True, **{name: answer.get(name) for name in TOLD}}


def _checked(token: str) -> str:
    wanted = "text in one line without spaces and commas, as HTTP headers carry it"
    if not isinstance(token, str):
        raise JobConfigError(f"The token is no text; expected {wanted}.", hint="Give one, or none to mint one.")
    token = token.strip()
    if not token:
        raise JobConfigError("The token is empty.", hint="Give one, or none to mint one.")
    if len(token.encode("utf-8", "replace")) > MAX_TOKEN_BYTES:
        raise JobConfigError(
            f"The token is larger than {MAX_TOKEN_BYTES // 1024} KiB.",
            hint="A key is a line: is it another file's content?",
        )
    if not (token.isascii() and token.isprintable()) or " " in token or "," in token:
        raise JobConfigError(
            f"The token cannot be a key; expected {wanted}.", hint="Give another, or none to mint one."
        )
    return token


def _seal(token: str, public_key: str, backend: str) -> str:
    """The token for that public key (base64, 32 bytes) alone, as base64."""
    public, box = _sealed_box()
    try:
        raw = base64.b64decode(public_key, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != PUBLIC_KEY_BYTES:
        raise BackendError(
            f"{backend} offers a public key that is not {PUBLIC_KEY_BYTES} bytes in base64.",
            status=200,
            hint="Nothing was sent. Is that the address of a backend?",
        )
    try:
        sealed = box(public(raw)).encrypt(token.encode("ascii"))
    except Exception:  # a point that no key pair has: PyNaCl says so in several ways, and none may carry the token on
        sealed = None
    if sealed is None:
        raise BackendError(
            f"{backend} offers a public key for which nothing can be sealed.",
            status=200,
            hint="Nothing was sent. The backend has to make a new key pair.",
        )
    return base64.b64encode(sealed).decode("ascii")


def _sealed_box() -> tuple[Any, Any]:
    """PyNaCl's public key and sealed box. Raises Unavailable."""
    try:
        from nacl.public import PublicKey, SealedBox
    except ImportError:
        raise Unavailable(
            "Sealing a key needs the package pynacl, which is not installed.",
            hint="Install the extra `jobs`: pip install 'taskapp-kit[jobs]'.",
        ) from None
    return PublicKey, SealedBox
