"""Strict parsing of Postgres addresses: ambiguous ones are refused, and no message contains a part of one."""

from __future__ import annotations

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from taskapp_kit.errors import ConfigError

EXAMPLE = "postgresql://USER:PASSWORD@HOST:5432/DATABASE?sslmode=require"
_ENCODE = "A user name or password writes / ? # @ : and % as %2F %3F %23 %40 %3A and %25."


def read_address(address: str, options: frozenset[str]) -> URL:
    """The address for SQLAlchemy's psycopg dialect. options: the names allowed after `?`. Raises ConfigError.

    With an unescaped `/`, `?`, `#` or second `@` in the password, parsers disagree about where the host begins, and a wrong
    one would show a part of the password as the host. So such an address is refused.
    """
    _, _, rest = address.partition("://")
    authority, path = rest, ""
    for end, letter in enumerate(rest):
        if letter in "/?#":
            authority, path = rest[:end], rest[end:].partition("?")[0]
            break
    if authority.count("@") > 1 or "@" in path or "#" in rest:
        raise ConfigError("the Postgres address of the store cannot be read.", hint=f"{_ENCODE} Form: {EXAMPLE}.")
    try:
        url = make_url(f"postgresql+psycopg://{rest}")
        bad_port = url.port is not None and not 0 < url.port < 65536
    except (ArgumentError, ValueError):
        bad_port = True
    if bad_port:
        raise ConfigError("the Postgres address of the store cannot be read.", hint=f"Form: {EXAMPLE}. {_ENCODE}")
    if not url.database and not {"dbname", "service"} & set(url.query):
        raise ConfigError("the Postgres address of the store names no database.", hint=f"Form: {EXAMPLE}.")
    _, _, query = rest.partition("?")
    names = [name.partition("=")[0] for name in query.split("&") if name]
    if not set(names) <= options or len(set(names)) < len(names) or len(names) != len(url.query):
        raise ConfigError(
            "the Postgres address of the store has an option after '?' that libpq does not know, has twice or without "
            "a value.",
            hint="Options are libpq's, such as sslmode=require; leave out those for other programs (pgbouncer=true).",
        )
    return url


def place_of(url: URL) -> str:
    """The database's name in messages: host, port and database, without user, password and options."""
    host = url.host or url.query.get("host") or "this machine"
    port = f":{url.port}" if url.port else ""
    database = url.database or url.query.get("dbname") or ""
    return f"{host}{port}/{database} (Postgres)"
