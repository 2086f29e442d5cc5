"""A complete run: check the setup, submit a job, follow the job, and print the results.

python examples/rl/full_training.py --backend-url URL --api-key KEY --task-app-url URL --model M --stream-seconds 10
"""

import asyncio
import json

from example_arguments import job_flags, main, needed, parser
from run_rl_job import checked, follow, job_of

from taskapp_kit.client import weights_note


def run() -> int:
    made = parser(__doc__.splitlines()[0])
    job_flags(made)
    given = made.parse_args()
    needed(backend_url=given.backend_url, api_key=given.api_key, task_app_url=given.task_app_url)
    if not asyncio.run(checked(given)):
        return 1
    job, runner = job_of(given)
    asyncio.run(follow(job, given, runner))
    results = job.get_results()
    summary = {
        "final_reward": results.get("final_reward"),
        "note": weights_note(results),
        "metrics": results.get("metrics"),
    }
    print(json.dumps(summary, indent=2))
    return 0


if __name__ == "__main__":
    main(run)
