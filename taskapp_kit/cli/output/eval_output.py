"""Print an evaluation's summary: means with standard errors, failures by boundary, and the app's aggregates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskapp_kit.cli.output.terminal import clean, console, figure, one_line, table
from taskapp_kit.records.formatting import counted, dollars
from taskapp_kit.records.scorecard import POLICY, tokens_of, unpriced_words
from taskapp_kit.records.statistics import FEWEST_FOR_INTERVAL
from taskapp_kit.records.trajectory import KIT_METRICS
from taskapp_kit.wire.inference_url import where

if TYPE_CHECKING:
    from rich.table import Table


MOST_GROUPS = 30
"""The maximum number of printed groups of one breakdown. `summary.json` contains all groups."""
FORMULAS = (
    "pass@k = 1 - C(n-c, k)/C(n, k) (Chen et al. 2021), pass^k = C(c, k)/C(n, k) (Yao et al. 2024), where c of the n samples "
    "of a seed have a reward of at least {at:g}; means over seeds"
)
NO_INTERVAL = "-"
TOO_FEW_SEEDS = f"An interval needs at least {FEWEST_FOR_INTERVAL} seeds."
Numbers = Mapping[str, Any]


def print_summary(summary: Mapping[str, Any], path: Path) -> None:
    """Print the most important figures. All figures are in `summary.json`."""
    out = console()
    policies: dict[str, Numbers] = summary.get("by_policy") or {"": summary}
    one = len(policies) == 1
    facts = table("", "")
    facts.add_row("app", clean(f"{summary['app']} {summary['app_version'] or ''}".strip()) + _environment(summary))
    if one:
        facts.add_row("policy", clean(_policy(summary["policy"])))
    for name, policy in () if one else summary["policies"].items():
        facts.add_row("policy", clean(name if _policy(policy) == name else f"{name}: {_policy(policy)}"))
    facts.add_row("rollouts", _rollouts(summary))
    if one:
        _add_numbers(facts, summary)
    _add_usage(facts, summary)
    facts.add_row("stored in", clean(str(path)))
    out.print(facts)
    if not one:
        _print_policies(policies)
    _print_pass_rates(policies, shown=summary["repeats"] > 1)
    for by in next(iter(policies.values()))["by"]:
        _print_groups(by, {name: numbers["by"][by] for name, numbers in policies.items()})
    _print_columns("criterion", {name: numbers["criteria"] for name, numbers in policies.items()})
    _print_metrics({name: numbers["metrics"] for name, numbers in policies.items()})
    _print_failures(summary["failures"])
    published = {name: value for numbers in policies.values() for name, value in numbers["published"].items()}
    for aggregate in dict.fromkeys(name for numbers in policies.values() for name in numbers["aggregates"] or ()):
        values = {name: (numbers["aggregates"] or {}).get(aggregate) for name, numbers in policies.items()}
        _print_aggregate(aggregate, values, published.get(aggregate, {}))


def _add_numbers(facts: Table, summary: Numbers) -> None:
    """Add the figures of an evaluation with one policy to the table `facts`."""
    count = summary["rollouts"]
    facts.add_row(
        "reward", _mean(summary["reward"], of=count["done"]) + f"   {clean(summary['reward_formula'])}", style="bold"
    )
    interval = summary["interval"]
    if interval["low"] is not None:
        facts.add_row("95 % interval", f"{_interval(interval)} ({_method(interval)})")
    elif interval["clusters"]:
        facts.add_row("95 % interval", f"none, because it needs at least {FEWEST_FOR_INTERVAL} seeds")
    for name in ("outcome_score", "events_score", "return", "length"):
        if summary[name]["n"] and not (name == "return" and summary["return"] == summary["reward"]):
            facts.add_row(name, _mean(summary[name]) + (" steps" if name == "length" else ""))
    if count["truncated"]:
        facts.add_row("truncated", _truncated(summary))
    if _invalid(summary):
        facts.add_row("invalid actions", f"{_mean(summary['metrics']['invalid_actions'])} per rollout")


def _add_usage(facts: Table, summary: Numbers) -> None:
    tokens = {name.removesuffix("_tokens"): total for name, total in summary["usage"].items() if total}
    tokens.pop("cost", None)
    models = summary.get("models") or []
    parts = [f"{clean(name)} {total:,.0f}" for name, total in tokens.items()]
    parts += [f"{clean(use['role'])} {use['tokens']:,.0f}" for use in models if use["role"] != POLICY]
    if parts:
        facts.add_row("tokens", ", ".join(parts))
    cost, unpriced = summary["cost"], clean(unpriced_words(models))
    if cost["total"] is not None:
        parts = [f"{dollars(cost[part])} {words}" for part, words in COST_PARTS.items() if cost[part]]
        facts.add_row("cost", dollars(cost["total"]) + (f" ({', '.join(parts)})" if parts else ""))
    if unpriced:
        facts.add_row("" if cost["total"] is not None else "cost", unpriced)
    seconds = summary["timing"]["rollout_seconds"]
    if seconds["mean"] is not None:
        facts.add_row("seconds", f"{seconds['mean']:.3g} per rollout, {seconds['total']:.4g} in total")


COST_PARTS = {"other": "for judges and other models", "of_failed": "for failed rollouts"}


def _print(rows: Table) -> None:
    out = console()
    out.print()
    out.print(rows)


def _print_policies(policies: Mapping[str, Numbers]) -> None:
    """Print one line for each policy. Empty columns are omitted."""
    lines: list[dict[str, str]] = []
    for name, numbers in policies.items():
        count, invalid, cost = numbers["rollouts"], _invalid(numbers), numbers["cost"]["total"]
        tokens = tokens_of(numbers["usage"])
        lines.append(
            {
                "policy": clean(name),
                "rollouts": str(count["done"]),
                "failed": str(count["failed"] or ""),
                "no reward": str(count["undefined"] or ""),
                "reward": _mean(numbers["reward"]),
                "95 % interval": _interval(numbers["interval"]),
                "truncated": _truncated(numbers) if count["truncated"] else "",
                "invalid": f"{invalid:.3g}" if invalid else "",
                "steps": _mean(numbers["length"]),
                "tokens": f"{tokens:,.0f}" if tokens else "",
                "cost": "" if cost is None else dollars(cost),
                "seconds": figure(numbers["timing"]["rollout_seconds"]["mean"]),
            }
        )
    columns = [column for column in lines[0] if any(line[column] for line in lines)]
    rows = table(*columns, right=tuple(columns[1:]))
    for line in lines:
        rows.add_row(*(line[column] for column in columns))
    _print(rows)
    if any(line["95 % interval"] == NO_INTERVAL for line in lines):
        console().print(TOO_FEW_SEEDS, style="dim")


def _print_pass_rates(policies: Mapping[str, Numbers], *, shown: bool) -> None:
    """Print pass@k and pass^k if each seed was played more than once."""
    if not shown or not any(numbers["pass"]["k"] for numbers in policies.values()):
        return
    names = ("policy", "k", "pass@k", "pass^k", "seeds")[0 if len(policies) > 1 else 1 :]
    rows = table(*names, right=tuple(name for name in names if name != "policy"))
    for name, numbers in policies.items():
        for k, rates in numbers["pass"]["k"].items():
            cells = (clean(name), k, _mean(rates["pass_at_k"]), _mean(rates["pass_hat_k"]), str(rates["seeds"]))
            rows.add_row(*cells[-len(names) :])
    _print(rows)
    at = next(iter(policies.values()))["pass"]["at"]
    console().print(FORMULAS.format(at=at), style="dim")


def _print_groups(by: str, policies: Mapping[str, list[Numbers]]) -> None:
    """Print a line for each group. If there are several policies, print a column of rewards for each policy."""
    several = len(policies) > 1
    by_value = {name: {_value(group["value"]): group for group in groups} for name, groups in policies.items()}
    values = list(dict.fromkeys(value for groups in by_value.values() for value in groups))
    names = [clean(name) for name in policies] if several else ["rollouts", "failed", "reward", "95 % interval"]
    rows = table(clean(by), *names, right=tuple(names))
    for value in values[:MOST_GROUPS]:
        groups = [by_value[name].get(value) for name in policies]
        if several:
            cells = ["-" if group is None else _mean(group["reward"]) for group in groups]
        else:
            (group,) = (group for group in groups if group is not None)
            done, failed = group["rollouts"]["done"], group["rollouts"]["failed"]
            cells = [str(done), str(failed or ""), _mean(group["reward"]), _interval(group["interval"])]
        rows.add_row(value, *cells)
    _print(rows)
    if not several and NO_INTERVAL in {
        _interval(group["interval"]) for group in next(iter(by_value.values())).values()
    }:
        console().print(TOO_FEW_SEEDS, style="dim")
    if len(values) > MOST_GROUPS:
        console().print(f"{len(values) - MOST_GROUPS} more groups are in summary.json", style="dim")


def _value(value: Any) -> str:
    return "(none)" if value is None else one_line(str(value), 60)


def _interval(interval: Mapping[str, Any]) -> str:
    """Return text such as `0.1 to 0.9`, a dash for too few seeds, or an empty string if all rewards are undefined."""
    if interval["low"] is None:
        return NO_INTERVAL if interval["clusters"] else ""
    return f"{interval['low']:.4g} to {interval['high']:.4g}"


def _method(interval: Mapping[str, Any]) -> str:
    method = "bootstrap" if interval["method"] == "bootstrap" else "Student's t"
    return f"{method} over {counted(interval['clusters'], 'seed')}"


def _truncated(summary: Numbers) -> str:
    count = summary["rollouts"]
    return f"{count['truncated'] / (count['done'] - count['failed']):.0%}"


def _invalid(summary: Numbers) -> float:
    column = summary["metrics"].get("invalid_actions")
    return (column["mean"] or 0.0) if column is not None else 0.0


def _environment(summary: Mapping[str, Any]) -> str:
    same = summary["environment"] == summary["app"]
    split = f"split {summary['split']}" if summary["split"] else ""
    return clean(
        "".join(f", {part}" for part in ("" if same else f"environment {summary['environment']}", split) if part)
    )


def _policy(policy: Mapping[str, Any]) -> str:
    """Describe a policy and its options as text: `random`, or `model qwen at http://…, temperature 0.5`."""
    named = ("policy", "model", "inference_url", "others")
    if "inference_url" in policy:
        name = f"model {policy.get('model', '')}".strip() + f" {where(policy['inference_url'])}"
    else:
        name = str(policy.get("policy") or policy.get("model") or "")
    return ", ".join([name, *(f"{key} {value}" for key, value in policy.items() if key not in named)])


def _rollouts(summary: Mapping[str, Any]) -> str:
    count = summary["rollouts"]
    parts = [f"{count[name]} {name}" for name in ("terminated", "truncated", "failed") if count[name]]
    if count["undefined"]:
        parts.append(f"{count['undefined']} without a reward")
    each = f", {summary['repeats']} of each" if summary["repeats"] > 1 else ""
    return f"{count['done']} ({', '.join(parts)}), seeds {one_line(summary['seeds'], 60)}{each}"


def _mean(column: Mapping[str, Any], *, of: int | None = None) -> str:
    """Return text such as `1.377 ± 0.071`, with the number of values if it differs from `of`."""
    if column["mean"] is None:
        return "-"
    error = "" if column["standard_error"] is None else f" ± {column['standard_error']:.2g}"
    many = f" ({column['n']} of {of})" if of is not None and column["n"] != of else ""
    return f"{column['mean']:.4g}{error}{many}"


def _print_metrics(policies: Mapping[str, Numbers]) -> None:
    """Print the means of the environment's and the app's metrics. Metrics with the mean 0 are only counted."""
    names = dict.fromkeys(name for metrics in policies.values() for name in metrics if name not in KIT_METRICS)
    shown = [name for name in names if any(metrics.get(name, {}).get("mean") for metrics in policies.values())]
    _print_columns(
        "metric",
        {policy: {name: metrics[name] for name in shown if name in metrics} for policy, metrics in policies.items()},
    )
    zero = len(names) - len(shown)
    if zero:
        out = console()
        if not shown:
            out.print()
        out.print(f"{zero} {'metric is' if zero == 1 else 'metrics are'} 0 on average", style="dim")


def _print_columns(heading: str, policies: Mapping[str, Numbers]) -> None:
    """Print means with standard errors. If there are several policies, print a column for each policy."""
    names = list(dict.fromkeys(name for columns in policies.values() for name in columns))
    if not names:
        return
    several = len(policies) > 1
    headings = [clean(policy) for policy in policies] if several else ["mean", "± s.e.", "n"]
    rows = table(heading, *headings, right=tuple(headings))
    for name in names:
        columns = [numbers.get(name) for numbers in policies.values()]
        if several:
            cells = ["-" if column is None else _mean(column) for column in columns]
        else:
            (column,) = (column for column in columns if column is not None)
            error = column["standard_error"]
            cells = [figure(column["mean"]), "" if error is None else f"{error:.2g}", str(column["n"])]
        rows.add_row(clean(name), *cells)
    _print(rows)


def _print_failures(failures: Mapping[str, Mapping[str, int]]) -> None:
    if not failures:
        return
    rows = table("failed at", "code", "rollouts", right=("rollouts",))
    for boundary, codes in failures.items():
        for code, count in codes.items():
            rows.add_row(clean(boundary), clean(code), str(count))
    _print(rows)


def _print_aggregate(name: str, values: Mapping[str, Any], published: Mapping[str, Mapping[str, float]]) -> None:
    """Print an aggregate's numbers in a column for each policy and for each published result."""
    console().print()
    figures = {policy: value if isinstance(value, Mapping) else {name: value} for policy, value in values.items()}
    headings = [clean(policy) or "here" for policy in figures] + [clean(heading) for heading in published]
    rows = table(clean(name), *headings, right=tuple(headings), pad=3)
    columns = [*figures.values(), *published.values()]
    for part in dict.fromkeys(name for column in columns for name in column):
        rows.add_row(clean(part), *(figure(column.get(part)) for column in columns))
    console().print(rows)
