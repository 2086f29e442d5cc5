"""Converts a finished rollout to the response of `POST /rollout` and to a stored row, and a stored row to a response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.declare.tasks import row_hash
from taskapp_kit.records.content import Content, Image, Json, as_object
from taskapp_kit.records.events import SCHEMA_VERSION, EncodedEvents, event_history, from_json, to_json
from taskapp_kit.records.protocols import StoredRollout
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.scorecard import Scorecard
from taskapp_kit.records.trajectory import PlayedStep, Turn
from taskapp_kit.rollout.episode.plan import EpisodePlan
from taskapp_kit.rollout.policy.options import STORED_CONFIG
from taskapp_kit.version import __version__
from taskapp_kit.wire.inference_url import correlation_id, inference_url, stored_url
from taskapp_kit.wire.rollout import EnvSpec, PolicySpec, RolloutRequest

# A hundred frames would make a response of many megabytes, even for callers that do not need the images.
INLINE_IMAGE_BYTES = 2 * 1024 * 1024
"""Images in a response are inlined up to this many PNG bytes in total. Others are referenced as `/blobs/{hash}`."""


@dataclass
class PictureRoom:
    """The remaining number of image bytes that may be inlined."""

    left: int

    def address(self, image: Image) -> str:
        """Return a data URL if the image still fits, or else the image's path on the server."""
        if len(image.png) > self.left:
            return f"/blobs/{image.hash}"
        self.left -= len(image.png)
        return image.data_url()


def response_body(rollout: Rollout, *, inline_image_bytes: int = INLINE_IMAGE_BYTES) -> dict[str, Any]:
    """Return the response as a dict for JSON. Only tests verify that it matches `wire.RolloutResponse`.

    inline_image_bytes: the maximum number of PNG bytes that are inlined. Pass sys.maxsize if no server serves `/blobs/{hash}`.
    """
    request, trajectory, card = rollout.request, rollout.trajectory, rollout.scorecard
    url, cid = rollout.inference_url, rollout.correlation_id
    pictures = PictureRoom(inline_image_bytes)
    events = rollout.events if request.record.return_trace else []
    initial = wire_observation(trajectory.initial, pictures)
    trace = {
        "session_id": rollout.rollout_id,
        "initial_observation": initial,
        "event_history": event_history(to_json(seq, event) for seq, event in enumerate(events)),
        "metadata": {
            "trace_correlation_id": cid,
            "inference_url": url,
            "env": trajectory.environment,
            "split": trajectory.split,
            "seed": trajectory.seed,
        },
    }
    returned = trajectory.total_reward
    return {
        "run_id": request.run_id,
        "trajectories": [
            {
                "env_id": request.env.env_id or trajectory.environment,
                "policy_id": request.policy.policy_id or rollout.policy,
                "steps": _steps(rollout, url, initial, pictures) if request.record.trajectories else [],
                "final": _final(rollout, pictures),
                "length": trajectory.length,
                "inference_url": url or "",
                "trace": trace,
                "decision_samples": None,
                "trace_correlation_id": cid,
            }
        ],
        "branches": {},
        "metrics": {
            "episode_returns": [returned],
            "mean_return": returned,
            "num_steps": trajectory.length,
            "num_episodes": 1,
            "outcome_score": card.outcome_score,
            "events_score": card.events_score,
            "details": {
                **trajectory.metrics,
                **card.metrics,
                "seed": trajectory.seed,
                "split": trajectory.split,
                "rubric": _rubric(rollout),
            },
        },
        "aborted": False,
        "ops_executed": rollout.ops_executed,
        "trace_correlation_id": cid,
        # without the events, which the trajectory already contains
        "trace": {**trace, "event_history": []} if request.record.return_trace else None,
        "pipeline_metadata": {
            "inference_url": url,
            "trace_correlation_id": cid,
            "policy": rollout.policy,
            "environment": trajectory.environment,
            "seed": trajectory.seed,
            "warnings": rollout.warnings,
        },
        "rollout_id": rollout.rollout_id,
        "status": trajectory.status,
        "stop_reason": trajectory.stop_reason,
        "reward": card.reward,
        "reward_formula": card.formula,
        "digest": rollout.digest,
        "observation_digest": rollout.observation_digest,
        "group_id": request.group_id,
        "scorecard": card.to_json(),
        "timing": rollout.timing,
        "usage": rollout.usage,
        "versions": rollout.versions,
    }


def write_body(rollout: Rollout) -> bytes | None:
    """Return the response as JSON without the timing, which `with_timing` adds, or None if it cannot be encoded.

    In that case the parent process encodes the rollout itself and reports the error.
    """
    body = response_body(rollout)
    # only the parent knows the total time, which includes the transfer
    del body["timing"]
    try:
        return orjson.dumps(body, default=as_object)
    except orjson.JSONEncodeError:
        return None


def answer_bytes(rollout: Rollout) -> bytes:
    """Return the response as JSON, and encode it unless a worker already has. Raises TypeError if it cannot be encoded."""
    return rollout.body if rollout.body is not None else orjson.dumps(response_body(rollout), default=as_object)


def with_timing(body: bytes, timing: dict[str, float]) -> bytes:
    """Return the whole response. body: the result of `write_body`."""
    # appended to the JSON, so that the parent need not parse the body that a worker encoded
    return b'%s,"timing":%s}' % (body[:-1], orjson.dumps(timing))


def wire_observation(observation: Content, pictures: PictureRoom | None = None) -> dict[str, Json]:
    """Return an observation for a response: `{"text": …}`, `{"content": [parts as in chat messages]}`, or a dict unchanged."""
    if isinstance(observation, str):
        return {"text": observation}
    if observation is None:
        return {"text": ""}
    if isinstance(observation, dict):
        return observation
    room = pictures or PictureRoom(INLINE_IMAGE_BYTES)
    return {
        "content": [
            {"type": "image_url", "image_url": {"url": room.address(block)}}
            if isinstance(block, Image)
            else {"type": "text", "text": block}
            for block in observation
        ]
    }


def _steps(rollout: Rollout, url: str | None, initial: dict[str, Json], pictures: PictureRoom) -> list[dict[str, Json]]:
    trajectory = rollout.trajectory
    mode = rollout.request.policy.output_mode
    result: list[dict[str, Json]] = []
    last = trajectory.length - 1
    for turn in trajectory.turns:
        for position, step in enumerate(turn.steps):
            info = _info(step, url)
            if step.index == 0:
                info["initial_observation"] = initial
            ended = step.index == last
            result.append(
                {
                    "obs": wire_observation(step.observation, pictures),
                    "tool_calls": [{"tool": step.tool, "args": step.args}] if step.tool else [],
                    "reward": step.reward,
                    "done": ended,
                    "truncated": ended and trajectory.status == "truncated",
                    "info": info,
                    "output": _output(turn) if position == 0 else None,
                    "output_mode": mode if turn.answer.output is not None else None,
                }
            )
    return result


def _output(turn: Turn) -> str | None:
    return turn.answer.output


def _info(step: PlayedStep, url: str | None) -> dict[str, Json]:
    """Return a step's `info`: the environment's entries, and the model's address, which the synth-ai SDK's validator expects."""
    info = dict(step.info)
    own = info.get("meta")
    info["meta"] = {**(own if isinstance(own, dict) else {}), "inference_url": url}
    if step.refused is not None:
        info["refused"] = step.refused
    if step.metrics:
        info["metrics"] = step.metrics
    return info


def _final(rollout: Rollout, pictures: PictureRoom) -> dict[str, Json]:
    steps = rollout.trajectory.steps
    observation = steps[-1].observation if steps else rollout.trajectory.initial
    return {
        "observation": wire_observation(observation, pictures),
        "reward": steps[-1].reward if steps else None,
        "done": rollout.trajectory.status == "terminated",
    }


def _rubric(rollout: Rollout) -> dict[str, Json]:
    """Return the outcome scores in the format of the synth-ai SDK."""
    card = rollout.scorecard
    return {
        "aggregation": card.aggregation,
        "score": card.outcome_score,
        "per_criterion": {
            item.name: {
                "score": item.score,
                "normalised": item.normalised,
                "weight": item.weight,
                "required": item.required,
            }
            for item in card.criteria
            if item.of in ("outcome", "judge")
        },
    }


def stored_rollout(
    spec: AppSpec, plan: EpisodePlan, result: Rollout, events: EncodedEvents, *, key_label: str | None
) -> StoredRollout:
    """Return the row of a rollout, with allowed fields of `policy.config`, a hash of the task, and a private column."""
    request, card, failure = result.request, result.scorecard, result.failure
    config = request.policy.config
    # an allow-list, because `policy.config` may contain keys and headers under any name
    policy = {name: config[name] for name in STORED_CONFIG if name in config}
    policy["name"] = result.policy
    if result.inference_url is not None:
        policy["inference_url"] = stored_url(result.inference_url)
    return StoredRollout(
        rollout_id=result.rollout_id,
        run_id=request.run_id,
        group_id=request.group_id,
        created_at=result.created_at,
        app=spec.name,
        app_version=spec.version,
        environment=result.environment,
        environment_version=result.version,
        split=result.split,
        seed=result.seed,
        config=plan.config,
        policy=policy,
        mode=request.mode,
        status=result.status,
        stop_reason=result.stop_reason,
        length=result.length,
        total_reward=result.total_reward,
        events=events,
        spec_hash=spec.hash,
        kit_version=__version__,
        schema_version=SCHEMA_VERSION,
        # a hash, because the row has private fields; a replay checks with it that the task is unchanged
        row_hash=row_hash(plan.task) if plan.task is not None else None,
        reward=result.reward,
        outcome_score=card.outcome_score,
        events_score=card.events_score,
        digest=result.digest,
        observation_digest=result.observation_digest,
        tokens=result.tokens,
        cost=result.total_cost,
        scorecard=card.to_json() if failure is None else None,
        failure=None if failure is None else {name: getattr(failure, name) for name in _FAILURE},
        private=_private(result),
        timing=result.timing,
        seconds=result.timing["total"],
        key_label=key_label,
        blobs=result.pictures,
    )


_FAILURE = ("boundary", "code", "message", "error_id")
"""The fields of a failure that are stored."""


def _private(result: Rollout) -> dict[str, Json]:
    """Return the private column, which no response contains: the final state, and every model call of judges."""
    private: dict[str, Json] = {}
    # in a separate column, so that no query for a list or a response can return it by accident
    if result.final_state is not None:
        private["final_state"] = result.final_state
    if result.auxiliary_calls:
        private["second_calls"] = result.auxiliary_calls
    if result.judging:
        private["judge_calls"] = result.judging.to_json()
    return private


def response_of_row(stored: StoredRollout, blobs: dict[str, bytes]) -> bytes:
    """Return the response of a stored rollout as JSON. Fields that are not stored are null. blobs: the images, by hash."""
    events = [from_json(event, blobs) for event in stored.events]
    card = Scorecard.from_json(stored.scorecard or {})
    request = RolloutRequest.model_construct(  # not validated again, because the rules may have changed since then
        run_id=stored.run_id,
        group_id=stored.group_id,
        env=EnvSpec.model_construct(env_name=stored.environment, seed=stored.seed, config=stored.config),
        policy=PolicySpec.model_construct(config=stored.policy),
        ops=[],
        mode=stored.mode,
    )
    url = inference_url(stored.policy, None)
    body = response_body(
        # built by the code of the live response, so that both have the same fields
        Rollout.of_events(
            request,
            str(stored.policy.get("name")),
            events,
            inference_url=url,
            correlation_id=correlation_id(stored.policy, url, None),
            scorecard=card,
            digest=stored.digest or "",
            observation_digest=stored.observation_digest,
            rollout_id=stored.rollout_id,
            created_at=stored.created_at,
            timing=stored.timing,
            versions={
                "kit": stored.kit_version,
                "app": stored.app_version,
                "git": None,
                "environment": stored.environment_version,
            },
        )
    )
    _without_what_is_not_stored(body)
    return orjson.dumps(body, default=as_object)


def _without_what_is_not_stored(body: dict[str, Any]) -> None:
    """Set the fields to null that are not stored: the caller's labels, the output mode, the operations and the warnings."""
    (trajectory,) = body["trajectories"]
    # null, because a default would look like a stored value
    trajectory["env_id"] = trajectory["policy_id"] = None
    for step in trajectory["steps"]:
        step["output_mode"] = None
    body["ops_executed"] = None
    body["pipeline_metadata"]["warnings"] = None
