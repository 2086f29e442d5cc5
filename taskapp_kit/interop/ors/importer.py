"""`from_ors` declares an environment on an ORS server as an environment of an app.

Written against openreward 0.1.167 and ors-sdk 0.1.0 (PyPI; the Open Reward Standard, openrewardstandard.io). Neither
package has to be installed. Guarantees:

- Each task of a split has a seed, and the task's prompt is the first observation. Each tool is an action, whose
  arguments are checked against the tool's schema.
- The reward of an episode is the sum of the rewards of its calls. A reward of null is undefined. If the server sends
  only null in an episode, the reward of the episode is undefined and the rollout fails, unless the author passes
  `rewarded=False`.
- `finished` means terminated, unless the call's metadata contains `truncated`. A malformed call is a rejected action.
- The rollout fails and has no reward if a tool raises an exception, a call times out, the connection breaks, or the
  server remains full.
- The server's key is read from an environment variable. URLs, messages and traces do not contain it. X-Secrets is not
  sent.
"""

from __future__ import annotations

import sys
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, ClassVar

from taskapp_kit.errors import DeclarationError, InvalidAction
from taskapp_kit.interop.class_parts import ClassParts
from taskapp_kit.interop.ors.server_connection import OrsConnection, OrsFailed
from taskapp_kit.interop.schema_tools import Sample, tool_methods
from taskapp_kit.interop.server_episode import (
    ServerEpisode,
    header_values,
    server_address,
    shown_url,
    unreadable,
)
from taskapp_kit.records.content import Image, Json, Text
from taskapp_kit.records.trajectory import Step

CALL_SECONDS = 600.0
OPEN_SECONDS = 600.0
"""How long an episode waits for a server that is starting, as in openreward's own client."""
REFUSED = ("not_found", "name_collision", "input_validation", None)
"""The reasons of malformed calls that become rejected actions. Older servers send no reason."""
NOT_REPEATABLE = ("rollout_id", "episode")
"""The fields of a call's metadata, in taskapp-kit's own ORS protocol, that differ when an episode is repeated."""


def from_ors(
    url: str,
    *,
    environment: str | None = None,
    headers: Mapping[str, str] | None = None,
    sample: Mapping[str, Sample] | None = None,
    rewarded: bool = True,
    seconds: float = CALL_SECONDS,
    open_seconds: float = OPEN_SECONDS,
) -> type[OrsEnvironment]:
    """Return a class for `app.environment(...)` that plays an environment of an ORS server.

        Env = from_ors("http://127.0.0.1:8080", headers={"X-API-Key": "ORS_KEY"})
        app.environment("counter", splits=Env.splits)(Env)

    The server must be running when the app is declared. If the arguments contain a mistake, freezing the app that
    declares the class raises DeclarationError.

    Args:
        url: The server's URL.
        environment: The name of an environment. Defaults to the server's first environment.
        headers: Maps each header to the *name* of the environment variable that contains its value.
        sample: Maps each tool's name to `fn(rng) -> arguments`, for the policy `random`.
        rewarded: Pass False if the server sends no rewards and the author's rubrics score the episode.
        seconds: The time limit for a call.
        open_seconds: How long an episode waits while the server is full or starting.

    Returns:
        A subclass of `OrsEnvironment`. Its `splits` contain a seed for each task. The seeds of the first split begin at
        0.

    Raises:
        Unavailable: An environment variable in `headers` is not set.
    """
    parts = ClassParts("from_ors", shown_url(url), sys._getframe(1))
    try:
        address = server_address(parts, url, "the http or https URL of an ORS server")
        values = header_values(parts, headers or {})

        def connected() -> OrsConnection:
            return OrsConnection(address, values, seconds=seconds, open_seconds=open_seconds)

        connection = connected()
        try:
            members = _described(parts, connection, environment, sample or {})
        except (KeyError, TypeError) as error:
            raise parts.wrong(
                f"cannot read the response of {parts.name}: {type(error).__name__}", "an ORS server", "check the URL"
            ) from error
        except OrsFailed as error:
            raise unreadable(parts, error, "an ORS server") from error
        finally:
            connection.close()
        members |= {
            "__doc__": f"{members['environment']}, an environment of an ORS server. Do what the prompt asks.",
            "__init__": parts.constructor({}, lambda environment, options: None),
            "server": address,
            "connect": staticmethod(connected),
            "rewarded": rewarded,
        }
        return parts.made(OrsEnvironment, members["environment"], members)
    except DeclarationError as error:
        return parts.without_environment(error, OrsEnvironment)


class OrsEnvironment(ServerEpisode):
    """An episode on an ORS server. `from_ors` creates the subclasses that an app declares."""

    adapter, library, failure, step_name = "from_ors", "ORS", OrsFailed, "calls"
    environment: str
    splits: ClassVar[dict[str, range]] = {}

    def reset(self, seed: int) -> Any:
        """Open a session with the seed's task, and return the task's prompt. Raises OrsFailed if the server fails."""
        split, seeds = next((name, seeds) for name, seeds in self.splits.items() if seed in seeds)
        return self._observation(self.begin().open(self.environment, split, seed - seeds.start))

    def send(self, tool: str, arguments: dict[str, Json]) -> Step:
        """Call a tool. Raises InvalidAction if the server rejects the call, and OrsFailed if the server fails."""
        answer = self.opened().call(tool, arguments)
        if not answer["ok"]:
            reason = answer.get("reason")
            if reason not in REFUSED:
                raise self.failed(f"rejected the call to {tool!r} ({str(reason)[:40]})")
            raise InvalidAction(str(answer.get("error"))[:2000])
        output = answer.get("output")
        if not isinstance(output, dict):
            raise self.failed(f"responded to the call to {tool!r} without an output")
        reward, finished = output.get("reward"), self.flag(output, "finished")
        if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float)):
            raise self.failed("sent a reward that is not a number")
        metadata = output.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        self.count(reward, ended=finished, metadata=metadata)
        truncated = finished and self.flag(metadata, "truncated")
        info = {name: value for name, value in metadata.items() if name not in NOT_REPEATABLE}
        return Step(
            self._observation(output.get("blocks")),
            None if reward is None else float(reward),
            terminated=finished and not truncated,
            truncated=truncated,
            info=info,
        )

    def final_state(self) -> dict[str, Any]:
        """Return the numbers of calls and rewards. Raises OrsFailed if the server should send rewards but sent none."""
        self.check_paid()
        return {"calls": self.steps, "rewards": self.rewards}

    def _observation(self, blocks: Json) -> Any:
        """Convert ORS blocks to an observation: a string, or a list of text and images.

        Raises OrsFailed for other blocks.
        """
        observed = [_block(block) for block in blocks] if isinstance(blocks, list) else [None]
        if None in observed:
            raise self.failed("sent blocks that are neither text nor PNG images")
        texts = [block.text for block in observed if isinstance(block, Text)]
        return "\n\n".join(texts) if len(texts) == len(observed) else observed


def _block(block: Any) -> Any:
    """Convert an ORS block to a block of an observation, or return None if it is invalid."""
    if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
        return Text(block["text"])
    if isinstance(block, dict) and block.get("type") == "image" and block.get("mimeType") == "image/png":
        try:
            return Image(b64decode(str(block.get("data")), validate=True))
        except ValueError:
            return None
    return None


# -- the server's description of itself -------------------------------------------------------------------------------


def _described(
    parts: ClassParts, connection: OrsConnection, environment: str | None, sample: Mapping[str, Sample]
) -> dict[str, Any]:
    """Return the attributes of the class that depend on the server.

    Raises OrsFailed if the server fails. Raises DeclarationError if the server does not list the environment or a tool
    in `sample`, or if the environment has no tasks or no tools.
    """
    names = connection.ask("/list_environments")
    if not isinstance(names, list) or not names:
        raise parts.wrong(f"found no environments at {parts.name}", "at least one environment", "check the server")
    chosen = str(names[0]) if environment is None else environment
    if chosen not in names:
        listed = f"an environment of the server: {', '.join(map(str, names))}"
        raise parts.wrong(f"has environment={chosen!r}", listed, "fix the name")
    splits: dict[str, range] = {}
    start = 0
    for split in connection.ask(f"/{chosen}/splits"):
        count = connection.ask(f"/{chosen}/num_tasks", {"split": split["name"]})["num_tasks"]
        if count:
            splits[split["name"]] = range(start, start + count)
            start += count
    if not splits:
        raise parts.wrong(
            f"found no tasks in {chosen!r} at {parts.name}", "at least one split with tasks", "check the server"
        )
    tools = connection.ask(f"/{chosen}/tools")["tools"]
    unknown = sorted(set(sample) - {tool["name"] for tool in tools})
    if unknown or not tools:
        problem = f"has sample= for {unknown[0]!r}" if unknown else f"found no tools in {chosen!r} at {parts.name}"
        raise parts.wrong(problem, "tools that the server lists for the environment", "check sample= and the server")
    methods = tool_methods(parts, tools, OrsEnvironment.send, sample)
    return {**methods, "environment": chosen, "splits": splits}
