"""The MCP SDK's server for a connection.

It lists the tools and the resource, and runs calls in the connection's episode.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from taskapp_kit.declare.specs import EnvironmentSpec
from taskapp_kit.errors import KitError, RequestError, RolloutFailed, Saturated, SessionError
from taskapp_kit.interop.mcp.connection import EpisodeChoice, McpConnection, TaskText
from taskapp_kit.net.response import Peer, peer_of
from taskapp_kit.records.content import Content, Image, Json, text_of
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.seeds import SEED_LIMIT
from taskapp_kit.rollout.session import SessionStep
from taskapp_kit.serve.routes.sessions import described_episode
from taskapp_kit.version import __version__

TASK = "task"
RESET, FINISH, SCORECARD = "reset", "finish", "scorecard"
PREFIX = "taskapp_"
"""The prefix for the kit's own tools if an action has the same name."""
DONE = "taskapp/done"
"""The key in a result's `_meta` that shows whether the episode has ended."""
OVER = "The episode is over."
NO_ARGUMENTS: dict[str, Json] = {"type": "object", "properties": {}, "additionalProperties": False}
RESET_ARGUMENTS: dict[str, Json] = {
    "type": "object",
    "properties": {
        "seed": {"type": "integer", "minimum": 0, "exclusiveMaximum": SEED_LIMIT},
        "split": {"type": "string"},
        "config": {"type": "object"},
    },
    "additionalProperties": False,
}


T = TypeVar("T")
ToolAnswer = Callable[[dict[str, Any], Peer], Awaitable[types.CallToolResult]]


def mcp_server(connection: McpConnection, app_name: str) -> Server[Any]:
    """Return a server that plays the connection's episode. Each connection has its own server."""
    handlers = _Handlers(connection)
    return Server(
        f"taskapp {app_name}",
        version=__version__,
        instructions=f"{connection.environment.description.strip()}\n\n".lstrip()
        + f"Call `{handlers.names[TASK]}` first: it shows the task. The episode begins with the first call. Each tool that is "
        f"an action changes the environment and returns what is observed then. When an answer says “{OVER}”, stop.",
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_read_resource=handlers.read_resource,
    )


def _peer(context: ServerRequestContext[Any]) -> Peer:
    """Return the HTTP connection of the request, or for stdio a connection that never closes."""
    return Peer() if context.request is None else peer_of(context.request.scope)


def task_uri(environment: EnvironmentSpec) -> str:
    """Return the URI of the resource that describes the task."""
    return f"taskapp://{environment.name}/task"


class _Handlers:
    """The handlers of a connection's server. The tools are the actions, `task`, and the tools of the role `control`."""

    def __init__(self, connection: McpConnection) -> None:
        self._connection = connection
        self._actions = connection.environment.actions
        self._uri = task_uri(connection.environment)
        self.names = {
            name: PREFIX + name if name in self._actions else name for name in (TASK, RESET, FINISH, SCORECARD)
        }
        about = "Show the task and the newest observation. It is not an action."
        own = [self._own(TASK, about, self._task, reads=True)]
        if connection.control:
            own += [
                self._own(RESET, "Begin another episode.", self._reset, RESET_ARGUMENTS),
                self._own(FINISH, "End the episode now: truncated and scored.", self._finish),
                self._own(SCORECARD, "Show how the episode was scored.", self._scorecard, reads=True),
            ]
        self._own_tools = {tool.name: (tool, answer) for tool, answer in own}

    async def list_tools(
        self, _: ServerRequestContext[Any], __: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """Return the list of tools: the actions and the kit's own tools."""
        actions = [
            types.Tool(
                name=action.tool.name,
                description=action.tool.description,
                input_schema={"type": "object", **action.tool.parameters},
            )
            for action in self._actions.values()
        ]
        return types.ListToolsResult(tools=[*actions, *(tool for tool, _ in self._own_tools.values())])

    async def call_tool(
        self, context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        """Run an action or one of the kit's own tools. An unknown name counts as a rejected action."""
        args, peer = params.arguments or {}, _peer(context)
        if params.name in self._own_tools:
            _, answer = self._own_tools[params.name]
            return await answer(args, peer)
        try:
            step = await _answered(lambda: self._connection.act(params.name, args, peer))
        except _EpisodeOver:
            return _result([OVER], done=True, error=True)
        return self._stepped(step)

    async def list_resources(
        self, _: ServerRequestContext[Any], __: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """Return the resource that describes the task."""
        about = "What a model is sent first: the task's instructions, and the newest observation as text."
        resource = types.Resource(uri=self._uri, name=TASK, description=about, mime_type="text/plain")
        return types.ListResourcesResult(resources=[resource])

    async def read_resource(
        self, context: ServerRequestContext[Any], params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """Return the text of the task. Raises MCPError for any other URI."""
        if str(params.uri) != self._uri:
            raise MCPError(
                types.INVALID_PARAMS, f"The resource {str(params.uri)[:200]!r} does not exist; expected {self._uri}."
            )
        task = await _answered(lambda: self._connection.task(_peer(context)))
        text = "\n\n".join(part for part in (task.instructions, text_of(task.observation)) if part)
        contents = types.TextResourceContents(uri=self._uri, mime_type="text/plain", text=text)
        return types.ReadResourceResult(contents=[contents], ttl_ms=0, cache_scope="private")

    def _own(
        self,
        name: str,
        about: str,
        answer: ToolAnswer,
        arguments: dict[str, Json] = NO_ARGUMENTS,
        *,
        reads: bool = False,
    ) -> tuple[types.Tool, ToolAnswer]:
        tool = types.Tool(
            name=self.names[name],
            description=about,
            input_schema=arguments,
            annotations=types.ToolAnnotations(read_only_hint=reads, open_world_hint=False),
        )
        return tool, answer

    async def _task(self, args: dict[str, Any], peer: Peer) -> types.CallToolResult:
        return _shown(await _answered(lambda: self._connection.task(peer)))

    async def _reset(self, args: dict[str, Any], peer: Peer) -> types.CallToolResult:
        unknown = sorted(set(args) - {"seed", "split", "config"})
        if unknown:
            raise MCPError(
                types.INVALID_PARAMS,
                f"reset has no argument {unknown[0][:80]!r}; its arguments are seed, split and config.",
            )
        choice = EpisodeChoice(args.get("seed"), args.get("split"), args.get("config") or {})
        return _shown(await _answered(lambda: self._connection.reset(choice, peer)))

    async def _finish(self, args: dict[str, Any], peer: Peer) -> types.CallToolResult:
        return self._stepped(await _answered(lambda: self._connection.finish(peer)))

    async def _scorecard(self, args: dict[str, Any], peer: Peer) -> types.CallToolResult:
        end = episode_end(await _answered(lambda: self._connection.scorecard(peer)))
        return _result([text_of(end)], done=True, structured=end)

    def _stepped(self, step: SessionStep) -> types.CallToolResult:
        done = step.end is not None
        refused = next((item.refused for item in step.steps if item.refused), None)
        content: list[str | Image] = [*_blocks(step.observation), *([OVER] if done else [])]
        if not self._connection.control:
            return _result(content, done=done, error=refused is not None)
        rewards: dict[str, Json] = {
            "observation": text_of(step.observation),
            "reward": step.reward,
            "reward_parts": dict(step.parts),
            "refused": refused,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "episode": None if step.end is None else episode_end(step.end),
        }
        return _result(content, done=done, error=refused is not None, structured=rewards)


def episode_end(end: Rollout) -> dict[str, Json]:
    """Return the result of an episode for the role `control`."""
    episode = described_episode(end)
    del episode["timing"]
    return episode


class _EpisodeOver(Exception):
    """An action was called after the end of the episode."""


async def _answered(call: Callable[[], Awaitable[T]]) -> T:
    """Await a call, and convert the kit's errors.

    Raises _EpisodeOver or MCPError. An MCPError does not contain the message of an environment's exception.
    """
    try:
        return await call()
    except SessionError as error:
        if error.code == "episode_over":
            raise _EpisodeOver from None
        raise mcp_error(error) from error
    except KitError as error:
        raise mcp_error(error) from error


def mcp_error(error: KitError) -> MCPError:
    """Convert an error of the kit to an MCP error, whose `data` contains the code and the boundary."""
    message = str(error)
    if isinstance(error, RolloutFailed):
        failure = error.failure
        data: dict[str, Json] = {
            "code": failure.code,
            "boundary": failure.boundary,
            "error_id": failure.error_id,
            "rollout_id": error.rollout_id,
        }
        text = f"The episode failed and has no reward: {failure.message.rstrip('.')}."
        return MCPError(types.INTERNAL_ERROR, text, data)
    if isinstance(error, Saturated):
        return MCPError(
            types.INTERNAL_ERROR, message, {"code": error.code, "retry_after_seconds": error.retry_after_seconds}
        )
    if isinstance(error, RequestError):
        return MCPError(types.INVALID_PARAMS, message, {"code": error.code})
    code = error.code if isinstance(error, SessionError) else "unavailable"
    return MCPError(types.INTERNAL_ERROR, message, {"code": code})


def _shown(task: TaskText) -> types.CallToolResult:
    content: list[str | Image] = [task.instructions] if task.instructions else []
    return _result(content + _blocks(task.observation))


def _blocks(observation: Content) -> list[str | Image]:
    return list(observation) if isinstance(observation, list) else [text_of(observation)]


def _result(
    content: list[str | Image], *, done: bool = False, error: bool = False, structured: Mapping[str, Json] | None = None
) -> types.CallToolResult:
    blocks: list[types.ContentBlock] = [
        types.ImageContent(type="image", data=base64.b64encode(block.png).decode("ascii"), mime_type="image/png")
        if isinstance(block, Image)
        else types.TextContent(type="text", text=block)
        for block in content
    ]
    return types.CallToolResult(content=blocks, structured_content=structured, is_error=error, _meta={DONE: done})
