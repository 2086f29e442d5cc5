"""The backend's ledger over a trainer's socket: `LedgerOverSocket` in the child, `answer_ledger_call` in the parent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Unpack

from taskapp_kit.jobs.server.engine import CurvePoint, Event, JobReport, Ledger, Phase, RolloutOutcome
from taskapp_kit.train.engine.parent_calls import ParentCalls


class LedgerOverSocket:
    """See `backend.engine.Ledger`. A store that fails ends this process, from the parent."""

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
    """Make the child's call of the ledger and return the reply as JSON. Raises StoreError; KeyError for another name."""
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
