"""The program of a trainer. `taskapp_kit.train.engine.trainer FD` runs one job and calls its parent over the socket FD."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
from dataclasses import asdict

from taskapp_kit.config import take_parent_logging
from taskapp_kit.errors import JobError, KitError, ReplicaDied
from taskapp_kit.logs import configure
from taskapp_kit.system.child_python import hide_memory
from taskapp_kit.train.engine.child_program import ParentCalls
from taskapp_kit.train.engine.trainer_calls import LedgerOverSocket, TrainerOrder
from taskapp_kit.train.engine.training_run import run_job


async def train(fd: int) -> None:
    """Request the order, run the job, and report its end. An unexpected error ends this process with a traceback."""
    async with ParentCalls(fd) as parent:
        order = TrainerOrder.from_json(await parent.call("order"))
        try:
            outcome = await run_job(order, LedgerOverSocket(parent))
        except (
            ReplicaDied
        ) as error:  # the updates since the last checkpoint are lost, and a new trainer resumes from that checkpoint
            await parent.call("lost", reason=error.message)
        except KitError as error:
            code = error.code if isinstance(error, JobError) else ""
            await parent.call("failed", message=error.message, code=code, hint=error.hint)
        else:
            await parent.call("succeeded", **asdict(outcome))


def main(fd: str) -> None:
    """Run the job until its end, or until the parent ends."""
    hide_memory()  # the order contains keys
    for number in (signal.SIGINT, signal.SIGTERM):  # ignored: the parent ends this process
        signal.signal(number, lambda *_: None)
    faulthandler.enable()
    log_format, log_level = take_parent_logging()
    configure(log_level, log_format, worker=os.getpid())
    asyncio.run(train(int(fd)))


if __name__ == "__main__":
    main(sys.argv[1])
