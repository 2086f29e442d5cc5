"""The program of a worker process: `taskapp_kit.rollout.executors.main REFERENCE FOLDERS FD`; `remote.py` starts it.

REFERENCE: the app, as `find_app` takes it. FOLDERS: the parent's `sys.path`, joined by `os.pathsep`. FD: the socket. A job
is one rollout; its frame holds the request (with resolved split and seed), `recording` for a replay, `rollout_id`,
`created_at`, `versions`, whether the response is to be `written`, whether each event is to be sent `live`, whether judges
are skipped (`skip_judges`), and `max_calls`, how many calls of one answer are executed.

While it runs, it sends `{"text": n, "pictures": [[hash, n], …]}`; the blob has encoded events and PNG bytes in that order. The
last frame has those, too, and `outcome` and `body` (bytes of the response, at the blob's end); or `refused`, a RequestError.
"""

from __future__ import annotations

import os
import sys

from taskapp_kit.rollout.executors.protocol import Handler, serve_jobs
from taskapp_kit.system.child_python import add_import_folder


def main(reference: str, folders: str, fd: str) -> None:
    """Run the parent's rollouts until the parent is gone."""

    def load() -> Handler:
        for folder in reversed(folders.split(os.pathsep)):
            add_import_folder(folder)
        from taskapp_kit.rollout.executors.worker import Worker  # now that this process ends with its parent

        return Worker(reference).play

    serve_jobs(int(fd), load)


if __name__ == "__main__":
    main(*sys.argv[1:4])
