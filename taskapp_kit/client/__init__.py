"""HTTP clients of task apps and backends, and jobs: `from taskapp_kit.client import RLJob, TaskAppClient`.

Names are loaded at their first use, so that importing this package is fast. Those of jobs are in `taskapp_kit.jobs.client`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskapp_kit.client.checks import Finding, check_task_app, try_rollout
    from taskapp_kit.client.event_decoding import read_events
    from taskapp_kit.client.task_app import SyncTaskAppClient, TaskAppClient
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
    from taskapp_kit.records.job_status import weights_note

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
    "BackendClient": "taskapp_kit.jobs.client.backend",
    "Finding": "taskapp_kit.client.checks",
    "RLJob": "taskapp_kit.jobs.client.rl_job",
    "RlConfig": "taskapp_kit.jobs.client.config.rl_config",
    "SyncTaskAppClient": "taskapp_kit.client.task_app",
    "TaskAppClient": "taskapp_kit.client.task_app",
    "backend_url": "taskapp_kit.jobs.client.backend",
    "build_rl_payload": "taskapp_kit.jobs.client.job_payload",
    "check_backend": "taskapp_kit.jobs.client.backend_check",
    "check_task_app": "taskapp_kit.client.checks",
    "try_rollout": "taskapp_kit.client.checks",
    "load_rl_config": "taskapp_kit.jobs.client.config.rl_config",
    "mint_environment_api_key": "taskapp_kit.jobs.client.environment_key",
    "read_events": "taskapp_kit.client.event_decoding",
    "setup_environment_api_key": "taskapp_kit.jobs.client.environment_key",
    "setup_environment_api_key_async": "taskapp_kit.jobs.client.environment_key",
    "weights_note": "taskapp_kit.records.job_status",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
