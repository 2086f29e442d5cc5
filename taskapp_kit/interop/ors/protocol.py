"""The Open Reward Standard (ORS, openrewardstandard.io), as `openreward` 0.1.167 and `ors-sdk` 0.1.0 speak it.

Served at `/ors`, and with the same paths at the server's root, because both clients send every request there whatever path
their base URL has. Read from the clients' and servers' code of these releases (PyPI).
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
    """Return the lines for a server's first environment; the clients take others by name."""
    given = {"url": url, "environment": environments[0], "split": "train"}
    return [
        ClientLines("openreward 0.1", "python", OPENREWARD.format(**given)),
        ClientLines("ors-sdk 0.1", "python", ORS_SDK.format(**given)),
    ]


PROTOCOL = WireProtocol(
    "ors", "Open Reward Standard, for its clients openreward 0.1 and ors-sdk 0.1", ors_routes, client_lines
)
