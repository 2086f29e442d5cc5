"""Resumes a stored evaluation, using only its directory.

API keys are not stored, so they are read from the environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate.directory import CONFIG, MAX_CONFIG_BYTES, SUMMARY, Directory, read_config
from taskapp_kit.evaluate.plan import EvalPlan, stored_policies
from taskapp_kit.evaluate.report import write_report
from taskapp_kit.evaluate.rows import SEED, TAG
from taskapp_kit.evaluate.run import summarise
from taskapp_kit.evaluate.runners import EvaluatedApp
from taskapp_kit.evaluate.summary import SummaryOptions
from taskapp_kit.records.content import Json
from taskapp_kit.records.score_ranges import ScoreRanges
from taskapp_kit.system.foreign_files import read_inside
from taskapp_kit.wire.inference_url import stored_url

NOT_STORED = "not_stored"
NAMES_IN_FILE = "models"


def is_evaluation(path: str) -> bool:
    """Return whether the path is an evaluation's directory."""
    return (Path(path) / CONFIG).is_file()


def policies_to_store(
    policies: Mapping[str, Mapping[str, Any]], in_models_file: Mapping[str, str]
) -> dict[str, dict[str, Json]]:
    """Return the fields of a configuration's `options` that `policies_again` needs to restore the API keys.

    in_models_file: Maps a policy's name to its model in models.toml or on a backend.
    """
    not_stored: dict[str, Json] = {}
    for name, config in policies.items():
        url = config.get("inference_url")
        missing = [] if name in in_models_file or "api_key" not in config else ["api_key"]
        if isinstance(url, str) and stored_url(url) != url and name not in in_models_file:
            missing.append("inference_url (its user or query)")
        if missing:
            not_stored[name] = missing
    found: dict[str, dict[str, Json]] = {NAMES_IN_FILE: dict(in_models_file), NOT_STORED: not_stored}
    return {name: value for name, value in found.items() if value}


def policies_again(
    config: Mapping[str, Any], model_named: Callable[[str], Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return `policy.config` for each policy of a stored evaluation, including the policy's API key.

    model_named: Returns the address, the name and the API key of a model in models.toml, given its name there.

    Raises ConfigError if a setting of a policy was not stored.
    """
    options = config.get("options", {})
    found: dict[str, dict[str, Any]] = {}
    for name, stored in stored_policies(config["asked"]).items():
        again = dict(stored)
        lost = [*again.pop("others", []), *options.get(NOT_STORED, {}).get(name, [])]
        if lost:
            raise ConfigError(
                f"The policy {name} cannot be restored, because these settings were not stored: {', '.join(map(str, lost))}.",
                hint="Repeat the command with --resume, or add the model and its key to models.toml.",
            )
        alias = options.get(NAMES_IN_FILE, {}).get(name)
        found[name] = again if alias is None else {**again, **model_named(str(alias))}
    return found


def summarise_again(path: Path, options: SummaryOptions) -> dict[str, Any] | None:
    """Recompute the summary of a finished evaluation from its result lines, without opening its app.

    The app's aggregates are copied from `summary.json`. Returns None if `summary.json` or a rollout is missing, or if
    the lines lack a field by which `options` groups. Raises ConfigError or StoreError if a file of the evaluation is
    invalid.
    """
    config = read_config(path)
    plan = EvalPlan.of_stored(config["asked"])
    directory = Directory(path, plan)
    options = replace(options, ranges=ScoreRanges.from_json(config.get("ranges")))
    try:
        directory.begin(config, resume=True)
        before = read_summary(path)
        if directory.done < len(plan) or before is None or not _have_rows(directory, options):
            return None
        about = EvaluatedApp(
            app=before["app"],
            version=before["app_version"],
            spec_hash=before["spec_hash"],
            environment=before["environment"],
            formula=before["reward_formula"],
        )
        of_app = [before] if len(plan.names) == 1 else [before["by_policy"][name] for name in plan.names]
        summary = summarise(plan, directory, about, None, options, of_app=of_app)
        write_report(plan, directory, summary, options, created_at=str(config.get("created_at", "")))
        return summary
    finally:
        directory.close()


def _have_rows(directory: Directory, options: SummaryOptions) -> bool:
    """Return whether each field by which `options` groups is in at least one line."""
    missing = {"tags" if by == TAG else by for by in options.by if by != SEED}
    for result in directory.results() if missing else ():
        missing -= result.row.keys()
        if not missing:
            break
    return not missing


def read_summary(path: Path) -> dict[str, Any] | None:
    """Read `summary.json`. Return None if it is missing or invalid."""
    try:
        summary = orjson.loads(read_inside(path, SUMMARY, MAX_CONFIG_BYTES))
    except (OSError, orjson.JSONDecodeError):
        return None
    return summary if isinstance(summary, dict) else None
