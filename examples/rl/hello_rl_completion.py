"""Requests one completion from a model that RL trained, by name, from the backend (or any OpenAI-compatible address).

RL_WEIGHTS_PATH=… python examples/rl/hello_rl_completion.py --model "rl:MODEL:JOB:CHECKPOINT"
"""

import os

import httpx
from example_arguments import main, parser

from taskapp_kit.errors import BackendError


def run() -> int:
    made = parser(__doc__.splitlines()[0], task_app=False)
    made.add_argument("--model", required=True)
    made.add_argument(
        "--inference-url",
        default=os.environ.get("INFERENCE_BASE_URL"),
        help="an address ending in /v1 [INFERENCE_BASE_URL, else the backend]",
    )
    made.add_argument("--prompt", default="Say hello.")
    given = made.parse_args()
    url = given.inference_url or f"{(given.backend_url or '').removesuffix('/').removesuffix('/api')}/api/inference/v1"
    body = {"model": given.model, "messages": [{"role": "user", "content": given.prompt}]}
    if os.environ.get("RL_WEIGHTS_PATH"):
        body["weights_path"] = os.environ["RL_WEIGHTS_PATH"]
    headers = {"Authorization": f"Bearer {given.api_key}"} if given.api_key else {}
    try:
        answer = httpx.post(f"{url}/chat/completions", json=body, headers=headers, timeout=120)
    except httpx.HTTPError as error:
        raise BackendError(f"{url} cannot be reached: {type(error).__name__}.", hint="Check --backend-url.") from None
    if answer.status_code != 200:
        raise BackendError(
            f"{url} does not serve {given.model!r} (HTTP {answer.status_code}).",
            status=answer.status_code,
            hint="`taskapp backend serve` trains no weights; a hosted backend, or an --inference-url, serves them.",
        )
    print(answer.json()["choices"][0]["message"]["content"])
    return 0


if __name__ == "__main__":
    main(run)
