"""What NeMo Gym needs to know of a served app: its configuration, and rows."""

from __future__ import annotations

from collections.abc import Sequence

from taskapp_kit.serve.wire_protocol import ClientLines

CONFIG = """\
# resources_servers/taskapp/configs/{environment}.yaml; its app.py is in docs/nemo-gym.md, and reads ENVIRONMENT_API_KEY
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
    """Return the lines for a server's first environment; another has its name in their place."""
    return [ClientLines("NeMo Gym", "yaml", CONFIG.format(url=url, environment=environments[0]))]
