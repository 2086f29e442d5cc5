"""Checks the backend, and the task app's key and contract, like `taskapp doctor URL --backend URL`.

python examples/rl/check.py --backend-url URL --api-key KEY --task-app-url URL
"""

import asyncio
import os

from example_arguments import main, needed, parser

from taskapp_kit.client import check_backend, check_task_app


def run() -> int:
    made = parser(__doc__.splitlines()[0])
    made.add_argument("--task-app-key", default=os.environ.get("ENVIRONMENT_API_KEY"), help="[ENVIRONMENT_API_KEY]")
    given = made.parse_args()
    needed(backend_url=given.backend_url, task_app_url=given.task_app_url)

    async def look() -> list:
        return [
            *await check_backend(given.backend_url, given.api_key),
            *await check_task_app(given.task_app_url, given.task_app_key),
        ]

    findings = asyncio.run(look())
    for finding in findings:
        print(f"{'ok   ' if finding.ok else 'WRONG'} {finding.part}: {finding.found} {finding.do}".rstrip())
    return 0 if all(finding.ok for finding in findings) else 1


if __name__ == "__main__":
    main(run)
