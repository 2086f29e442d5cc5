"""Upload the key of a task app to a backend, encrypted so that only the backend can read it.

    result = setup_environment_api_key("https://your-backend", synth_api_key="sk_your_org_key")
    result["token"]    # set this as ENVIRONMENT_API_KEY of the task app

Nothing is printed, logged or stored here. The key appears only as `token` in the result.
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
"""The fields of the backend's response that are returned."""


def mint_environment_api_key() -> str:
    """Return a new key: 32 random bytes as 64 hexadecimal digits."""
    return secrets.token_hex(TOKEN_BYTES)


def setup_environment_api_key(
    backend_base: str, synth_api_key: str, token: str | None = None, *, timeout: float = 15.0
) -> dict[str, Any]:
    """Encrypt a key and store it in the backend. Errors never contain the key.

    Args:
        backend_base: The backend's address, with or without `/api`.
        synth_api_key: The backend's key.
        token: The task app's key. Defaults to the variable ENVIRONMENT_API_KEY. If it is unset, a key is created.
        timeout: The time limit of each of the two requests, in seconds.

    Returns:
        A dict with `token`, `stored`, `id`, `name` and `updated_at`. `token` is the key itself. The other fields come
        from the backend's response.

    Raises:
        JobConfigError: A value is invalid.
        BackendError: The backend rejected the request. `status` is the HTTP status.
        BackendUnreachable: The backend did not respond.
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
        raise JobConfigError("The backend's key is empty.", hint="Pass synth_api_key, or set SYNTH_API_KEY.")
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
            f"{client.url} accepted the encrypted key, but did not confirm that the key was stored.",
            status=200,
            hint="Check the backend's log. Without the key, the backend cannot call the task app.",
        )
    return {"token": key, "stored": True, **{name: answer.get(name) for name in RETURNED}}


def _checked(token: str) -> str:
    hint = "Pass a token of printable ASCII characters without spaces or commas, or None to create a key."
    if not isinstance(token, str):
        raise JobConfigError("The token must be a string.", hint=hint)
    token = token.strip()
    if not token:
        raise JobConfigError("The token is empty.", hint=hint)
    if len(token.encode("utf-8", "replace")) > MAX_TOKEN_BYTES:
        raise JobConfigError(f"The token is larger than {MAX_TOKEN_BYTES // 1024} KiB.", hint=hint)
    if not (token.isascii() and token.isprintable()) or " " in token or "," in token:
        raise JobConfigError("The token contains a character that is not allowed in a key.", hint=hint)
    return token


def _seal(token: str, public_key: str, backend: str) -> str:
    """Return the token in base64, encrypted for a public key (base64, 32 bytes)."""
    public, box = _sealed_box()
    try:
        raw = base64.b64decode(public_key, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != PUBLIC_KEY_BYTES:
        raise BackendError(
            f"The public key of {backend} is invalid. Expected {PUBLIC_KEY_BYTES} bytes in base64.",
            status=200,
            hint="Nothing was sent. Check that this is the address of a backend.",
        )
    try:
        sealed = box(public(raw)).encrypt(token.encode("ascii"))
    except Exception:  # for an invalid point; the types vary, and are not chained, because they may contain the token
        sealed = None
    if sealed is None:
        raise BackendError(
            f"The public key of {backend} is invalid, so no key can be encrypted for it.",
            status=200,
            hint="Nothing was sent. Ask the backend's operator to create a new key pair.",
        )
    return base64.b64encode(sealed).decode("ascii")


def _sealed_box() -> tuple[Any, Any]:
    """Return PyNaCl's classes PublicKey and SealedBox. Raises Unavailable if PyNaCl is not installed."""
    try:
        from nacl.public import PublicKey, SealedBox
    except ImportError:
        raise Unavailable(
            "Encrypting a key requires the package PyNaCl, which is not installed.",
            hint="Install the extra `jobs`: pip install 'taskapp-kit[jobs]'.",
        ) from None
    return PublicKey, SealedBox
