"""The Open Reward Standard (ORS, openrewardstandard.io), as `openreward` 0.1.167 and `ors-sdk` 0.1.0 speak it.

Served at `/ors`, and with the same paths at the server's root, because both clients send every request there whatever path
their base URL has. Read from the clients' and servers' code of these releases (PyPI).
"""

from __future__ import annotations

from taskapp_kit.interop.ors.clients import client_lines
from taskapp_kit.interop.ors.routes import ors_routes
from taskapp_kit.serve.wire_protocol import WireProtocol

PROTOCOL = WireProtocol(
    "ors", "Open Reward Standard, for its clients openreward 0.1 and ors-sdk 0.1", ors_routes, client_lines
)
