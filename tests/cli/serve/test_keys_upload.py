"""`taskapp keys upload` and `keys rotate`: a real backend, a real key file; no key is shown but the one that is made."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nacl", reason="needs taskapp-kit[jobs]")

from dotenv import dotenv_values

from taskapp_kit.jobs.server.app import create_backend
from taskapp_kit.serve.auth import Keys
from taskapp_kit.serve.key_file import KeyHolder
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from tests.cli.conftest import Run, assert_no_key
from tests.cli.terminals import NAMES

pytestmark = pytest.mark.server

SYNTH, TASK_APP = "canary-synth-key-8899", "canary-task-app-key-1010"


@pytest.fixture(scope="module")
def backend() -> Iterator[str]:
    with BackgroundServer(create_backend([SYNTH])) as server:
        yield server.url


def variables(**more: str) -> dict[str, str]:
    return {**dict.fromkeys(NAMES, ""), "SYNTH_API_KEY": SYNTH, "ENVIRONMENT_API_KEY": TASK_APP, **more}


def test_the_key_is_left_with_the_backend(run: Run, backend: str) -> None:
    done = run("keys", "upload", "--backend-url", backend, status=0, **variables())
    assert done.stdout == f"Uploaded ENVIRONMENT_API_KEY to {backend}.\n"
    told = json.loads(run("keys", "upload", "--json", **variables(BACKEND_BASE_URL=backend)).stdout)
    assert (told["stored"], told["name"]) == (True, "ENVIRONMENT_API_KEY")
    assert "token" not in told
    assert_no_key(done.output + str(told), SYNTH, TASK_APP)


def test_a_new_key_is_written_before_it_leaves(run: Run, backend: str, tmp_path: Path) -> None:
    for url, status in ((backend, 0), ("http://127.0.0.1:1", 1)):
        (tmp_path / "a.env").write_text("OTHER=1\nENVIRONMENT_API_KEY=old\n")
        done = run("keys", "upload", "--mint", "--file", "a.env", "--backend-url", url, **variables())
        assert done.exit_code == status, done.stderr
        values = dotenv_values(tmp_path / "a.env")
        minted = values["ENVIRONMENT_API_KEY"]
        assert values["OTHER"] == "1" and minted is not None and len(minted) == 64
        assert stat.S_IMODE((tmp_path / "a.env").stat().st_mode) == 0o600
        assert "Wrote a new ENVIRONMENT_API_KEY to a.env." in done.stderr
        assert_no_key(done.output + done.stderr, SYNTH, TASK_APP, minted)


@pytest.mark.parametrize(
    ("changed", "status", "words"),
    [
        ({}, 2, "The backend's address is not set."),
        ({"SYNTH_API_KEY": ""}, 2, "SYNTH_API_KEY (the backend's key) is not set"),
        ({"ENVIRONMENT_API_KEY": ""}, 2, "ENVIRONMENT_API_KEY (the task app's key) is not set"),
        ({"SYNTH_API_KEY": "canary-another-key"}, 1, "rejects the key"),
    ],
    ids=str,
)
def test_what_is_missing_or_wrong(run: Run, backend: str, changed: dict[str, str], status: int, words: str) -> None:
    address = {} if not changed else {"BACKEND_BASE_URL": backend}
    done = run("keys", "upload", **variables(**address, **changed))
    assert done.exit_code == status
    assert words in done.stderr
    assert_no_key(done.output + done.stderr, SYNTH, TASK_APP, "canary-another-key")


def test_a_label_is_rotated_in_two_steps(run: Run, tmp_path: Path) -> None:
    def keys() -> Keys:
        return Keys(file=tmp_path / "my keys")

    where = ("--keys-file", "my keys")
    old = run("keys", "mint", "ci", "--max-in-flight", "3", *where).stdout.strip()
    first = run("keys", "rotate", "ci", *where)
    new = first.stdout.strip()
    assert first.exit_code == 0 and new and new != old
    assert "taskapp keys rotate ci --finish --keys-file 'my keys'" in first.stderr
    assert keys().match([old.encode()]) == keys().match([new.encode()]) == KeyHolder("ci", 3)
    last = run("keys", "rotate", "ci", "--finish", *where, status=0)
    assert keys().match([new.encode()]) == KeyHolder("ci", 3) and keys().match([old.encode()]) is None
    assert_no_key(last.output + last.stderr + first.stderr, SYNTH, TASK_APP, old, new)


def test_a_label_that_has_no_key_is_not_rotated(run: Run, tmp_path: Path) -> None:
    run("keys", "mint", "ci")
    done = run("keys", "rotate", "c1", status=1)
    assert done.stdout == ""
