"""The program of a replica on this machine: `taskapp_kit.services.local_main FD`; `local_replica.py` starts it.

FD: the socket. A job is one operation of `ReplicaHost`; the first one loads the class.
"""

from __future__ import annotations

import os
import sys

from taskapp_kit.config import LOG_LEVEL, child_environment, take_parent_logging
from taskapp_kit.logs import configure
from taskapp_kit.rollout.workers.protocol import MAX_THREADS, Frame, Handler, StopReason, WorkerJob, serve_jobs
from taskapp_kit.services.replica_host import ReplicaHost


def main(fd: str) -> None:
    """Run the service's calls until the service is gone."""

    def load() -> Handler:
        log_format, level = take_parent_logging({LOG_LEVEL: "warning", **child_environment()})
        configure(level, log_format, worker=os.getpid())
        host = ReplicaHost()

        def handle(job: WorkerJob) -> tuple[Frame, bytes]:
            future = host.submit(job.frame, job.blob)

            def stop(_: StopReason) -> None:
                future.cancel()

            job.on_stop(stop)
            return future.result()

        return handle

    serve_jobs(int(fd), load, MAX_THREADS)


if __name__ == "__main__":
    main(*sys.argv[1:2])
