"""The calls with which a trainer requests its order from the parent process and writes to the ledger.

The calls use `child_program.py`. `LedgerOverSocket` is the child's side, and `answer_ledger_call` is the parent's side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, Unpack

from taskapp_kit.jobs.server.engine import CurvePoint, Event, JobDocument, JobReport, Ledger, Phase, RolloutOutcome
from taskapp_kit.jobs.server.task_app_access import TaskAppHandover
from taskapp_kit.train.engine.child_program import ParentCalls
from taskapp_kit.train.gateway.gateway_options import GatewayOptions
from taskapp_kit.train.sampler.vllm.place import VllmPlace


@dataclass(frozen=True, slots=True)
class TrainerOrder:
    """The order to run a job, which a trainer receives from its parent. It contains the task app's API keys.

    Attributes:
        job: The job.
        task_app: The task app's address and API keys.
        models: The models directory.
        aliases: The operator's aliases of models.
        open_paths: Whether the job's model may be a path.
        gateway: The address on which the gateway listens. `[gateway] url` in the job's config overrides its `url`.
        vllm: The operator's vLLM, or None if it is not configured.
        incarnation: The trainer's number, 1 for the job's first trainer.
        state: The driver's state. For a new job, it has no `done`.
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
        """Return the order as a JSON object, which contains the task app's API keys."""
        return {**asdict(self), "models": str(self.models)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the order from a JSON object that `to_json` returned."""
        own = {
            "job": JobDocument(**value["job"]),
            "task_app": TaskAppHandover(**value["task_app"]),
            "models": Path(value["models"]),
            "gateway": GatewayOptions(**value["gateway"]),
            "vllm": None if value["vllm"] is None else VllmPlace(**value["vllm"]),
        }
        return cls(**{**value, **own})


class LedgerOverSocket:
    """A `jobs.server.engine.Ledger` in the parent. If the store fails, the parent ends this process."""

    def __init__(self, parent: ParentCalls) -> None:
        self._parent = parent

    async def report(self, *events: Event, **progress: Unpack[JobReport]) -> None:
        """See `Ledger.report`."""
        await self._parent.call("report", **_as_json(events, progress))

    async def last_data(self, *types: str, last: int) -> list[Mapping[str, Any]]:
        """See `Ledger.last_data`."""
        found: list[Mapping[str, Any]] = await self._parent.call("last_data", types=types, last=last)
        return found

    async def store(self, rollout: RolloutOutcome) -> RolloutOutcome:
        """See `Ledger.store`."""
        return RolloutOutcome(**await self._parent.call("store", rollout=asdict(rollout)))

    async def stored(self, phase: Phase, iteration: int) -> list[RolloutOutcome]:
        """See `Ledger.stored`."""
        found = await self._parent.call("stored", phase=phase, iteration=iteration)
        return [RolloutOutcome(**each) for each in found]

    async def position(self) -> int:
        """See `Ledger.position`."""
        number: int = await self._parent.call("position")
        return number

    async def supersede(self, after: int, *events: Event, **progress: Unpack[JobReport]) -> None:
        """See `Ledger.supersede`."""
        await self._parent.call("supersede", after=after, **_as_json(events, progress))


def _as_json(events: Sequence[Event], progress: JobReport) -> dict[str, Any]:
    members: dict[str, Any] = {**progress, "events": [asdict(event) for event in events]}
    if "points" in progress:
        members["points"] = [asdict(point) for point in progress["points"]]
    return members


async def answer_ledger_call(ledger: Ledger, name: str, arguments: Mapping[str, Any]) -> Any:
    """Call the ledger for the child, and return the reply as JSON.

    Raises KeyError for an unknown name, and StoreError if the store fails.
    """
    if name in ("report", "supersede"):
        events = [Event(**each) for each in arguments["events"]]
        progress: Any = {name: arguments[name] for name in JobReport.__annotations__ if name in arguments}
        if "points" in progress:
            progress["points"] = [CurvePoint(**each) for each in progress["points"]]
        if name == "report":
            return await ledger.report(*events, **progress)
        return await ledger.supersede(arguments["after"], *events, **progress)
    match name:
        case "last_data":
            return [dict(each) for each in await ledger.last_data(*arguments["types"], last=arguments["last"])]
        case "store":
            return asdict(await ledger.store(RolloutOutcome(**arguments["rollout"])))
        case "stored":
            return [asdict(each) for each in await ledger.stored(arguments["phase"], arguments["iteration"])]
        case "position":
            return await ledger.position()
    raise KeyError(name)
