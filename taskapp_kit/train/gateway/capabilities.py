"""The secret part of an attempt's address. A token names its attempt and proves that this gateway issued it.

So no list of ended attempts is needed: a token of this gateway whose attempt is not open has ended, any other is unknown.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

SECRET_BYTES = 32
MAC_CHARACTERS = 48
"""Hexadecimal digits of the proof: 192 bits. `contract.inference_url` recognises tokens by this length."""
MAX_TOKEN_CHARACTERS = 64


class CapabilityIssuer:
    """Issues and reads the tokens of one gateway, with a secret that only lives in this process."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(SECRET_BYTES)

    def issue(self, number: int) -> str:
        """Return the token of an attempt: `{number}-{proof}`, both hexadecimal. Nobody can derive one from another."""
        name = f"{number:x}"
        return f"{name}-{hmac.new(self._secret, name.encode(), hashlib.sha256).hexdigest()[:MAC_CHARACTERS]}"

    def read(self, token: str) -> int | None:
        """Return the number of the attempt; None for what this gateway did not issue. Compares in constant time."""
        if len(token) > MAX_TOKEN_CHARACTERS or not token.isascii():
            return None
        name, _, _ = token.partition("-")
        try:
            number = int(name, 16)
        except ValueError:
            return None
        return number if number >= 0 and hmac.compare_digest(token, self.issue(number)) else None
