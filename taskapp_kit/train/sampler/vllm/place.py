"""The location of vLLM (the operator's setting `TASKAPP_VLLM`), and a job's `[vllm]` settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from taskapp_kit.errors import ConfigError
from taskapp_kit.net.addresses import NotAnAddress, server_url
from taskapp_kit.net.http import header_key

VARIABLE = "TASKAPP_VLLM"
KEY_VARIABLE = "VLLM_API_KEY"
"""The variable with the key of a running server. vLLM uses the same name."""


@dataclass(frozen=True, slots=True)
class VllmPlace:
    """The operator's vLLM: a virtual environment or a running server. Exactly one of `environment` and `url` is set.

    Attributes:
        environment: The directory of the virtual environment.
        url: The address of the server, without `/v1`.
        key: The server's bearer token, or None if it does not require a token.
    """

    # Jobs cannot set these values, because they could start any program, or make the trainer call any address.
    environment: str | None = None
    url: str | None = None
    key: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, text: str | None, key: str | None = None) -> Self | None:
        """Parse the setting. Return None if it is not set. Raises ConfigError if it is invalid."""
        if not text:
            return None
        if "://" in text:
            try:
                url = server_url(text)
            except NotAnAddress as wrong:
                raise ConfigError(
                    f"{VARIABLE}: the address {wrong}.", hint="Use an address such as http://127.0.0.1:8000."
                ) from None
            return cls(url=url.removesuffix("/v1"), key=header_key(key, KEY_VARIABLE))
        folder = Path(text).expanduser().absolute()
        if not (folder / "bin" / "python").exists():
            raise ConfigError(
                f"{VARIABLE} is {text}, which has no bin/python. Expected the directory of a virtual environment with vLLM, "
                "or the address of a server.",
                hint="To create one, run: python -m venv vllm-env && vllm-env/bin/pip install vllm",
            )
        return cls(environment=str(folder))

    def refusal(self, *, whole_weights: bool) -> str | None:
        """Return why a job cannot sample with this vLLM, or None if it can. `whole_weights` means that it trains all weights."""
        if self.url is None or not whole_weights:
            return None
        return (
            '[model] trainer_mode: found "full"; expected "lora", because a running vLLM server can load adapters but not '
            "whole weights."
        )


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """The `[vllm]` settings of a job for starting a child process. A value of None selects vLLM's default.

    Attributes:
        tensor_parallel_size: The number of GPUs.
        max_model_len: The maximum number of tokens of a prompt together with its reply.
        gpu_memory_utilization: The share of a GPU's memory that vLLM uses.
        enforce_eager: Whether to start without compiling.
    """

    tensor_parallel_size: int = 1
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    enforce_eager: bool = True

    @property
    def flags(self) -> list[str]:
        """The settings as arguments of vLLM's command."""
        flags = ["--tensor-parallel-size", str(self.tensor_parallel_size)]
        if self.max_model_len is not None:
            flags += ["--max-model-len", str(self.max_model_len)]
        if self.gpu_memory_utilization is not None:
            flags += ["--gpu-memory-utilization", f"{self.gpu_memory_utilization:g}"]
        return [*flags, "--enforce-eager"] if self.enforce_eager else flags
