"""Lines that can be pasted into a shell to ask a server."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

HEADER = '-H "X-API-Key: $ENVIRONMENT_API_KEY"'


def curl_lines(url: str, environment: str | None, seed: int, policy: Mapping[str, str]) -> list[str]:
    """Lines for /health, /task_info and /rollout; the key comes from ENVIRONMENT_API_KEY."""
    query = f"?seed={seed}" + (f"&environment={environment}" if environment else "")
    env = {"env_name": environment, "seed": seed} if environment else {"seed": seed}
    body = json.dumps({"run_id": "r1", "env": env, "policy": {"config": dict(policy)}, "ops": [], "mode": "eval"})
    return [
        f"curl {HEADER} {url}/health",
        f"curl {HEADER} '{url}/task_info{query}'",
        f"curl {HEADER} -H 'Content-Type: application/json' {url}/rollout \\\n  -d {shlex.quote(body)}",
    ]
