"""Open a store by its address: `sqlite:///path`, `postgresql://…`, a path or `memory`."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path

from taskapp_kit.errors import ConfigError, StoreError, Unavailable
from taskapp_kit.records.protocols import Store

KNOWN = "sqlite:///PATH, a bare PATH, postgresql://USER:PASSWORD@HOST/DATABASE, memory, none"
"""The addresses that this release accepts, for messages."""

_MEANT_FOR_POSTGRES = re.compile(r"^postgres(ql)?(\+\w+)?:|(^|\s)(host|dbname|user|password)\s*=", re.IGNORECASE)
"""A bare path that matches is libpq's key-value syntax, or an address without slashes. It may contain a password."""


def open_store(url: str, *, create: bool = True) -> Store:
    """Open the store at `url`, and create missing files, directories or tables.

    This function blocks, so call it when the program starts. Messages never contain the address, because it may contain a
    password.

    Args:
        url: The store's address. `sqlite:///rel/path.db`, `sqlite:////abs/path.db` or a bare path is a SQLite file.
            `postgresql://…` is a database that any number of servers may share (extra `postgres`). `memory` is a store
            that is lost when the process ends. Other schemes are the names of installed plugins: entry points of the
            group `taskapp_kit.stores`, which are functions that return the store at an address. `none` is rejected. In
            settings, it means that there is no store. In code, pass None instead of a store.
        create: Whether to create a missing SQLite file. Pass False in programs that only read.

    Raises:
        ConfigError: The address is invalid.
        Unavailable: The extra `postgres` is not installed.
        StoreError: The store cannot be opened.
    """
    url = url.strip()
    if not url:
        raise ConfigError("The store's address is empty.", hint=f"Use one of: {KNOWN}.")
    if url.lower() == "none":
        raise ConfigError(
            "The store address 'none' means that nothing is stored, so it cannot be opened.",
            hint="Pass None instead of a store.",
        )
    if url.lower() in ("memory", ":memory:"):
        return _sqlite(None)
    scheme, separator, rest = url.partition("://")
    if not separator:
        if _MEANT_FOR_POSTGRES.search(url):
            raise ConfigError(
                "A Postgres address must begin with postgresql://.",
                hint="Use postgresql://USER:PASSWORD@HOST:5432/DATABASE.",
            )
        return _sqlite(Path(url).expanduser(), create=create)
    scheme = scheme.lower()
    if scheme == "sqlite":
        return _sqlite(_sqlite_path(rest), create=create)
    if scheme.split("+")[0] in ("postgres", "postgresql"):
        return _postgres(scheme, url)
    for plugin in entry_points(group="taskapp_kit.stores", name=scheme):
        opened: Store = plugin.load()(url)
        return opened
    raise ConfigError(
        f"No store supports addresses that begin with {scheme}://.",
        hint=f"Use one of: {KNOWN}. Or install a plugin that supports this scheme.",
    )


def _sqlite_path(rest: str) -> Path | None:
    if rest in ("", "/", "/:memory:"):
        return None
    if not rest.startswith("/"):
        raise ConfigError(
            "A SQLite address needs three slashes before a relative path, and four before an absolute path.",
            hint="Use, for example, sqlite:///.taskapp/rollouts.db, or only the path.",
        )
    if "?" in rest:
        raise ConfigError("A SQLite address cannot contain options after '?'.", hint="Use only sqlite:///PATH.")
    return Path(rest[1:]).expanduser()


def _sqlite(path: Path | None, *, create: bool = True) -> Store:
    from taskapp_kit.store.sqlite import SqliteStore

    if path is not None and not create and not path.is_file():
        raise StoreError(f"The store {path} does not exist.", hint="Check the path and the working directory.")
    return SqliteStore(path)


def _postgres(scheme: str, url: str) -> Store:
    if scheme not in ("postgres", "postgresql", "postgresql+psycopg"):
        raise ConfigError(
            "The Postgres store uses the driver psycopg, but the address names another driver.",
            hint="Use an address that begins with postgresql://.",
        )
    try:
        import psycopg  # noqa: F401
    except ImportError:  # also raised if psycopg is installed but cannot find libpq
        raise Unavailable(
            "A store in Postgres needs the package psycopg, which is not installed.",
            hint="Run: pip install 'taskapp-kit[postgres]'",
        ) from None
    from taskapp_kit.store.postgres import PostgresStore

    return PostgresStore(url)
