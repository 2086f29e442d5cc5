"""An evaluation's summary on the terminal: means with their errors, failures by boundary, the app's aggregates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taskapp_kit.cli.terminal import clean, console, one_line, table
from taskapp_kit.contract.trajectory import KIT_METRICS


def print_summary(summary: Mapping[str, Any], path: Path) -> None:
    """Print the figures that matter first; the rest is in `summary.json`."""
    out = console()
    count = summary["rollouts"]
    facts = table("", "")
    facts.add_row("app", clean(f"{summary['app']} {summary['app_version'] or ''}".strip()) + _environment(summary))
    facts.add_row("policy", clean(_policy(summary["policy"])))
    facts.add_row("rollouts", _rollouts(summary))
    facts.add_row(
        "reward", _mean(summary["reward"], of=count["done"]) + f"   {clean(summary['reward_formula'])}", style="bold"
    )
    for name in ("outcome_score", "events_score", "return", "length"):
        if summary[name]["n"] and not (name == "return" and summary["return"] == summary["reward"]):
            facts.add_row(name, _mean(summary[name]) + (" steps" if name == "length" else ""))
    tokens = {name.removesuffix("_tokens"): total for name, total in summary["usage"].items() if total}
    if tokens:
        facts.add_row("tokens", ", ".join(f"{clean(name)} {total:,.0f}" for name, total in tokens.items()))
    seconds = summary["timing"]["rollout_seconds"]
    if seconds["mean"] is not None:
        facts.add_row("seconds", f"{seconds['mean']:.3g} a rollout, {seconds['total']:.4g} in all")
    facts.add_row("stored in", clean(str(path)))
    out.print(facts)
    _print_columns("criterion", summary["criteria"])
    _print_metrics(summary["metrics"])
    _print_failures(summary["failures"])
    for name, value in (summary["aggregates"] or {}).items():
        _print_aggregate(name, value, summary["published"].get(name, {}))


def _environment(summary: Mapping[str, Any]) -> str:
    same = summary["environment"] == summary["app"]
    split = f"split {summary['split']}" if summary["split"] else ""
    return clean(
        "".join(f", {part}" for part in ("" if same else f"environment {summary['environment']}", split) if part)
    )


def _policy(policy: Mapping[str, Any]) -> str:
    """`random`; `model qwen at http://…`; and what it was given."""
    given = {
        name: value for name, value in policy.items() if name not in ("policy", "model", "inference_url", "others")
    }
    if "inference_url" in policy:
        name = f"model {policy.get('model', '')}".strip() + f" at {policy['inference_url']}"
    else:
        name = str(policy.get("policy") or policy.get("model") or "")
    return ", ".join([name, *(f"{key} {value}" for key, value in given.items())])


def _rollouts(summary: Mapping[str, Any]) -> str:
    count = summary["rollouts"]
    parts = [f"{count[name]} {name}" for name in ("terminated", "truncated", "failed") if count[name]]
    if count["undefined"]:
        parts.append(f"{count['undefined']} without a reward")
    each = f", {summary['repeats']} of each" if summary["repeats"] > 1 else ""
    return f"{count['done']} ({', '.join(parts)}), seeds {one_line(summary['seeds'], 60)}{each}"


def _mean(column: Mapping[str, Any], *, of: int | None = None) -> str:
    """`1.377 ± 0.071`; beside it how many, when some have none."""
    if not column["n"]:
        return "-"
    error = "" if column["standard_error"] is None else f" ± {column['standard_error']:.2g}"
    many = f" ({column['n']} of {of})" if of is not None and column["n"] != of else ""
    return f"{column['mean']:.4g}{error}{many}"


def _print_metrics(metrics: Mapping[str, Any]) -> None:
    """The environment's and the app's own; those that are always 0 are counted."""
    own = {name: column for name, column in metrics.items() if name not in KIT_METRICS}
    shown = {name: column for name, column in own.items() if column["mean"]}
    _print_columns("metric", shown)
    zero = len(own) - len(shown)
    if zero:
        out = console()
        if not shown:
            out.print()
        out.print(f"{zero} {'metric is' if zero == 1 else 'metrics are'} 0 on average", style="dim")


def _print_columns(heading: str, columns: Mapping[str, Any]) -> None:
    if not columns:
        return
    rows = table(heading, "mean", "± s.e.", "n", right=("mean", "± s.e.", "n"))
    for name, column in columns.items():
        error = column["standard_error"]
        rows.add_row(
            clean(name), "-" if column["mean"] is None else f"{column['mean']:.4g}", "" if error is None else f"{error:.2g}",
            str(column["n"]),
        )  # fmt: skip
    console().print()
    console().print(rows)


def _print_failures(failures: Mapping[str, Mapping[str, int]]) -> None:
    if not failures:
        return
    rows = table("failed at", "code", "rollouts", right=("rollouts",))
    for boundary, codes in failures.items():
        for code, count in codes.items():
            rows.add_row(clean(boundary), clean(code), str(count))
    console().print()
    console().print(rows)


def _print_aggregate(name: str, value: Any, published: Mapping[str, Mapping[str, float]]) -> None:
    """One number, or a table of several with a column for each heading of what was published."""
    console().print()
    figures = value if isinstance(value, Mapping) else {name: value}
    headings = [clean(heading) for heading in published]
    rows = table(clean(name), "here", *headings, right=("here", *headings), pad=3)
    for figure in dict.fromkeys([*figures, *(part for column in published.values() for part in column)]):
        theirs = (_figure(column.get(figure)) for column in published.values())
        rows.add_row(clean(figure), _figure(figures.get(figure)), *theirs)
    console().print(rows)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
