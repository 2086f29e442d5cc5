"""Server processes under measurement: started with a bare environment, CPU and memory read from /proc (Linux)."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
START_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 3.0  # the Synth SDK handles SIGTERM without ending: it is killed
PEER_BUILDER = ROOT / "tests" / "interop" / "peers.py"


class BenchFailed(RuntimeError):
    """A measurement could not be made. The message says which process did what instead."""


@dataclass(frozen=True)
class Server:
    """A running server: `key` grants access, `healthy_seconds` is from its start to its first healthy answer."""

    name: str
    address: str
    key: str
    pid: int
    healthy_seconds: float

    def cpu_seconds(self) -> float:
        """User and system seconds of the process and its descendants, finished ones included (10 ms steps)."""
        return sum(_cpu_ticks(pid) for pid in _family(self.pid)) / TICKS_PER_SECOND

    def parent_cpu_seconds(self) -> float:
        """User and system seconds of the process that was started and listens, without its children's (10 ms steps)."""
        return sum(int(field) for field in _stat(self.pid)[11:13]) / TICKS_PER_SECOND

    def resident_megabytes(self) -> float:
        """Resident memory of the process and its descendants, in MB (10^6 bytes); shared memory counts in each."""
        return sum(_resident_kibibytes(pid) for pid in _family(self.pid)) * 1024 / 1e6


def cpu_ticks_of_family(pid: int) -> int:
    """User and system time of a process and its descendants, finished ones included."""
    return sum(_cpu_ticks(member) for member in _family(pid))


def bare_environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Path, a scratch home and `more`: none of the developer's keys, no peer's telemetry."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "SYNTH_DISABLE_LOGGING": "1", **(more or {})}


@contextmanager
def served(name: str, command: Sequence[str], directory: Path, home: Path) -> Iterator[Server]:
    """Runs `command` ({port} in it is replaced) in `directory` until the block ends. Raises BenchFailed."""
    home.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    key, log_path = secrets.token_hex(16), home / f"{name}-{port}.log"
    environment = bare_environment(home, {"ENVIRONMENT_API_KEY": key})
    with log_path.open("w") as log:
        started = time.perf_counter()
        process = subprocess.Popen(
            [part.replace("{port}", str(port)) for part in command],
            cwd=directory,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_until_healthy(name, process, address, key, log_path)
            yield Server(name, address, key, process.pid, time.perf_counter() - started)
        finally:
            process.terminate()
            try:
                process.wait(timeout=STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def our_command(app: str, store: str = "none", workers: int = 0) -> list[str]:
    """`taskapp serve APP`, from this checkout. workers: processes that play; 0 for threads of the server itself."""
    address = ["--host", "127.0.0.1", "--port", "{port}"]
    options = ["--store", store, "--workers", str(workers)]
    return [sys.executable, "-m", "taskapp_kit", "serve", app, *address, *options]


def peer_python(name: str) -> str:
    """The Python of a peer's environment, built now if needed. Raises BenchFailed with the builder's message."""
    command = [sys.executable, str(PEER_BUILDER), name]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        raise BenchFailed(built.stderr.strip())
    return built.stdout.strip().splitlines()[-1]


def synth_command() -> list[str]:
    """The Synth reference app under one uvicorn worker, its access log off. Raises BenchFailed."""
    python = peer_python("synth-ai-0.3.9")
    options = ["--factory", "synth_reference_app:build_app", "--app-dir", str(ROOT / "bench")]
    quiet = ["--no-access-log", "--log-level", "warning"]
    return [python, "-m", "uvicorn", *options, "--host", "127.0.0.1", "--port", "{port}", *quiet]


def _wait_until_healthy(name: str, process: subprocess.Popen[bytes], address: str, key: str, log_path: Path) -> None:
    request = urllib.request.Request(f"{address}/health", headers={"X-API-Key": key})
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(request, timeout=10):
                return
        except urllib.error.HTTPError as error:
            raise BenchFailed(f"{name} answers /health with {error.code} for its own key.") from error
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.005)
    output = log_path.read_text()[-2000:]
    raise BenchFailed(f"{name} gave no healthy answer (exit status {process.poll()}). Its output:\n{output}")


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name (which may contain spaces); [] if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()


def _family(root: int) -> list[int]:
    """`root` and its living descendants."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    parents = {pid: _stat(pid)[1:2] for pid in pids}
    family = [root]
    for member in family:  # grows during the iteration
        family += [pid for pid, parent in parents.items() if parent == [str(member)]]
    return family


def _cpu_ticks(pid: int) -> int:
    """utime + stime + those of its reaped children: fields 14 to 17 of proc(5)."""
    return sum(int(field) for field in _stat(pid)[11:15])


def _resident_kibibytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)
