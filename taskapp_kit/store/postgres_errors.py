"""Messages for errors of Postgres and psycopg. The original messages may quote stored data or credentials."""

from __future__ import annotations

import psycopg

from taskapp_kit.errors import StoreError, StoreRefusal

_GRANT = (
    "Open the store once as the owner of the schema, or grant the user USAGE and CREATE on the schema, and SELECT, INSERT, "
    "UPDATE and DELETE on its tables."
)
_LATER = "Try again in a moment."

_BY_STATE = (
    ("57P01", "the server ended the connection", _LATER),
    ("57P", "the server is starting or stopping", _LATER),
    ("57014", "the statement took too long", "Check what delays the server, such as a lock or too few resources."),
    ("55P03", "another program has held a lock for too long", "Find the program that locks the store's tables."),
    ("40P01", "several servers were in a deadlock", _LATER),
    ("40", "several servers wrote the same rows concurrently", _LATER),
    ("53300", "the server has no free connection", "Increase max_connections, or use a pooler."),
    ("53100", "the server's disk is full", "Free some space on that disk."),
    ("53", "the server does not have enough memory or disk", "Check the server's log."),
    ("54", "the rollout is larger than Postgres allows (1 GB)", "Make the environment's observations smaller."),
    ("25006", "the database is read-only", "Use the primary server's address, or set target_session_attrs=read-write."),
    ("42501", "the user does not have the required privilege", _GRANT),
    ("42P01", "the store's tables do not exist", "Restore a backup, or restart the server to create new tables."),
    (
        "3F",
        "the schema for the tables does not exist",
        "Set the user's search_path to an existing schema, and grant the user USAGE and CREATE on this schema.",
    ),
    ("3D", "the database does not exist", "Create it, or correct the name in the address."),
    ("28", "the user name or password was rejected", "Check both in the address."),
    ("08", "the connection was lost", _LATER),
    ("58", "the server's disk reported an error", "Check the server's log."),
    ("XX00", "the server reports damage", "Check the server's log, and restore the database from a backup."),
)
"""Messages by SQLSTATE: (beginning of the state, what happened, what to do). The first match is used."""

_BY_TEXT = (
    (("timeout expired", "timed out"), "the server did not respond in time", "Check the host, the port and the firewall."),
    (("refused", "No such file"), "no server listens at the address", "Check the host and port, and start the server."),
    (
        ("resolve host", "translate host", "Name or service", "nodename nor servname"),
        "the host name cannot be resolved",
        "Check the host in the address.",
    ),
    (("starting up", "shutting down", "recovery mode"), "the server is starting or stopping", _LATER),
    (("too many", "remaining connection slots"), "the server has no free connection",
     "Increase max_connections, or use a pooler."),
    (("pg_hba.conf",), "the server does not allow this host, user or connection type", "Try sslmode=require; see pg_hba.conf."),
    (("database", "does not exist"), "the database does not exist", "Create it, or correct the name in the address."),
    (("authentication", "no password", "role "), "the user name or password was rejected", "Check both in the address."),
    (("SSL", "certificate", "sslmode", "sslroot"), "the TLS connection failed",
     "Check sslmode and sslrootcert in the address. sslrootcert=system uses the system's certificate authorities."),
)  # fmt: skip
"""Messages for failed connections, which have no SQLSTATE: (parts of libpq's message, what happened, what to do).

libpq's message must contain one of the parts, or both parts for a missing database.
"""


def explain(fault: Exception, place: str, doing: str) -> StoreError:
    """Return a StoreError without a cause for an exception of the store at `place`.

    doing: What failed: open, read or write.
    """
    origin = getattr(fault, "orig", None) or fault
    state, kind = _state(origin), type(origin).__name__
    cause = next((entry[1:] for entry in _BY_STATE if state.startswith(entry[0])), None)
    if cause is None and not state and isinstance(origin, psycopg.Error | OSError):
        cause = next((entry[1:] for entry in _BY_TEXT if _fits(entry[0], str(origin))), None)
        if cause is None and is_lost(origin):
            cause = ("the connection was lost", _LATER)
    code = f" ({state})" if state else f" ({kind})"
    if cause is None:
        return StoreError(
            f"Could not {doing} the store {place}: {kind}{code if state else ''}.",
            hint="Check the Postgres server's log.",
        )
    if state == "42501" and isinstance(origin, psycopg.Error) and origin.diag.message_primary:
        code = f": {origin.diag.message_primary}{code}"  # the message contains the name of the table or schema, but no data
    error = StoreRefusal if state.startswith("54") else StoreError
    return error(f"Could not {doing} the store {place}: {cause[0]}{code}.", hint=cause[1])


def is_lost(fault: Exception) -> bool:
    """Return whether the connection was lost or could not be opened. Another attempt may then succeed."""
    origin = getattr(fault, "orig", None) or fault
    if isinstance(origin, psycopg.OperationalError | psycopg.InterfaceError):
        state = _state(origin)
        return not state or state.startswith(("08", "57P"))
    return isinstance(origin, OSError)


def is_locked(fault: Exception) -> bool:
    """Return whether another session held a lock for too long."""
    return _state(getattr(fault, "orig", None) or fault) == "55P03"


def is_tangled(fault: Exception) -> bool:
    """Return whether the transaction was rolled back due to concurrent writers. It can then be retried immediately."""
    return _state(getattr(fault, "orig", None) or fault).startswith("40")


def _state(fault: Exception) -> str:
    return (fault.sqlstate or "") if isinstance(fault, psycopg.Error) else ""


def _fits(words: tuple[str, ...], text: str) -> bool:
    return all(word in text for word in words) if words[0] == "database" else any(word in text for word in words)
