"""A resources server of NeMo Gym (https://github.com/NVIDIA-NeMo/Gym) at `/nemo/{environment}`.

Written against the source of NeMo Gym at commit 07d6b0d (`nemo_gym/base_resources_server.py`, `nemo_gym/judge.py`,
`nemo_gym/rollout_collection.py`, `responses_api_agents/simple_agent/app.py`) and of NeMo RL at commit 7ea279a
(`nemo_rl/experience/rollouts.py`). Their packages need Python 3.13.14, so the tests send the same requests as this
source code. docs/connect/nemo-gym.md lists what was tested by hand.
"""

from __future__ import annotations

from collections.abc import Sequence

from taskapp_kit.interop.nemo_gym.routes import nemo_routes
from taskapp_kit.serve.route import ClientLines, WireProtocol

CONFIG = """\
# resources_servers/taskapp/configs/{environment}.yaml; its app.py is in docs/connect/nemo-gym.md, and reads ENVIRONMENT_API_KEY
{environment}_resources_server:
  resources_servers:
    taskapp:
      entrypoint: app.py
      domain: agent
      verified: false
      url: {url}/nemo/{environment}
{environment}_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server:
        type: resources_servers
        name: {environment}_resources_server
      model_server:
        type: responses_api_models
        name: policy_model"""


def client_lines(url: str, environments: Sequence[str]) -> list[ClientLines]:
    """Return the client code for a server's first environment. For other environments, users change the name."""
    return [ClientLines("NeMo Gym", "yaml", CONFIG.format(url=url, environment=environments[0]))]


PROTOCOL = WireProtocol("nemo", "NeMo Gym's resources server, read at commit 07d6b0d", nemo_routes, client_lines)
