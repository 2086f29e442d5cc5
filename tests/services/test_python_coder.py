"""`SandboxedPythonCoder` and `PythonWorkspace`: programs and their verdicts, alone and as services."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from taskapp_kit.errors import EndpointRaised, ReplicaStartFailed
from taskapp_kit.sandbox import SandboxLimits
from taskapp_kit.services import PythonWorkspace, SandboxedPythonCoder
from tests.sandbox.boxes import LEVELS, SMALL
from tests.services.backends import both

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(not LEVELS, reason="no level confines untrusted code here")]
LIMITS = SandboxLimits(
    wall_seconds=3,
    cpu_seconds=2,
    memory_bytes=SMALL.memory_bytes,
    processes=16,
    file_bytes=2**20,
    files=50,
    flood_bytes=2**20,
)


@dataclass
class Answer:
    text: str


PROGRAMS = {
    "raise ValueError('no')": "ValueError: no",
    "import time; time.sleep(60)": "3 s",
    "while True: pass": "killed",
    "import os; os.abort()": "SIGABRT",
    "raise SystemExit(3)": "status 3",
    "x = bytearray(10**9)": "MemoryError",
    "while True: print('x' * 10**5)": "output",
    "import socket; socket.create_connection(('192.0.2.1', 80), 1)": "Error",
}


@pytest.mark.ci
@both
async def test_programs_have_outputs_and_reasons(backend: Any) -> None:
    coder = SandboxedPythonCoder.options(procs=1, with_gpus=False, num_replicas=2, backend=backend).as_service(
        limits=LIMITS
    )
    async with coder:
        stdout, stderr = await coder.execute.route("print(6 * 7)")
        assert (stdout, stderr) == ("42\n", "")
        assert await coder.execute.route("") == ("", "")  # what the guide's reward pays 1.0 for
        ends = await asyncio.gather(*map(coder.execute.route, PROGRAMS))
        for (_, error), reason in zip(ends, PROGRAMS.values(), strict=True):
            assert reason in error.strip().splitlines()[-1], ends


@pytest.mark.process
async def test_a_program_leaves_nothing_to_the_next() -> None:
    coder = SandboxedPythonCoder(limits=LIMITS)
    try:
        temporary = "import os, tempfile; place = tempfile.gettempdir()"  # a weak box has another one than /tmp
        write = f"{temporary}; [open(f'{{at}}/left', 'w').write('1') for at in ('.', place)]"
        assert (await coder.execute(write))[1] == ""
        stdout, _ = await coder.execute(f"{temporary}; print(os.listdir('.'), os.listdir(place))")
        assert stdout == "[] []\n"
        stdout, _ = await coder.execute(Answer("print('from an answer')"))
        assert stdout == "from an answer\n"
    finally:
        coder.close()


@pytest.mark.ci
@pytest.mark.process
async def test_the_whole_of_a_run_is_returned() -> None:
    coder = SandboxedPythonCoder(limits=LIMITS)
    try:
        ran = await coder.run(
            "import sys; text = open('in.txt').read() + sys.stdin.read(); open('out.txt', 'w').write(text)",
            stdin=" and input",
            files={"in.txt": "a file"},
            artefacts=["out.txt", "other.txt"],
        )
        assert ran.ok
        assert ran.files == ["in.txt", "out.txt"]
        assert ran.artefacts == {"out.txt": b"a file and input"}
        assert list(ran.problems) == ["other.txt"]
        killed = await coder.run("while True: pass")
        assert (killed.ok, killed.killed_for in ("cpu", "wall"), killed.exit_code) == (False, True, None)
    finally:
        coder.close()


@both
async def test_a_session_of_a_workspace_keeps_its_files(backend: Any) -> None:
    made = PythonWorkspace.options(num_replicas=2, backend=backend).as_service(limits=LIMITS)
    async with made as workspaces, workspaces.session() as one, workspaces.session() as other:
        await one.execute.route("open('notes', 'w').write('mine'); x = 1")
        assert await one.execute.route("print(open('notes').read(), 'x' in globals())") == ("mine False\n", "")
        _, error = await other.execute.route("open('notes')")
        assert "FileNotFoundError" in error


@pytest.mark.process
async def test_a_service_that_cannot_confine_programs_does_not_start() -> None:
    with pytest.raises(ReplicaStartFailed) as raised:
        await SandboxedPythonCoder.as_service(level=1, allow_weak=False).start()
    assert "SandboxTooWeak" in raised.value.message


@pytest.mark.process
async def test_invalid_program_is_rejected() -> None:
    async with SandboxedPythonCoder.as_service(limits=LIMITS) as coder:
        with pytest.raises(EndpointRaised) as raised:
            await coder.execute.route(3)
        assert raised.value.error_type == "BadArgument"
