"""Lines that can be pasted into a shell to ask a server."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

A_MODEL = {"model": "MODEL", "inference_url": "URL"}
"""What stands in the lines where only a model can play."""
HEADER = '-H "X-API-Key: $ENVIRONMENT_API_KEY"'


def curl_lines(url: str, environment: str | None, seed: int, policy: Mapping[str, str]) -> list[str]:
    """Lines for /health, /task_info and /rollout; the key comes from ENVIRONMENT_API_KEY.

    policy: a `policy.config`; empty where only a model can play.
    """
    query = f"?seed={seed}" + (f"&environment={environment}" if environment else "")
    env = {"env_name": environment, "seed": seed} if environment else {"seed": seed}
    config = dict(policy) or A_MODEL
    body = json.dumps({"run_id": "r1", "env": env, "policy": {"config": config}, "ops": [], "mode": "eval"})
    return [
        f"curl {HEADER} {url}/health",
        f"curl {HEADER} '{url}/task_info{query}'",
        f"curl {HEADER} -H 'Content-Type: application/json' {url}/rollout \\\n  -d {shlex.quote(body)}",
    ]
