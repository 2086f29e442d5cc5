"""Where vLLM is: the operator's setting `TASKAPP_VLLM`, and what a job's `[vllm]` section says of a child. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from taskapp_kit.errors import ConfigError
from taskapp_kit.net.addresses import NotAnAddress, server_url
from taskapp_kit.net.http import header_key

VARIABLE = "TASKAPP_VLLM"
KEY_VARIABLE = "VLLM_API_KEY"
"""What vLLM calls it, too: the key of a server that is there."""


@dataclass(frozen=True, slots=True)
class VllmPlace:
    """Where vLLM is: a virtual environment that has it, or a server. The operator's: a job can start or call no other.

    environment: its folder, with bin/python. url: of the server, without `/v1`. key: its bearer, if it wants one. One of
    environment and url is given.
    """

    # A job that could name these could start any program, or have the trainer call any address.
    environment: str | None = None
    url: str | None = None
    key: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, text: str | None, key: str | None = None) -> Self | None:
        """Return the place that the setting names, None for none. Raises ConfigError."""
        if not text:
            return None
        if "://" in text:
            try:
                url = server_url(text)
            except NotAnAddress as wrong:
                raise ConfigError(
                    f"{VARIABLE}: the address {wrong}.", hint="Give one such as http://127.0.0.1:8000."
                ) from None
            return cls(url=url.removesuffix("/v1"), key=header_key(key, KEY_VARIABLE))
        folder = Path(text).expanduser().absolute()
        if not (folder / "bin" / "python").exists():
            raise ConfigError(
                f"{VARIABLE} is {text}, which has no bin/python; expected the folder of a virtual environment that has vLLM, "
                "or a server's address.",
                hint="python -m venv vllm-env && vllm-env/bin/pip install vllm",
            )
        return cls(environment=str(folder))

    def refusal(self, *, whole_weights: bool) -> str | None:
        """Return why a job cannot sample here, one sentence; None if it can. whole_weights: it trains no adapter."""
        if self.url is None or not whole_weights:
            return None
        return (
            '[model] trainer_mode: found "full"; expected "lora" with a vLLM server that is there. It takes new adapters, '
            "not new weights."
        )


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """How a child is started, as a job's `[vllm]` says. None is left to vLLM.

    max_model_len: most tokens of a prompt and its answer together. gpu_memory_utilization: share of a GPU's memory.
    enforce_eager: whether nothing is compiled before the first answer.
    """

    tensor_parallel_size: int = 1
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    enforce_eager: bool = True

    @property
    def flags(self) -> list[str]:
        """The arguments of vLLM's command."""
        found = ["--tensor-parallel-size", str(self.tensor_parallel_size)]
        if self.max_model_len is not None:
            found += ["--max-model-len", str(self.max_model_len)]
        if self.gpu_memory_utilization is not None:
            found += ["--gpu-memory-utilization", f"{self.gpu_memory_utilization:g}"]
        return [*found, "--enforce-eager"] if self.enforce_eager else found
