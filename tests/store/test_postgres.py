"""What is Postgres's own: how it is reached, what is said when it is not, lost connections, servers that share it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict

import pytest

from taskapp_kit.errors import StoreError
from taskapp_kit.records.protocols import IdempotencyRecord, StoredResult, SystemClock
from taskapp_kit.store.idempotency_sql import SqlIdempotencyStore, statements
from taskapp_kit.store.postgres import PostgresStore
from taskapp_kit.store.schema import METADATA, MIGRATIONS, OLDEST
from taskapp_kit.store.sql import SqlStore
from tests.store.cutting_proxy import CuttingProxy
from tests.store.postgres_server import PASSWORD, PostgresServer, name_of
from tests.store.stored_samples import pictured, png, rollout

pytestmark = [pytest.mark.anyio, pytest.mark.process, pytest.mark.server]


@pytest.fixture
def address(postgres: PostgresServer) -> str:
    """Of a new database."""
    return postgres.database()


@pytest.fixture
def name(address: str) -> str:
    return name_of(address)


@asynccontextmanager
async def using(address: str, **waits: float) -> AsyncIterator[tuple[PostgresStore, SqlIdempotencyStore]]:
    """A store and its tickets."""
    store = PostgresStore(address, **waits)
    tickets = tickets_of(store)
    try:
        yield store, tickets
    finally:
        await tickets.close()
        await store.close()


@pytest.fixture
async def store(address: str) -> AsyncIterator[PostgresStore]:
    async with using(address) as (made, _):
        yield made


@pytest.fixture
async def tickets(store: PostgresStore) -> AsyncIterator[SqlIdempotencyStore]:
    made = tickets_of(store)
    yield made
    await made.close()


def tickets_of(store: SqlStore) -> SqlIdempotencyStore:
    tickets = store.coordinator(SystemClock())
    assert tickets is not None
    return tickets


def ticket(rollout_id: str, key: str | None = None) -> IdempotencyRecord:
    return IdempotencyRecord(rollout_id, "body", time.time(), key)


# -- opening ----------------------------------------------------------------------------------------------------------


def refusal(address: str) -> str:
    with pytest.raises(StoreError) as refused:
        PostgresStore(address)
    assert refused.value.__context__ is None or refused.value.__suppress_context__
    text = str(refused.value)
    assert PASSWORD not in text and "tester" not in text and "postgresql://" not in text
    return text


@pytest.mark.ci
def test_each_connection_failure_has_its_message(postgres: PostgresServer) -> None:
    address, place = postgres.database(), f"127.0.0.1:{postgres.port}"
    name = name_of(address)
    assert "the user name or password was rejected" in refusal(postgres.url(name, password="wrong"))
    assert "the user name or password was rejected" in refusal(address.replace("tester", "nobody"))
    assert f"Could not open the store {place}/absent (Postgres): the database does not exist" in refusal(
        postgres.url("absent")
    )
    assert "the TLS connection failed" in refusal(f"{address}?sslmode=require")
    assert "the host name cannot be resolved" in refusal(f"postgresql://tester:{PASSWORD}@no.such.host.invalid/x")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert "no server listens at the address" in refusal(
            address.replace(str(postgres.port), str(free.getsockname()[1]))
        )
        free.listen()
        silent = f"{address}?connect_timeout=2".replace(str(postgres.port), str(free.getsockname()[1]))
        assert "the server did not respond in time" in refusal(silent)


async def test_missing_rights_are_named_and_existing_tables_are_usable(
    address: str, name: str, postgres: PostgresServer
) -> None:
    guest_name = f'"odd ""{name}"'
    postgres.execute(f"CREATE ROLE {guest_name} LOGIN PASSWORD '{PASSWORD}'")
    guest = address.replace("tester", f"odd%20%22{name}")

    def denied() -> str:
        with pytest.raises(StoreError, match="required privilege|the schema") as refused:
            PostgresStore(guest)
        assert PASSWORD not in str(refused.value) and "GRANT" not in str(refused.value)
        assert "grant the user" in refused.value.hint
        return str(refused.value)

    postgres.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC", name)
    denied()
    postgres.execute(f"GRANT USAGE ON SCHEMA public TO {guest_name}", name)
    assert "schema public" in denied()
    await PostgresStore(address).close()
    assert "table taskapp_migrations" in denied()
    postgres.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {guest_name}", name)
    async with using(guest) as (store, _):
        await store.save(rollout())
        assert await store.load("r1") == rollout()
    older(postgres, name)
    assert "owner of table tickets" in denied()


def older(postgres: PostgresServer, name: str) -> None:
    """Turns the store into one from before the idempotency records were renamed."""
    for change in (
        "ALTER TABLE idempotency_keys RENAME TO tickets",
        "ALTER TABLE tickets RENAME COLUMN lease_owner TO holder",
        "ALTER INDEX idempotency_keys_by_key RENAME TO tickets_by_key",
        "ALTER INDEX idempotency_keys_by_time RENAME TO tickets_by_time",
        f"DELETE FROM taskapp_migrations WHERE name > '{OLDEST}'",
    ):
        postgres.execute(change, name)


async def test_unlisted_pictures_are_found_without_comparing_each_with_each(store: PostgresStore) -> None:
    removal = store._blob_removal().compile(
        dialect=store._database.writer.dialect, compile_kwargs={"literal_binds": True}
    )
    with store._database.writer.connect() as connection, connection.begin():
        connection.exec_driver_sql("SET LOCAL work_mem = '64kB'")
        plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {removal}").scalars())
    assert "SubPlan" not in plan, plan


def test_database_without_utf8_is_rejected(postgres: PostgresServer) -> None:
    assert "LATIN1" in refusal(postgres.database("ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"))


async def test_other_tables_are_allowed_except_with_the_same_names(
    address: str, name: str, postgres: PostgresServer
) -> None:
    postgres.execute("CREATE TABLE customers (name text)", name)
    for _ in range(2):
        async with using(address) as (store, _):
            await store.save(rollout())
    taken = postgres.database()
    postgres.execute("CREATE TABLE rollouts (seat int)", name_of(taken))
    assert "'rollouts'" in refusal(taken)
    names = postgres.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", name_of(taken))
    assert names == [("rollouts",)]


async def test_a_newer_database_is_refused_and_an_older_one_is_brought_up_to_date(
    address: str, name: str, postgres: PostgresServer
) -> None:
    async with using(address) as (store, records):
        await store.save(rollout("old"))
        assert await records.claim(ticket("old", "key")) is None
        await records.settle(StoredResult("old", answer=b"{}"))
    older(postgres, name)
    async with using(address) as (store, records):
        claim = await records.look("old")
        assert claim is not None and claim.settled == StoredResult("old", answer=b"{}")
        assert await records.claim(ticket("new")) is None
        assert await store.load("old") == rollout("old")
    indexes = postgres.execute("SELECT indexname FROM pg_indexes WHERE tablename = 'idempotency_keys'", name)
    assert {"idempotency_keys_by_key", "idempotency_keys_by_time"} <= {row[0] for row in indexes}
    postgres.execute("INSERT INTO taskapp_migrations VALUES ('0099_future', 0)", name)
    assert "'0099_future'" in refusal(address)


def test_servers_starting_together_create_the_tables_once(address: str, name: str, postgres: PostgresServer) -> None:
    with ThreadPoolExecutor(6) as pool:
        stores = [task.result() for task in [pool.submit(PostgresStore, address) for _ in range(6)]]
    for store in stores:
        store._finish()
    made = postgres.execute("SELECT name FROM taskapp_migrations ORDER BY name", name)
    assert [row[0] for row in made] == [OLDEST, *(name for name, _ in MIGRATIONS)]
    tables = postgres.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", name)
    assert {row[0] for row in tables} == set(METADATA.tables)


# -- what is in a session and in a transaction ------------------------------------------------------------------------


async def test_sessions_stay_clean_for_poolers(
    store: PostgresStore, tickets: SqlIdempotencyStore, name: str, postgres: PostgresServer
) -> None:
    for number in range(12):  # psycopg would prepare what it has seen five times
        await store.save(pictured(f"r{number}", number))
        await store.load(f"r{number}")
        await tickets.claim(ticket(f"r{number}", f"k{number}"))
        await tickets.look(f"r{number}")
    own = tickets._jobs._connection
    assert own is not None and store._writer._connection is not None
    for asked, found in (
        ("SELECT count(*) FROM pg_prepared_statements", 0),
        ("SELECT count(*) FROM pg_cursors", 0),
        ("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'", 0),
        ("SELECT count(*) FROM pg_settings WHERE source = 'session' AND name NOT LIKE 'transaction%'", 0),
    ):
        assert own.execute(asked).fetchone() == (found,), asked
    with store._database.readers.connect() as connection:
        assert connection.exec_driver_sql("SHOW statement_timeout").scalar() == "30s", "in a transaction"
    assert own.execute("SHOW statement_timeout").fetchone() == ("0",)
    assert len(postgres.backends(name)) <= 4


async def test_a_databases_own_settings_weaken_nothing(address: str, name: str, postgres: PostgresServer) -> None:
    for setting in (
        "synchronous_commit = off",
        "extra_float_digits = 0",
        "default_transaction_isolation = serializable",
    ):
        postgres.execute(f"ALTER DATABASE {name} SET {setting}")
    made = rollout("r1", created_at=0.1 + 0.2, total_reward=1 / 3, seconds=5e-324)
    async with using(address) as (store, _):
        await store.save(made)
        assert await store.load("r1") == made
        with store._database.writer.connect() as connection:
            for setting, shown in (("synchronous_commit", "on"), ("transaction_isolation", "read committed")):
                assert connection.exec_driver_sql(f"SHOW {setting}").scalar() == shown


async def test_password_is_in_no_log_repr_or_message(
    address: str, name: str, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for logger in ("sqlalchemy", "sqlalchemy.engine", "sqlalchemy.pool", "psycopg"):
        caplog.set_level(logging.DEBUG, logger)
    told: list[str] = []
    async with using(address, retry_seconds=0.2) as (store, tickets):
        await store.save(rollout())
        await tickets.claim(ticket("r1"))
        told.extend(
            map(repr, (store, store._database, store._database.writer, store._writer._connection, tickets, store.place))
        )
        told.append(repr(vars(store._database)))
        postgres.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        for pid in postgres.backends(name):
            postgres.execute(f"SELECT pg_terminate_backend({pid})")
        for call in (store.save(rollout("r2")), store.load("r1"), tickets.look("r1"), store.check()):
            with pytest.raises(StoreError) as refused:
                await call
            told.append(repr(refused.value) + str(refused.value) + repr(refused.value.__cause__))
    whole = "\n".join(told) + caplog.text
    assert caplog.records
    assert PASSWORD not in whole
    assert address not in whole


# -- connections that are lost ----------------------------------------------------------------------------------------


async def test_lost_idle_connection_is_replaced_silently(
    store: PostgresStore, tickets: SqlIdempotencyStore, name: str, postgres: PostgresServer
) -> None:
    for turn in range(3):
        await store.save(rollout(f"r{turn}"))
        assert await store.load(f"r{turn}") is not None
        assert await tickets.claim(ticket(f"r{turn}", f"k{turn}")) is None
        pids = postgres.backends(name)
        assert pids
        for pid in pids:
            postgres.execute(f"SELECT pg_terminate_backend({pid})")
        await tickets.settle(StoredResult(f"r{turn}", answer=b"{}"))
    found = await tickets.look("r2")
    assert found is not None and found.state == "settled"
    assert (await store.check()).rollouts == 3


async def test_commit_with_a_lost_answer_happens_exactly_once(address: str, postgres: PostgresServer) -> None:
    with CuttingProxy(postgres.port) as proxy:
        through = address.replace(str(postgres.port), str(proxy.port))
        async with using(through) as (store, tickets):
            await store.save(rollout("r0"))
            assert await tickets.claim(ticket("r0", "k0")) is None
            for turn in range(1, 4):
                name = f"r{turn}"
                proxy.cut_commits = 1
                await store.save(pictured(name, turn))
                assert proxy.cut == 5 * turn - 4
                mine, freed = ticket(name, f"k{turn}"), ticket(f"f{turn}")
                proxy.cut_commits = 1
                assert await tickets.claim(mine) is None
                proxy.cut_commits = 1
                await tickets.settle(StoredResult(name, answer=b"{}"))
                proxy.cut_commits = 1
                assert await tickets.claim(freed) is None
                proxy.cut_commits = 1
                await tickets.release(freed.rollout_id)
                assert proxy.cut == 5 * turn
                found = await tickets.look(name)
                assert found is not None and found.state == "settled"
                assert await tickets.look(f"f{turn}") is None
                other = await tickets.claim(ticket("other", f"k{turn}"))
                assert other is not None and other.record.rollout_id == name
            report = await store.check()
            assert (report.rollouts, report.blobs, report.ok) == (4, 3, True)


@pytest.mark.ci
async def test_outage_raises_store_error_and_recovers(address: str, postgres: PostgresServer) -> None:
    async with using(address, retry_seconds=0.3) as (store, tickets):
        await store.save(rollout("before"))
        await tickets.claim(ticket("before"))
        await asyncio.to_thread(postgres.stop)
        try:
            calls = [*(store.save(rollout(f"away-{number}")) for number in range(3)), store.load("before"),
                     tickets.claim(ticket("away")), tickets.look("before")]  # fmt: skip
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(outcome, StoreError)
                assert "(Postgres): no server listens at the address" in str(outcome)
        finally:
            await asyncio.to_thread(postgres.start)
        await store.save(rollout("after"))
        assert await store.load("before") is not None
        assert await store.load("away-0") is None
        await tickets.settle(StoredResult("before", answer=b"{}"))


async def test_a_short_restart_is_waited_for(address: str, postgres: PostgresServer) -> None:
    async with using(address, retry_seconds=60) as (store, _):
        await store.save(rollout("before"))
        await asyncio.to_thread(postgres.stop)
        saves = [asyncio.create_task(store.save(rollout(f"r{number}"))) for number in range(20)]
        await asyncio.sleep(0.3)
        assert not any(save.done() for save in saves)
        await asyncio.to_thread(postgres.start)
        assert await asyncio.gather(*saves) == [None] * 20
        assert (await store.check()).rollouts == 21


async def test_lock_held_too_long_raises_store_error_and_recovers(address: str) -> None:
    async with using(address, statement_seconds=0.3, save_seconds=0.3) as (store, tickets):
        with store._database.writer.connect() as connection, connection.begin():
            connection.exec_driver_sql("LOCK TABLE rollouts, idempotency_keys IN ACCESS EXCLUSIVE MODE")
            for call in (store.save(rollout()), tickets.claim(ticket("r1"))):  # neither waits for long here
                with pytest.raises(StoreError, match="lock|longer"):
                    await call
        await store.save(rollout())
        assert await tickets.claim(ticket("r1")) is None


async def test_missing_tables_raise_store_error(store: PostgresStore, name: str, postgres: PostgresServer) -> None:
    await store.save(rollout("r1"))
    postgres.execute("DROP TABLE rollouts", name)
    with pytest.raises(StoreError, match="tables do not exist"):
        await store.save(rollout("r2"))


# -- several servers --------------------------------------------------------------------------------------------------


async def test_two_servers_storing_the_same_images_never_deadlock(
    address: str, name: str, postgres: PostgresServer
) -> None:
    shades = list(range(40))
    stores = [PostgresStore(address) for _ in range(3)]
    for turn in range(10):
        saves = []
        for number, store in enumerate(stores):
            order = shades if number % 2 else shades[::-1]
            saves += [
                store.save(pictured(f"s{number}-{turn}-{index}", *(100 * turn + shade for shade in order[index::8])))
                for index in range(8)
            ]
        assert await asyncio.gather(*saves) == [None] * len(saves)
    report = await stores[0].check()
    assert report.ok and (report.rollouts, report.blobs) == (240, 400)
    for store in stores:
        await store.close()
    deadlocks = postgres.execute(f"SELECT deadlocks FROM pg_stat_database WHERE datname = '{name}'")
    assert deadlocks == [(0,)]


async def test_claims_of_the_same_keys_in_any_order_have_one_winner_each(address: str) -> None:
    stores = [PostgresStore(address) for _ in range(3)]
    holders = [tickets_of(store) for store in stores]
    keys = list(range(30))
    claims, told = [], []
    for number, holder in enumerate(holders):
        order = keys[::-1] if number == 1 else keys
        for key in order:
            told.append((number, key))
            claims.append(holder.claim(ticket(f"h{number}-{key}", f"key-{key}")))
    found = await asyncio.gather(*claims)
    winners = {key: f"h{number}-{key}" for (number, key), other in zip(told, found, strict=True) if other is None}
    assert len(winners) == 30 == sum(other is None for other in found)
    for (_, key), other in zip(told, found, strict=True):
        assert other is None or other.record.rollout_id == winners[key]
    for holder, store in zip(holders, stores, strict=True):
        await holder.close()
        await store.close()


# -- looking after it -------------------------------------------------------------------------------------------------


async def test_check_finds_damage_and_a_server_that_does_not_flush(
    store: PostgresStore, name: str, postgres: PostgresServer
) -> None:
    for index in range(3):
        await store.save(pictured(f"r{index}", index))
    found = await store.check()
    assert found.ok and found.size_bytes > 50_000
    lost, wrong = (hashlib.sha256(png(shade)).hexdigest() for shade in (0, 1))
    postgres.execute(f"DELETE FROM blobs WHERE sha256 = '{lost}'", name)
    postgres.execute(f"UPDATE blobs SET bytes = '\\x00' WHERE sha256 = '{wrong}'", name)
    postgres.execute("UPDATE rollouts SET config = '{' WHERE rollout_id = 'r2'", name)
    postgres.execute("ALTER SYSTEM SET full_page_writes = off")
    postgres.execute("SELECT pg_reload_conf()")
    try:
        async with asyncio.timeout(10):
            while not (found := await store.check()).integrity:
                await asyncio.sleep(0.05)
    finally:
        postgres.execute("ALTER SYSTEM RESET full_page_writes")
        postgres.execute("SELECT pg_reload_conf()")
    assert found.integrity == [
        "the server's full_page_writes is off, so a power failure may lose stored rollouts and damage the database"
    ]
    assert found.missing_blobs == [lost]
    assert len(found.damaged) == 2
    with pytest.raises(StoreError, match="damaged"):
        await store.load("r2")


async def test_every_statement_of_the_tickets_can_use_an_index(store: PostgresStore) -> None:
    connection = store._database.connect()
    connection.execute("BEGIN; SET LOCAL enable_seqscan = off")
    for name, statement in asdict(statements(store._database.spelling)).items():
        if name == "insert":
            continue
        given = {"renew": [0.0, "[]", ""], "purge": [0.0, 0.0, 1], "free_key": ["", "", 0.0, 0.0],
                 "settle": [0.0, None, None, None, False, "", ""], "release": ["", ""]}.get(name, [""])  # fmt: skip
        plan = []
        cursor = connection.execute(f"EXPLAIN {statement}", given)
        while row := cursor.fetchone():
            plan.append(str(row[0]))
        assert not any("Seq Scan on idempotency_keys" in line for line in plan), (name, plan)
    connection.close()
