"""`taskapp store`: sizes, soundness, and old rollouts removed only when the caller says so."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.evaluate.export.stored_chats import model_rollout, saved


@pytest.fixture
def store(tmp_path: Path) -> str:
    rollouts = [model_rollout(f"r{number}", seed=number, shade=1 + number % 2) for number in range(5)]
    rollouts += [model_rollout("other", app="another", environment="\x1b[2J", shade=1)]
    return str(saved(tmp_path / "rollouts.db", rollouts))


def test_size_by_environment_and_by_kind(run: Run, store: str) -> None:
    shown = json.loads(run("store", "size", store, "--json").stdout)
    first, second = shown["environments"]
    assert (first["app"], first["rollouts"], first["pictures"]) == ("adder", 5, 2)
    assert (second["app"], second["rollouts"], second["pictures"]) == ("another", 1, 1)
    with closing(sqlite3.connect(store)) as file:
        ((events,),) = file.execute("SELECT sum(length(events)) FROM rollouts WHERE app = 'adder'").fetchall()
        ((pictures,),) = file.execute("SELECT sum(length(bytes)) FROM blobs").fetchall()
    assert first["events_bytes"] == events and shown["kinds"]["pictures"] == {"count": 2, "bytes": pictures}
    assert shown["size_bytes"] >= sum(kind["bytes"] for kind in shown["kinds"].values())
    printed = run("store", "size", f"sqlite:///{store}").output
    assert "adder/adder" in printed and "\x1b" not in printed and "another/\\x1b[2J" in printed


def test_check_says_what_is_damaged(run: Run, store: str) -> None:
    done = run("store", "check", store, status=0)
    assert done.output.startswith("6 rollouts, 2 images, ") and "sound" in done.output
    with closing(sqlite3.connect(store)) as file:
        file.execute("UPDATE rollouts SET events = 'no JSON' WHERE rollout_id = 'r1'")
        file.execute("DELETE FROM blobs WHERE rowid = (SELECT min(rowid) FROM blobs)")
        file.commit()
    done = run("store", "check", store, status=1)
    assert "not sound" in done.output
    assert "'r1' cannot be read from the store" in done.output and "is missing" in done.output
    assert run("store", "check", store, "--json").exit_code == 1


def test_prune_counts_first_and_removes_only_with_yes(run: Run, store: str) -> None:
    refused = run("store", "prune", store, "--keep", "3", status=2)
    assert "--dry-run" in refused.stderr and "--yes" in refused.stderr
    assert run("store", "prune", store, "--keep", "3", "--yes", "--dry-run").exit_code == 2
    counted = run("store", "prune", store, "--keep", "3", "--dry-run")
    assert counted.output == "adder: 2 rollouts would be removed.\nanother: 0 rollouts would be removed.\n"
    assert json.loads(run("store", "size", store, "--json").stdout)["rollouts"] == 6
    removed = run("store", "prune", store, "--keep", "3", "--app", "adder", "--yes", "--json")
    assert json.loads(removed.stdout) == {"removed": 2, "apps": {"adder": 2}, "dry_run": False}
    assert json.loads(run("store", "size", store, "--json").stdout)["rollouts"] == 4
    assert run("store", "check", store).exit_code == 0
    assert run("store", "prune", store, "--keep", "1d", "--yes").output == (
        "adder: 0 rollouts removed.\nanother: 0 rollouts removed.\n"
    )
    for wrong in ("0", "30h", "-1", "0d"):
        assert run("store", "prune", store, "--keep", wrong, "--yes").exit_code == 2
    assert "another" in run("store", "prune", store, "--keep", "1", "--app", "nobody", "--yes").stderr


def test_a_store_that_is_not_there_is_not_created(run: Run, tmp_path: Path) -> None:
    assert run("store", "size", "nowhere.db").exit_code == 1
    (tmp_path / "empty").mkdir()
    assert run("store", "check", "empty").exit_code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty"]
