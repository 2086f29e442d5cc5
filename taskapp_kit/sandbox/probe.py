"""Determines which sandbox levels work on this machine, with a probe that tries to break out of a box.

`probe_inside.py` runs in a box and attempts everything that the level should deny, against targets that this module creates.
A level works if it denies all the attempts that it promises to deny. Each process probes a level once.
"""

from __future__ import annotations

import json
import platform
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from taskapp_kit.config import from_environment
from taskapp_kit.errors import KitError, SandboxError, SandboxTooWeak
from taskapp_kit.sandbox import layers, processes, remote, uids
from taskapp_kit.sandbox.folder import Folder
from taskapp_kit.sandbox.limits import MB, RunResult, SandboxLimits
from taskapp_kit.sandbox.supervise import Run, Stop

CLOSED = {
    "tcp_out": "network off (TCP)",
    "udp_out": "network off (UDP)",
    "other_sockets": "host's unix and vsock sockets closed",
    "read_outside": "host's files unreadable",
    "write_outside": "host's files unwritable",
    "others_environment": "host's variables unreadable",
    "signal_others": "host's processes unsignalled",
    "trace_others": "no tracing",
    "namespaces": "no new namespaces",
    "memory": "memory limited",
    "big_file": "file size limited",
    "forks": "processes limited",
    "daemon": "nothing outlives a run",
}
"""The name of the protection that the denial of each attempt proves."""

PROMISED = {
    4: frozenset({"tcp_out", "udp_out", "read_outside", "write_outside", "others_environment", "daemon"}),
    3: frozenset(CLOSED),
    2: frozenset(CLOSED),
    1: frozenset({"memory", "big_file"}),
    0: frozenset[str](),
}
"""The attempts that each level must deny. A remote machine must only protect this host. Other attempts are reported."""

HOW = {
    4: {
        "tcp_out": "machine without network", "udp_out": "machine without network", "read_outside": "another machine",
        "write_outside": "another machine", "others_environment": "another machine", "daemon": "own user id",
    },
    3: {
        "tcp_out": "network namespace", "udp_out": "network namespace", "other_sockets": "namespaces, seccomp",
        "read_outside": "mount namespace", "write_outside": "mount namespace", "others_environment": "pid namespace",
        "signal_others": "pid namespace", "trace_others": "seccomp", "namespaces": "seccomp", "memory": "RLIMIT_AS",
        "big_file": "RLIMIT_FSIZE", "forks": "RLIMIT_NPROC", "daemon": "pid namespace",
    },
    2: {
        "tcp_out": "seccomp", "udp_out": "seccomp", "other_sockets": "seccomp", "read_outside": "Landlock",
        "write_outside": "Landlock", "others_environment": "Landlock", "signal_others": "own user id",
        "trace_others": "seccomp", "namespaces": "seccomp", "memory": "RLIMIT_AS", "big_file": "RLIMIT_FSIZE",
        "forks": "RLIMIT_NPROC", "daemon": "own user id",
    },
}  # fmt: skip
_COUNT_OWN = """
import contextlib, os
count = 0
for name in os.listdir("/proc"):
    with contextlib.suppress(OSError):
        count += name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid()
print(count)
"""
_LIMITS = SandboxLimits(wall_seconds=20, cpu_seconds=10, memory_bytes=256 * MB, processes=16, file_bytes=16 * MB)


@dataclass(frozen=True, slots=True)
class ProbedCapability:
    """One attempt of the probe: whether it was denied, and by which mechanism (`detail`)."""

    name: str
    meaning: str
    denied: bool
    detail: str

    def __str__(self) -> str:
        return f"{self.meaning}: {'yes' if self.denied else 'no'} ({self.detail})"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of sandboxes on this machine.

    Attributes:
        level: The sandbox level.
        name: The name of the level.
        walls: The attempts to break out of a box, and whether each was denied.
        refused: A message for each stronger level that does not work, with the reason.
    """

    level: int
    name: str
    walls: tuple[ProbedCapability, ...]
    refused: tuple[str, ...] = ()

    @property
    def safe(self) -> bool:
        """Whether untrusted code may run without `allow_weak`."""
        return self.level >= layers.SAFE_LEVEL

    def lines(self) -> list[str]:
        """Return a report with one line for the level, each capability, and each level that does not work."""
        return [f"sandbox level {self.level} ({self.name})", *map(str, self.walls), *self.refused]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON. `walls` maps the name of each attempt to whether it was denied."""
        walls = {wall.name: wall.denied for wall in self.walls}
        return {**asdict(self), "walls": walls, "refused": list(self.refused)}


_lock = threading.RLock()
_known: dict[int, Capabilities | SandboxError] = {}
_known_remote: dict[int, tuple[remote.Machines, Capabilities]] = {}


def at_level(level: int) -> Capabilities:
    """Return the report of a sandbox level. Raises SandboxTooWeak if the level does not work on this machine.

    The first call for a level runs the probe. Later calls return the cached report.
    """
    machines = remote.in_use()
    if level == remote.LEVEL and machines is not None:
        return _at_remote(machines)
    if level not in layers.LOCAL_LEVELS:
        raise SandboxTooWeak(
            f"The sandbox level {level!r} does not exist.",
            hint=f"Use one of {', '.join(map(str, layers.LOCAL_LEVELS))}.",
        )
    if platform.system() != "Linux":
        raise SandboxTooWeak(
            f"Sandboxes require Linux, but this is {platform.system()}.", hint="Use a Linux container or VM."
        )
    with _lock:
        if level not in _known:
            try:
                _known[level] = _probe(level)
            except (KitError, OSError) as error:
                _known[level] = SandboxTooWeak(f"Sandbox level {level} ({layers.NAMES[level]}) does not work: {error}")
        report = _known[level]
    if isinstance(report, SandboxError):
        raise SandboxTooWeak(report.message)
    return report


def _at_remote(machines: remote.Machines) -> Capabilities:
    """Return the report for boxes on remote machines. Failures are not cached, because starting a machine may work later."""
    with _lock:
        known = _known_remote.get(id(machines))
        if known is None or known[0] is not machines:
            try:
                known = machines, _probe_remote(machines)
            except KitError as error:
                raise SandboxTooWeak(f"Sandbox level 4 (remote) does not work: {error}") from error
            _known_remote[id(machines)] = known
    return known[1]


def capabilities() -> Capabilities:
    """Return the report of the strongest level that works here. The first call takes a fraction of a second.

    Raises:
        SandboxTooWeak: No level works, so no box can start a program.
    """
    refused: list[str] = []
    for level in layers.LOCAL_LEVELS if remote.in_use() is None else (remote.LEVEL, *layers.LOCAL_LEVELS):
        try:
            return replace(at_level(level), refused=tuple(refused))
        except SandboxTooWeak as error:
            refused.append(error.message)
    raise SandboxTooWeak(f"No sandbox level works on this machine. {' '.join(refused)}")


def settle(level: int | None, allow_weak: bool | None) -> int:
    """Return the sandbox level of a new box: `level`, or the strongest level that works if `level` is None.

    Raises SandboxTooWeak if the level does not work, or if it is weak and weak levels are not allowed.
    """
    report = capabilities() if level is None else at_level(level)
    if report.safe or (from_environment().allow_weak_sandbox if allow_weak is None else allow_weak):
        return report.level
    reasons = " ".join(report.refused)
    raise SandboxTooWeak(
        "Untrusted code cannot run safely on this machine: sandbox level "
        f"{report.level} ({report.name}) does not confine files, network and processes. {reasons}".strip(),
        hint="Make a stronger level work on this machine, or, if you trust the code, set TASKAPP_ALLOW_WEAK_SANDBOX=1.",
    )


def _probe(level: int) -> Capabilities:
    held = uids.lease(uids.DEFAULT_UIDS) if layers.own_uid(level) else None
    try:
        folder = Folder(held.uid if held else None)
        try:
            with _targets() as targets:
                outcomes = _attempts(level, folder, targets)
        finally:
            folder.remove()
    finally:
        if held is not None:
            held.release()
    return _report(level, layers.NAMES[level], outcomes)


def _probe_remote(machines: remote.Machines) -> Capabilities:
    """Run the probe on a new remote machine. The TCP attempt uses an address that this process can reach."""
    stop = Stop()
    box = remote.RemoteBox(machines, _LIMITS)
    try:
        with _targets() as targets:
            names = dict(targets.names)
            if (reachable := machines.reachable()) is not None:
                names["tcp_host"], names["tcp_port"] = reachable
            program = Path(__file__).with_name("probe_inside.py").read_text("utf-8")
            outcomes = _outcomes(box.run(program, None, _LIMITS, json.dumps(names).encode(), stop))
            _check_datagram(outcomes, targets)
        left = box.run(_COUNT_OWN, None, _LIMITS, b"", stop)
        outcomes["daemon"] = "denied: gone" if left.stdout.strip() == "1" else "open"
    finally:
        stop.close()
        box.remove()
    return _report(remote.LEVEL, f"remote, {machines.name}", outcomes)


def _report(level: int, title: str, outcomes: Mapping[str, str]) -> Capabilities:
    walls = tuple(
        ProbedCapability(
            name,
            meaning,
            outcomes[name].startswith("denied"),
            HOW.get(level, {}).get(name, outcomes[name].removeprefix("denied: "))
            if outcomes[name].startswith("denied")
            else "open",
        )
        for name, meaning in CLOSED.items()
    )
    broken = [wall.meaning for wall in walls if not wall.denied and wall.name in PROMISED[level]]
    if broken:
        raise SandboxTooWeak(f"these protections failed the probe: {'; '.join(broken)}.")
    return Capabilities(level, title, walls)


def _attempts(level: int, folder: Folder, targets: _Targets) -> dict[str, str]:
    folder.put_code(Path(__file__).with_name("probe_inside.py").read_bytes())
    limits = _LIMITS if level else replace(_LIMITS, memory_bytes=2**40)  # the probe must not reach a limit
    launch = layers.prepare(level, folder, None, limits)
    stop = Stop()
    run = Run(launch, folder, limits, level, json.dumps(targets.names).encode())
    try:
        result = run.result(stop)
    finally:
        stop.close()
    outcomes = _outcomes(result)
    _check_datagram(outcomes, targets)
    outcomes["daemon"] = "open" if run.left_behind else "denied: gone"
    return outcomes


def _outcomes(result: RunResult) -> dict[str, str]:
    if not result.ok:
        last = result.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
        raise SandboxError(f"the probe failed (exit code {result.exit_code}, signal {result.signal}): {last[0]}")
    outcomes: dict[str, str] = json.loads(result.stdout)
    if set(outcomes) != set(CLOSED):
        raise SandboxError("the probe did not finish.")
    return outcomes


def _check_datagram(outcomes: dict[str, str], targets: _Targets) -> None:
    """Set the outcome of `udp_out`, because only the host knows whether a datagram arrived."""
    if targets.datagram_arrived():
        outcomes["udp_out"] = "open"
    elif outcomes["udp_out"] == "open":
        outcomes["udp_out"] = "denied: the datagram never arrived"


class _Targets:
    """The targets of the probe: harmless sockets, files and a process on the host."""

    def __init__(self, udp: socket.socket, names: Mapping[str, Any]) -> None:
        self._udp = udp
        self.names = names

    def datagram_arrived(self) -> bool:
        """Return whether a datagram arrived."""
        self._udp.setblocking(False)
        try:
            return bool(self._udp.recv(16))
        except BlockingIOError:
            return False


@contextmanager
def _targets() -> Iterator[_Targets]:
    with ExitStack() as opened:
        tcp, udp, named, abstract = (
            opened.enter_context(socket.socket(family, kind))
            for family, kind in (
                (socket.AF_INET, socket.SOCK_STREAM),
                (socket.AF_INET, socket.SOCK_DGRAM),
                (socket.AF_UNIX, socket.SOCK_STREAM),
                (socket.AF_UNIX, socket.SOCK_STREAM),
            )
        )
        folder = Path(tempfile.mkdtemp(prefix="taskapp-probe-"))
        opened.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o777)
        (folder / "readable").write_text("any user may read this")
        (folder / "readable").chmod(0o644)
        abstract_name = f"taskapp-probe-{secrets.token_hex(8)}"
        tcp.bind(("127.0.0.1", 0))
        udp.bind(("127.0.0.1", 0))
        named.bind(str(folder / "socket"))
        (folder / "socket").chmod(0o777)
        abstract.bind(f"\0{abstract_name}")
        for listener in (tcp, named, abstract):
            listener.listen()
        victim = subprocess.Popen(
            ["/bin/sleep", "60"],
            env={"TASKAPP_PROBE": "seen"},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        opened.callback(victim.wait)
        opened.callback(processes.kill, [victim.pid])
        names = {
            "tcp_port": tcp.getsockname()[1],
            "udp_port": udp.getsockname()[1],
            "pid": victim.pid,
            "readable": str(folder / "readable"),
            "writable": str(folder),
            "socket_path": str(folder / "socket"),
            "abstract_name": abstract_name,
        }
        yield _Targets(udp, names)
