"""The operations on a modal.Dict for idempotency records: three atomic ones.

Keys are text and values bytes, so that no object of ours is ever pickled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from taskapp_kit.errors import StoreError

CALL_SECONDS = 30.0
"""How long one call to the Dict may take, with the client's own retries."""


class ModalEntries:
    """A named modal.Dict, created when it is missing. Keys are text, values bytes.

    Raises StoreError, with the type of Modal's error and never its text.
    """

    def __init__(
        self,
        name: str,
        *,
        client: Any = None,
    ) -> None:
        """client: a `modal.Client`, not used before the first call; the process's own when absent."""
        self.name = name
        self._client = client
        self._dict: Any = None

    async def get(self, key: str) -> bytes | None:
        """Return the value; None when there is none."""
        value = await self._call("read", lambda found: found.get.aio(key))
        if value is not None and not isinstance(value, bytes):
            raise StoreError(
                f"the entry {key!r} of the modal.Dict {self.name!r} was not written by this app.",
                hint="Give each app a Dict of its own.",
            )
        return value

    async def put(self, key: str, value: bytes) -> None:
        """Put it, replacing what is there."""
        await self._call("write", lambda found: found.put.aio(key, value))

    async def put_if_absent(self, key: str, value: bytes) -> bool:
        """Put it and return True, or return False if there is an entry. Of several concurrent calls one succeeds."""
        return bool(await self._call("write", lambda found: found.put.aio(key, value, skip_if_exists=True)))

    async def remove(self, key: str) -> None:
        """Remove it, if it is there."""
        await self._call("write", lambda found: found.pop.aio(key, None))

    async def _call(self, verb: str, call: Callable[[Any], Awaitable[Any]]) -> Any:
        import modal

        try:
            async with asyncio.timeout(CALL_SECONDS):
                if self._dict is None:  # after a memory snapshot was restored, not before
                    self._dict = modal.Dict.from_name(
                        self.name,
                        create_if_missing=True,
                        client=self._client,
                    )
                return await call(self._dict)
        except Exception as error:  # Modal's client also raises exceptions of its gRPC library
            raise StoreError(
                f"the modal.Dict {self.name!r} could not be {'read' if verb == 'read' else 'written'}: "
                f"{type(error).__name__}.",
                hint="Send the request again; if it fails again, look at the Dict with `modal dict list`.",
            ) from error
