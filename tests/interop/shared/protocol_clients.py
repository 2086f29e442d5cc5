"""One episode through each protocol over HTTP, of an environment whose action is `go`: begun, scored, left."""

from __future__ import annotations

import itertools
import uuid
from typing import Any, ClassVar

import httpx

IDS = itertools.count()
STREAMABLE = {"Accept": "application/json, text/event-stream"}


class ProtocolClient:
    """web: has the server's address and the key. `begin` returns the first answer that is an error, or the episode's start."""

    def __init__(self, web: httpx.Client, environment: str) -> None:
        self.web, self.environment = web, environment
        self.headers: dict[str, str] = {}

    def post(self, path: str, body: Any = None) -> httpx.Response:
        return self.web.post(path, json=body or {}, headers=self.headers, timeout=60)


class BySessions(ProtocolClient):
    def begin(self, seed: int = 1) -> httpx.Response:
        answer = self.post("/sessions", {"env_name": self.environment})
        if answer.is_error:
            return answer
        self.path = f"/sessions/{answer.json()['session_id']}"
        return self.post(f"{self.path}/reset", {"seed": seed})

    def end(self) -> httpx.Response:
        return self.post(f"{self.path}/finish", {"request_id": "last"})

    def leave(self) -> httpx.Response:
        return self.web.delete(self.path)


class ByOpenEnv(ProtocolClient):
    def begin(self, seed: int = 1) -> httpx.Response:
        answer = self.post(f"/openenv/{self.environment}/reset", {"seed": seed})
        self.headers = {"X-Session-ID": answer.headers.get("x-session-id", "")}
        return answer

    def end(self) -> httpx.Response:
        return self.post(f"/openenv/{self.environment}/step", {"action": {"end": True}, "request_id": "last"})

    def leave(self) -> httpx.Response:
        return self.post(f"/openenv/{self.environment}/close")


class ByOrs(ProtocolClient):
    def begin(self, seed: int = 1) -> httpx.Response:
        self.headers = {"X-Session-ID": uuid.uuid4().hex}
        task = {"env_name": self.environment, "task_spec": {"split": "train", "seed": seed}}
        answer = self.post(f"/ors/{self.environment}/create", task)
        return answer if answer.is_error else self.web.get(f"/ors/{self.environment}/prompt", headers=self.headers)

    def request(self, **args: Any) -> tuple[str, dict[str, Any]]:
        """Path and body of a call."""
        return f"/ors/{self.environment}/call", {"name": "go", "input": args}

    def call(self, **args: Any) -> httpx.Response:
        return self.post(*self.request(**args))

    def end(self) -> httpx.Response:
        return self.call(end=True)

    def leave(self) -> httpx.Response:
        return self.post(f"/ors/{self.environment}/delete")


class ByMcp(ProtocolClient):
    role = "policy"

    def begin(self, seed: int = 1) -> httpx.Response:
        self.path = f"/mcp/{self.environment}?seed={seed}&role={self.role}"
        self.headers = dict(STREAMABLE)
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        answer = self.post(self.path, self.message("initialize", **about))
        if answer.is_error:
            return answer
        self.headers["Mcp-Session-Id"] = answer.headers["mcp-session-id"]
        self.post(self.path, {"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self.post(self.path, self.message("tools/call", name="task", arguments={}))

    def message(self, method: str, **params: Any) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": next(IDS), "method": method, "params": params}

    def request(self, **args: Any) -> tuple[str, dict[str, Any]]:
        """Path and body of a call."""
        return self.path, self.message("tools/call", name="go", arguments=args)

    def call(self, **args: Any) -> httpx.Response:
        return self.post(*self.request(**args))

    def end(self) -> httpx.Response:
        return self.call(end=True)

    def leave(self) -> httpx.Response:
        return self.web.delete(self.path, headers=self.headers)


class ByNemo(ProtocolClient):
    row: ClassVar[dict[str, Any]] = {"responses_create_params": {"input": []}, "seed": 1}

    def begin(self, seed: int = 1) -> httpx.Response:
        self.web.cookies.clear()
        return self.post(f"/nemo/{self.environment}/seed_session", {**self.row, "seed": seed})

    def end(self) -> httpx.Response:
        return self.post(f"/nemo/{self.environment}/verify", self.row)

    leave = end


BY_HTTP: dict[str, Any] = {"sessions": BySessions, "openenv": ByOpenEnv, "mcp": ByMcp, "ors": ByOrs, "nemo": ByNemo}
"""Protocols in which a session outlives a connection."""
