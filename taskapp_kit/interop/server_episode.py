"""Episodes at another library's server: its address and headers, the class that plays them, its answers.

Keys are named by their variables. Answers are read strictly: a loosely typed member is a failure, never an end or a number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from taskapp_kit.config import process_variable
from taskapp_kit.errors import DeclarationError, KitError, Unavailable
from taskapp_kit.interop.class_parts import ClassParts
from taskapp_kit.net.redact import without_whole
from taskapp_kit.records.content import Json
from taskapp_kit.records.words import cut

MAX_QUOTED = 300
"""Characters of the server's own sentence in ours."""


class ServerMessage(Exception):
    """The server's own words, for the operator's log: they may quote what callers are not to read."""


class ServerEpisode:
    """One episode at a server; an adapter makes the subclasses that an app declares.

    server: its address. rewarded: whether the server's rewards score the episode. adapter, library, failure: the adapter's
    name, the library's, and the error of a server that does not do what it was asked for.
    """

    adapter: ClassVar[str]
    library: ClassVar[str]
    failure: ClassVar[type[KitError]]
    step_name: ClassVar[str] = "steps"
    server: str
    rewarded: bool
    connect: Callable[[], Any]
    _connection: Any = None

    def begin(self) -> Any:
        """Connect; return the connection."""
        self.steps, self.rewards = 0, 0
        self._connection = self.connect()
        return self._connection

    def opened(self) -> Any:
        """Return the connection. Raises the adapter's failure without one."""
        if self._connection is None:
            raise self.failed("has no open session")
        return self._connection

    def count(self, reward: Json, *, ended: bool, metadata: Mapping[str, Json]) -> None:
        """Count a step and whether it was paid for. Raises where the episode ended without a defined reward."""
        episode = metadata.get("episode")
        if ended and reward is None and isinstance(episode, dict) and episode.get("reward", 0) is None:
            raise self.failed("ended the episode with an undefined reward")
        self.steps += 1
        self.rewards += reward is not None

    def check_paid(self) -> None:
        """Raise where the server should have given rewards, and gave none."""
        if self.rewarded and self.steps and not self.rewards:
            raise self.failed(
                f"gave no reward in {self.steps} {self.step_name}, so the episode has none",
                f"Declare rubrics that score it, and {self.adapter}(..., rewarded=False).",
            )

    def flag(self, answer: Mapping[str, Json], name: str) -> bool:
        """Return a boolean member, False if it is absent. Raises for other types."""
        value = answer.get(name, False)
        if not isinstance(value, bool):
            raise self.failed(f"sent a {name} that is {kind_of(value)}; expected true or false")
        return value

    def close(self) -> None:
        """End the session."""
        if self._connection is not None:
            self._connection.close()

    def failed(self, what: str, hint: str = "") -> KitError:
        """Return the failure. what: follows the server's address."""
        return self.failure(f"The {self.library} server at {self.server} {what}.", hint=hint)


def episode_class(parts: ClassParts, base: type[ServerEpisode], name: str, members: Mapping[str, Any]) -> type[Any]:
    """Return the class of an environment of the server. name: the environment's."""
    return type(re.sub(r"\W", "_", name), (base,), {"__module__": parts.module, **members})


def unreadable(parts: ClassParts, error: KitError, expected: str) -> DeclarationError:
    """Return the problem of a server that does not describe itself."""
    fix = (error.hint or "start it, then this app").rstrip(".")
    return parts.wrong(f"cannot read the environment: {error.message.rstrip('.')}", expected, fix)


def status_hint(status: int, address: str) -> str:
    """Return what to do about a status. address: what the URL has to be, in words."""
    if status in (401, 403):
        return "Name the header with its key, and the variable that holds it, in headers=."
    return f"Check the URL{address}" if status in (404, 405) else ""


def kind_of(value: Json) -> str:
    """Return a value's type as text."""
    return "null" if value is None else f"a {type(value).__name__}"


def quoted(text: str, headers: Mapping[str, str]) -> str:
    """Return the beginning of the server's words without the values of our headers, should it quote them."""
    return cut(without_whole(text, headers.values(), "…"), MAX_QUOTED)


def shown_url(url: str) -> str:
    """Return the URL without what stands before an @, which may be a key."""
    scheme, _, rest = str(url).partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if rest else str(url)


def server_address(parts: ClassParts, url: str, expected: str) -> str:
    """Return the URL without a slash at its end. expected: in words. Raises DeclarationError for what is none, or has a key."""
    try:
        given = urlsplit(url)
        fine = given.scheme in ("http", "https") and bool(given.hostname) and not given.query and not given.fragment
    except ValueError:
        fine = False
    if not fine:
        raise parts.wrong(f"is given {parts.name!r}", expected, "fix the URL")
    if given.username is not None or given.password is not None:
        raise parts.wrong(
            "has a key in its URL",
            "a URL without one",
            'name the variable that holds it: headers={"X-API-Key": "MY_VARIABLE"}',
        )
    return url.rstrip("/")


def header_values(parts: ClassParts, headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with the values of the variables that they name.

    Raises DeclarationError for a name that no variable can have, Unavailable: a variable is not set.
    """
    values = {}
    for header, variable in headers.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
            raise parts.wrong(f"has headers[{header!r}] that names no variable", "the name of an environment variable",
                              "write the variable's name, not its value")  # fmt: skip
        value = (process_variable(variable) or "").strip()
        if not value:
            raise Unavailable(
                f"{parts.adapter} sends {header} to {parts.name} from the variable {variable}, which is not set.",
                hint=f"Set {variable}, in .env for example.",
            )
        values[header] = value
    return values
