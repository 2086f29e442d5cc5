"""A box as an object: both faces, cancellation, threads and loops, and what is left afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from taskapp_kit.errors import SandboxError
from taskapp_kit.sandbox import SandboxLimits, processes, uids
from taskapp_kit.sandbox.folder import remove_tree, sweep
from tests.sandbox.boxes import appeared, box, folders, gone, mounts, open_descriptors, token

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]


def test_the_async_face_leaves_the_loop_free(level: int) -> None:
    async def main() -> tuple[list[str], int]:
        beats = 0

        async def heart() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0.01)
                beats += 1

        async with box(level, files={"a.py": b"value = 7"}) as opened:
            beating = asyncio.create_task(heart())
            result = await opened.run(
                "import a, sys, time; time.sleep(0.5); print(a.value, sys.stdin.read())", stdin=b"in"
            )
            beating.cancel()
            await opened.write("more/b.txt", "text")
            return [result.stdout, (await opened.read("more/b.txt")).decode(), *await opened.list()], beats

    said, beats = asyncio.run(main())
    assert said == ["7 in\n", "text", "a.py", "more/b.txt"]
    assert beats > 10


def test_cancelling_ends_the_run_at_once(level: int) -> None:
    word = token()

    async def main() -> None:
        async with box(level) as opened:
            run = asyncio.create_task(opened.run(["sh", "-c", f"sleep {word} & sleep {word}"]))
            assert await asyncio.to_thread(appeared, word)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            assert gone(word, 0)
            assert (await opened.run("print('again')")).stdout == "again\n"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(opened.run("import time; time.sleep(100)"), 0.2)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_cancelling_an_opening_leaves_no_box(level: int) -> None:
    before = folders()

    async def main() -> None:
        async with box(level):
            await asyncio.sleep(100)

    async def cancelled() -> None:
        for delay in (0.0, 0.0005, 0.001, 0.05):
            task = asyncio.create_task(main())
            await asyncio.sleep(delay)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancelled())
    assert folders() == before


def test_closing_from_elsewhere_ends_the_run(level: int) -> None:
    word = token()
    opened = box(level).__enter__()
    closer = threading.Thread(target=lambda: (appeared(word), opened.close()))
    closer.start()
    result = opened.run_sync(["sleep", word])
    closer.join()
    assert result.killed_for == "cancelled"
    assert gone(word, 0)
    opened.close()
    with pytest.raises(SandboxError, match=r"Sandbox\(\) as box"):
        opened.run_sync("pass")
    with pytest.raises(SandboxError, match=r"Sandbox\(\) as box"):
        opened.read_sync("x")


@pytest.mark.ci(keep=1)
def test_run_stopped_at_any_time_leaves_no_process(level: int) -> None:
    """Also while the walls are still put up: nobody that was on the way to become the program outlives the run."""
    for turn in range(40):
        word = token()
        opened = box(level).__enter__()
        closer = threading.Timer(turn * 0.0004, opened.close)
        closer.start()
        with suppress(SandboxError):  # closed before the run
            result = opened.run_sync(["sleep", word])
            assert (result.killed_for, result.exit_code, result.signal) == ("cancelled", None, signal.SIGKILL)
            assert result.stdout == ""
        assert gone(word, 0), f"after {turn * 0.4:.1f} ms"
        closer.join()


def test_ctrl_c_ends_the_run_before_it_comes_out(level: int) -> None:
    word = token()

    def interrupt() -> None:
        assert appeared(word)
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with box(level) as opened:
        presses = threading.Thread(target=interrupt)
        presses.start()
        with pytest.raises(KeyboardInterrupt):
            opened.run_sync(["sh", "-c", f"sleep {word} & sleep {word}"])
        presses.join()
        assert gone(word, 0)
        assert opened.run_sync("print('again')").stdout == "again\n"


def test_one_program_at_a_time(level: int) -> None:
    word = token()
    with box(level) as opened, ThreadPoolExecutor(1) as pool:
        first = pool.submit(opened.run_sync, ["sleep", word])
        assert appeared(word)
        with pytest.raises(SandboxError, match="another"):
            opened.run_sync("pass")
        opened.write_sync("while.txt", b"it runs")
        opened.close()
        assert first.result().killed_for == "cancelled"


def test_boxes_work_from_several_loops_and_threads_at_once(level: int) -> None:
    async def several(start: int) -> list[str]:
        async def one(number: int) -> str:
            async with box(level, files={"n": str(number)}) as opened:
                return (await opened.run("import os; print(open('n').read(), os.getuid())")).stdout

        return list(await asyncio.gather(*(one(start + turn) for turn in range(4))))

    with ThreadPoolExecutor(3) as pool:
        said = [
            line.split() for lines in pool.map(lambda start: asyncio.run(several(start)), (0, 4, 8)) for line in lines
        ]
    assert [int(number) for number, _ in said] == list(range(12))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_each_open_box_has_its_own_user_id(level: int) -> None:
    wanted = range(61_050, 61_053)
    with box(level, user_ids=wanted) as one, box(level, user_ids=wanted) as two, box(level, user_ids=wanted) as three:
        told = {
            opened.run_sync("import os; print(os.getuid(), os.getgid(), os.getgroups())").stdout
            for opened in (one, two, three)
        }
        assert told == {f"{uid} {uid} []\n" for uid in wanted}
        with pytest.raises(SandboxError, match="3 user"):
            box(level, user_ids=wanted).__enter__()
    with box(level, user_ids=wanted) as again:
        assert again.run_sync("print('free again')").ok


@pytest.mark.parametrize("uid", [0, 1, 65534, -1, processes.GUARD_UID])
def test_an_id_of_somebody_is_never_taken(uid: int) -> None:
    with pytest.raises(SandboxError, match="reserved"):
        uids.lease([uid])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_acting_as_a_user_is_this_threads_and_ends() -> None:
    def rights() -> str:
        lines = Path("/proc/thread-self/status").read_text().splitlines()
        return str([line for line in lines if line.startswith(("Uid", "Gid", "CapEff", "CapPrm"))])

    before, dumpable = rights(), Path("/proc/self/environ").stat().st_uid
    with processes.acting_as(61_098):
        assert os.geteuid() == 61_098
        with pytest.raises(PermissionError):
            os.kill(1, 0)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(Path("/proc/1/status").read_text).result()
            assert Path("/proc/self/status").read_text().split("Uid:")[1].split()[1] == (
                "61098" if threading.current_thread() is threading.main_thread() else "0"
            )
    assert (rights(), Path("/proc/self/environ").stat().st_uid) == (before, dumpable)
    with pytest.raises(SandboxError, match="does not matter"), processes.acting_as(61_098):
        raise SandboxError("does not matter")
    assert rights() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_ending_a_box_ends_no_other_process_that_looks_into_one() -> None:
    """Two servers on one machine: while one measures a box on its first thread, the other ends another box."""
    program = (
        "import os, sys\nfrom taskapp_kit.sandbox import processes\nprint('looks', flush=True)\n"
        "while os.getppid() != 1:\n    processes.usage([os.getpid()], memory_above=0, uid=61_096)"
    )
    other = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"looks\n"
        for _ in range(300):
            processes.kill_uid(61_097)
        assert other.poll() is None
    finally:
        other.kill()
        other.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_processes_of_a_killed_owner_are_killed() -> None:
    word = token()
    left = subprocess.Popen(["/bin/sleep", word], user=61_099, group=61_099, extra_groups=[])
    try:
        assert appeared(word)
        uids.lease([61_099]).release()
        assert left.wait(5) == -signal.SIGKILL
    finally:
        left.kill()
        left.wait()


@pytest.mark.ci(keep=1)
def test_forty_runs_leave_nothing(level: int) -> None:
    with box(level) as warm:
        assert warm.run_sync("pass").ok
    before, descriptors, threads = (folders(), mounts()), open_descriptors(), threading.active_count()
    word = token()

    def some(_: int) -> None:
        for turn in range(10):
            with box(level, files={"x": b"x"}) as opened:
                assert opened.run_sync(["sh", "-c", f"sleep {word} & exit {turn}"]).exit_code == turn

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(some, range(4)))
    assert gone(word, 0)
    assert (folders(), mounts()) == before
    # servers of other tests may end meanwhile
    assert open_descriptors() <= descriptors and threading.active_count() <= threads


def test_the_box_dies_with_us(level: int) -> None:
    word, before = token(), folders()
    program = (
        "import sys\nfrom taskapp_kit.sandbox import Sandbox\n"
        f"with Sandbox(level={level}) as box:\n    box.run_sync(['sleep', sys.stdin.read()])"
    )
    ours = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE)
    try:
        assert ours.stdin is not None
        ours.stdin.write(word.encode())
        ours.stdin.close()
        assert appeared(word)
    finally:
        ours.kill()
        ours.wait()
    assert gone(word)
    for left in folders() - before:  # nobody was there to remove it; `sweep` would, a minute later
        remove_tree(Path(tempfile.gettempdir()) / left)


def test_a_folder_whose_owner_was_killed_is_swept(level: int) -> None:
    before = folders()
    program = f"import os\nfrom taskapp_kit.sandbox import Sandbox\nSandbox(level={level}, files={{'a': 'x'}}).__enter__()\nos._exit(9)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    (left,) = folders() - before
    path = Path(tempfile.gettempdir()) / left
    with box(level) as living:
        (own,) = folders() - before - {left}
        sweep()
        assert path.exists()
        for name in (left, own):
            os.utime(path.with_name(name), (0, 0))
        assert sweep() >= 1
        assert not path.exists()
        assert living.run_sync("print('untouched')").stdout == "untouched\n"


@pytest.mark.parametrize(
    "wrong",
    [
        {"wall_seconds": 0},
        {"memory_bytes": -1},
        {"processes": True},
        {"files": 1.5},
        {"cpu_seconds": float("nan")},
        {"file_bytes": "1"},
    ],
)
def test_invalid_limit_is_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(SandboxError, match=next(iter(wrong))):
        SandboxLimits(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [[], ["a\0b"], [1]])
def test_invalid_command_is_rejected(level: int, wrong: list[str]) -> None:
    with box(level) as opened, pytest.raises(SandboxError, match="list of strings"):
        opened.run_sync(wrong)


def test_a_socket_leads_out_of_a_box_of_level_3_only(level: int) -> None:
    program = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(b'out')"
    with box(level) as opened:
        if level != 3:
            with pytest.raises(SandboxError, match=f"level {level}"):
                opened.listen_sync("way.sock")
            return
        listener, path = opened.listen_sync("way.sock")
        with listener:
            listener.settimeout(30)
            assert opened.run_sync(["python", "-c", program, path]).ok
            with listener.accept()[0] as connection:
                assert connection.recv(3) == b"out"
        assert not opened.run_sync(["python", "-c", program, path]).ok, "nothing listens any more"


def test_further_folders_are_shown_at_level_3_only(level: int, tmp_path: Path) -> None:
    if level in (1, 2):
        with pytest.raises(SandboxError, match="readable directories"), box(level, readable=[str(tmp_path)]):
            pass


def test_places_are_directories_of_the_box_at_other_paths(level: int) -> None:
    if level != 3:
        with pytest.raises(SandboxError, match="does not support places"), box(level, places=["/app"]):
            pass
        return
    with box(3, places=["/app", "/logs"]) as opened:
        opened.write_sync("/app/deep/a.txt", "in")
        done = opened.run_sync(
            ["sh", "-c", "cat /app/deep/a.txt; echo out > /logs/b.txt; echo home > c.txt; mv /app /moved"]
        )
        assert done.stdout == "in" and done.exit_code != 0  # a place cannot be moved, or be replaced by a link
        assert opened.read_sync("/logs/b.txt") == b"out\n"
        assert opened.list_sync() == ["c.txt"]
        assert opened.run_sync(["sh", "-c", "ln -s /etc /logs/etc; chmod 000 /logs"]).ok
        opened.clear_sync("/logs")
        opened.clear_sync()
        left = opened.run_sync(["sh", "-c", "find /app /logs . -mindepth 1; touch /logs/again"])
        assert (left.stdout.split(), left.exit_code) == (["/app/deep", "/app/deep/a.txt"], 0)
        for name in ("/app/../x", "/other/x", "/logs"):
            with pytest.raises(SandboxError):
                opened.write_sync(name, "x")
        with pytest.raises(SandboxError, match="no directory"):
            opened.clear_sync("/other")
    for place in ("/usr", "app", "/app/inner", "/", "/.."):
        with pytest.raises(SandboxError, match="cannot be one of"):
            box(3, places=[place])


def test_files_in_places_count_against_the_disk_limit(level: int) -> None:
    if level != 3:
        pytest.skip("places are of level 3")
    limits = SandboxLimits(file_bytes=2**20, wall_seconds=20)
    with box(3, limits=limits, places=["/app"]) as opened:
        fill = "for n in 1 2 3 4; do head -c 900000 /dev/zero > /app/$n; done; sleep 15"
        assert opened.run_sync(["sh", "-c", fill]).killed_for == "disk"
