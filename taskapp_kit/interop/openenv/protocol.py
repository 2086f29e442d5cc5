"""OpenEnv (https://github.com/huggingface/OpenEnv), as implemented in `openenv` 0.10.0 and `openenv-core` 0.3.0.

The base URL for clients is `/openenv/{environment}`, or `/openenv` for the app's default environment. The clients and
servers of both releases use the same WebSocket protocol.
"""

from __future__ import annotations

from collections.abc import Sequence

from taskapp_kit.interop.openenv.routes import openenv_routes
from taskapp_kit.serve.route import ClientLines, WireProtocol

HEADERS = """\
import os
from openenv.core import GenericEnvClient

headers = {{"X-API-Key": os.environ["ENVIRONMENT_API_KEY"]}}
with GenericEnvClient(base_url="{url}", headers=headers).sync() as env:
    result = env.reset(seed=0)
    print(result.observation)
    result = env.step({{...}})  # the fields that {url}/schema describes
    print(result.reward, result.done)"""
USERINFO = """\
import os
from openenv.core import GenericEnvClient

key = os.environ["ENVIRONMENT_API_KEY"]  # in the URL: this release sends no headers
with GenericEnvClient(base_url=f"{scheme}://key:{{key}}@{place}").sync() as env:
    result = env.reset(seed=0)"""


def client_lines(url: str, environments: Sequence[str]) -> list[ClientLines]:
    """Return example code for each OpenEnv client. The URL in the code contains the first of `environments`."""
    scheme, _, place = url.partition("://")
    path = f"openenv/{environments[0]}"
    return [
        ClientLines("openenv 0.10", "python", HEADERS.format(url=f"{url}/{path}")),
        ClientLines("openenv-core 0.3.0", "python", USERINFO.format(scheme=scheme, place=f"{place}/{path}")),
    ]


PROTOCOL = WireProtocol(
    "openenv", "OpenEnv, for its clients openenv 0.10 and openenv-core 0.3.0", openenv_routes, client_lines
)
