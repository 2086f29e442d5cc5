"""The store in Postgres: one database for any number of servers and containers.

A store opens few connections, limits the time of each wait, and replaces lost connections. No state of a session outlives a
transaction: statements are not prepared, and settings are set with SET LOCAL. Poolers in transaction mode, such as
PgBouncer and the poolers of serverless Postgres, can therefore be used.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.string import StrDumperUnknown, TextLoader
from sqlalchemy import JSON, URL, Connection, TableValuedAlias, create_engine, event, func, make_url, text
from sqlalchemy import cast as cast_to
from sqlalchemy.exc import ArgumentError

from taskapp_kit.errors import ConfigError, StoreError
from taskapp_kit.store.database import Driver, SqlDatabase, SqlDialect
from taskapp_kit.store.postgres_errors import explain, is_locked, is_lost, is_tangled
from taskapp_kit.store.schema import METADATA, ROLLOUTS, migrate
from taskapp_kit.store.sql import SAVE_SECONDS, SqlStore

T = TypeVar("T")

POOL_SIZE = 2
"""The number of connections for reading. Two more connections write rollouts and idempotency records."""
CONNECT_SECONDS = 10
STATEMENT_SECONDS = 30.0
"""The time limit of a statement, in seconds."""
LOCK_SECONDS = 10.0
CHECK_SECONDS = 3600.0
RETRY_SECONDS = 10.0
"""How long to try to replace a lost connection, in seconds. After that, waiting callers get an error."""
OPENING = 0x7461736B_61707001
"""The advisory lock for creating the tables, so that servers that start concurrently take turns."""

_DEFAULTS: dict[str, Any] = {
    "connect_timeout": CONNECT_SECONDS,
    "fallback_application_name": "taskapp",
    # Detect a server that vanished (power or network failure) within a minute, instead of the system's two hours.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


class PostgresStore(SqlStore):
    """A `Store` in the database at `address` (`postgresql://user:password@host:port/database?sslmode=…`).

    The constructor blocks, and creates missing tables.

    Args:
        address: The database's address.
        statement_seconds: The time limit of a statement, in seconds.
        retry_seconds: How long to try to replace a lost connection before an error is raised, in seconds.
        save_seconds: How long a save waits for a lock that another session holds, in seconds.

    Raises:
        ConfigError: The address is invalid.
        StoreError: The database cannot be used.
    """

    def __init__(
        self,
        address: str,
        *,
        statement_seconds: float = STATEMENT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        save_seconds: float = SAVE_SECONDS,
    ) -> None:
        database = PostgresDatabase(address, statement_seconds=statement_seconds, retry_seconds=retry_seconds)
        super().__init__(database, save_seconds=save_seconds)


class PostgresDatabase(SqlDatabase):
    """The database at `address`. The constructor blocks, and creates or migrates the tables.

    Raises ConfigError if the address is invalid, and StoreError if the database cannot be used. See STATEMENT_SECONDS and
    RETRY_SECONDS for the parameters.
    """

    spelling = SqlDialect("%s", "SELECT json_array_elements_text(CAST(%s AS json))", " FOR UPDATE SKIP LOCKED")
    faults = (*SqlDatabase.faults, psycopg.Error, UnicodeError)

    def __init__(
        self, address: str, *, statement_seconds: float = STATEMENT_SECONDS, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        url = read_address(address)
        self.place = place_of(url)
        self.begin = _beginning(statement_seconds)
        self._retry_seconds = retry_seconds
        self._lost_since: float | None = None
        given = {name: value for name, value in _DEFAULTS.items() if name not in url.query}
        # Transactions begin explicitly, because the guarantees of a commit must not depend on the driver.
        # A prepared statement belongs to one session, but a pooler may run the next transaction in another session.
        given |= {"autocommit": True, "prepare_threshold": None, "client_encoding": "utf8"}
        self.writer = self.readers = create_engine(
            url,
            connect_args=given,
            pool_size=POOL_SIZE,
            max_overflow=0,
            pool_timeout=CONNECT_SECONDS + statement_seconds,
            hide_parameters=True,  # an error's text must not contain stored data
            use_native_hstore=False,
        )
        event.listen(self.writer, "do_connect", self._connected)
        event.listen(self.writer, "begin", self._begun)
        try:
            with self.writer.connect() as connection, connection.begin():
                self._encoding(connection)
                connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": OPENING})
                migrate(connection, self.place, shared=True)
        except StoreError:
            self.close()
            raise
        except Exception as fault:
            self.close()
            raise self.explain(fault, "open") from None

    def connect(self) -> Driver:
        """Open a driver's connection outside the pool."""
        held = self.writer.raw_connection()
        # One thread uses this connection while the store is open, so the pool's connections stay free for reads.
        held.detach()
        return cast(Driver, held.dbapi_connection)

    def in_transaction(self, connection: Driver) -> bool:
        """Return whether the connection has an open transaction that can be rolled back."""
        held = cast("psycopg.Connection[Any]", connection)
        if held.closed:
            return False
        return held.info.transaction_status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR)

    def explain(self, fault: Exception, doing: str) -> StoreError:
        """Return a StoreError without a cause for an exception. doing: What failed: open, read or write."""
        return explain(fault, self.place, doing)

    def strikes_all(self, fault: Exception) -> bool:
        """Return whether the server is unreachable or too slow. Other errors may affect only one of several rollouts."""
        state = getattr(getattr(fault, "orig", fault), "sqlstate", None) or ""
        # The states: query cancelled, lock not available, read-only, missing rights, missing table.
        return is_lost(fault) or state in ("57014", "55P03", "25006", "42501", "42P01")

    def is_locked(self, fault: Exception) -> bool:
        """Return whether another session held a lock for longer than LOCK_SECONDS."""
        return is_locked(fault)

    def persist(self, work: Callable[[], T]) -> T:
        """Call `work` and return its result. If the connection is lost, call `work` again for up to `retry_seconds`.

        Once an outage has lasted longer, each call tries to connect only once, so that callers soon get an error.
        """
        tries = 0
        while True:
            try:
                made = work()
            except self.faults as fault:
                tries += 1
                if not self._worth_another(fault, tries):
                    raise
                # Retry immediately the first time, because a proxy may only have closed an idle connection.
                time.sleep(0 if tries == 1 else min(0.02 * 2**tries, 1.0))
            else:
                self._lost_since = None
                return made

    def findings(self, connection: Connection) -> list[str]:
        """Return a finding for each setting of the server with which a power failure may lose stored rollouts."""
        # A check reads every row, so it needs a longer time limit than other statements.
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {int(CHECK_SECONDS * 1000)}")
        shown = {name: connection.exec_driver_sql(f"SHOW {name}").scalar() for name in ("fsync", "full_page_writes")}
        return [
            f"the server's {name} is off, so a power failure may lose stored rollouts and damage the database"
            for name, value in shown.items()
            if value != "on"
        ]

    def listed_pictures(self) -> TableValuedAlias:
        """Return a table expression whose column `value` contains the hashes in `blob_hashes` of each row of `rollouts`."""
        return func.json_array_elements_text(cast_to(ROLLOUTS.c.blob_hashes, JSON)).table_valued("value")

    def hold_pictures(self, connection: Connection) -> None:
        """Lock the images. Until the transaction ends, no other transaction can write or look up images."""
        # Without the lock, a save that found its image in the store could commit after the image was removed.
        connection.exec_driver_sql("LOCK TABLE blobs IN ACCESS EXCLUSIVE MODE")

    def size_bytes(self, connection: Connection) -> int:
        """Return the size of the tables and their indexes in bytes."""
        sizes = [func.pg_total_relation_size(table.name) for table in METADATA.sorted_tables]
        return sum(int(connection.execute(size.select()).scalar_one()) for size in sizes)

    def close(self) -> None:
        """Close the connections that are not in use."""
        self.writer.dispose()

    def _worth_another(self, fault: Exception, tries: int) -> bool:
        if is_tangled(fault):
            # The server resolved a deadlock by rolling back one transaction. The others end soon.
            return tries < 5
        if not is_lost(fault):
            return False
        now = time.monotonic()
        if self._lost_since is None:
            self._lost_since = now
        return (
            tries == 1 or now - self._lost_since < self._retry_seconds
        )  # the first attempt may have failed only because an old connection was closed

    def _connected(self, dialect: Any, record: Any, arguments: Any, named: dict[str, Any]) -> Any:
        """Open a connection. SQLAlchemy calls this function instead of the driver's function."""
        connection: psycopg.Connection[Any] = psycopg.Connection.connect(*arguments, **named)
        # Only for this connection, because an author's code may also use psycopg.
        connection.adapters.register_dumper(str, _AnyText)
        for kind in ("text", "varchar"):
            connection.adapters.register_loader(kind, _AnyTextLoader)
        return connection

    def _begun(self, connection: Connection) -> None:
        connection.exec_driver_sql(self.begin)

    def _encoding(self, connection: Connection) -> None:
        encoding = connection.exec_driver_sql("SHOW server_encoding").scalar()
        if encoding != "UTF8":
            raise StoreError(
                f"The store {self.place} uses the encoding {encoding}, which cannot represent all text.",
                hint="Create a database with the encoding UTF8.",
            )


EXAMPLE = "postgresql://USER:PASSWORD@HOST:5432/DATABASE?sslmode=require"


def read_address(address: str) -> URL:
    """Convert the address to a URL for SQLAlchemy's psycopg dialect.

    If the password contains an unescaped `/`, `?`, `#` or `@`, the address is rejected. Parsers disagree about where the
    host begins in such an address, and a wrong parse would show a part of the password as the host.

    Raises ConfigError if the address is invalid. The message contains no part of the address.
    """
    _, _, rest = address.partition("://")
    authority = re.split("[/?#]", rest)[0]
    ambiguous = authority.count("@") > 1 or "@" in rest.removeprefix(authority) or "#" in rest
    try:
        conninfo_to_dict(f"postgresql://{rest}")  # libpq's parser, which rejects unknown options
        url = make_url(f"postgresql+psycopg://{rest}")
        readable = not ambiguous and (url.port is None or 0 < url.port < 65536)
    except (psycopg.Error, ArgumentError, ValueError):
        readable = False
    if not readable:  # raised here, so that no error in its context quotes the address
        raise ConfigError(
            "The Postgres address of the store is invalid.",
            hint=f"Use {EXAMPLE}, with libpq's options. In a user name or password, write / ? # @ : and % as %2F %3F %23 "
            "%40 %3A and %25.",
        )
    if not url.database and not {"dbname", "service"} & set(url.query):
        raise ConfigError("The Postgres address of the store contains no database name.", hint=f"Use {EXAMPLE}.")
    return url


def place_of(url: URL) -> str:
    """Return the database's name for messages. It contains host, port and database, but no user, password or options."""
    host = url.host or url.query.get("host") or "this machine"
    port = f":{url.port}" if url.port else ""
    database = url.database or url.query.get("dbname") or ""
    return f"{host}{port}/{database} (Postgres)"


def _beginning(statement_seconds: float) -> str:
    """Return the statements that begin a transaction. Until its end, they override settings of the server and the user."""
    return (
        "BEGIN ISOLATION LEVEL READ COMMITTED; "
        f"SET LOCAL statement_timeout = {int(statement_seconds * 1000)}; "
        f"SET LOCAL lock_timeout = {int(min(LOCK_SECONDS, statement_seconds) * 1000)}; "
        # A database or a role may have other defaults, with which a power failure loses stored rollouts, or floats are
        # returned rounded.
        "SET LOCAL synchronous_commit = on; "
        "SET LOCAL extra_float_digits = 1"
    )


# Postgres text cannot contain NUL. NUL is stored as SUB and "0", and SUB as SUB and "1".


class _AnyText(StrDumperUnknown):
    def dump(self, obj: str) -> Any:
        if "\0" in obj or "\x1a" in obj:
            obj = obj.replace("\x1a", "\x1a1").replace("\0", "\x1a0")
        return super().dump(obj)


class _AnyTextLoader(TextLoader):
    def load(self, data: Any) -> str | bytes:
        loaded = super().load(data)
        if isinstance(loaded, str) and "\x1a" in loaded:
            return loaded.replace("\x1a0", "\0").replace("\x1a1", "\x1a")
        return loaded
