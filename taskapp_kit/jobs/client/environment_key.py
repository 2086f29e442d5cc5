"""Uploads the key of a task app to a backend, sealed so that only the backend's private key opens it.

    result = setup_environment_api_key("https://your-backend", synth_api_key="sk_your_org_key")
    result["token"]    # the task app's ENVIRONMENT_API_KEY: store it where the task app reads it

Nothing is printed, logged or stored here; the key appears only as `token` in the result.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from typing import Any

from taskapp_kit.client.blocking_portal import run
from taskapp_kit.config import process_variable
from taskapp_kit.errors import BackendError, ConfigError, JobConfigError, Unavailable
from taskapp_kit.jobs.client.backend import BackendClient

NAME = "ENVIRONMENT_API_KEY"
TOKEN_BYTES = 32
MAX_TOKEN_BYTES = 8 * 1024
PUBLIC_KEY_BYTES = 32
RETURNED = ("id", "name", "updated_at")
"""Members of the backend's response that are returned."""


def mint_environment_api_key() -> str:
    """Return a new key: 32 random bytes as 64 hexadecimal digits."""
    return secrets.token_hex(TOKEN_BYTES)


def setup_environment_api_key(
    backend_base: str, synth_api_key: str, token: str | None = None, *, timeout: float = 15.0
) -> dict[str, Any]:
    """Seal a key and store it in the backend. No error shows the key.

    Args:
        backend_base: The backend's address, with or without `/api`.
        synth_api_key: The backend's key.
        token: The task app's key; None for ENVIRONMENT_API_KEY of the process environment, or a new key when that is not
            set.
        timeout: Seconds for each of the two requests.

    Returns:
        `{"token", "stored", "id", "name", "updated_at"}`: `token` is the key itself, the rest is the backend's response.

    Raises:
        JobConfigError: A value is invalid.
        BackendError: The backend refuses (`status`).
        BackendUnreachable: There is no response.
        Unavailable: PyNaCl is not installed.
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
    _sealed_box()  # raises before the first request
    try:
        client = BackendClient(backend_base, synth_api_key, timeout_seconds=timeout, retries=0)
    except ConfigError as error:
        raise JobConfigError(f"The backend's address cannot be used. {error.message}", hint=error.hint) from None
    async with client:
        ciphertext = _seal(key, await client.public_key(), client.url)
        answer = await client.put_env_key(NAME, ciphertext)
    if answer.get("stored") is not True:
        raise BackendError(
            f"{client.url} accepted the sealed key, but does not confirm that it is stored.",
            status=200,
            hint="Without it, task apps would be called without a key: check the backend's log.",
        )
    return {"token": key, "stored": True, **{name: answer.get(name) for name in RETURNED}}


def _checked(token: str) -> str:
    wanted = "one line of text without spaces and commas, which HTTP headers can carry"
    if not isinstance(token, str):
        raise JobConfigError(f"The token is not text; expected {wanted}.", hint="Give one, or none to create one.")
    token = token.strip()
    if not token:
        raise JobConfigError("The token is empty.", hint="Give one, or none to create one.")
    if len(token.encode("utf-8", "replace")) > MAX_TOKEN_BYTES:
        raise JobConfigError(
            f"The token is larger than {MAX_TOKEN_BYTES // 1024} KiB.",
            hint="A key is a line: is it another file's content?",
        )
    if not (token.isascii() and token.isprintable()) or " " in token or "," in token:
        raise JobConfigError(
            f"The token cannot be a key; expected {wanted}.", hint="Give another, or none to create one."
        )
    return token


def _seal(token: str, public_key: str, backend: str) -> str:
    """Return the token, sealed for that public key (base64, 32 bytes), as base64."""
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
    except Exception:  # PyNaCl raises several types for an invalid point; none may be chained, as it may show the token
        sealed = None
    if sealed is None:
        raise BackendError(
            f"{backend} offers an invalid public key: no key can be sealed for it.",
            status=200,
            hint="Nothing was sent. The backend has to create a new key pair.",
        )
    return base64.b64encode(sealed).decode("ascii")


def _sealed_box() -> tuple[Any, Any]:
    """Return PyNaCl's public key and sealed box. Raises Unavailable."""
    try:
        from nacl.public import PublicKey, SealedBox
    except ImportError:
        raise Unavailable(
            "Sealing a key needs the package pynacl, which is not installed.",
            hint="Install the extra `jobs`: pip install 'taskapp-kit[jobs]'.",
        ) from None
    return PublicKey, SealedBox
