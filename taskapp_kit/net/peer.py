"""What an application tells the server that runs it about the caller at the other end of a connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PEER = "taskapp_kit.peer"
"""Where the scope holds the connection's Peer; absent under a server that is not the kit's."""


@dataclass(slots=True, eq=False)
class Peer:
    """One for each connection; the key check and answers write it, the server reads it, and sets `gone`.

    keyed: a request on this connection presented a valid key. gone: the connection is over. unsent: what an answer under
    way keeps in memory until it is sent; readers of the same object share it. unsent_bytes: its size.
    """

    keyed: bool = False
    gone: bool = False
    unsent: object = None
    unsent_bytes: int = 0

    def holds(self, unsent: object, size: int) -> None:
        """An answer keeps this in memory until it is sent; None, 0: nothing any more."""
        self.unsent, self.unsent_bytes = unsent, size


def peer_of(scope: Any) -> Peer:
    """The peer of an ASGI scope; one that nobody reads when the server gives none."""
    found = scope.get(PEER)
    return found if isinstance(found, Peer) else Peer()
