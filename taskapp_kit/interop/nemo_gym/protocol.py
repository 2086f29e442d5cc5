"""A resources server of NeMo Gym (https://github.com/NVIDIA-NeMo/Gym) at `/nemo/{environment}`.

Read from NeMo Gym's source at commit 07d6b0d (`nemo_gym/base_resources_server.py`, `responses_api_agents/simple_agent/app.py`,
`nemo_gym/judge.py`, `nemo_gym/rollout_collection.py`) and NeMo RL's at 7ea279a (`nemo_rl/experience/rollouts.py`). Their packages
need Python 3.13.14, so tests send the messages that this source sends; docs/nemo-gym.md says what was run by hand.
"""

from __future__ import annotations

from taskapp_kit.interop.nemo_gym.clients import client_lines
from taskapp_kit.interop.nemo_gym.routes import nemo_routes
from taskapp_kit.serve.wire_protocol import WireProtocol

PROTOCOL = WireProtocol("nemo", "NeMo Gym's resources server, read at commit 07d6b0d", nemo_routes, client_lines)
