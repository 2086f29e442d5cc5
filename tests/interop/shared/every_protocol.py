"""Drivers that play an episode through each protocol of a task app, raw on the wire and without a client.

A driver takes a place (a running server and its app), an episode and actions, and returns what a caller sees.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from taskapp_kit.declare.discovery import find_app
from taskapp_kit.interop.gymnasium.env import make
from taskapp_kit.interop.nemo_gym.episodes import OVER
from taskapp_kit.net.sse import SseReader
from taskapp_kit.records.content import Json, text_of
from taskapp_kit.rollout.service import Service
from tests.interop.shared.protocol_clients import ByMcp, ByNemo, ByOpenEnv, ByOrs, BySessions, socket_to
from tests.serve.running_server import RunningServer

Call = tuple[str, Json]
"""An action and its arguments."""


@dataclass(frozen=True)
class Place:
    """A running server with every protocol, and the reference of its app."""

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
    """An episode and its actions."""

    environment: str
    split: str
    seed: int
    calls: Sequence[Call]


def episode_of(rollout: Json) -> Episode:
    """Return the episode of a response of `POST /rollout`."""
    (trajectory,) = rollout["trajectories"]
    about = trajectory["trace"]["metadata"]
    calls = [(call["tool"], call["args"]) for step in trajectory["steps"] for call in step["tool_calls"]]
    return Episode(trajectory["env_id"], about["split"], about["seed"], calls)


@dataclass
class Seen:
    """What a caller saw: the observations as text, including the first; rewards and ends of the steps; the digest, if shown."""

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
    """Return the text of an observation on the wire."""
    if isinstance(observation, str):
        return observation
    if observation.keys() == {"text"}:
        return str(observation["text"])
    if observation.keys() == {"content"}:
        return "\n".join(block["text"] for block in observation["content"] if block["type"] == "text")
    return text_of(observation)


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
    client = BySessions(place.web, episode.environment)

    def ask(verb: str, body: dict[str, Json]) -> Any:
        answer = (
            client.begin(episode.seed, episode.split) if verb == "reset" else client.act(body["tool"], body["args"])
        )
        return answer.raise_for_status().json()

    try:
        return _session_steps(Seen(), ask, episode)
    finally:
        client.leave()


def by_session_socket(place: Place, episode: Episode) -> Seen:
    session_id = place.web.post("/sessions", json={"env_name": episode.environment}).json()["session_id"]
    with socket_to(place.running, f"/sessions/{session_id}/socket") as wire:

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
    with socket_to(place.running, f"/openenv/{episode.environment}/ws") as wire:

        def ask(verb: str, body: dict[str, Json]) -> Any:
            wire.send(json.dumps({"type": verb, "data": body}))
            answer = json.loads(wire.recv(60))
            assert answer["type"] == "observation", answer
            return answer["data"]

        return _openenv_steps(place, ask, episode)


def by_openenv_http(place: Place, episode: Episode) -> Seen:
    client = ByOpenEnv(place.web, episode.environment)

    def ask(verb: str, body: dict[str, Json]) -> Any:
        answer = client.begin(episode.seed, episode.split) if verb == "reset" else client.step(body)
        return answer.raise_for_status().json()

    seen = _openenv_steps(place, ask, episode)
    client.leave().raise_for_status()
    return seen


def by_mcp(place: Place, episode: Episode) -> Seen:
    client = ByMcp(place.web, episode.environment)
    client.role = "control"
    seen = Seen([client.begin(episode.seed, episode.split).json()["result"]["content"][-1]["text"]])
    for tool, args in episode.calls:
        answer = client.act(tool, dict(args)).json()["result"]["structuredContent"]
        seen.step(answer["observation"], answer["reward"], answer["episode"] is not None)
        seen.digest = None if answer["episode"] is None else answer["episode"]["digest"]
    client.leave()
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
    """Play at a URL. Needs the key in ENVIRONMENT_API_KEY."""
    return _gymnasium(place.running.url, episode)


def by_ors(place: Place, episode: Episode, prefix: str | None = None) -> Seen:
    client = ByOrs(place.web, episode.environment, prefix)
    *_, first = client.begin(episode.seed, episode.split).json()
    seen = Seen([first["text"]])
    for tool, args in episode.calls:
        frames = SseReader().feed(client.act(tool, dict(args)).content)
        output = json.loads("".join(frame.data for frame in frames if frame.event != "task_id"))["output"]
        shown = "\n".join(block["text"] for block in output["blocks"] if block["type"] == "text")
        seen.step(shown, output["reward"], output["finished"])
        seen.digest = output["metadata"].get("episode", {}).get("digest")
    client.leave().raise_for_status()
    return seen


def by_nemo(place: Place, episode: Episode) -> Seen:
    """Play as an agent, which reads the first observation in its row and sees the episode's reward."""
    client = ByNemo(place.web, episode.environment)
    client.begin(episode.seed, episode.split).raise_for_status()
    seen = Seen()
    for tool, args in episode.calls:
        seen.observations.append(client.act(tool, dict(args)).text.removesuffix(OVER).rstrip("\n"))
    content = [{"type": "output_text", "text": "Done.", "annotations": []}]
    message = {"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": content}
    client.row["response"] = {"id": "r", "object": "response", "model": "m", "created_at": 1.0, "output": [message]}
    verified = client.end().json()
    place.web.cookies.clear()
    seen.rewards, seen.digest = [verified["reward"]], verified["taskapp"]["digest"]
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
"""The drivers, except NeMo Gym's, which shows less."""
