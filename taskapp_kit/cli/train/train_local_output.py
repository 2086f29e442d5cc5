"""What `taskapp train --local` prints at a job's end: its curve, episodes before and after, its files, the next command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from taskapp_kit.cli.output import job_progress
from taskapp_kit.cli.output.episode_pairs import print_pairs
from taskapp_kit.cli.output.terminal import clean, console
from taskapp_kit.cli.output.text_chart import curve
from taskapp_kit.cli.train.train_local import LocalResult, LocalTraining
from taskapp_kit.records.seed_ranges import Seeds

CURVE_WIDTH = 72


def show(result: LocalResult, wanted: LocalTraining) -> None:
    """Print it on stdout."""
    job_progress.report(result.status)
    out = console()
    rewards = _by_step(result, "reward")
    drawn = curve([rewards[step] for step in sorted(rewards)], width=CURVE_WIDTH)
    if len(rewards) > 1:
        out.print("\nreward, by iteration", style="bold")
        for line in drawn:
            out.print(line, soft_wrap=True)
    evaluations = _by_step(result, "eval_reward")
    if evaluations:
        out.print(job_progress.evaluation_words(evaluations), soft_wrap=True)
    if result.pairs:
        out.print("\nthe first seeds of the evaluations, before and after", style="bold")
        print_pairs(result.pairs, out)
    facts: dict[str, str] = {}
    if result.points:
        facts["picture"] = str(result.files.picture)
        facts["TensorBoard"] = shlex.join(["tensorboard", "--logdir", str(result.files.tensorboard)])
    model = _model(result)
    if model is not None:
        facts |= {"model": model, "next": shlex.join(_next(wanted, model))}
    out.print()
    for name, words in facts.items():  # no table: a command is copied as one line
        out.print(f"{name:<11}  {clean(words)}", soft_wrap=True)


def _by_step(result: LocalResult, name: str) -> Mapping[int, float]:
    return {point["step"]: point["value"] for point in result.points if point["name"] == name}


def _model(result: LocalResult) -> str | None:
    """The name of the checkpoint with the highest score, else of the last one."""
    results = result.status.get("results") or {}
    model = results.get("best") or results.get("model")
    return model if isinstance(model, str) else None


def _next(wanted: LocalTraining, model: str) -> list[str]:
    """The command that plays the evaluations' episodes with the model, sampled as they were.

    Of a job with several environments, the app alone: their seeds and configs differ.
    """
    document, command = wanted.config.document, ["taskapp", "eval", wanted.task_app]
    rollout, evaluation, policy = (document.get(name) or {} for name in ("rollout", "evaluation", "policy"))
    if rollout.get("environments"):
        return [*command, "--model", model]
    seeds = {range(seed, seed + 1) for seed in evaluation.get("seeds") or ()}
    sampled = {name: policy[name] for name in ("temperature", "max_tokens") if name in policy}
    if "temperature" in evaluation:
        sampled["temperature"] = evaluation["temperature"]
    options = {
        "--env": rollout.get("env_name"),
        "--config": json.dumps(rollout["env_config"]) if rollout.get("env_config") else None,
        "--model": model,
        "--seeds": str(Seeds(seeds)) if seeds else None,
        "--policy-config": json.dumps(sampled) if sampled else None,
    }
    return [*command, *(word for name, value in options.items() if value is not None for word in (name, str(value)))]
