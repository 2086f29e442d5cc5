"""Runs a job of each config with the real `RLJob` of the Synth AI SDK, release 0.3.9. Runs inside that peer's own environment.

    SYNTH_DISABLE_LOGGING=1 HOME=<scratch> SYNTH_API_KEY=<key> ENVIRONMENT_API_KEY=<key> \\
        python synth_job.py BACKEND_URL TASK_APP_URL SECONDS CONFIG...

Prints one JSON object: of each config the job's id and what its poll gave at last; or the error with which the SDK rejects
the file (`rejected`, by class: its messages are empty).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

with contextlib.redirect_stdout(sys.stderr):  # importing the SDK prints; stdout is for our document alone
    from synth_ai.sdk.api.train.builders import build_rl_payload
    from synth_ai.sdk.api.train.rl import RLJob


def outcome(config: str, backend: str, task_app: str, seconds: float) -> dict[str, Any]:
    try:
        build_rl_payload(config_path=Path(config), task_url=task_app, overrides={"backend": backend}, idempotency=None)
    except Exception as error:
        return {"rejected": type(error).__name__}
    job = RLJob.from_config(
        config_path=config,
        backend_url=backend,
        api_key=os.environ["SYNTH_API_KEY"],
        task_app_url=task_app,
        task_app_api_key=os.environ["ENVIRONMENT_API_KEY"],
        idempotency_key=config,
    )
    job_id = job.submit()
    seen: list[Any] = []
    last = job.poll_until_complete(timeout=seconds, interval=1.0, on_status=seen.append)
    assert seen, "the callback is called"
    return {"job_id": job_id, "last": last}


def main() -> None:
    backend, task_app, seconds, *configs = sys.argv[1:]
    with contextlib.redirect_stdout(sys.stderr):
        found = {config: outcome(config, backend, task_app, float(seconds)) for config in configs}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
