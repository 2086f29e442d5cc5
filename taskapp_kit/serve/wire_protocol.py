"""What a wire protocol of others consists of. Each is a package beside this module that exports `PROTOCOL`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.routing import BaseRoute

from taskapp_kit.serve.route import RouteContext


@dataclass(frozen=True, slots=True)
class ClientLines:
    """The lines that a client of a served app needs.

    title: the client and its versions. language: `python`, `sh`, `toml` or `json`. text: the lines; the server's key is read from
    the variable ENVIRONMENT_API_KEY, and is never in them.
    """

    title: str
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class WireProtocol:
    """One protocol, and how a server speaks it.

    name: of its package, and in `--protocols`. summary: the protocol and its versions, in some words. routes: returns the
    routes; all of them need a key. clients: returns what a user pastes, for a server's address (without a slash at its end)
    and its environments, the default one first.
    """

    name: str
    summary: str
    # routes, not an application: they are in the one OpenAPI document, behind the one key check
    routes: Callable[[RouteContext], Sequence[BaseRoute]]
    clients: Callable[[str, Sequence[str]], Sequence[ClientLines]]
