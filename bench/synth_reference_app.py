"""A peer for the bench: a counter on the Synth SDK's own `create_task_app`, run in the environment of synth-ai 0.3.9.

Written as its authors would: an async executor, the SDK's pydantic models for everything, its rubric scoring, its dataset
spec. `counter_app.py` is the same environment, policy and rubrics on taskapp-kit.

    ENVIRONMENT_API_KEY=... SYNTH_DISABLE_LOGGING=1 python -m uvicorn --factory synth_reference_app:build_app
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from synth_ai.sdk.task.contracts import (
    DatasetInfo,
    InferenceInfo,
    LimitsInfo,
    RolloutMetrics,
    RolloutRequest,
    RolloutResponse,
    RolloutStep,
    RolloutTrajectory,
    RubricInfo,
    RubricSection,
    TaskDescriptor,
    TaskInfo,
)
from synth_ai.sdk.task.datasets import TaskDatasetSpec
from synth_ai.sdk.task.rubrics import (
    Criterion,
    Rubric,
    score_events_against_rubric,
    score_outcome_against_rubric,
)
from synth_ai.sdk.task.server import RubricBundle, TaskAppConfig, create_task_app
from synth_ai.sdk.task.trace_correlation_helpers import extract_trace_correlation_id

SEEDS = 100
EPISODE_STEPS = 10
DATASET = TaskDatasetSpec(
    id="counter_seeds",
    name="Counter seeds",
    version="1.0.0",
    splits=["train"],
    default_split="train",
    cardinality=SEEDS,
)
OUTCOME = Rubric(
    version="1",
    goal_text="Count to the target.",
    criteria=[
        Criterion(id="reached", description="The counter reached the target.", weight=3.0),
        Criterion(id="economy", description="Few steps were taken after the target.", weight=1.0),
    ],
)
EVENTS = Rubric(version="1", criteria=[Criterion(id="progress", description="The step moved towards the target.")])


class Counter:
    """Counts to a target that the seed draws from 3 to 8; ends after ten steps."""

    def __init__(self, seed: int) -> None:
        self.target, self.count, self.steps = 3 + seed % 6, 0, 0

    def observe(self) -> dict[str, Any]:
        return {"count": self.count, "target": self.target, "step": self.steps}

    def increment(self, by: int) -> tuple[dict[str, Any], float, bool]:
        self.count += by
        self.steps += 1
        return self.observe(), 1.0 if self.count == self.target else 0.0, self.steps >= EPISODE_STEPS


def scripted(_: dict[str, Any]) -> dict[str, Any]:
    """The policy: always adds one."""
    return {"tool": "increment", "args": {"by": 1}}


def task_info(seed: int | None = None) -> TaskInfo:
    """The answer of `/task_info` for a seed."""
    return TaskInfo(
        task=TaskDescriptor(id="counter", name="Counter", description="Count to the target", version="1.0.0"),
        environment="counter",
        dataset=DatasetInfo(
            id=DATASET.id, name=DATASET.name, version=DATASET.version, splits=DATASET.splits, default_split="train"
        ),
        rubric=RubricInfo(
            outcome=RubricSection(name="Outcome", criteria=[c.model_dump() for c in OUTCOME.criteria]),
            events=RubricSection(name="Events", criteria=[c.model_dump() for c in EVENTS.criteria]),
        ),
        inference=InferenceInfo(model="scripted"),
        limits=LimitsInfo(max_turns=EPISODE_STEPS, timeout_seconds=60),
        task_metadata={} if seed is None else {"seed": seed},
    )


async def rollout(request: RolloutRequest, _: Request) -> RolloutResponse:
    """One episode: an `env` operation for each policy turn, at most ten."""
    counter = Counter(request.env.seed or 0)
    inference_url = str(request.policy.config.get("inference_url") or "")
    correlation_id = extract_trace_correlation_id(request.policy.config, inference_url, request.mode)
    observation, steps, events = counter.observe(), list[RolloutStep](), list[dict[str, Any]]()
    history: list[dict[str, Any]] = [{"event_type": "environment", "time_step": 0, "observation": observation}]
    turns = sum(1 for op in request.ops if op == "agent") or EPISODE_STEPS
    for _turn in range(turns):
        call = scripted(observation)
        observation, reward, done = counter.increment(**call["args"])
        steps.append(
            RolloutStep(
                obs=observation,
                tool_calls=[call],
                reward=reward,
                done=done,
                truncated=False,
                info={"meta": {"inference_url": inference_url}},
            )
        )
        events.append({"criterion_id": "progress", "score": float(counter.count <= counter.target)})
        history.append({"event_type": "environment", "time_step": counter.steps, "reward": reward, "terminated": done})
        if done:
            break
    total = sum(step.reward or 0.0 for step in steps)
    outcome = score_outcome_against_rubric(
        {"reached": total, "economy": 1.0 - max(0, counter.count - counter.target) / EPISODE_STEPS}, OUTCOME
    )
    trace = {"session_id": request.run_id, "event_history": history, "metadata": {"seed": request.env.seed}}
    return RolloutResponse(
        run_id=request.run_id,
        trajectories=[
            RolloutTrajectory(
                env_id=request.env.env_id or "counter",
                policy_id=request.policy.policy_id or "scripted",
                steps=steps,
                final={"observation": observation, "reward": total, "done": steps[-1].done},
                length=len(steps),
                inference_url=inference_url,
                trace=trace,
            )
        ],
        metrics=RolloutMetrics(
            episode_returns=[total],
            mean_return=total,
            num_steps=len(steps),
            num_episodes=1,
            outcome_score=outcome["score"],
            events_score=score_events_against_rubric(events, EVENTS)["score"],
            details={"rubric": outcome},
        ),
        ops_executed=2 * len(steps),
        trace_correlation_id=correlation_id,
        trace=trace if request.record.return_trace else None,
        pipeline_metadata={"inference_url": inference_url, "trace_correlation_id": correlation_id},
    )


def instances(seeds: Sequence[int]) -> list[TaskInfo]:
    """One TaskInfo for each requested seed."""
    return [task_info(seed) for seed in seeds]


def build_config() -> TaskAppConfig:
    """The app's description for its SDK."""
    return TaskAppConfig(
        app_id="counter",
        name="Counter",
        description="Count to the target",
        base_task_info=task_info(),
        describe_taskset=DATASET.model_dump,
        provide_task_instances=instances,
        rollout=rollout,
        rubrics=RubricBundle(outcome=OUTCOME, events=EVENTS),
        expose_debug_env=False,
    )


def build_app() -> FastAPI:
    """The factory for uvicorn."""
    app: FastAPI = create_task_app(build_config())
    return app
