"""Print an app's description from the response bodies of `/info` and `/task_info`, and example requests."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from taskapp_kit.cli.output.terminal import clean, console, flowing, number, table
from taskapp_kit.records.json_schema import Schema, read_schema

A_MODEL = {"model": "MODEL", "inference_url": "URL"}
"""The `policy.config` of example requests if only a model can play."""
HEADER = '-H "X-API-Key: $ENVIRONMENT_API_KEY"'
AGGREGATIONS = {"weighted_sum": "the weighted mean of", "sum": "the sum of", "custom": "undefined for"}


def print_description(
    info: Mapping[str, Any], tasks: Mapping[str, Mapping[str, Any]], unavailable: Mapping[str, Mapping[str, str]]
) -> None:
    """Print the description of an app.

    Args:
        info: The response body of `/info`.
        tasks: A TaskInfo of each environment. The default environment is the first.
        unavailable: Reasons why policies cannot play, by environment and policy. Empty for a server, which does not report
            them.
    """
    out = console()
    task = info["service"]["task"]
    out.print(f"{clean(task['name'])} {info['service']['version']}", style="bold")
    if task.get("description"):
        out.print(flowing(str(task["description"])))
    for name, described in tasks.items():
        out.print()
        _environment(name, described, unavailable.get(name, {}), default=len(tasks) > 1 and name == next(iter(tasks)))


def reward_words(task: Mapping[str, Any]) -> list[str]:
    """Return the formula of the reward, followed by one line for each part of the formula."""
    reward, rubric = task.get("reward") or {}, task.get("rubric") or {}
    lines = [str(reward.get("formula", "not reported"))]
    outcome = [item for item in ((rubric.get("outcome") or {}).get("criteria") or ()) if item["weight"]]
    events = [item for item in ((rubric.get("events") or {}).get("criteria") or ()) if item["weight"]]
    if reward.get("env"):
        lines.append("return: the sum of the steps' rewards")
    if outcome and reward.get("outcome"):
        how = AGGREGATIONS.get(str((rubric["outcome"]).get("aggregation", "weighted_sum")), "made of")
        how = "" if len(outcome) == 1 and how == AGGREGATIONS["weighted_sum"] else how + " "
        lines.append(f"outcome_score: {how}{_weights(outcome)}")
    if events and reward.get("event"):
        lines.append(f"events_score: the sum over the steps of {_weights(events)}")
    return lines


def split_words(dataset: Mapping[str, Any]) -> str:
    """Return the splits as text, such as `train 0 to 99, test 100 to 119`."""
    unit = "rows" if dataset.get("kind") == "rows" else "seeds"
    parts = []
    for split, bounds in (dataset.get("seeds") or {}).items():
        step = f" by {bounds[2]}" if len(bounds) > 2 else ""
        size = (dataset.get("sizes") or {}).get(split)
        count = f" ({size} {unit if size != 1 else unit[:-1]})" if size is not None and size < 10**12 else ""
        parts.append(f"{split} {bounds[0]} to {bounds[1] - 1}{step}{count}")
    return ", ".join(parts) or "not reported"


def _weights(criteria: list[Any]) -> str:
    if len(criteria) == 1:
        return f"{criteria[0]['id']}"
    return ", ".join(f"{item['id']} (weight {number(item['weight'])})" for item in criteria)


def _environment(name: str, task: Mapping[str, Any], unavailable: Mapping[str, str], *, default: bool) -> None:
    out = console()
    version = task.get("version")
    out.print(
        f"environment {clean(name)}"
        + (f", version {version}" if version else "")
        + (" (the default)" if default else ""),
        style="bold",
    )
    if task.get("description"):
        out.print(flowing(str(task["description"])))
    out.print()
    facts = table("", "")
    facts.add_row("splits", split_words(task.get("dataset") or {}))
    facts.add_row("limits", _limits(task.get("limits") or {}))
    config = members(task.get("config_schema") or {})
    facts.add_row("config", "\n".join(f"{key}: {words}" for key, words in config) or "none")
    facts.add_row("", _selecting(task.get("dataset") or {}))
    if task.get("tags"):
        facts.add_row("tags", clean(", ".join(map(str, task["tags"]))))
    if task.get("models"):
        facts.add_row("models", clean(", ".join(map(str, task["models"]))))
    for metric in task.get("metrics") or ():
        facts.add_row("metric", f"{clean(str(metric['name']))}: {flowing(str(metric['description']))}")
    facts.add_row("reward", "\n".join(clean(line) for line in reward_words(task)))
    policies = (task.get("inference") or {}).get("policies") or []
    facts.add_row("policies", ", ".join(item for item in policies if item not in unavailable) or "none")
    for policy, why in unavailable.items():
        facts.add_row("", f"{policy} is unavailable: {clean(why)}")
    out.print(facts)
    _rubric(task.get("rubric") or {})
    _actions((task.get("action_space") or {}).get("tools") or [])


def _selecting(dataset: Mapping[str, Any]) -> str:
    """Describe the fields of `env.config` that select an episode in every environment."""
    words = "every app: split and index"
    if dataset.get("kind") == "rows":
        values = ", ".join(clean(str(value)) for value in dataset.get("difficulties") or ())
        words += ", difficulty and tags" + (f" (difficulty is one of: {values})" if values else "")
    return words


def _rubric(rubric: Mapping[str, Any]) -> None:
    rows = table("criterion", "of", "weight", "", right=("weight",))
    for kind in ("outcome", "events"):
        for item in (rubric.get(kind) or {}).get("criteria") or ():
            low, high = item.get("scale") or (0, 1)
            notes = "" if (low, high) == (0, 1) else f" (scale {number(low)} to {number(high)})"
            notes += " (required)" if item.get("required") else ""
            rows.add_row(
                clean(item["id"]),
                "judge" if item.get("judge") else kind,
                number(item["weight"]),
                flowing(item["description"]) + notes,
            )
    if rows.row_count:
        out = console()
        out.print()
        out.print(rows)


def _actions(tools: list[Mapping[str, Any]]) -> None:
    out = console()
    out.print()
    out.print("actions" if len(tools) != 1 else "action", style="bold")
    for tool in tools:
        parts = members(tool.get("parameters") or {})
        short = ", ".join(f"{name}: {words}" for name, words in parts)
        if len(short) + len(tool["name"]) + 2 <= out.width:
            out.print(clean(f"{tool['name']}({short})"))
        else:
            out.print(clean(f"{tool['name']}("))
            rows = table("", "", pad=1)
            for name, words in parts:
                rows.add_row(f"    {clean(name)}:", clean(words))
            out.print(rows)
            out.print(")")
        description = flowing(str(tool.get("description") or ""))
        plain = " The action accepts the assistant's plain text." if tool.get("text") else ""
        rows = table("", "")
        rows.add_row("  ", description + plain)
        out.print(rows)


def _limits(limits: Mapping[str, Any]) -> str:
    turns = "turns (the default limit)" if limits.get("max_turns_by_default") else "turns"
    units = {"max_steps": "steps", "max_turns": turns, "max_refusals": "consecutive turns without an accepted action"}
    parts = [
        f"{limits[key]} {unit if limits[key] != 1 else unit.replace('turns', 'turn')}"
        for key, unit in units.items()
        if limits.get(key)
    ]
    if limits.get("step_timeout_seconds"):
        parts.append(f"{number(limits['step_timeout_seconds'])} s per step")
    if limits.get("timeout_seconds"):
        parts.append(f"{number(limits['timeout_seconds'])} s in total")
    return ", ".join(parts) or "none"


def curl_lines(url: str, environment: str | None, seed: int, policy: Mapping[str, str]) -> list[str]:
    """Return curl commands for /health, /task_info and /rollout. They read the key from ENVIRONMENT_API_KEY.

    policy: The `policy.config` of the rollout. Empty if the app has no policy that plays without a model.
    """
    query = f"?seed={seed}" + (f"&environment={environment}" if environment else "")
    env = {"env_name": environment, "seed": seed} if environment else {"seed": seed}
    config = dict(policy) or A_MODEL
    body = json.dumps({"run_id": "r1", "env": env, "policy": {"config": config}, "ops": [], "mode": "eval"})
    return [
        f"curl {HEADER} {url}/health",
        f"curl {HEADER} '{url}/task_info{query}'",
        f"curl {HEADER} -H 'Content-Type: application/json' {url}/rollout \\\n  -d {shlex.quote(body)}",
    ]


MAX_DEPTH = 5
BOUNDS = (("minimum", "≥ "), ("exclusiveMinimum", "> "), ("maximum", "≤ "), ("exclusiveMaximum", "< "))


def members(schema: Any) -> list[tuple[str, str]]:
    """Return the name and the description of each field of an object schema. Optional fields show a default or `?`."""
    return _members(read_schema(schema), 0)


def _members(schema: Schema, depth: int) -> list[tuple[str, str]]:
    described = []
    for name, part in schema.members.items():
        words = _words(part, depth)
        if "default" in part.keywords:
            words += f" = {json.dumps(part.keywords['default'], ensure_ascii=False)}"
        elif name not in schema.required:
            name += "?"
        described.append((name, words))
    return described


def _words(schema: Schema, depth: int) -> str:
    """Describe the schema of a value. Parts that are nested deeper than MAX_DEPTH are replaced with an ellipsis."""
    keywords = schema.keywords
    if depth > MAX_DEPTH:
        return "…"
    if "const" in keywords:
        return json.dumps(keywords["const"], ensure_ascii=False)
    if schema.choices:
        return " | ".join(item if isinstance(item, str) else json.dumps(item) for item in schema.choices)
    if schema.branches:
        return " | ".join(_words(part, depth + 1) for part in schema.branches)
    if schema.kind == "array":
        return _list_words(schema, depth)
    if schema.kind == "object" and schema.members:
        return "{" + ", ".join(f"{name}: {words}" for name, words in _members(schema, depth + 1)) + "}"
    if schema.kind == "string":
        return _text_words(schema)
    if schema.kind in ("integer", "number"):
        bounds = [f"{sign}{keywords[key]:g}" for key, sign in BOUNDS if key in keywords]
        if "minimum" in keywords and "maximum" in keywords and len(bounds) == 2:
            bounds = [f"{keywords['minimum']:g} to {keywords['maximum']:g}"]
        return " ".join([schema.kind, *bounds])
    return schema.kind or "any JSON"


def _list_words(schema: Schema, depth: int) -> str:
    if schema.first_items:
        return "[" + ", ".join(_words(part, depth + 1) for part in schema.first_items) + "]"
    low, high = schema.keywords.get("minItems"), schema.keywords.get("maxItems")
    count = "list of "
    if low is not None and high is not None:
        count += f"{low} of " if low == high else f"{low} to {high} of "
    elif high is not None:
        count += f"at most {high} of "
    elif low is not None:
        count += f"at least {low} of "
    item = _words(schema.items, depth + 1)
    return count + (f"({item})" if " | " in item else item)


def _text_words(schema: Schema) -> str:
    words = "text"
    if "pattern" in schema.keywords:
        words += f" matching {schema.keywords['pattern']}"
    if "maxLength" in schema.keywords:
        words += f" of at most {schema.keywords['maxLength']} characters"
    return words
