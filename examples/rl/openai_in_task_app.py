"""Plays a task app with a model from OpenAI, or from OPENAI_BASE_URL, without a backend or a job.

OPENAI_API_KEY=… python examples/rl/openai_in_task_app.py --model gpt-5-nano --num-rollouts 2
"""

import argparse
import os
from pathlib import Path

from example_arguments import main

from taskapp_kit.client import InProcessTaskApp, SyncTaskAppClient


def run() -> int:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--model", default="gpt-5-nano")
    made.add_argument("--num-rollouts", type=int, default=2)
    made.add_argument("--max-steps-each", type=int, default=7)
    made.add_argument("--timeout-seconds", type=float, default=1200.0)
    made.add_argument("--task-app", type=Path, default=Path(__file__).with_name("task_app.py"))
    given = made.parse_args()
    config = {
        "model": given.model,
        "inference_url": os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1"),
        "api_key": os.environ.get("OPENAI_API_KEY", ""),
    }
    failed = 0
    with InProcessTaskApp(task_app_path=given.task_app, tunnel_mode="local") as task_app:
        client = SyncTaskAppClient(task_app.url, task_app.api_key, timeout_seconds=given.timeout_seconds)
        for seed in range(given.num_rollouts):
            body = {
                "run_id": f"openai-{seed}",
                "env": {"seed": seed},
                "policy": {"config": config},
                "ops": ["agent", "env"] * given.max_steps_each,
                "safety": {"max_time_s": given.timeout_seconds},
                "mode": "eval",
            }
            try:
                answer = client.rollout(body)
            except Exception as error:  # a failed rollout does not stop the other rollouts
                failed += 1
                print(f"seed {seed}: failed: {error}")
                continue
            print(f"seed {seed}: reward {answer['reward']}, {answer['metrics']['num_steps']} steps, {answer['status']}")
    return 1 if failed else 0


if __name__ == "__main__":
    main(run)
