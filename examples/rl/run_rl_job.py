"""Checks the task app and the backend, submits an RL job, prints its events, and waits for the end of the job.

python examples/rl/run_rl_job.py --backend-url URL --api-key KEY --task-app-url URL --trainer-id ID
"""

import argparse
import asyncio
import os
from typing import Any

from example_arguments import job_flags, main, needed, parser

from taskapp_kit.client import RLJob, check_backend, check_task_app, load_rl_config, weights_note


def job_of(given: argparse.Namespace) -> tuple[RLJob, dict[str, Any]]:
    """Return the job from the flags and the config file, and the section [runner] in the config."""
    document = load_rl_config(given.config_path).document
    training = {"batch_size": given.batch_size, "group_size": given.group_size}
    section = "training" if "training" in document else "trainer"
    overrides = {section: {name: value for name, value in training.items() if value is not None}}
    job = RLJob.from_config(
        given.config_path,
        backend_url=given.backend_url,
        api_key=given.api_key,
        task_app_url=given.task_app_url,
        task_app_api_key=os.environ.get("ENVIRONMENT_API_KEY"),
        overrides=overrides if overrides[section] else None,
        trainer_id=given.trainer_id,
        model=given.model,
    )
    return job, document.get("runner", {})


async def follow(job: RLJob, given: argparse.Namespace, runner: dict[str, Any]) -> dict[str, Any]:
    """Submit the job. Print events for the requested time, and then each change of its status until the job ends."""
    print("submitted", await job.submit_async())
    seconds = given.stream_seconds if given.stream_seconds is not None else float(runner.get("stream_seconds", 0))

    async def events() -> None:
        async for event in job.stream_async():
            print(f"  {event.get('seq')} {event.get('type')}: {event.get('message', '')}")

    if seconds:
        try:
            await asyncio.wait_for(events(), seconds)
        except TimeoutError:
            print(f"  no more events are shown after {seconds:g} s")
    return await job.poll_until_complete_async(
        timeout=given.timeout_seconds, interval=1.0, on_status=lambda status: print("status", status["status"])
    )


async def checked(given: argparse.Namespace) -> bool:
    """Print the findings of the checks, and return whether all checks passed."""
    findings = [
        *await check_backend(given.backend_url, given.api_key),
        *await check_task_app(given.task_app_url, os.environ.get("ENVIRONMENT_API_KEY")),
    ]
    for finding in findings:
        print(f"{'ok   ' if finding.ok else 'WRONG'} {finding.part}: {finding.found} {finding.do}".rstrip())
    return all(finding.ok for finding in findings)


def run() -> int:
    made = parser(__doc__.splitlines()[0])
    job_flags(made)
    given = made.parse_args()
    needed(backend_url=given.backend_url, api_key=given.api_key, task_app_url=given.task_app_url)
    if not asyncio.run(checked(given)):
        return 1
    job, runner = job_of(given)
    last = asyncio.run(follow(job, given, runner))
    print("final reward", last.get("final_reward"), weights_note(last))
    return 0 if last["status"] in ("succeeded", "completed") else 1


if __name__ == "__main__":
    main(run)
