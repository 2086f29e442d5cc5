"""HTTP clients of task apps and backends, and training jobs: `from taskapp_kit.client import RLJob, TaskAppClient`.

Names are imported at first use, because many of them are defined in higher layers and importing this package must be fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskapp_kit.client.checks import Finding, check_task_app, try_rollout
    from taskapp_kit.client.event_decoding import read_events
    from taskapp_kit.client.task_app import SyncTaskAppClient, TaskAppClient
    from taskapp_kit.deploy.local.in_process import InProcessTaskApp
    from taskapp_kit.jobs.client import (
        BackendClient,
        RlConfig,
        RLJob,
        backend_url,
        build_rl_payload,
        check_backend,
        load_rl_config,
        mint_environment_api_key,
        setup_environment_api_key,
        setup_environment_api_key_async,
    )
    from taskapp_kit.records.job_status import weights_note

__all__ = [
    "BackendClient",
    "Finding",
    "InProcessTaskApp",
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

_MODULES = {
    "Finding": "client.checks",
    "InProcessTaskApp": "deploy.local.in_process",
    "SyncTaskAppClient": "client.task_app",
    "TaskAppClient": "client.task_app",
    "check_task_app": "client.checks",
    "read_events": "client.event_decoding",
    "try_rollout": "client.checks",
    "weights_note": "records.job_status",
}
"""The module that defines each public name. Names that are not listed are in `jobs.client`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"taskapp_kit.{_MODULES.get(name, 'jobs.client')}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
