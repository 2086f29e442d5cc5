"""What outlives a kill -9, a full disk, another process and a place that cannot be written to. Real processes."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.opened_stores import child
from tests.stress.server import missing

pytestmark = pytest.mark.process

SAVER = """
import asyncio, sys
from pathlib import Path
from stored_samples import pictured
from taskapp_kit.store.sqlite import SqliteStore

async def main(path, name, count):
    store = SqliteStore(Path(path))
    numbers = iter(range(count))
    async def one():
        for number in numbers:
            await store.save(pictured(f"{name}-{number}", number % 7, number))
            print(f"{name}-{number}", flush=True)
    await asyncio.gather(*(one() for _ in range(16)))
    await store.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@pytest.mark.parametrize(
    "after_saves", [40, *(pytest.param(count, marks=pytest.mark.exhaustive) for count in (1, 400))]
)
def test_every_acknowledged_rollout_survives_kill_9(tmp_path: Path, after_saves: int) -> None:
    path = tmp_path / "rollouts.db"
    process = child(SAVER, str(path), "r", "100000")
    acknowledged = [process.stdout.readline().strip() for _ in range(after_saves)]
    os.kill(process.pid, signal.SIGKILL)
    rest, _ = process.communicate(timeout=20)
    acknowledged += rest.split("\n")[:-1]  # a line that was cut says nothing
    assert process.returncode == -signal.SIGKILL
    assert all(acknowledged)
    found, lost = missing(path, acknowledged)
    assert lost == []
    assert found.ok, found
    assert found.rollouts >= len(acknowledged)


@pytest.mark.ci
def test_three_processes_write_into_one_new_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rollouts.db"
    processes = [child(SAVER, str(path), f"p{number}", "150") for number in range(3)]
    acknowledged: list[str] = []
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        acknowledged += out.split()
    assert len(acknowledged) == 450
    found, lost = missing(path, acknowledged)
    assert lost == []
    assert found.ok
    assert found.rollouts == 450


FULL = """
import asyncio, resource, sys
from pathlib import Path
from stored_samples import rollout
from taskapp_kit.errors import StoreError
from taskapp_kit.store.sqlite import SqliteStore

async def main(path):
    store = SqliteStore(Path(path))
    await store.save(rollout("before"))
    # The kernel refuses to let any file of this process grow further, as a full disk or a quota does.
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    batch = [rollout("small-1"), rollout("large", private={"x": "y" * 10**6}), rollout("small-2")]
    for outcome in await asyncio.gather(*map(store.save, batch), return_exceptions=True):
        print(type(outcome).__name__, outcome)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.save(rollout("after"))
    await store.close()

asyncio.run(main(sys.argv[1]))
"""


def test_no_room_on_the_disk_fails_the_one_that_does_not_fit_and_passes(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.db"
    out, err = child(FULL, str(path)).communicate(timeout=30)
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == ["NoneType", "StoreError", "NoneType"], (out, err)
    assert f"Could not write the store {path}: the disk" in lines[1]
    found, lost = missing(path, ["before", "small-1", "small-2", "after"])
    assert lost == []
    assert found.ok
    assert found.rollouts == 4


UNWRITABLE = """
import os, sys
from pathlib import Path
from taskapp_kit.errors import StoreError
from taskapp_kit.store.sqlite import SqliteStore

SqliteStore(None)  # everything is imported now
directory = Path(sys.argv[1])
(directory / "old.db").touch()
os.chmod(directory / "old.db", 0o444)
os.chmod(directory, 0o555)
if os.geteuid() == 0:
    os.seteuid(65534)  # to root nothing is forbidden
for path in (directory / "new.db", directory / "sub" / "new.db", directory / "old.db", directory):
    try:
        SqliteStore(path)
        print("opened")
    except StoreError as error:
        print(error)
"""


@pytest.fixture
def passable() -> Iterator[Path]:
    """A folder that another user may pass through, as those of pytest are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_place_that_cannot_be_written_to_is_told_with_its_path_and_what_to_do(passable: Path) -> None:
    directory = passable / "locked"
    directory.mkdir()
    try:
        out, err = child(UNWRITABLE, str(directory)).communicate(timeout=30)
    finally:
        directory.chmod(0o755)
    lines = out.splitlines()
    assert len(lines) == 4, (out, err)
    for line, name in zip(lines, ("new.db", "sub/new.db", "old.db"), strict=False):
        assert f"Could not open the store {directory / name}: Permission denied." in line
        assert "make it writable" in line
    assert f"The store {directory} is a directory. Use the path of a file, for example" in lines[3]


def test_a_program_that_forgets_to_close_still_ends(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys; from pathlib import Path; from stored_samples import rollout\n"
        "from taskapp_kit.store.sqlite import SqliteStore\n"
        "store = SqliteStore(Path(sys.argv[1])); asyncio.run(store.save(rollout()))\n"
    )
    began = time.monotonic()
    process = child(script, str(tmp_path / "rollouts.db"))
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert time.monotonic() - began < 20
    found, lost = missing(tmp_path / "rollouts.db", ["r1"])
    assert found.ok
    assert lost == []
