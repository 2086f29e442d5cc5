"""What a trainer gets from its parent, over the socket: it holds keys of the task app."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from taskapp_kit.jobs.server.engine import JobDocument
from taskapp_kit.jobs.server.opened_task_app import TaskAppHandover
from taskapp_kit.train.gateway.options import GatewayOptions
from taskapp_kit.train.sampler.vllm.place import VllmPlace


@dataclass(frozen=True, slots=True)
class TrainerOrder:
    """One run of a job.

    models: the folder of models. aliases: the operator's, of model names. open_paths: whether the job may name a folder as
    its model. gateway: a job's own `[gateway] url` comes before its url. vllm: None where the operator named
    none. incarnation: 1 for the job's first trainer. state: of the driver; without `done` at first.
    """

    job: JobDocument
    task_app: TaskAppHandover = field(repr=False)
    models: Path
    aliases: Mapping[str, str]
    open_paths: bool
    gateway: GatewayOptions
    vllm: VllmPlace | None
    incarnation: int
    state: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON, keys included."""
        return {**asdict(self), "models": str(self.models)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return what `to_json` returned."""
        own = {
            "job": JobDocument(**value["job"]),
            "task_app": TaskAppHandover(**value["task_app"]),
            "models": Path(value["models"]),
            "gateway": GatewayOptions(**value["gateway"]),
            "vllm": None if value["vllm"] is None else VllmPlace(**value["vllm"]),
        }
        return cls(**{**value, **own})
