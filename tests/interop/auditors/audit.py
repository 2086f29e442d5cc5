"""Run a public auditor on apps of the gallery, and print a JSON line for each: what it found in the app and in its sound twin.

    python audit.py AUDITOR SITE_PACKAGES [NAME …]

The auditor's packages are added to our own, because it calls our graders. A list of findings is null if the auditor cannot
express the app. Every auditor gets its own defaults, but at most 20 tasks, and the app's prompts, right answers and grader.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from audited_app import BY_NAME, MOST_ROWS, AuditedApp  # noqa: E402

from taskapp_kit import RolloutFailed  # noqa: E402

SERIOUS = ("critical", "high", "medium")
REWARDS = """
import sys

sys.path.insert(0, {here!r})
from audited_app import AuditedApp

AUDITED = AuditedApp({name!r}, {twin!r})


def reward(completions, seed, **columns):
    return [AUDITED.reward(number, text) for number, text in zip(seed, completions)]
"""
SETTINGS = """
[env]
id = "local/{name}"
framework = "reward"
task = "{folder}/rewards.py"
dataset = "{folder}/tasks.jsonl"
answer_column = "answer"
"""


def rl_envdoctor(audited: AuditedApp) -> list[str]:
    """`envdoctor scan` of a `FunctionTarget`: its findings, except those of severity low and info."""
    envdoctor = importlib.import_module("envdoctor")
    cases = [envdoctor.Case(str(row.seed), row.prompt, row.answer, {"seed": row.seed}) for row in audited.rows]

    def reward(completion: str, info: dict[str, int]) -> float:
        return audited.reward(info["seed"], completion)

    report = importlib.import_module("envdoctor.runner").scan(envdoctor.FunctionTarget(reward, cases), MOST_ROWS)
    importlib.import_module("envdoctor.checks").run_checks(report)
    return [f"{item.check} ({item.severity})" for item in report.findings if item.severity in SERIOUS]


def falsepass(audited: AuditedApp) -> list[str]:
    """`falsepass audit` of reward functions, in our own Python instead of an environment that uv builds for each audit.

    A finding is a condition of the gate that falsepass recommends; for a defect that refuses right replies, any right reply
    that is not paid in full.
    """
    rows = [{"prompt": row.prompt, "answer": row.answer, "seed": row.seed} for row in audited.rows]
    with tempfile.TemporaryDirectory() as folder:
        named = {"name": audited.defect.file, "twin": audited.twin, "here": str(HERE), "folder": folder}
        Path(folder, "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        Path(folder, "rewards.py").write_text(REWARDS.format(**named))
        Path(folder, "env.toml").write_text(SETTINGS.format(**named))
        with contextlib.chdir(HERE), contextlib.redirect_stderr(io.StringIO()):
            payload = importlib.import_module("falsepass.runner").run(Path(folder), MOST_ROWS, jobs=1)
    refused = audited.defect.verdict == "right refused"
    conditions = ["ceiling>0.1", "errors>0", *(["false_fail>0"] if refused else [])]
    return list(importlib.import_module("falsepass.report").gate(payload["results"], conditions))


class Rubric:
    """The rubric of a verifiers environment, which logs an exception and scores 0."""

    def __init__(self, audited: AuditedApp) -> None:
        self.audited = audited

    def get_reward_weights(self) -> list[float]:
        return [max(self.audited.reward(row.seed, row.good) for row in self.audited.rows)]

    async def score_rollout(
        self, prompt: str, completion: str, answer: str, state: Any, task: str, info: dict[str, int]
    ) -> dict[str, float]:
        try:
            return {"reward": self.audited.reward(info["seed"], completion)}
        except RolloutFailed as failed:
            logging.getLogger("verifiers").error("%s", failed)
            return {"reward": 0.0}


class Dataset(list[dict[str, Any]]):
    """The rows of a verifiers environment, which `datasets` would return."""

    column_names = ("prompt", "answer", "info")

    def __getitem__(self, key: Any) -> Any:
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


class Environment:
    """A single-turn environment of verifiers, as far as `gameability probe` reads it."""

    message_type = "completion"

    def __init__(self, audited: AuditedApp) -> None:
        self.rubric = Rubric(audited)
        self.dataset = Dataset(
            {"prompt": row.prompt, "answer": row.answer, "info": {"seed": row.seed}} for row in audited.rows
        )

    def get_eval_dataset(self, n: int) -> Dataset:
        return self.dataset


def asserts(task: Any) -> list[str]:
    """The tests in the row of a task that asks for a function `f`, as assertions."""
    pairs = [*getattr(task, "tests", ()), *getattr(task, "hidden", ())]
    close = getattr(task, "cases", ())
    return [f"assert f({argument!r}) == {result!r}" for argument, result in pairs] + [
        f"assert abs(f({argument!r}) - {result!r}) < 1e-6" for argument, result in close
    ]


def gameability(audited: AuditedApp) -> list[str]:
    """`gameability probe` of an environment, and `gameability check` of tests in its rows.

    The findings are the probes that are paid, the errors that it reports, and tests that accept a broken solution.
    """
    result = importlib.import_module("gameability.probe").probe_env(Environment(audited), MOST_ROWS)
    findings = [*result.get("gameable_probes", []), *(["errors"] if result["reward_errors"] else [])]
    engine = importlib.import_module("gameability.engine")
    tested = [(row, tests) for row in audited.rows if (tests := asserts(row.task))]
    problems = [engine.Problem(str(row.seed), row.good, tests, entry="f") for row, tests in tested]
    rows = engine.census(problems, workers=1, seed=0, n_mutants=24, timeout=40, want_witness=True, inputs="contract")
    return [*findings, *(["broken solution accepted"] if engine.summarise(rows)["problems_with_a_survivor"] else [])]


AUDITORS: dict[str, Callable[[AuditedApp], list[str]]] = {
    "rl-envdoctor-0.1.0": rl_envdoctor,
    "falsepass-0.11.0": falsepass,
    "gameability-0.3.1": gameability,
}


def audit(auditor: str, name: str, twin: bool) -> list[str] | None:
    """Return what the auditor found, or None if it cannot express the app."""
    audited = AuditedApp(name, twin)
    return AUDITORS[auditor](audited) if audited.is_text else None


if __name__ == "__main__":
    logging.getLogger("taskapp_kit").disabled = True  # what the auditors provoke
    chosen, packages, *only = sys.argv[1:]
    sys.path.append(packages)
    for app_name, planted in BY_NAME.items():
        if app_name in (only or BY_NAME):
            in_twin = audit(chosen, app_name, True) if planted.twin else None
            found = audit(chosen, app_name, False)
            print(json.dumps({"app": app_name, "found": found, "twin": in_twin}), flush=True)
