"""The program of a worker process: `taskapp_kit.rollout.executors.main REFERENCE FOLDERS FD`; `remote.py` starts it.

REFERENCE is the app, as `find_app` accepts it. FOLDERS is the parent's `sys.path`, joined by `os.pathsep`. FD is the socket's
number.

A job is one rollout. Its frame contains the request with resolved split and seed, `recording` (for a replay), `rollout_id`,
`created_at`, `versions`, `written` (whether to encode the response), `live` (whether to send each event immediately),
`skip_judges` (whether to skip judges) and `max_calls` (the limit on executed tool calls in one reply).

A running job sends frames `{"text": n, "pictures": [[hash, n], …]}`, where n is a number of bytes. The blob contains the
encoded events and the PNG bytes in that order. The last frame also contains `outcome` and `body` (the number of
bytes of the response, at the end of the blob). For a rejected request, the last frame contains only `refused`, the error.
"""

from __future__ import annotations

import os
import sys

from taskapp_kit.rollout.executors.protocol import Handler, serve_jobs
from taskapp_kit.system.child_python import add_import_folder


def main(reference: str, folders: str, fd: str) -> None:
    """Run the parent's rollouts until the parent closes the socket or dies."""

    def load() -> Handler:
        for folder in reversed(folders.split(os.pathsep)):
            add_import_folder(folder)
        from taskapp_kit.rollout.executors.worker import Worker  # from here on this process ends with its parent

        return Worker(reference).play

    serve_jobs(int(fd), load)


if __name__ == "__main__":
    main(*sys.argv[1:4])
