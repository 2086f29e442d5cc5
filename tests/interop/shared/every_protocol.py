"""Plays an episode through each way into a task app, raw on the wire and without anybody's client.

A driver takes a place (a running server, and the app that it serves), the episode, and the actions; it returns what a caller sees.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from websockets.sync.client import connect

from taskapp_kit.declare.discovery import find_app
from taskapp_kit.interop.gymnasium.env import make
from taskapp_kit.interop.nemo_gym.episodes import OVER
from taskapp_kit.net.sse import SseReader
from taskapp_kit.records.content import Json, text_of
from taskapp_kit.rollout.service import Service
from tests.serve.running_server import KEY, RunningServer

Call = tuple[str, Json]
"""An action and its arguments."""


@dataclass(frozen=True)
class Place:
    """A running server with every protocol, and where its app is."""

    running: RunningServer
    reference: str

    @property
    def web(self) -> httpx.Client:
        """A client with the key."""
        return self.running.client

    def single(self, environment: str) -> bool:
        """Whether the environment has one action."""
        return len(self.running.service.spec.environments[environment].actions) == 1


@dataclass(frozen=True)
class Episode:
    """Which episode, and what is done in it."""

    environment: str
    split: str
    seed: int
    calls: Sequence[Call]


def episode_of(rollout: Json) -> Episode:
    """The episode of an answer of `POST /rollout`."""
    (trajectory,) = rollout["trajectories"]
    about = trajectory["trace"]["metadata"]
    calls = [(call["tool"], call["args"]) for step in trajectory["steps"] for call in step["tool_calls"]]
    return Episode(trajectory["env_id"], about["split"], about["seed"], calls)


@dataclass
class Seen:
    """What a caller saw: texts of the observations, the first included; rewards and ends of the steps; the digest, where shown."""

    observations: list[str] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    ends: list[bool] = field(default_factory=list)
    digest: str | None = None

    def step(self, observation: Json, reward: float | None, end: bool) -> None:
        """Add a step. observation: as on the wire, or its text."""
        self.observations.append(text_on_wire(observation))
        self.rewards.append(reward)
        self.ends.append(end)


Driver = Callable[[Place, Episode], Seen]


def text_on_wire(observation: Json) -> str:
    """The text of an observation as the wire has it."""
    if isinstance(observation, str):
        return observation
    if observation.keys() == {"text"}:
        return str(observation["text"])
    if observation.keys() == {"content"}:
        return "\n".join(block["text"] for block in observation["content"] if block["type"] == "text")
    return text_of(observation)


def posted(web: httpx.Client, path: str, body: Json = None, **headers: str) -> httpx.Response:
    answer = web.post(path, json={} if body is None else body, headers=headers, timeout=60)
    assert answer.status_code in (200, 202), f"{path}: {answer.status_code} {answer.text[:500]}"
    return answer


def _session_steps(seen: Seen, ask: Callable[[str, dict[str, Json]], Any], episode: Episode) -> Seen:
    start = ask("reset", {"seed": episode.seed, "split": episode.split})
    seen.observations.append(text_on_wire(start["observation"]))
    for tool, args in episode.calls:
        answer = ask("step", {"tool": tool, "args": args})
        seen.step(answer["observation"], answer["reward"], answer["done"])
        if answer["episode"] is not None:
            seen.digest = answer["episode"]["digest"]
    return seen


def by_sessions(place: Place, episode: Episode) -> Seen:
    path = f"/sessions/{posted(place.web, '/sessions', {'env_name': episode.environment}).json()['session_id']}"
    try:
        return _session_steps(Seen(), lambda verb, body: posted(place.web, f"{path}/{verb}", body).json(), episode)
    finally:
        place.web.delete(path)


def by_session_socket(place: Place, episode: Episode) -> Seen:
    session_id = posted(place.web, "/sessions", {"env_name": episode.environment}).json()["session_id"]
    with _socket(place, f"/sessions/{session_id}/socket") as wire:

        def ask(verb: str, body: dict[str, Json]) -> Any:
            wire.send(json.dumps({"type": verb, "id": 1, "data": body}))
            answer = json.loads(wire.recv(60))
            assert answer["type"] == verb, answer
            return answer["data"]

        seen = _session_steps(Seen(), ask, episode)
        ask("close", {})
    return seen


def in_python(place: Place, episode: Episode) -> Seen:
    async def play() -> Seen:
        service, seen = Service(find_app(place.reference)), Seen()
        try:
            session = await service.sessions.open(episode.environment)
            start = await session.reset(episode.seed, split=episode.split)
            seen.observations.append(text_of(start.observation))
            for call in episode.calls:
                step = await session.step([call])
                seen.step(text_of(step.observation), step.reward, step.end is not None)
                seen.digest = None if step.end is None else step.end.digest
        finally:
            await service.close()
        return seen

    return asyncio.run(play())


def _openenv_steps(place: Place, ask: Callable[[str, dict[str, Json]], Any], episode: Episode) -> Seen:
    def observed(answer: Any) -> Json:
        return {name: value for name, value in answer["observation"].items() if name != "metadata"}

    seen = Seen([text_on_wire(observed(ask("reset", {"seed": episode.seed, "split": episode.split})))])
    for tool, args in episode.calls:
        answer = ask("step", args if place.single(episode.environment) else {"tool": tool, "args": args})
        seen.step(observed(answer), answer["reward"], answer["done"])
        seen.digest = answer["metadata"].get("episode", {}).get("digest")
    return seen


def by_openenv_socket(place: Place, episode: Episode) -> Seen:
    with _socket(place, f"/openenv/{episode.environment}/ws") as wire:

        def ask(verb: str, body: dict[str, Json]) -> Any:
            wire.send(json.dumps({"type": verb, "data": body}))
            answer = json.loads(wire.recv(60))
            assert answer["type"] == "observation", answer
            return answer["data"]

        return _openenv_steps(place, ask, episode)


def by_openenv_http(place: Place, episode: Episode) -> Seen:
    path, headers = f"/openenv/{episode.environment}", dict[str, str]()

    def ask(verb: str, body: dict[str, Json]) -> Any:
        answer = posted(place.web, f"{path}/{verb}", body if verb == "reset" else {"action": body}, **headers)
        headers["X-Session-ID"] = answer.headers["x-session-id"]
        return answer.json()

    seen = _openenv_steps(place, ask, episode)
    posted(place.web, f"{path}/close", **headers)
    return seen


def by_mcp(place: Place, episode: Episode) -> Seen:
    path = f"/mcp/{episode.environment}?seed={episode.seed}&split={episode.split}&role=control"
    headers = {"Accept": "application/json, text/event-stream"}

    def ask(method: str, **params: Json) -> Any:
        answer = posted(place.web, path, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, **headers)
        if "mcp-session-id" in answer.headers:
            headers["Mcp-Session-Id"] = answer.headers["mcp-session-id"]
        body = answer.json()
        assert "result" in body, body
        return body["result"]

    who = {"name": "test", "version": "1"}
    ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=who)
    posted(place.web, path, {"jsonrpc": "2.0", "method": "notifications/initialized"}, **headers)
    seen = Seen([ask("tools/call", name="task", arguments={})["content"][-1]["text"]])
    for tool, args in episode.calls:
        answer = ask("tools/call", name=tool, arguments=args)["structuredContent"]
        seen.step(answer["observation"], answer["reward"], answer["episode"] is not None)
        seen.digest = None if answer["episode"] is None else answer["episode"]["digest"]
    place.web.delete(path, headers=headers)
    return seen


def _gymnasium(app: str, episode: Episode) -> Seen:
    env = make(app, episode.environment, actions="text", split=episode.split)
    try:
        first, info = env.reset(seed=episode.seed)
        assert info["seed"] == episode.seed
        seen = Seen([first])
        for tool, args in episode.calls:
            observation, reward, terminated, truncated, info = env.step(json.dumps({"tool": tool, "args": args}))
            seen.step(observation, float(reward), terminated or truncated)
            seen.digest = info.get("result", {}).get("digest")
    finally:
        env.close()
    return seen


def by_gymnasium(place: Place, episode: Episode) -> Seen:
    return _gymnasium(place.reference, episode)


def by_gymnasium_url(place: Place, episode: Episode) -> Seen:
    """Needs the key in ENVIRONMENT_API_KEY."""
    return _gymnasium(place.running.url, episode)


def by_ors(place: Place, episode: Episode, prefix: str | None = None) -> Seen:
    path = f"/ors/{episode.environment}" if prefix is None else prefix

    def stream(answer: httpx.Response) -> list[str]:
        """The data of an answer's events, without its task_id."""
        assert answer.status_code == 200, answer.text
        frames = SseReader().feed(answer.content.replace(b"data: \n", b"data: -\n"))
        return [frame.data for frame in frames if frame.event != "task_id"]

    opened = SseReader().feed(place.web.post(f"{path}/create_session").content.replace(b"data: \n", b"data: -\n"))
    headers = {"X-Session-ID": next(frame.data for frame in opened if frame.event == "task_id")}
    task = {"split": episode.split, "seed": episode.seed}
    posted(place.web, f"{path}/create", {"env_name": episode.environment, "task_spec": task}, **headers)
    *_, first = place.web.get(f"{path}/prompt", headers=headers).json()
    seen = Seen([first["text"]])
    for tool, args in episode.calls:
        answer = place.web.post(f"{path}/call", json={"name": tool, "input": args}, headers=headers, timeout=60)
        output = json.loads("".join(stream(answer)))["output"]
        shown = "\n".join(block["text"] for block in output["blocks"] if block["type"] == "text")
        seen.step(shown, output["reward"], output["finished"])
        seen.digest = output["metadata"].get("episode", {}).get("digest")
    posted(place.web, f"{path}/delete", **headers)
    return seen


def by_nemo(place: Place, episode: Episode) -> Seen:
    """An agent reads the first observation in its row, and sees one reward: that of the episode."""
    path, row = f"/nemo/{episode.environment}", {"split": episode.split, "seed": episode.seed}
    row |= {"responses_create_params": {"input": []}, "environment": episode.environment}
    place.web.cookies.clear()
    posted(place.web, f"{path}/seed_session", row)
    seen = Seen()
    for tool, args in episode.calls:
        seen.observations.append(posted(place.web, f"{path}/{tool}", args).text.removesuffix(OVER).rstrip("\n"))
    content = [{"type": "output_text", "text": "Done.", "annotations": []}]
    message = {"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": content}
    response = {"id": "r", "object": "response", "model": "m", "created_at": 1.0, "output": [message]}
    found = posted(place.web, f"{path}/verify", {**row, "response": response}).json()
    place.web.cookies.clear()
    seen.rewards, seen.digest = [found["reward"]], found["taskapp"]["digest"]
    return seen


DRIVERS: dict[str, Driver] = {
    "sessions": by_sessions,
    "session socket": by_session_socket,
    "python": in_python,
    "OpenEnv socket": by_openenv_socket,
    "OpenEnv HTTP": by_openenv_http,
    "MCP": by_mcp,
    "ORS": by_ors,
    "Gymnasium": by_gymnasium,
    "Gymnasium, URL": by_gymnasium_url,
}
"""Without NeMo Gym's, which shows less."""


@contextmanager
def _socket(place: Place, path: str) -> Iterator[Any]:
    url = place.running.url.replace("http", "ws", 1) + path
    with connect(url, additional_headers={"X-API-Key": KEY}, max_size=None) as wire:
        yield wire
