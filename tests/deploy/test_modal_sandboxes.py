"""Boxes of level 4: Modal's own client, against Sandboxes that are bubblewrap containers of this machine.

What Modal does behind these calls (gVisor, its own network wall, start-up times) is not here.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

pytest.importorskip("modal", reason="needs taskapp-kit[modal]")

import modal
from modal_proto import api_pb2

from taskapp_kit.deploy.modal.sandboxes import ModalMachines
from taskapp_kit.errors import SandboxError, SandboxTooWeak
from taskapp_kit.sandbox import Sandbox, SandboxLimits, capabilities, remote
from tests.deploy.control_more import WithSandboxes, machines_can_be_made

MB = 2**20
LIMITS = SandboxLimits(
    wall_seconds=10, cpu_seconds=5, memory_bytes=256 * MB, processes=16, file_bytes=8 * MB, files=100,
    output_bytes=10_000, flood_bytes=4 * MB,
)  # fmt: skip


pytestmark = [
    pytest.mark.skipif(
        not machines_can_be_made(), reason="needs root, and bubblewrap (Debian: apt-get install bubblewrap)"
    ),
    pytest.mark.process,
    pytest.mark.server,
]


@pytest.fixture(scope="module")
def plane() -> Iterator[WithSandboxes]:
    plane = WithSandboxes({})
    with plane.running():
        yield plane
    plane.close_machines()


@pytest.fixture(scope="module")
def provider(plane: WithSandboxes) -> Iterator[ModalMachines]:
    with modal.client.Client(plane.url, api_pb2.CLIENT_TYPE_CLIENT, ("ak-none", "as-none")) as client:
        app = modal.App.lookup("boxes", create_if_missing=True, client=client)
        yield ModalMachines(app=app, client=client, server_url=plane.url)


@pytest.fixture
def machines(plane: WithSandboxes, provider: ModalMachines) -> Iterator[ModalMachines]:
    remote.use(provider)
    yield provider
    remote.use(None)
    plane.refuse, plane.obeys_block, plane.vanish_after = False, True, None
    open_still = [name for name, machine in plane.machines.items() if not machine.terminated]
    assert open_still == [], "every Sandbox was terminated"


def test_a_program_runs_there_and_its_files_stay_for_the_next(machines: ModalMachines) -> None:
    with Sandbox(limits=LIMITS, files={"data.txt": "4 5 6"}) as box:
        assert box.level == 4
        result = box.run_sync("print(sum(map(int, open('data.txt').read().split())))")
        assert (result.exit_code, result.stdout, result.stderr, result.killed_for) == (0, "15\n", "", None)
        assert result.level == 4
        box.write_sync("deep/double.py", "def double(x): return 2 * x")
        assert box.run_sync("from deep.double import double; open('out.txt', 'w').write(str(double(21)))").ok
        assert box.read_sync("out.txt", max_bytes=100) == b"42"
        assert box.list_sync() == ["data.txt", "deep/double.py", "out.txt"]
        shouted = box.run_sync(["sh", "-c", "tr a-z A-Z"], stdin=b"a command" * 100_000)
        assert shouted.stdout_bytes == (b"A COMMAND" * 100_000)[:10_000] and shouted.stdout_truncated
        assert box.run_sync(["python", "-c", "import os; print(os.getcwd())"]).stdout == f"{box.root}\n"


def test_the_sandbox_is_asked_for_with_walls_and_without_secrets(plane: WithSandboxes, machines: ModalMachines) -> None:
    with Sandbox(limits=LIMITS) as box:
        box.run_sync("pass")
    request = list(plane.machines.values())[-1].request
    definition = request.definition
    assert definition.network_access.network_access_type == api_pb2.NetworkAccess.BLOCKED
    assert (definition.timeout_secs, definition.idle_timeout_secs) == (3600, 600)
    assert not definition.secret_ids and not request.secret_sources and not definition.volume_mounts
    assert not definition.mount_ids and not definition.nfs_mounts and not definition.cloud_bucket_mounts
    assert not definition.open_ports.ports and not definition.include_oidc_identity_token
    assert (definition.resources.milli_cpu, definition.resources.milli_cpu_max) == (500, 2000)
    assert definition.resources.memory_mb_max == 256 + 8 + 512
    assert list(definition.entrypoint_args) == ["sleep", "infinity"]
    (image,) = plane.images[-1:]
    assert image.dockerfile_commands[0].startswith("FROM python:3.") and not image.context_files


@pytest.mark.ci(keep=1)
@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("while True: pass", "cpu"),
        ("import time; time.sleep(60)", "wall"),
        ("while True: print('x' * 100_000)", "output"),
        ("for n in range(9):\n f = open(f'f{n}', 'wb'); f.write(bytes(2 * 2**20)); f.close()\nimport time; time.sleep(60)", "disk"),
        ("for n in range(200): open(f'f{n}', 'w').close()\nimport time; time.sleep(60)", "disk"),
        (
            "import os, time\nfor _ in range(3):\n if os.fork() == 0:\n  held = b'x' * (150 * 2**20); time.sleep(60)\ntime.sleep(60)",
            "memory",
        ),
    ],
)  # fmt: skip
def test_limits_hold_there(machines: ModalMachines, code: str, cause: str) -> None:
    limits = replace(LIMITS, cpu_seconds=1, wall_seconds=2 if cause == "wall" else 20)
    with Sandbox(limits=limits) as box:
        result = box.run_sync(code)
        assert result.killed_for == cause
        assert box.run_sync("print('alive')").stdout in ("alive\n", "")


@pytest.mark.ci
def test_what_a_program_does_is_a_result(machines: ModalMachines) -> None:
    with Sandbox(limits=LIMITS) as box:
        assert box.run_sync("import os; os.kill(os.getpid(), 11)").signal == 11
        assert box.run_sync("raise SystemExit(7)").exit_code == 7
        assert "MemoryError" in box.run_sync("bytearray(2**30)").stderr
        missing = box.run_sync(["no-such-program"])
        assert missing.exit_code == 127 and "no-such-program" in missing.stderr
        # What it knows of our program: it cannot end it, write where it writes, or read it.
        hostile = (
            "import os, signal\n"
            "for name in filter(str.isdigit, os.listdir('/proc')):\n"
            "    if int(name) != os.getpid():\n"
            "        try: os.kill(int(name), 9); print('killed', name)\n"
            "        except OSError: pass\n"
            "        try: open(f'/proc/{name}/fd/1', 'wb').write(b'{}'); print('wrote', name)\n"
            "        except OSError: pass\n"
            "try: open('/taskapp-box/agent.zip'); print('read')\n"
            "except OSError: pass\n"
            "print('{\"exit_code\": 0}')\n"
        )
        result = box.run_sync(hostile)
        assert (result.exit_code, result.stdout) == (0, '{"exit_code": 0}\n')


def test_nothing_outlives_a_run(machines: ModalMachines) -> None:
    daemon = "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: time.sleep(600)\n os._exit(0)"
    with Sandbox(limits=LIMITS) as box:
        began = time.monotonic()
        assert box.run_sync(daemon).ok
        assert time.monotonic() - began < 9
        assert box.run_sync("import os\nprint(len([n for n in os.listdir('/proc') if n.isdigit() and os.stat('/proc/' + n).st_uid == os.getuid()]))").stdout == "1\n"  # fmt: skip


@pytest.mark.ci
def test_files_are_read_back_under_a_limit_and_never_through_a_link(machines: ModalMachines) -> None:
    with Sandbox(limits=LIMITS) as box:
        box.run_sync("import os; open('long', 'w').write('x' * 5000); os.symlink('/etc/passwd', 'link')")
        with pytest.raises(SandboxError, match="'long' .*100 bytes"):
            box.read_sync("long", max_bytes=100)
        with pytest.raises(SandboxError, match="'link'"):
            box.read_sync("link")
        with pytest.raises(FileNotFoundError):
            box.read_sync("nothing")
        with pytest.raises(SandboxError, match=r"'\.\./agent\.zip'"):
            box.read_sync("../agent.zip")
        with pytest.raises(SandboxError, match="file_bytes"):
            box.write_sync("big", bytes(9 * MB))
        assert box.list_sync() == ["long"]


def test_what_happens_to_the_machine_is_our_failure_and_no_result(
    plane: WithSandboxes, machines: ModalMachines
) -> None:
    with Sandbox(limits=LIMITS, level=4) as box:
        plane.vanish_after = 0.5
        with pytest.raises(SandboxError) as caught:
            box.run_sync("import time; time.sleep(5)")
        assert not isinstance(caught.value, SandboxTooWeak)
        with pytest.raises(SandboxError):
            box.run_sync("print(1)")
        plane.vanish_after = None
    plane.refuse = True
    with pytest.raises(SandboxError, match="ResourceExhaustedError") as caught:
        Sandbox(limits=LIMITS, level=4).__enter__()
    assert "canary" not in str(caught.value)


@pytest.mark.ci
def test_a_cancelled_run_is_dead_before_the_cancellation_goes_on(plane: WithSandboxes, machines: ModalMachines) -> None:
    async def use() -> None:
        async with Sandbox(limits=LIMITS) as box:
            running = asyncio.ensure_future(box.run("import time; time.sleep(60)"))
            await asyncio.sleep(0.7)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert list(plane.machines.values())[-1].terminated
            with pytest.raises(SandboxError, match="closed"):
                await box.run("print(1)")

    asyncio.run(asyncio.wait_for(use(), 30))


@pytest.mark.ci
def test_a_box_closed_from_another_thread_ends_its_run(machines: ModalMachines) -> None:
    box = Sandbox(limits=LIMITS).__enter__()
    threading.Timer(0.7, box.close).start()
    assert box.run_sync("import time; time.sleep(60)").killed_for == "cancelled"


def test_the_level_is_found_out_by_trying_and_reported(machines: ModalMachines) -> None:
    report = capabilities()
    assert (report.level, report.name, report.safe) == (4, "remote, Modal Sandbox", True)
    walls = report.to_dict()["walls"]
    assert all(walls[name] for name in ("tcp_out", "udp_out", "read_outside", "write_outside", "daemon", "memory"))
    assert report.lines()[0] == "sandbox level 4 (remote, Modal Sandbox)"


def test_a_sandbox_that_has_a_network_is_not_used(plane: WithSandboxes, machines: ModalMachines) -> None:
    """The probe connects from inside to what this process can reach: Modal's control plane."""
    plane.obeys_block = False
    host, port = machines.reachable() or ("", 0)
    socket.create_connection((host, port), timeout=5).close()
    remote.use(ModalMachines(app=machines._app, client=machines._client, server_url=plane.url))
    with pytest.raises(SandboxTooWeak, match=r"network off \(TCP\)"):
        Sandbox(limits=LIMITS, level=4).__enter__()


def test_without_machines_there_is_no_level_4() -> None:
    assert remote.in_use() is None
    with pytest.raises(SandboxTooWeak, match="3, 2, 1, 0"):
        Sandbox(level=4).__enter__()
