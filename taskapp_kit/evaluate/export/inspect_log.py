"""Writes rollouts as a log of Inspect (inspect-ai): an `.eval` file for Inspect's reader, data frames and viewer.

The file is a zip archive with one JSON file per sample. Inspect compresses these files with zstd, and also reads
DEFLATE, which this module uses. Each rollout is one sample, which is written as soon as it was read. The samples'
summaries are in a temporary file until the end.
"""

from __future__ import annotations

import base64
import tempfile
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate.export.conversation import recorded_messages
from taskapp_kit.evaluate.export.report import ExportReport, ExportScope, loaded, selected
from taskapp_kit.records.content import Json, as_object
from taskapp_kit.records.formatting import utc_time
from taskapp_kit.records.protocols import StoredRollout
from taskapp_kit.records.scorecard import known_sum
from taskapp_kit.rollout.details import (
    Block,
    Picture,
    RequestedCall,
    RolloutDetails,
    TurnDetails,
    details_of,
    message_of,
    words,
)

if TYPE_CHECKING:
    from taskapp_kit.rollout.source import RolloutSource

LOG_VERSION = 2
"""The version of Inspect's log format. Inspect 0.3.285 reads it."""
REWARD = "reward"
"""The scorer for the reward. Every criterion has a separate scorer."""
SUMMARY_CHARACTERS = 500
"""How many characters of the first observation a list of samples shows."""

Object = dict[str, Any]


async def write_inspect_log(source: RolloutSource, scope: ExportScope, path: Path, report: ExportReport) -> None:
    """Write an Inspect log to `path`. Raises ConfigError if the rollouts have several apps, policies or models."""
    log = _Log(path, source)
    try:
        async for row in selected(source, scope, report):
            stored = await loaded(source, row.rollout_id, report)
            if stored is not None:
                await log.add(stored)
                report.rollouts += 1
        if not report.rollouts:
            raise report.nothing("inspect")
        log.finish()
    finally:
        log.close()


@dataclass(frozen=True, slots=True)
class _Task:
    """The fields that all samples of a log share."""

    app: str
    environment: str
    policy: str
    model: str | None

    def __str__(self) -> str:
        return f"{self.app}/{self.environment} by {self.policy if self.model is None else self.model}"


class _Log:
    def __init__(self, path: Path, source: RolloutSource) -> None:
        self._source = source
        self._zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self._summaries = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._task: _Task | None = None
        self._start: Object = {}
        self._epochs: Counter[str] = Counter()
        self._scores: dict[str, list[float]] = {}
        self._splits: set[str] = set()
        self._samples = self._completed = 0
        self._began: float | None = None
        self._ended = 0.0
        self._usage: Counter[str] = Counter()

    async def add(self, stored: StoredRollout) -> None:
        details = details_of(stored)
        task = _Task(details.stored.app, details.stored.environment, details.policy, details.model)
        if self._task is None:
            self._task = task
            self._start = {"version": LOG_VERSION, "eval": _evaluation(task, details), "plan": _plan(task)}
            self._write("_journal/start.json", self._start)
        elif task != self._task:
            raise ConfigError(
                f"An Inspect log has one task and one model, but the selected rollouts have {self._task} and {task}.",
                hint="Select one of them with --env and --policy.",
            )
        identity = f"{details.stored.split}-{details.stored.seed}"
        self._epochs[identity] += 1
        pictures = {name: await self._source.blob(name) for name in details.pictures}
        sample = sample_of(stored, details, identity, self._epochs[identity], pictures)
        self._write(f"samples/{identity}_epoch_{sample['epoch']}.json", sample)
        self._count(details, sample)

    def _count(self, details: RolloutDetails, sample: Object) -> None:
        self._summaries.write(b"[" if not self._samples else b",")
        self._summaries.write(orjson.dumps(_summary(sample, words(details.initial)), default=as_object))
        self._samples += 1
        self._completed += details.stored.status != "failed"
        self._splits.add(details.stored.split)
        self._usage.update((sample["model_usage"] or {}).get(_model(details), {}))
        self._began = details.stored.created_at if self._began is None else min(self._began, details.stored.created_at)
        self._ended = max(self._ended, details.stored.created_at + details.stored.seconds)
        for name, score in sample["scores"].items():
            self._scores.setdefault(name, [0, 0.0])
            self._scores[name][0] += 1
            self._scores[name][1] += score["value"]

    def finish(self) -> None:
        """Write the summaries and the header. A reader needs both before it reads samples."""
        self._summaries.write(b"]")
        self._summaries.seek(0)
        with self._zip.open("summaries.json", "w", force_zip64=True) as member:
            while piece := self._summaries.read(2**20):
                member.write(piece)
        evaluation = self._start["eval"]
        evaluation["dataset"] = {
            "name": ", ".join(sorted(self._splits)),
            "samples": len(self._epochs),
            "sample_ids": list(self._epochs),  # Inspect needs the ids to read a log sample by sample
        }
        evaluation["config"]["epochs"] = max(self._epochs.values())
        usage = {evaluation["model"]: dict(self._usage)} if self._usage else {}
        self._write(
            "header.json",
            {
                **self._start,
                "status": "success",
                "results": {
                    "total_samples": self._samples,
                    "completed_samples": self._completed,
                    "scores": [self._score(name, int(many), total) for name, (many, total) in self._scores.items()],
                },
                "stats": {
                    "started_at": _time(self._began or 0.0),
                    "completed_at": _time(self._ended),
                    "model_usage": usage,
                },
            },
        )

    def _score(self, name: str, many: int, total: float) -> Object:
        mean = {"name": "mean", "value": total / many, "params": {}}
        counts = {"scored_samples": many, "unscored_samples": self._samples - many}
        return {"name": name, "scorer": name, **counts, "params": {}, "metrics": {"mean": mean}}

    def _write(self, name: str, value: Json) -> None:
        self._zip.writestr(name, orjson.dumps(value, default=as_object))

    def close(self) -> None:
        self._summaries.close()
        self._zip.close()


def sample_of(
    stored: StoredRollout,
    details: RolloutDetails,
    identity: str,
    epoch: int,
    pictures: Mapping[str, bytes | None],
) -> Object:
    """Convert a rollout to an `EvalSample`.

    pictures: PNG bytes by SHA-256. An image whose bytes are None is replaced by a string with its size.
    """
    messages = _Messages(pictures).of(stored, details)
    first_answer = next((at for at, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    answers = [message for message in messages if message["role"] == "assistant"]
    usage = _usage(details)
    failure = details.failure
    model = _model(details)
    choice = [{"message": answers[-1], "stop_reason": _stop_reason(details)}] if answers else []
    sample: Object = {
        "id": identity,
        "epoch": epoch,
        "uuid": details.stored.rollout_id,
        "input": messages[:first_answer],
        "target": "",
        "messages": messages,
        "output": {"model": model, "choices": choice, **({"usage": usage} if usage else {})},
        "scores": _scores(details),
        "metadata": _metadata(details),
        "store": {},
        "events": [],
        "model_usage": {model: usage} if usage else {},
        "started_at": _time(details.stored.created_at),
        "completed_at": _time(details.stored.created_at + details.stored.seconds),
        "total_time": details.stored.seconds,
        "working_time": details.stored.seconds,
        "turn_count": len(details.turns),
    }
    if failure is not None:
        message = f"{failure.boundary} ({failure.code}): {failure.message}"
        sample["error"] = {"message": message, "traceback": message, "traceback_ansi": message}
    elif details.limit is not None:
        name, value = details.limit
        sample["limit"] = {"type": "custom", "limit": value, "reason": name}
    return sample


def _summary(sample: Object, shown: str) -> Object:
    """Convert a sample to an `EvalSampleSummary`, which Inspect shows in its lists of samples."""
    names = (
        "id", "epoch", "uuid", "target", "scores", "model_usage", "started_at", "completed_at", "total_time",
        "working_time", "turn_count",
    )  # fmt: skip
    summary = {name: sample[name] for name in names}
    summary |= {"input": shown[:SUMMARY_CHARACTERS], "metadata": {}, "completed": True}
    summary["message_count"] = len(sample["messages"])
    if "error" in sample:
        summary["error"] = sample["error"]["message"]
    if "limit" in sample:
        summary["limit"], summary["limit_reason"] = sample["limit"]["type"], sample["limit"]["reason"]
    return summary


def _evaluation(task: _Task, details: RolloutDetails) -> Object:
    return {
        "created": _time(details.stored.created_at),
        "task": task.environment,
        "task_id": f"{task.app}-{task.environment}",
        "task_version": details.stored.environment_version,
        "task_args": dict(details.stored.config),
        "run_id": details.stored.run_id,
        "eval_id": details.stored.rollout_id,
        "dataset": {},
        "model": _model(details),
        "config": {},
        "packages": {"taskapp-kit": details.stored.kit_version},
        "metadata": {"app": task.app, "app_version": details.stored.app_version, "reward": details.formula},
    }


def _plan(task: _Task) -> Object:
    return {"name": "plan", "steps": [{"solver": task.policy, "params": {}}], "config": {}}


def _model(details: RolloutDetails) -> str:
    return details.model or f"policy/{details.policy}"


def _stop_reason(details: RolloutDetails) -> str:
    reason = details.turns[-1].finish_reason if details.turns else None
    known = {"stop": "stop", "length": "max_tokens", "tool_calls": "tool_calls", "content_filter": "content_filter"}
    return known.get(reason or "", "unknown")


def _usage(details: RolloutDetails) -> Object:
    usage = details.usage
    read = int(usage.get("prompt_tokens", usage.get("input_tokens", 0)))
    written = int(usage.get("completion_tokens", usage.get("output_tokens", 0)))
    if not read and not written:
        return {}
    total = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
    cost = known_sum(turn.cost for turn in details.turns)
    return total if cost is None else {**total, "total_cost": cost}


def _scores(details: RolloutDetails) -> Object:
    """Return a score for the reward and for each criterion. Undefined scores are omitted, because they are not 0."""
    scores: Object = {}
    if details.stored.reward is not None:
        scores[REWARD] = {"value": details.stored.reward, "explanation": details.formula}
    for item in details.criteria:
        if item.score is not None:
            name = item.name if item.name != REWARD else f"{REWARD} (criterion)"
            scores[name] = {"value": item.score, "explanation": item.reason or "", "metadata": {"weight": item.weight}}
    return scores


def _metadata(details: RolloutDetails) -> Object:
    judges = [
        {
            "judges": call.judges,
            "model": call.model,
            "verdict": call.verdict,
            "text": call.text,
            "problem": call.problem,
        }
        for call in details.judge_calls
    ]
    return {
        "rollout_id": details.stored.rollout_id,
        "split": details.stored.split,
        "seed": details.stored.seed,
        "sample": details.sample,
        "config": details.stored.config,
        "status": details.stored.status,
        "stop_reason": details.stored.stop_reason,
        "step_rewards": [step.reward for step in details.steps],
        "metrics": details.metrics,
        **({"judge_calls": judges} if judges else {}),
    }


class _Messages:
    """Builds the messages of one sample."""

    def __init__(self, pictures: Mapping[str, bytes | None]) -> None:
        self._pictures = pictures

    def of(self, stored: StoredRollout, details: RolloutDetails) -> list[Object]:
        """Return the model's messages, followed by the observations after its last reply.

        If no model played, build the messages from the steps.
        """
        recorded = recorded_messages(stored)
        if not recorded:
            return self._played(details)
        names: dict[str, str] = {}
        messages = [self._recorded(message, names) for message in recorded]
        last = details.turns[-1]
        return messages + self._results(last, last.calls)  # these results were not sent to the model

    def _played(self, details: RolloutDetails) -> list[Object]:
        messages = [{"role": "user", "content": self._content(details.initial)}]
        for turn in details.turns:
            calls = [replace(call, id=f"call_{turn.index}_{place}") for place, call in enumerate(turn.calls)]
            messages.append({"role": "assistant", "content": turn.words, "source": "generate", **_calls(calls)})
            messages += self._results(turn, calls)
        return messages

    def _results(self, turn: TurnDetails, calls: Sequence[RequestedCall]) -> list[Object]:
        """Return the observations of a turn as tool results, or as user messages if the call ids are unknown."""
        results = []
        for place, step in enumerate(turn.steps):
            result: Object = {"role": "user", "content": self._content(step.observation)}
            if place < len(calls) and calls[place].id:
                result |= {"role": "tool", "tool_call_id": calls[place].id, "function": step.tool}
            results.append(result)
        return results

    def _recorded(self, message: Mapping[str, Any], names: dict[str, str]) -> Object:
        read = message_of(message)
        content = self._content(read.blocks)
        if read.role == "assistant":
            for call in read.calls:
                names[call.id] = call.tool
            if read.reasoning:
                said = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
                content = [{"type": "reasoning", "reasoning": read.reasoning}, *said]
            return {"role": "assistant", "content": content, "source": "generate", **_calls(read.calls)}
        if read.role == "tool":
            identity = str(message.get("tool_call_id") or "")
            named = {"function": names[identity]} if identity in names else {}
            return {"role": "tool", "content": content, "tool_call_id": identity, **named}
        return {"role": "system" if read.role in ("system", "developer") else "user", "content": content}

    def _content(self, blocks: Sequence[Block]) -> str | list[Object]:
        if not any(isinstance(block, Picture) for block in blocks):
            return words(blocks)
        return [self._part(block) for block in blocks]

    def _part(self, block: Block) -> Object:
        if isinstance(block, Picture):
            png = self._pictures.get(block.sha256 or "")
            if png is not None:
                return {"type": "image", "image": "data:image/png;base64," + base64.b64encode(png).decode()}
        return {"type": "text", "text": str(block)}


def _calls(calls: Sequence[RequestedCall]) -> Object:
    """Return an object with `tool_calls`, or an empty object if `calls` is empty."""
    if not calls:
        return {}
    return {
        "tool_calls": [
            {"id": call.id, "function": call.tool, "type": "function", **_arguments(call.args)} for call in calls
        ]
    }


def _arguments(args: Json) -> Object:
    if isinstance(args, dict):
        return {"arguments": args}
    text = orjson.dumps(args, default=as_object).decode()
    return {"arguments": {}, "parse_error": f"not a JSON object: {text[:400]}"}


def _time(seconds: float) -> str:
    return utc_time(seconds).isoformat()
