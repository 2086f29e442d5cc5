"""Opens a store by its address: `sqlite:///path`, `postgresql://…`, a path, `memory`."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path

from taskapp_kit.errors import ConfigError, StoreError, Unavailable
from taskapp_kit.records.protocols import Store

KNOWN = "sqlite:///PATH, a bare PATH, postgresql://USER:PASSWORD@HOST/DATABASE, memory, none"
"""The addresses that this release accepts, for messages."""

_MEANT_FOR_POSTGRES = re.compile(r"^postgres(ql)?(\+\w+)?:|(^|\s)(host|dbname|user|password)\s*=", re.IGNORECASE)
"""Such a bare path is libpq's key-value form, or an address that lacks a slash; it may contain a password."""


def open_store(url: str, *, create: bool = True) -> Store:
    """Opens the store at `url` and creates missing files, directories or tables. Blocks: call it at the start.

    No message repeats an address, since it may contain a password.

    Args:
        url: `sqlite:///rel/path.db`, `sqlite:////abs/path.db` or a bare path: a SQLite file. `postgresql://…`: a
            database that any number of servers may share (extra `postgres`). `memory`: lost when the process ends.
            `none` means "no store" in settings and is refused here: pass None where a store is expected. Other schemes
            are searched for in the installed plugins (entry points of the group `taskapp_kit.stores`, named after the
            scheme, each a function of the address).
        create: False refuses a missing SQLite file, for callers that only read.

    Raises:
        ConfigError: the address is unknown.
        Unavailable: the extra is not installed.
        StoreError: the store cannot be opened.
    """
    url = url.strip()
    if not url:
        raise ConfigError("the store's address is empty.", hint=f"Give one of: {KNOWN}.")
    if url.lower() == "none":
        raise ConfigError(
            "the store address 'none' means that nothing is stored; there is nothing to open.",
            hint="Pass None instead of a store.",
        )
    if url.lower() in ("memory", ":memory:"):
        return _sqlite(None)
    scheme, separator, rest = url.partition("://")
    if not separator:
        if _MEANT_FOR_POSTGRES.search(url):
            raise ConfigError(
                "a Postgres address begins with postgresql://, and this one does not.",
                hint="Give postgresql://USER:PASSWORD@HOST:5432/DATABASE.",
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
        f"no store is known for addresses that begin with {scheme}://.",
        hint=f"Known: {KNOWN}; or install a plugin.",
    )


def _sqlite_path(rest: str) -> Path | None:
    if rest in ("", "/", "/:memory:"):
        return None
    if not rest.startswith("/"):
        raise ConfigError(
            "a SQLite address has three slashes before a relative path and four before an absolute one.",
            hint="For example sqlite:///.taskapp/rollouts.db, or the bare path.",
        )
    if "?" in rest:
        raise ConfigError("a SQLite address takes no options after '?'.", hint="Give the path alone: sqlite:///PATH.")
    return Path(rest[1:]).expanduser()


def _sqlite(path: Path | None, *, create: bool = True) -> Store:
    from taskapp_kit.store.sqlite import SqliteStore

    if path is not None and not create and not path.is_file():
        raise StoreError(f"there is no store {path}.", hint="Check the path; it is taken from the working directory.")
    return SqliteStore(path)


def _postgres(scheme: str, url: str) -> Store:
    if scheme not in ("postgres", "postgresql", "postgresql+psycopg"):
        raise ConfigError(
            "the Postgres store uses the driver psycopg, and the address names another one.",
            hint="Begin the address with postgresql://.",
        )
    try:
        import psycopg  # noqa: F401
    except ImportError:  # also when it is installed but finds no libpq
        raise Unavailable(
            "a store in Postgres needs the package psycopg, which is not installed.",
            hint="pip install 'taskapp-kit[postgres]'",
        ) from None
    from taskapp_kit.store.postgres import PostgresStore

    return PostgresStore(url)
