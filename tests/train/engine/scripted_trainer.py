"""A trainer without a model, which does what the job's label says: the program of a child process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from taskapp_kit.jobs.server.engine import CurvePoint, Event, RolloutOutcome
from taskapp_kit.train.engine.child_program import ParentCalls
from taskapp_kit.train.engine.trainer_calls import LedgerOverSocket, TrainerOrder


def die(signal_number: int) -> None:
    os.kill(os.getpid(), signal_number)
    signal.pause()


async def unit(ledger: LedgerOverSocket, order: TrainerOrder, number: int) -> None:
    rollout = RolloutOutcome("train", number, 0, 0, seed=7, status="terminated", reward=1.0, rollout_id=f"ro_{number}")
    assert (await ledger.store(rollout)).reward == 1.0
    point = CurvePoint("reward", 1.0, number, "train", 1)
    event = Event("rl.train.step", f"Iteration {number}.", data={"iteration": number, "pid": os.getpid()})
    state = {"done": number, "incarnation": order.incarnation}
    await ledger.report(event, points=[point], state=state, metrics={"reward": 1.0}, total=3)


async def run(parent: ParentCalls) -> None:
    order = TrainerOrder.from_json(await parent.call("order"))
    ledger = LedgerOverSocket(parent)
    script = order.job.config["model"]["label"]
    first = order.state.get("done", 0) + 1
    if script == "dies":
        print(f"the last words, with {order.task_app.key}", file=sys.stderr, flush=True)
        die(signal.SIGSEGV)
    if script == "raises":
        raise RuntimeError(f"a bug near {order.task_app.key}")
    if script == "fails":
        said = f"It cannot be done with {order.task_app.key}."
        await parent.call("failed", message=said, code="no_rewards", hint="Do this.")
        return
    for number in range(first, 4):
        await unit(ledger, order, number)
        if script == "dies between units" or (script == "dies once" and order.incarnation == 1):
            die(signal.SIGKILL)
        if script == "stuck":
            await ledger.report(Event("rl.test", Path(f"/proc/{os.getpid()}/environ").name, data={"pid": os.getpid()}))
            child = await asyncio.create_subprocess_exec("/bin/sleep", "1000")
            await ledger.report(Event("rl.test.child", "", data={"pid": child.pid}))
            await asyncio.Event().wait()
    stored = await ledger.stored("train", 1)
    last: dict[str, Any] = dict((await ledger.last_data("rl.train.step", last=1))[0])
    results = {"seed": stored[0].seed, "position": await ledger.position(), "last": last}
    await parent.call("succeeded", final_reward=1.0, metrics={"reward": 1.0}, results=results)


async def main() -> None:
    async with ParentCalls(int(sys.argv[1])) as parent:
        await run(parent)


if __name__ == "__main__":
    asyncio.run(main())
