"""The Model Context Protocol, revisions 2024-11-05 to 2026-07-28 (modelcontextprotocol.io), by the official SDK `mcp` 2.

A connection is an episode, a tool is an action, and a resource is the description of the task. Needs the extra
`taskapp-kit[mcp]`.
"""

from __future__ import annotations

from taskapp_kit.interop.mcp.clients import client_lines
from taskapp_kit.interop.mcp.http import mcp_routes
from taskapp_kit.serve.wire_protocol import WireProtocol

PROTOCOL = WireProtocol("mcp", "the Model Context Protocol over Streamable HTTP", mcp_routes, client_lines)
