"""Services: a class whose methods run in several processes, on this machine or on a Ray cluster.

    class Counter(Actor):
        @endpoint
        async def add(self, amount: int) -> int: …

    async with Counter.options(num_replicas=4).as_service() as counter:
        await counter.add.route(2)

docs/train/services.md describes services and the bundled services: environments, browsers and rewards.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from taskapp_kit.services.actor import Actor
from taskapp_kit.services.endpoints import endpoint
from taskapp_kit.services.replicas import ServiceStats
from taskapp_kit.services.service import ServiceHandle, ServiceSession

if TYPE_CHECKING:
    from taskapp_kit.services.environment_service import EnvironmentStep, EpisodeResult
    from taskapp_kit.services.python_coder import Execution, PythonWorkspace, SandboxedPythonCoder
    from taskapp_kit.services.rewards import AppReward, RewardActor, RewardModel
    from taskapp_kit.services.web_browsing import WebBrowsingEnv

__all__ = [
    "Actor",
    "AppReward",
    "EnvironmentStep",
    "EpisodeResult",
    "Execution",
    "PythonWorkspace",
    "RewardActor",
    "RewardModel",
    "SandboxedPythonCoder",
    "ServiceHandle",
    "ServiceSession",
    "ServiceStats",
    "WebBrowsingEnv",
    "endpoint",
]

_MODULES = {
    "AppReward": "rewards",
    "EnvironmentStep": "environment_service",
    "EpisodeResult": "environment_service",
    "Execution": "python_coder",
    "PythonWorkspace": "python_coder",
    "RewardActor": "rewards",
    "RewardModel": "rewards",
    "SandboxedPythonCoder": "python_coder",
    "WebBrowsingEnv": "web_browsing",
}
"""Names that are imported on first access, because they import all modules that play and score episodes."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
