"""The client of training jobs: `RLJob`, the backend's client, and the configs of jobs.

Names are loaded on first use. They are also in `taskapp_kit.client`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskapp_kit.jobs.client.backend import BackendClient, backend_url
    from taskapp_kit.jobs.client.backend_check import check_backend
    from taskapp_kit.jobs.client.config.rl_config import RlConfig, load_rl_config
    from taskapp_kit.jobs.client.environment_key import (
        mint_environment_api_key,
        setup_environment_api_key,
        setup_environment_api_key_async,
    )
    from taskapp_kit.jobs.client.job_payload import build_rl_payload
    from taskapp_kit.jobs.client.rl_job import RLJob

__all__ = [
    "BackendClient",
    "RLJob",
    "RlConfig",
    "backend_url",
    "build_rl_payload",
    "check_backend",
    "load_rl_config",
    "mint_environment_api_key",
    "setup_environment_api_key",
    "setup_environment_api_key_async",
]

_MODULES = {
    "BackendClient": "backend",
    "RLJob": "rl_job",
    "RlConfig": "config.rl_config",
    "backend_url": "backend",
    "build_rl_payload": "job_payload",
    "check_backend": "backend_check",
    "load_rl_config": "config.rl_config",
    "mint_environment_api_key": "environment_key",
    "setup_environment_api_key": "environment_key",
    "setup_environment_api_key_async": "environment_key",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
