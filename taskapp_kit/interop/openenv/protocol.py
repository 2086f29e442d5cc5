"""OpenEnv (https://github.com/huggingface/OpenEnv), as its releases `openenv` 0.10.0 and `openenv-core` 0.3.0 speak it.

`/openenv/{environment}` is the base URL of a client, and `/openenv` that of the app's default environment. Read from the
clients' and server's code of these releases, whose WebSocket contract is the same.
"""

from __future__ import annotations

from taskapp_kit.interop.openenv.clients import client_lines
from taskapp_kit.interop.openenv.routes import openenv_routes
from taskapp_kit.serve.wire_protocol import WireProtocol

PROTOCOL = WireProtocol(
    "openenv", "OpenEnv, for its clients openenv 0.10 and openenv-core 0.3.0", openenv_routes, client_lines
)
