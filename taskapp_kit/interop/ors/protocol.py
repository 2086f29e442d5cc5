"""The Open Reward Standard (ORS, openrewardstandard.io), as implemented in `openreward` 0.1.167 and `ors-sdk` 0.1.0.

The routes are at `/ors` and also at the server's root, because both clients ignore the path of their base URL. This
package was written against the code of these clients and their servers (PyPI).
"""

from __future__ import annotations

from collections.abc import Sequence

from taskapp_kit.interop.ors.routes import ors_routes
from taskapp_kit.serve.route import ClientLines, WireProtocol

OPENREWARD = """\
import os

os.environ["OPENREWARD_URL"] = "{url}"
os.environ["OPENREWARD_SESSION_URL"] = os.environ["OPENREWARD_API_URL"] = "{url}"
os.environ["OPENREWARD_API_KEY"] = os.environ["ENVIRONMENT_API_KEY"]
os.environ["OPENREWARD_DISABLE_UPDATE_CHECK"] = "1"
from openreward import OpenReward

with OpenReward() as client:
    env = client.environments.get("{environment}", variant="{environment}")
    with env.session(task=env.get_task("{split}", 0)) as session:
        print(session.get_prompt(), session.list_tools())
        # session.call_tool(NAME, {{...}}) returns blocks, reward, finished"""
ORS_SDK = """\
import os
from ors.client import ORS

client = ORS(base_url="{url}", api_key=os.environ["ENVIRONMENT_API_KEY"])
env = client.environment("{environment}")
with env.session(task=env.get_task("{split}", 0)) as session:
    print(session.get_prompt(), session.list_tools())
    # session.call_tool(NAME, {{...}}) returns blocks, reward, finished"""


def client_lines(url: str, environments: Sequence[str]) -> list[ClientLines]:
    """Return example code for each ORS client. It uses the first of `environments`."""
    values = {"url": url, "environment": environments[0], "split": "train"}
    return [
        ClientLines("openreward 0.1", "python", OPENREWARD.format(**values)),
        ClientLines("ors-sdk 0.1", "python", ORS_SDK.format(**values)),
    ]


PROTOCOL = WireProtocol(
    "ors", "Open Reward Standard, for its clients openreward 0.1 and ors-sdk 0.1", ors_routes, client_lines
)
