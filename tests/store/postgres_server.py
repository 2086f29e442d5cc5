"""A real Postgres server of the tests' own: its binaries are looked for, its data lie in a temporary folder.

One server for each test process, started when it is first asked for and stopped at the end. It listens on loopback,
takes passwords (scram-sha-256) and flushes to the disk; each test has a database of its own.
"""

from __future__ import annotations

import atexit
import itertools
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psycopg
import pytest

START_SECONDS = 60.0
PASSWORD = f"canary-{secrets.token_hex(12)}"
"""Of the user `tester`; must be found nowhere but in addresses."""

_numbers = itertools.count()


def binaries() -> Path | None:
    """The folder with initdb and postgres: where pg_config says, on the PATH, or in Debian's standard place."""
    asked: list[Path] = []
    if found := shutil.which("pg_config"):
        told = subprocess.run([found, "--bindir"], capture_output=True, text=True, check=False)
        asked.append(Path(told.stdout.strip()))
    if found := shutil.which("initdb"):
        asked.append(Path(found).resolve().parent)
    asked += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in asked if (folder / "initdb").is_file() and (folder / "postgres").is_file()), None)


def _user() -> dict[str, object]:
    """As whom it runs: Postgres refuses root."""
    if os.geteuid() != 0:
        return {}
    return {"user": "postgres", "group": "postgres", "extra_groups": []}


@dataclass
class PostgresServer:
    """A running server. `restart` and `stop` act on the process itself."""

    folder: Path
    binaries: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it and waits until it takes connections."""
        command = [self.binaries / "postgres", "-D", self.folder / "data", "-k", self.folder, "-p", str(self.port)]
        settings = ["listen_addresses=127.0.0.1", "fsync=on", "max_connections=60", "shared_buffers=16MB"]
        for setting in settings:
            command += ["-c", setting]
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", **_user()
            )  # type: ignore[call-overload]
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                assert self.process.poll() is None, (self.folder / "log.txt").read_text()[-4000:]
                assert time.monotonic() < end, (self.folder / "log.txt").read_text()[-4000:]
                time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT is Postgres's fast shutdown, SIGQUIT the immediate one: as after a crash, the log is replayed then."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(60)

    def url(self, database: str, *, password: str = PASSWORD) -> str:
        """The address of one of its databases."""
        return f"postgresql://tester:{password}@127.0.0.1:{self.port}/{database}"

    def database(self, *options: str) -> str:
        """The address of a new, empty database."""
        name = f"t{next(_numbers)}"
        self.execute(f"CREATE DATABASE {name} {' '.join(options)}")
        return self.url(name)

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Runs a statement on a connection of its own; its rows."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def backends(self, database: str) -> list[int]:
        """Process ids of those who serve connections to `database`."""
        rows = self.execute(
            f"SELECT pid FROM pg_stat_activity WHERE datname = '{database}' AND pid <> pg_backend_pid()"
        )
        return [int(str(row[0])) for row in rows]


def name_of(url: str) -> str:
    """The database in an address that `database` gave."""
    return url.rpartition("/")[2]


@cache
def server() -> PostgresServer:
    """The server of this process; skips the test, with the reason, where there is none to start."""
    return new_server()


def new_server() -> PostgresServer:
    """A server of its own, for tests that crash it: after a crash all files are flushed, and with few that is quick."""
    folder = binaries()
    if folder is None:
        pytest.skip("needs a Postgres server (Debian: apt-get install postgresql)")
    if os.geteuid() == 0:
        try:
            owner = pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip(
                "needs a user `postgres`, because Postgres does not run as root (Debian: apt-get install postgresql)"
            )
    place = Path(tempfile.mkdtemp(prefix="taskapp-pg-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    if os.geteuid() == 0:
        os.chown(place, owner.pw_uid, owner.pw_gid)
    secret = place / "password"
    secret.write_text(PASSWORD)
    if os.geteuid() == 0:
        os.chown(secret, owner.pw_uid, owner.pw_gid)
    made = subprocess.run(
        [folder / "initdb", "-D", place / "data", "-U", "tester", "--pwfile", secret, "-A", "scram-sha-256",
         "-E", "UTF8", "--locale", "C", "--no-sync", "--no-instructions"],
        capture_output=True, text=True, check=False, cwd="/", **_user(),
    )  # type: ignore[call-overload]  # fmt: skip
    assert made.returncode == 0, made.stderr
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = PostgresServer(place, folder, port)
    atexit.register(running.stop)
    running.start()
    return running
