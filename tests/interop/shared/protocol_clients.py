"""Clients that play an episode through each protocol, raw on the wire."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

from tests.serve.running_server import KEY, RunningServer

IDS = itertools.count()
STREAMABLE = {"Accept": "application/json, text/event-stream"}


def socket_to(running: RunningServer, path: str, key: str | None = KEY) -> ClientConnection:
    headers = {} if key is None else {"X-API-Key": key}
    return connect(running.url.replace("http", "ws", 1) + path, additional_headers=headers, max_size=None)


class ProtocolClient:
    """A client. `begin` returns the first error response, or the episode's start. `end` takes the action that ends it.

    web: has the server's address and the key.
    """

    def __init__(self, web: httpx.Client, environment: str) -> None:
        self.web, self.environment = web, environment
        self.headers: dict[str, str] = {}

    def post(self, path: str, body: Any = None) -> httpx.Response:
        return self.web.post(path, json=body or {}, headers=self.headers, timeout=60)

    def request(self, tool: str, args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return path and body of an action."""
        raise NotImplementedError

    def act(self, tool: str, args: dict[str, Any]) -> httpx.Response:
        return self.post(*self.request(tool, args))

    def call(self, **args: Any) -> httpx.Response:
        return self.act("go", args)

    def end(self) -> httpx.Response:
        return self.call(end=True)


class BySessions(ProtocolClient):
    def begin(self, seed: int = 1, split: str = "train") -> httpx.Response:
        answer = self.post("/sessions", {"env_name": self.environment})
        if answer.is_error:
            return answer
        self.path = f"/sessions/{answer.json()['session_id']}"
        return self.post(f"{self.path}/reset", {"seed": seed, "split": split})

    def request(self, tool: str, args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return f"{self.path}/step", {"tool": tool, "args": args}

    def end(self) -> httpx.Response:
        return self.post(f"{self.path}/finish", {"request_id": "last"})

    def leave(self) -> httpx.Response:
        return self.web.delete(self.path)


class ByOpenEnv(ProtocolClient):
    def begin(self, seed: int = 1, split: str = "train") -> httpx.Response:
        answer = self.post(f"/openenv/{self.environment}/reset", {"seed": seed, "split": split})
        self.headers = {"X-Session-ID": answer.headers.get("x-session-id", "")}
        return answer

    def step(self, action: dict[str, Any], **more: Any) -> httpx.Response:
        return self.post(f"/openenv/{self.environment}/step", {"action": action, **more})

    def end(self) -> httpx.Response:
        return self.step({"end": True}, request_id="last")

    def leave(self) -> httpx.Response:
        return self.post(f"/openenv/{self.environment}/close")


class ByOrs(ProtocolClient):
    def __init__(self, web: httpx.Client, environment: str, prefix: str | None = None) -> None:
        super().__init__(web, environment)
        self.path = f"/ors/{environment}" if prefix is None else prefix

    def begin(self, seed: int = 1, split: str = "train") -> httpx.Response:
        self.headers = {"X-Session-ID": uuid.uuid4().hex}
        task = {"env_name": self.environment, "task_spec": {"split": split, "seed": seed}}
        answer = self.post(f"{self.path}/create", task)
        return answer if answer.is_error else self.web.get(f"{self.path}/prompt", headers=self.headers)

    def request(self, tool: str, args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return f"{self.path}/call", {"name": tool, "input": args}

    def leave(self) -> httpx.Response:
        return self.post(f"{self.path}/delete")


class ByMcp(ProtocolClient):
    role = "policy"

    def begin(self, seed: int = 1, split: str = "train") -> httpx.Response:
        self.path = f"/mcp/{self.environment}?seed={seed}&split={split}&role={self.role}"
        self.headers = dict(STREAMABLE)
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        answer = self.post(self.path, self.message("initialize", **about))
        if answer.is_error:
            return answer
        self.headers["Mcp-Session-Id"] = answer.headers["mcp-session-id"]
        self.post(self.path, {"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self.act("task", {})

    def message(self, method: str, **params: Any) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": next(IDS), "method": method, "params": params}

    def request(self, tool: str, args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return self.path, self.message("tools/call", name=tool, arguments=args)

    def leave(self) -> httpx.Response:
        return self.web.delete(self.path, headers=self.headers)


class ByNemo(ProtocolClient):
    def begin(self, seed: int = 1, split: str = "train") -> httpx.Response:
        self.web.cookies.clear()
        self.row = {"responses_create_params": {"input": []}, "seed": seed, "split": split}
        return self.post(f"/nemo/{self.environment}/seed_session", self.row)

    def request(self, tool: str, args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return f"/nemo/{self.environment}/{tool}", args

    def end(self) -> httpx.Response:
        return self.post(f"/nemo/{self.environment}/verify", self.row)

    leave = end


BY_HTTP: dict[str, Any] = {"sessions": BySessions, "openenv": ByOpenEnv, "mcp": ByMcp, "ors": ByOrs, "nemo": ByNemo}
"""Protocols in which a session outlives a connection."""
