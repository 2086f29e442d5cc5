"""Sealed keys of task apps: callers encrypt them with this backend's public key, and only the ciphertext is stored.

The private key is in a file of mode 600 next to the store, or in memory if jobs are not stored.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from pathlib import Path

from taskapp_kit.errors import ConfigError, RequestError, Unavailable
from taskapp_kit.system.private_files import flush

ALGORITHM = "libsodium.sealedbox.v1"
KEY_BYTES = 32
MAX_CIPHERTEXT = 12 * 1024
MAX_TOKEN_BYTES = 8 * 1024


class SealedKeys:
    """Opens keys that were sealed with its public key.

    path: The file of the private key. If None, a key is created that is lost when the process ends.

    Raises ConfigError if the file is invalid or readable by others, and Unavailable if PyNaCl is not installed.
    """

    def __init__(self, path: Path | None) -> None:
        try:
            from nacl.public import PrivateKey, SealedBox
        except ImportError:
            raise Unavailable(
                "Sealed keys require the package PyNaCl.", hint="Install it: pip install 'taskapp-kit[jobs]'."
            ) from None
        private = PrivateKey.generate() if path is None else PrivateKey(_stored_key(path))
        self._box = SealedBox(private)
        self.public_key: str = base64.b64encode(bytes(private.public_key)).decode("ascii")

    def __repr__(self) -> str:
        return "SealedKeys()"

    def open(self, ciphertext: str) -> str:
        """Return the key in a sealed box. ciphertext: The sealed box in base64.

        Raises RequestError if the box cannot be opened or contains no key.
        """
        from nacl.exceptions import CryptoError

        if len(ciphertext) > MAX_CIPHERTEXT:
            raise RequestError(f"The sealed key is longer than {MAX_CIPHERTEXT} characters.", code="invalid_ciphertext")
        try:
            opened: bytes = self._box.decrypt(base64.b64decode(ciphertext, validate=True))
        except (binascii.Error, ValueError, TypeError, CryptoError):
            raise RequestError(
                "The sealed key cannot be opened. It was sealed with another public key, or is not a sealed box in base64.",
                code="invalid_ciphertext",
                hint="Fetch /api/v1/crypto/public-key again, and seal the key with that public key.",
            ) from None
        if not 0 < len(opened) <= MAX_TOKEN_BYTES or any(byte < 33 or byte > 126 for byte in opened):
            raise RequestError(
                "The sealed box contains no key. Expected 1 to 8192 visible ASCII characters.", code="invalid_key"
            )
        return opened.decode("ascii")


def _stored_key(path: Path) -> bytes:
    """Return the private key in the file. The file is created if it does not exist."""
    from nacl.public import PrivateKey

    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return _read(path)
    except OSError as error:
        raise ConfigError(
            f"The backend's private key cannot be stored in {path} ({error.strerror}).",
            hint="Make its directory writable, or choose another --store.",
        ) from None
    key = bytes(PrivateKey.generate())
    with os.fdopen(descriptor, "wb") as file:
        file.write(base64.b64encode(key) + b"\n")
    flush(path)
    flush(path.parent)
    return key


def _read(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(1024)
    except OSError as error:
        raise ConfigError(f"The private key {path} cannot be read ({error.strerror}). Make it readable.") from None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"The backend's private key {path} is readable by others.", hint=f"Run: chmod 600 {path}")
    try:
        key = base64.b64decode(content.strip(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"{path} does not contain a backend's private key.",
            hint="Restore the file. To create a new key, remove the file and upload all sealed keys again.",
        )
    return key
