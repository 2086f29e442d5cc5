"""Converts a finished rollout to the response of `POST /rollout`: the wire's names, one wire step per step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from taskapp_kit.records.content import Content, Image, Json, as_object
from taskapp_kit.records.events import event_history, to_json
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.trajectory import PlayedStep, Turn

# A hundred frames would make an answer of many megabytes, also for callers that want none of them.
INLINE_IMAGE_BYTES = 2 * 1024 * 1024
"""Images of one response are inlined up to this many PNG bytes; further ones are referenced as `/blobs/{hash}`."""


@dataclass
class PictureRoom:
    """The number of image bytes that may still be inlined."""

    left: int

    def address(self, image: Image) -> str:
        """Return a data URL while there is room, else the path at which the server has the image."""
        if len(image.png) > self.left:
            return f"/blobs/{image.hash}"
        self.left -= len(image.png)
        return image.data_url()


def response_body(rollout: Rollout, *, inline_image_bytes: int = INLINE_IMAGE_BYTES) -> dict[str, Any]:
    """Return the response, ready for JSON. It fits `wire.RolloutResponse`, which tests check and a server does not.

    inline_image_bytes: images are inlined up to this many PNG bytes; give sys.maxsize where `/blobs/{hash}` is not served.
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
        # Without the events, which stand in the trajectory already.
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
    """Return the response as JSON without its timing, which `with_timing` adds; None when it is not JSON.

    The parent process, which then encodes the rollout itself, finds and reports the same error.
    """
    body = response_body(rollout)
    # The total is known only in the parent, after the way back.
    del body["timing"]
    try:
        return orjson.dumps(body, default=as_object)
    except orjson.JSONEncodeError:
        return None


def answer_bytes(rollout: Rollout) -> bytes:
    """Return the whole response as JSON; encoded here unless a worker did. Raises TypeError for what is not JSON."""
    return rollout.body if rollout.body is not None else orjson.dumps(response_body(rollout), default=as_object)


def with_timing(body: bytes, timing: dict[str, float]) -> bytes:
    """Return the whole response, from the result of `write_body`."""
    # Appended to the text: the parent knows the total only at the end, and need not parse what a worker encoded.
    return b'%s,"timing":%s}' % (body[:-1], orjson.dumps(timing))


def wire_observation(observation: Content, pictures: PictureRoom | None = None) -> dict[str, Json]:
    """Return `{"text": …}`, `{"content": [blocks]}` in the chat form, or the dict itself."""
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
    """Return the environment's info and the kit's; the model's address is where the SDK's validator looks for it."""
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
    """Return the outcome in the SDK's form."""
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
