"""Runs NeMo Gym's calls: `seed_session` begins an episode, a tool is a step, and `verify` scores the episode."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from taskapp_kit.declare.specs import EnvironmentSpec
from taskapp_kit.errors import RequestError, RolloutFailed, SessionError, UndefinedReward
from taskapp_kit.interop.protocols import check_environment
from taskapp_kit.records.content import Json
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.admission import Caller
from taskapp_kit.rollout.driven_episode import SessionCall
from taskapp_kit.rollout.policy.conversation import words_of
from taskapp_kit.rollout.session import EnvironmentSession
from taskapp_kit.serve.route import RouteContext, parsed
from taskapp_kit.serve.routes.sessions import ResetSession, begin_with, described_episode
from taskapp_kit.wire.field_problems import invalid_member

log = logging.getLogger("taskapp_kit.service")

PROTOCOL = "nemo"
RESERVED = ("seed_session", "verify", "reverify_mode")
"""The routes of a resources server. Actions must have other names."""
OVER = "The episode is over. Answer with a short message, without a tool call."
FAILED = "The environment failed. Answer with a short message, without a tool call."
ON_FAILURE = "on_failure"
"""A field of a row, with the value `mask` (default) or `error`."""
MAX_VERIFIED = 4096
"""How many of the latest results are stored in case `verify` is called again."""


class NemoEpisodes:
    """The episodes of a server. Methods raise the session's exceptions, and RequestError for invalid requests."""

    def __init__(self, context: RouteContext) -> None:
        self._sessions = context.service.sessions
        self._verified: dict[tuple[str | None, str, str], SessionCall] = {}

    async def seed(self, environment: EnvironmentSpec, row: Mapping[str, Json], caller: Caller) -> EnvironmentSession:
        """Begin the episode that a row identifies, in a new session.

        If the reset fails, this method does not raise, because an error response would end NeMo Gym's whole run. The
        session stays open, and `verify` reports the failure. Raises RequestError, Saturated or Unavailable if the
        session cannot be opened.
        """
        reset = _episode_of(environment, row)
        session = await self._sessions.open(environment.name, caller=caller, protocol=PROTOCOL)
        try:
            await begin_with(session, reset)
        except RolloutFailed as failed:
            log.info("nemo: the episode could not begin rollout_id=%s", failed.rollout_id)
        except BaseException:
            await session.close()
            raise
        return session

    def find(self, session_id: str, environment: EnvironmentSpec, caller: Caller) -> EnvironmentSession:
        """Return the session whose id is in the cookie. Raises SessionError if the caller has no such session."""
        session = self._sessions.find(session_id, caller)
        check_environment(session, environment)
        return session

    async def call(self, session: EnvironmentSession, tool: str, args: Json) -> tuple[bool, str]:
        """Run an action. Return (ok, text): `ok` is False if the environment failed, and `text` is for the model."""
        try:
            step = await session.step([(tool, args)])
        except RolloutFailed:
            return False, FAILED
        except SessionError as error:
            if error.code != "episode_over":
                raise
            return True, OVER
        if step.end is None:
            return True, words_of(step.observation)
        return True, OVER if step.observation is None else f"{words_of(step.observation)}\n\n{OVER}"

    async def verify(
        self, session_id: str, environment: EnvironmentSpec, caller: Caller, body: Mapping[str, Json]
    ) -> dict[str, Json]:
        """End and score the episode, close its session, and return the fields that the response adds to the request.

        If the environment accepts text, the model's last message is its answer. A repeated `verify` call waits for
        the first call, or returns the first call's result after the session was closed. Raises SessionError,
        RolloutFailed or UndefinedReward.
        """
        key = (caller.key_label, environment.name, session_id)
        call = self._verified.get(key)
        if call is None:
            session = self.find(session_id, environment, caller)
            call = self._verified[key] = SessionCall("verify", None, None)
            call.run(self._scored(session, _last_words(body))).add_done_callback(partial(self._keep, key))
        end: Rollout | RolloutFailed = await call.answer()
        if isinstance(end, RolloutFailed):
            raise RolloutFailed(end.failure, rollout_id=end.rollout_id)
        if end.reward is None:
            raise UndefinedReward(rollout_id=end.rollout_id)
        return {"reward": end.reward, **_numbers(end), "taskapp": described_episode(end)}

    async def _scored(self, session: EnvironmentSession, words: str) -> Rollout | RolloutFailed:
        try:
            if session.state == "playing" and words and session.environment.text_action is not None:
                await session.step(text=words)
            end = (await session.finish()).end
        except RolloutFailed as failed:
            return RolloutFailed(failed.failure, rollout_id=failed.rollout_id)  # without the traceback's frames
        finally:
            if not session.busy:  # a tool call is still running, so the episode continues and can be verified later
                await session.close()
        assert end is not None, "a finished episode has an end"
        return end

    def _keep(self, key: tuple[str | None, str, str], task: asyncio.Task[Any]) -> None:
        """Forget a `verify` call that raised an exception, and the oldest results beyond MAX_VERIFIED."""
        if task.cancelled() or task.exception() is not None:
            del self._verified[key]
        while len(self._verified) > MAX_VERIFIED and next(iter(self._verified.values())).done:
            del self._verified[next(iter(self._verified))]


def masked(body: Mapping[str, Json], code: str, sentence: str, rollout_id: str) -> dict[str, Json]:
    """Return the fields of a verify response whose sample must be masked.

    With `instance_config.mask_sample`, NeMo RL excludes the sample from the loss. With `_ng_failure_class`, NeMo Gym
    writes the sample to its failures file, excludes it from results and metrics, and plays it again when a run is
    resumed. `reward` must be a number; it is 0.0, as in NeMo Gym's own masked samples.
    """
    config = body.get("instance_config")
    return {
        "reward": 0.0,
        "instance_config": {**(config if isinstance(config, dict) else {}), "mask_sample": True},
        "_ng_failure_class": code,
        "_ng_failure_message": sentence,
        "taskapp": {"rollout_id": rollout_id, "status": "failed", "code": code},
    }


def _episode_of(environment: EnvironmentSpec, row: Mapping[str, Json]) -> ResetSession:
    """Return the reset request for a row of `taskapp export tasks --format nemo`.

    Raises RequestError for an invalid row.
    """
    if row.get("environment") not in (None, environment.name):
        raise _wrong("environment", f"should be {environment.name!r}, the environment in this URL")
    if row.get("output_mode", "tool_calls") != "tool_calls":
        raise _wrong("output_mode", "should be tool_calls, the only mode that NeMo Gym's agents support")
    if row.get(ON_FAILURE, "mask") not in ("mask", "error"):
        raise _wrong(ON_FAILURE, "should be mask or error")
    reserved = next((name for name in environment.actions if name in RESERVED), None)
    if reserved is not None:
        raise _wrong("environment", f"has an action {reserved!r}, but resources servers use this name for a route")
    config = row.get("config", {})
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except ValueError:
            raise _wrong("config", "should be an object or a JSON string of an object") from None
    if row.get("seed") is None:
        raise _wrong("seed", "is missing")
    return parsed(ResetSession, {"seed": row["seed"], "split": row.get("split"), "config": config})


def _wrong(member: str, message: str) -> RequestError:
    return invalid_member("row", member, message, hint="Write rows with `taskapp export tasks APP --format nemo`.")


def _last_words(body: Mapping[str, Any]) -> str:
    """Return the text of the model's last output item, or "" if the item is not a message."""
    response = body.get("response")
    output = response.get("output") if isinstance(response, dict) else None
    last = output[-1] if isinstance(output, list) and output else None
    if not isinstance(last, dict) or last.get("type") != "message" or last.get("role") != "assistant":
        return ""
    parts = last.get("content")
    return "".join(
        part["text"]
        for part in (parts if isinstance(parts, list) else ())
        if isinstance(part, dict) and part.get("type") == "output_text" and isinstance(part.get("text"), str)
    )


def _numbers(end: Rollout) -> dict[str, Json]:
    """Return the numbers of an episode for the top level of a response. NeMo Gym averages them."""
    numbers = {f"taskapp/{item.name}": item.score for item in end.scorecard.criteria}
    numbers |= {"taskapp/steps": float(end.length), "taskapp/truncated": float(end.status == "truncated")}
    return {name: value for name, value in numbers.items() if value is not None}
