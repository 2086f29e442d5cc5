"""HTTP clients of task apps and backends, and jobs: `from taskapp_kit.client import RLJob, TaskAppClient`.

Names are loaded at their first use, so that importing this package is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskapp_kit.client.backend import BackendClient, backend_url
    from taskapp_kit.client.checks import Finding, check_backend, check_task_app
    from taskapp_kit.client.config.rl_config import RlConfig, load_rl_config
    from taskapp_kit.client.environment_key import (
        mint_environment_api_key,
        setup_environment_api_key,
        setup_environment_api_key_async,
    )
    from taskapp_kit.client.event_decoding import read_events
    from taskapp_kit.client.job_payload import build_rl_payload
    from taskapp_kit.client.job_status import weights_note
    from taskapp_kit.client.rl_job import RLJob
    from taskapp_kit.client.task_app import SyncTaskAppClient, TaskAppClient

__all__ = [
    "BackendClient",
    "Finding",
    "RLJob",
    "RlConfig",
    "SyncTaskAppClient",
    "TaskAppClient",
    "backend_url",
    "build_rl_payload",
    "check_backend",
    "check_task_app",
    "load_rl_config",
    "mint_environment_api_key",
    "read_events",
    "setup_environment_api_key",
    "setup_environment_api_key_async",
    "try_rollout",
    "weights_note",
]

_WHERE = {
    "BackendClient": "backend",
    "Finding": "checks",
    "RLJob": "rl_job",
    "RlConfig": "config.rl_config",
    "SyncTaskAppClient": "task_app",
    "TaskAppClient": "task_app",
    "backend_url": "backend",
    "build_rl_payload": "job_payload",
    "check_backend": "checks",
    "check_task_app": "checks",
    "try_rollout": "checks",
    "load_rl_config": "config.rl_config",
    "mint_environment_api_key": "environment_key",
    "read_events": "event_decoding",
    "setup_environment_api_key": "environment_key",
    "setup_environment_api_key_async": "environment_key",
    "weights_note": "job_status",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
