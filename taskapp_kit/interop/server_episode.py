"""Episodes on another library's server: its address and headers, and the base class for the episodes.

Headers name environment variables that contain keys. Responses are validated strictly: a field of the wrong type is a
failure, and is never interpreted as a number or as the end of the episode.
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
from taskapp_kit.records.formatting import cut

MAX_QUOTED = 300
"""How many characters of a server's message are quoted."""


class ServerMessage(Exception):
    """The server's own message, for the operator's log. It may contain text that callers must not see."""


class ServerEpisode:
    """An episode on a server. Adapters create the subclasses that an app declares.

    Attributes:
        server: The server's address.
        rewarded: Whether the server's rewards score the episode.
        adapter: The name in messages of the function that declares the environment, such as `from_ors`.
        library: The library's name in messages.
        failure: The error class for a server that does not respond as expected.
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
        """Connect to the server and return the connection."""
        self.steps, self.rewards = 0, 0
        self._connection = self.connect()
        return self._connection

    def opened(self) -> Any:
        """Return the open connection. Raises `failure` if no episode has begun."""
        if self._connection is None:
            raise self.failed("has no open session")
        return self._connection

    def count(self, reward: Json, *, ended: bool, metadata: Mapping[str, Json]) -> None:
        """Count a step and its reward. Raises `failure` if the episode ended with an undefined reward."""
        episode = metadata.get("episode")
        if ended and reward is None and isinstance(episode, dict) and episode.get("reward", 0) is None:
            raise self.failed("ended the episode with an undefined reward")
        self.steps += 1
        self.rewards += reward is not None

    def check_paid(self) -> None:
        """Raise `failure` if the server should have sent rewards but sent none."""
        if self.rewarded and self.steps and not self.rewards:
            raise self.failed(
                f"sent no reward in {self.steps} {self.step_name}, so the reward of the episode is undefined",
                f"Score the episode with rubrics, and pass {self.adapter}(..., rewarded=False).",
            )

    def flag(self, answer: Mapping[str, Json], name: str) -> bool:
        """Return a boolean field of a response, or False if it is absent.

        Raises `failure` for other types.
        """
        value = answer.get(name, False)
        if not isinstance(value, bool):
            raise self.failed(f"sent `{name}` as {kind_of(value)}; expected true or false")
        return value

    def close(self) -> None:
        """End the session."""
        if self._connection is not None:
            self._connection.close()

    def failed(self, what: str, hint: str = "") -> KitError:
        """Return an error of the class `failure`. what: a clause that follows the server's address."""
        return self.failure(f"The {self.library} server at {self.server} {what}.", hint=hint)


def unreadable(parts: ClassParts, error: KitError, expected: str) -> DeclarationError:
    """Return the error for a server whose description of the environment cannot be read."""
    fix = (error.hint or "start the server before this app").rstrip(".")
    return parts.wrong(f"cannot read the environment: {error.message.rstrip('.')}", expected, fix)


def status_hint(status: int, address: str) -> str:
    """Return a hint for an HTTP status, or "" if there is no hint for it. address: a clause about the expected URL."""
    if status in (401, 403):
        return "Pass headers={HEADER: VARIABLE} with the environment variable that contains the key."
    return f"Check the URL{address}" if status in (404, 405) else ""


def kind_of(value: Json) -> str:
    """Return a value's type as a phrase, such as "a str"."""
    return "null" if value is None else f"a {type(value).__name__}"


def quoted(text: str, headers: Mapping[str, str]) -> str:
    """Return the beginning of a server's message. Values of the request's headers are removed."""
    return cut(without_whole(text, headers.values(), "…"), MAX_QUOTED)


def shown_url(url: str) -> str:
    """Return the URL without its user name and password, because they may be a key."""
    scheme, _, rest = str(url).partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if rest else str(url)


def server_address(parts: ClassParts, url: str, expected: str) -> str:
    """Return the URL without a trailing slash. Raises DeclarationError if the URL is invalid or contains a key.

    expected: a description of valid URLs.
    """
    try:
        address = urlsplit(url)
        valid = (
            address.scheme in ("http", "https")
            and bool(address.hostname)
            and not address.query
            and not address.fragment
        )
    except ValueError:
        valid = False
    if not valid:
        raise parts.wrong(f"is called with {parts.name!r}", expected, "fix the URL")
    if address.username is not None or address.password is not None:
        raise parts.wrong(
            "has a key in its URL",
            "a URL without a key",
            'name the variable that contains the key: headers={"X-API-Key": "MY_VARIABLE"}',
        )
    return url.rstrip("/")


def header_values(parts: ClassParts, headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers, with the name of each environment variable replaced with its value.

    Raises DeclarationError if a variable's name is invalid, and Unavailable if a variable is not set.
    """
    values = {}
    for header, variable in headers.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
            raise parts.wrong(
                f"has an invalid value for headers[{header!r}]",
                "the name of an environment variable",
                "write the name of the variable, not its value",
            )
        value = (process_variable(variable) or "").strip()
        if not value:
            raise Unavailable(
                f"The variable {variable}, which {parts.adapter} sends to {parts.name} as {header}, is not set.",
                hint=f"Set {variable}, for example in .env.",
            )
        values[header] = value
    return values
