"""Addresses of Postgres: what is understood, what is refused, and that no word of a password is ever told."""

from __future__ import annotations

import pytest

from taskapp_kit.config import Settings, child_environment
from taskapp_kit.errors import ConfigError
from taskapp_kit.store import open_store
from taskapp_kit.store.postgres import place_of, read_address

PASSWORD = "hunter2-sesame"


def shown(url: str) -> str:
    """As `--show-config` and the banner of `serve` show it."""
    return next(value for name, value, _ in Settings(store=url).shown() if name == "store")


def told(text: str) -> list[str]:
    """The pieces of the password that stand in a text."""
    return [piece for piece in (PASSWORD[:4], PASSWORD[3:8], "sesame", "hunter", "tester") if piece in text]


@pytest.mark.parametrize(
    ("url", "place", "seen"),
    [
        ("postgresql://u:p@db.example/runs", "db.example/runs (Postgres)", "postgresql://db.example/runs (rest hidden)"),
        ("postgres://u:p@db.example:6543/runs?sslmode=require", "db.example:6543/runs (Postgres)",
         "postgres://db.example:6543/runs (rest hidden)"),
        ("postgresql://db.example/runs", "db.example/runs (Postgres)", "postgresql://db.example/runs"),
        ("postgresql://u:p%40%2F@[::1]:5432/runs", "::1:5432/runs (Postgres)", "postgresql://[::1]:5432/runs (rest hidden)"),
        ("postgresql:///runs?host=/run/pg&user=u", "/run/pg/runs (Postgres)", "postgresql:///runs (rest hidden)"),
    ],
)  # fmt: skip
def test_postgres_address_is_parsed_and_shown_without_password(url: str, place: str, seen: str) -> None:
    assert place_of(read_address(url)) == place
    assert shown(url) == seen


def test_options_and_a_password_in_percent_codes_reach_the_driver() -> None:
    url = read_address("postgresql://u:p%40%2F%3F%23@h/runs?sslmode=verify-full&sslrootcert=system")
    assert url.password == "p@/?#"
    assert dict(url.query) == {"sslmode": "verify-full", "sslrootcert": "system"}


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://tester:{PASSWORD[:6]}/{PASSWORD[6:]}@db.example/runs",
        f"postgresql://tester:{PASSWORD[:6]}?{PASSWORD[6:]}@db.example/runs",
        f"postgresql://tester:{PASSWORD[:6]}#{PASSWORD[6:]}@db.example/runs",
        f"postgresql://tester:{PASSWORD[:6]}@{PASSWORD[6:]}@db.example/runs",
        f"postgresql://tester:12@{PASSWORD}/x@db.example/runs",
        f"postgresql://tester:1?{PASSWORD}=@db.example/runs",
        f"postgresql://tester:{PASSWORD}@db.example:port/runs",
        f"postgresql://tester:{PASSWORD}@db.example:99999/runs",
        f"postgresql://tester:{PASSWORD}@db.example",
        f"postgresql://tester:{PASSWORD}@db.example/",
        f"postgresql://tester:{PASSWORD}@db.example/runs?pgbouncer=true",
        f"postgresql://tester:{PASSWORD}@db.example/runs?{PASSWORD}",
        f"postgresql://tester:{PASSWORD}@db.example/runs#{PASSWORD}",
        f"postgresql+psycopg2://tester:{PASSWORD}@db.example/runs",
        f"postgresql+asyncpg://tester:{PASSWORD}@db.example/runs",
        f"postgres:tester:{PASSWORD}@db.example/runs",
        f"postgresql:/tester:{PASSWORD}@db.example/runs",
        f"host=db.example user=tester password={PASSWORD} dbname=runs",
    ],
)
def test_ambiguous_address_is_rejected_without_quoting_it(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_store(url)
    assert told(str(refused.value)) == []
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("letter", list("/?#@:%&= é"))
@pytest.mark.parametrize("at", [0, 6, len(PASSWORD)])
def test_no_piece_of_any_password_is_shown(letter: str, at: int) -> None:
    for password in (PASSWORD[:at] + letter + PASSWORD[at:], f"{PASSWORD[:at]}{letter}x{letter}{PASSWORD[at:]}"):
        for url in (
            f"postgresql://tester:{password}@db.example:5432/runs?sslmode=require",
            f"postgresql://db.example/runs?user=tester&password={password}",
            f"postgres:tester:{password}@db.example/runs",
            f"user=tester password={password} host=db.example",
        ):
            assert told(shown(url)) == [], url


def test_a_path_with_an_at_is_shown_whole() -> None:
    assert shown("sqlite:////home/me@work/runs.db") == "sqlite:////home/me@work/runs.db"
    assert shown("some/me@work/runs.db") == "some/me@work/runs.db"


def test_a_worker_process_is_not_given_the_address() -> None:
    environ = {"TASKAPP_STORE": f"postgresql://tester:{PASSWORD}@db.example/runs", "PATH": "/bin"}
    assert child_environment(environ) == {"PATH": "/bin"}
