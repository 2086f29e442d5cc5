"""Submits an RL job from a config, waits for the end of the job, and saves the job as the backend reports it.

BACKEND_BASE_URL=URL SYNTH_API_KEY=KEY TASK_APP_URL=URL python examples/rl/run_rl_and_save.py --config FILE
"""

import argparse
import json
import os
from pathlib import Path

from example_arguments import main

from taskapp_kit.client import RLJob


def run() -> int:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--config", type=Path, required=True)
    made.add_argument("--task-url", help="[TASK_APP_URL, else services.task_url of the config]")
    made.add_argument("--out", type=Path, default=Path("rl_job.json"))
    given = made.parse_args()
    job = RLJob.from_config(
        given.config, task_app_url=given.task_url, task_app_api_key=os.environ.get("ENVIRONMENT_API_KEY")
    )
    print("submitted", job.submit())
    last = job.poll_until_complete(interval=1.0, on_status=lambda status: print("status", status["status"]))
    given.out.write_text(json.dumps(last, indent=2) + "\n")
    print("saved", given.out)
    return 0 if last["status"] in ("succeeded", "completed") else 1


if __name__ == "__main__":
    main(run)
