"""Where tests hand over what a server answered, for `--sentinels`; without it nothing is kept."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

keep: Callable[[bytes], None] | None = None
"""Takes the bytes of an answer; None when nobody listens."""
keys: set[str] = set()
"""Keys that were made while the tests ran."""


def answered(data: bytes) -> bytes:
    """Hands over an answer, and gives it back."""
    if keep is not None:
        keep(data)
    return data


def recorded(app: ASGIApp) -> ASGIApp:
    """The app, every message that it sends handed over too; the app itself when nobody listens."""
    if keep is None:
        return app

    async def listening(scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if scope["type"] != "lifespan":
                for name, value in message.get("headers", ()):
                    answered(name + b": " + value)
                answered(message.get("body", b"") or str(message.get("reason", "")).encode())
            await send(message)

        await app(scope, receive, sent)

    return listening
