"""Requests a completion of a model that was trained with RL, from the backend or another OpenAI-compatible address.

RL_WEIGHTS_PATH=… python examples/rl/hello_rl_completion.py --model "rl:MODEL:JOB:CHECKPOINT"

Servers never open paths from requests. Therefore, the script first imports the archive in RL_WEIGHTS_PATH into the
models directory (TASKAPP_MODELS) of a backend on this machine, which `taskapp backend serve --engine local` starts.
"""

import os
import sys
from pathlib import Path

import httpx
from example_arguments import main, parser

from taskapp_kit.config import load
from taskapp_kit.errors import BackendError
from taskapp_kit.train.checkpoints.library import import_checkpoint, trained_models


def imported(archive: Path, model: str) -> str:
    """Import an archive from `taskapp models export` unless its model already exists. Return the name of the model."""
    models = load().models
    if model in [str(each.name) for each in trained_models(models)]:
        return model
    name = str(import_checkpoint(archive, models).facts.name)
    print(f"Imported {name}.", file=sys.stderr)
    return name


def run() -> int:
    made = parser(__doc__.splitlines()[0], task_app=False)
    made.add_argument("--model", required=True)
    made.add_argument(
        "--inference-url",
        default=os.environ.get("INFERENCE_BASE_URL"),
        help="an address that ends in /v1 [default: INFERENCE_BASE_URL or the backend]",
    )
    made.add_argument("--prompt", default="Say hello.")
    given = made.parse_args()
    url = given.inference_url or f"{(given.backend_url or '').removesuffix('/').removesuffix('/api')}/api/inference/v1"
    model = given.model
    if os.environ.get("RL_WEIGHTS_PATH"):
        model = imported(Path(os.environ["RL_WEIGHTS_PATH"]), model)
    body = {"model": model, "messages": [{"role": "user", "content": given.prompt}]}
    headers = {"Authorization": f"Bearer {given.api_key}"} if given.api_key else {}
    try:
        answer = httpx.post(f"{url}/chat/completions", json=body, headers=headers, timeout=120)
    except httpx.HTTPError as error:
        raise BackendError(f"{url} cannot be reached: {type(error).__name__}.", hint="Check --backend-url.") from None
    if answer.status_code != 200:
        raise BackendError(
            f"{url} does not serve {model!r} (HTTP {answer.status_code}).",
            status=answer.status_code,
            hint="To list local models, run: taskapp models list. To serve them: taskapp backend serve --engine local",
        )
    print(answer.json()["choices"][0]["message"]["content"])
    return 0


if __name__ == "__main__":
    main(run)
