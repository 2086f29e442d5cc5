"""The Model Context Protocol, revisions 2024-11-05 to 2026-07-28 (modelcontextprotocol.io), with the SDK `mcp` 2.

Each connection is an episode, each tool is an action, and a resource describes the task. The protocol needs the extra
`taskapp-kit[mcp]`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from taskapp_kit.interop.mcp.http import mcp_routes
from taskapp_kit.serve.route import ClientLines, WireProtocol

SDK = """\
import asyncio, os
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

async def main():
    headers = {{"X-API-Key": os.environ["ENVIRONMENT_API_KEY"]}}
    async with httpx2.AsyncClient(headers=headers, timeout=600) as http:
        async with Client(streamable_http_client("{url}?seed=0", http_client=http)) as client:
            print((await client.call_tool("task")).content)

asyncio.run(main())"""
FASTMCP = """\
import asyncio, os
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport

async def main():
    headers = {{"X-API-Key": os.environ["ENVIRONMENT_API_KEY"]}}
    async with Client(StreamableHttpTransport("{url}?seed=0", headers=headers)) as client:
        print((await client.call_tool("task")).content)

asyncio.run(main())"""


def client_lines(url: str, environments: Sequence[str]) -> list[ClientLines]:
    """Return the client code for a server's first environment. For other environments, users change the path."""
    address = f"{url}/mcp/{environments[0]}"
    entry = {"url": address, "headers": {"X-API-Key": "${ENVIRONMENT_API_KEY}"}}
    return [
        ClientLines("the MCP SDK 2", "python", SDK.format(url=address)),
        ClientLines("fastmcp 4", "python", FASTMCP.format(url=address)),
        ClientLines("a file of servers", "json", json.dumps({"mcpServers": {environments[0]: entry}}, indent=2)),
    ]


PROTOCOL = WireProtocol("mcp", "the Model Context Protocol over Streamable HTTP", mcp_routes, client_lines)
