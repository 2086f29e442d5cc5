"""From an address (`sqlite:///path`, a path, `memory`) to an open store."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

from taskapp_kit.contract.ports import Store
from taskapp_kit.errors import ConfigError, Unavailable

KNOWN = "sqlite:///PATH, a bare PATH, memory, none"
"""The addresses that this release understands, as a sentence lists them."""


def open_store(url: str) -> Store:
    """Opens the store at `url`, creating the file and its directories when they are not there. Blocks: for the start.

    `sqlite:///rel/path.db`, `sqlite:////abs/path.db` or a bare path: a SQLite file. `memory`: kept until the process
    ends. `none` is the caller's word for "no store" and is refused here: pass None where a store is expected.
    Another scheme is looked for among the installed plugins (entry points of the group `taskapp_kit.stores`, named
    after the scheme, each a function of the address).

    Raises ConfigError for an address that says nothing to us, Unavailable for one that a later part of the kit will
    know, StoreError when the place cannot be used. No message repeats an address: it may hold a password.
    """
    url = url.strip()
    if not url:
        raise ConfigError("the store's address is empty.", hint=f"Give one of: {KNOWN}.")
    if url.lower() == "none":
        raise ConfigError(
            "the store address 'none' means that nothing is kept; there is nothing to open.",
            hint="Pass None instead of a store.",
        )
    if url.lower() in ("memory", ":memory:"):
        return _sqlite(None)
    scheme, separator, rest = url.partition("://")
    if not separator:
        return _sqlite(Path(url).expanduser())
    scheme = scheme.lower()
    if scheme == "sqlite":
        return _sqlite(_sqlite_path(rest))
    for plugin in entry_points(group="taskapp_kit.stores", name=scheme):
        opened: Store = plugin.load()(url)
        return opened
    if scheme.split("+")[0] in ("postgres", "postgresql"):
        raise Unavailable(
            f"a store at {scheme}://… needs the Postgres store, which is not part of this release.",
            hint="Use sqlite:///PATH, or none.",
        )
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


def _sqlite(path: Path | None) -> Store:
    from taskapp_kit.store.sqlite import SqliteStore

    return SqliteStore(path)
