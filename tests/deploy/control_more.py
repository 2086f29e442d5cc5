"""What the control plane answers about Dicts and Sandboxes: mixins for `ControlPlane`.

Each plane serves one container, so two containers are two planes over one `Dicts`. Put if absent is one step under a
lock, as Modal promises of its own; keys are compared by their serialized bytes, as there.

A Sandbox here is a bubblewrap container of this machine, and the second service through which Modal's client runs
commands in it (the task command router) is answered by the same server.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from modal_proto import api_pb2
from modal_proto import task_command_router_pb2 as router_pb2

from taskapp_kit.errors import SandboxTooWeak
from taskapp_kit.sandbox.probe import at_level
from tests.deploy.control_plane import ControlPlane, unary

VALUE_BYTES = 5 * 2**20
"""A value longer than this is refused here, so that a test sees that nobody relies on more."""


class Dicts:
    """Named Dicts. calls: of each kind. down: while set, every call is refused. slow_seconds: before each answer.

    lose_answers: a put of a key with one of these words is done once, and its answer is lost on the way.
    """

    def __init__(self) -> None:
        self.named: dict[str, dict[bytes, bytes]] = {}
        self.calls: dict[str, int] = {}
        self.down = False
        self.slow_seconds = 0.0
        self.lose_answers: set[bytes] = set()
        self.lock = threading.Lock()

    def everything(self) -> bytes:
        """All that lies in all Dicts."""
        with self.lock:
            return b"\n".join(key + b" " + value for entries in self.named.values() for key, value in entries.items())


class WithDicts(ControlPlane):
    """A control plane that has Dicts, too."""

    def __init__(self, secrets: dict[str, set[str]], dicts: Dicts | None = None) -> None:
        super().__init__(secrets)
        self.dicts = dicts or Dicts()

    async def _entered(self, name: str) -> None:
        with self.dicts.lock:
            self.dicts.calls[name] = self.dicts.calls.get(name, 0) + 1
        if self.dicts.slow_seconds:
            await asyncio.sleep(self.dicts.slow_seconds)
        if self.dicts.down:
            raise GRPCError(Status.FAILED_PRECONDITION, "the Dict service has canary-in-a-message a bad day")

    def _entries(self, dict_id: str) -> dict[bytes, bytes]:
        return self.dicts.named[dict_id.removeprefix("di-")]

    @unary
    async def DictGetOrCreate(self: Any, request: api_pb2.DictGetOrCreateRequest) -> Message:
        await self._entered("DictGetOrCreate")
        create = request.object_creation_type == api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING
        with self.dicts.lock:
            if request.deployment_name not in self.dicts.named and not create:
                raise GRPCError(Status.NOT_FOUND, "no such Dict")
            self.dicts.named.setdefault(request.deployment_name, {})
        return api_pb2.DictGetOrCreateResponse(
            dict_id=f"di-{request.deployment_name}", metadata=api_pb2.DictMetadata(name=request.deployment_name)
        )

    @unary
    async def DictGet(self: Any, request: api_pb2.DictGetRequest) -> Message:
        await self._entered("DictGet")
        with self.dicts.lock:
            value = self._entries(request.dict_id).get(request.key)
        return api_pb2.DictGetResponse(found=value is not None, value=value or b"")

    @unary
    async def DictUpdate(self: Any, request: api_pb2.DictUpdateRequest) -> Message:
        await self._entered("DictUpdate")
        if sum(len(entry.value) for entry in request.updates) > VALUE_BYTES:
            raise GRPCError(Status.UNKNOWN, "Received :status = '413'")
        with self.dicts.lock:
            entries = self._entries(request.dict_id)
            created = False
            for entry in request.updates:
                if entry.key not in entries or not request.if_not_exists:
                    created = created or entry.key not in entries
                    entries[entry.key] = entry.value
            lost = {word for word in self.dicts.lose_answers for entry in request.updates if word in entry.key}
            self.dicts.lose_answers -= lost
        if lost:
            raise GRPCError(Status.UNAVAILABLE, "the answer was lost")
        return api_pb2.DictUpdateResponse(created=created)

    @unary
    async def DictPop(self: Any, request: api_pb2.DictPopRequest) -> Message:
        await self._entered("DictPop")
        with self.dicts.lock:
            value = self._entries(request.dict_id).pop(request.key, None)
        return api_pb2.DictPopResponse(found=value is not None, value=value or b"")


# -- Sandboxes ----------------------------------------------------------------------------------------------------


@dataclass
class Exec:
    """A command that runs in a Sandbox: its process, and all that it printed so far."""

    process: asyncio.subprocess.Process
    printed: dict[int, bytearray] = field(default_factory=lambda: {1: bytearray(), 2: bytearray()})
    stdin_bytes: int = 0
    readers: list[asyncio.Task[None]] = field(default_factory=list)


@dataclass
class Machine:
    """A Sandbox: what was asked for, where its own folder lies, what runs in it."""

    request: api_pb2.SandboxCreateV2Request
    folder: Path
    execs: dict[str, Exec] = field(default_factory=dict)
    terminated: bool = False

    def command(self, argv: list[str]) -> list[str]:
        """The command inside: root of its own namespaces, the network off if that was asked for."""
        blocked = self.request.definition.network_access.network_access_type == api_pb2.NetworkAccess.BLOCKED
        place = self.folder / "box"
        place.mkdir(exist_ok=True)
        return [
            "bwrap", "--unshare-pid", "--unshare-ipc", *(["--unshare-net"] if blocked else []), "--die-with-parent",
            "--cap-add", "ALL", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib",
            "/lib", "--symlink", "usr/lib64", "/lib64", "--symlink", "usr/sbin", "/sbin",
            "--ro-bind-try", "/etc/alternatives", "/etc/alternatives", "--proc", "/proc", "--dev", "/dev",
            "--tmpfs", "/tmp", "--bind", str(place), "/taskapp-box", "--clearenv",
            "--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--", *argv,
        ]  # fmt: skip


def machines_can_be_made() -> bool:
    """Whether this machine can stand for Modal: a Sandbox here is a bubblewrap container, with root inside."""
    try:
        return shutil.which("bwrap") is not None and at_level(3).safe and os.geteuid() == 0
    except (SandboxTooWeak, OSError):
        return False


def passport() -> str:
    """A token of which only the end of its time is read."""
    claims = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + 3600}).encode()).decode().rstrip("=")
    return f"x.{claims}.x"


class WithSandboxes(WithDicts):
    """A control plane that makes Sandboxes, too.

    refuse: makes no more Sandboxes. vanish_after: a command's Sandbox is gone so many seconds after it began.
    """

    def __init__(self, secrets: dict[str, set[str]], dicts: Dicts | None = None) -> None:
        super().__init__(secrets, dicts)
        self.machines: dict[str, Machine] = {}
        self.refuse = False
        self.obeys_block = True
        self.vanish_after: float | None = None

    def __mapping__(self) -> dict[str, Handler]:
        service = router_pb2.DESCRIPTOR.services_by_name["TaskCommandRouter"]
        return super().__mapping__() | {
            f"/{service.full_name}/{call.name}": Handler(
                getattr(self, call.name),
                Cardinality.UNARY_STREAM if call.server_streaming else Cardinality.UNARY_UNARY,
                GetMessageClass(call.input_type),
                GetMessageClass(call.output_type),
            )
            for call in service.methods
            if hasattr(self, call.name)
        }

    def close_machines(self) -> None:
        for machine in self.machines.values():
            shutil.rmtree(machine.folder, ignore_errors=True)

    @unary
    def AppGetOrCreate(self: Any, request: Any) -> Message:
        return api_pb2.AppGetOrCreateResponse(app_id="ap-1")

    @unary
    def AuthTokenGet(self: Any, request: Any) -> Message:
        return api_pb2.AuthTokenGetResponse(token=passport())

    @unary
    def SandboxCreateV2(self: Any, request: api_pb2.SandboxCreateV2Request) -> Message:
        if self.refuse:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, "no canary-in-a-message Sandboxes for you")
        number = len(self.machines) + 1
        if not self.obeys_block:
            request.definition.network_access.network_access_type = api_pb2.NetworkAccess.OPEN
        self.machines[f"ta-{number}V"] = Machine(request, Path(tempfile.mkdtemp(prefix="taskapp-test-machine-")))
        self.machines[f"ta-{number}V"].folder.chmod(0o755)
        return api_pb2.SandboxCreateV2Response(
            sandbox_id=f"sb-{number}-v2", task_id=f"ta-{number}V", metadata=api_pb2.SandboxHandleMetadata(app_id="ap-1")
        )

    @unary
    def SandboxGetCommandRouterAccess(self: Any, request: Any) -> Message:
        return api_pb2.SandboxGetCommandRouterAccessResponse(url=self.url, jwt=passport())

    @unary
    async def SandboxTerminateV2(self: Any, request: api_pb2.SandboxTerminateRequest) -> Message:
        await self._vanish(f"ta-{request.sandbox_id.split('-')[1]}V")
        return api_pb2.SandboxTerminateResponse()

    async def _vanish(self, task_id: str) -> None:
        machine = self.machines[task_id]
        machine.terminated = True
        for running in machine.execs.values():
            with contextlib.suppress(ProcessLookupError):
                running.process.kill()
        await asyncio.gather(*(running.process.wait() for running in machine.execs.values()))
        shutil.rmtree(machine.folder, ignore_errors=True)

    def _exec(self, request: Any) -> Exec:
        machine = self.machines[request.task_id]
        if machine.terminated:
            raise GRPCError(Status.NOT_FOUND, "the task is gone")
        found: Exec = machine.execs[request.exec_id]
        return found

    @unary
    async def TaskExecStart(self: Any, request: router_pb2.TaskExecStartRequest) -> Message:
        machine = self.machines[request.task_id]
        if machine.terminated:
            raise GRPCError(Status.NOT_FOUND, "the task is gone")
        pipe = asyncio.subprocess.PIPE
        command = machine.command(list(request.command_args))
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
        running = machine.execs[request.exec_id] = Exec(process)
        for number, stream in ((1, process.stdout), (2, process.stderr)):
            running.readers.append(asyncio.create_task(self._keep(stream, running.printed[number])))
        if self.vanish_after is not None:
            asyncio.get_running_loop().call_later(
                self.vanish_after, lambda: asyncio.ensure_future(self._vanish(request.task_id))
            )
        return router_pb2.TaskExecStartResponse()

    async def _keep(self, stream: Any, kept: bytearray) -> None:
        while data := await stream.read(65_536):
            kept.extend(data)

    @unary
    async def TaskExecStdinWrite(self: Any, request: router_pb2.TaskExecStdinWriteRequest) -> Message:
        running = self._exec(request)
        assert request.offset == running.stdin_bytes
        running.stdin_bytes += len(request.data)
        with contextlib.suppress(ConnectionError):
            running.process.stdin.write(request.data)
            await running.process.stdin.drain()
            if request.eof:
                running.process.stdin.close()
        return router_pb2.TaskExecStdinWriteResponse()

    async def TaskExecStdioRead(self, stream: Any) -> None:
        request = await stream.recv_message()
        running, sent = self._exec(request), request.offset
        printed = running.printed[
            1 if request.file_descriptor == router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT else 2
        ]
        while True:
            over = all(reader.done() for reader in running.readers)
            while sent < len(printed):
                data = bytes(printed[sent : sent + 262_144])
                await stream.send_message(router_pb2.TaskExecStdioReadResponse(data=data))
                sent += len(data)
            if over:
                return
            await asyncio.sleep(0.005)

    @unary
    async def TaskExecWait(self: Any, request: router_pb2.TaskExecWaitRequest) -> Message:
        code = await self._exec(request).process.wait()
        if self.machines[request.task_id].terminated:
            raise GRPCError(Status.NOT_FOUND, "the task is gone")
        return router_pb2.TaskExecWaitResponse(**({"code": code} if code >= 0 else {"signal": -code}))
