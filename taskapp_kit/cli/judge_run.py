"""What `taskapp judge calibrate` does: asks an app's judges about labelled answers, and measures the agreement."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from taskapp_kit.cli.local_app import open_app, store_of
from taskapp_kit.config import Settings
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate.judge_labels import annotated_labels, judge_labels
from taskapp_kit.rollout.score.calibration import CaseResult, report
from taskapp_kit.store import open_store


def calibrate(
    reference: str, labels: Path | None, settings: Settings, *, repeats: int, concurrency: int, threshold: float | None
) -> tuple[list[CaseResult], list[dict[str, Any]]]:
    """Each labelled answer with its scores, and one report for each judge. labels: None reads the store's annotations.

    Raises DiscoveryError, DeclarationError, Unavailable, StoreError, ConfigError: the app has no judge, or a label is wrong.
    """
    app = open_app(reference, settings)
    spec = app.freeze()
    if not spec.judges:
        raise ConfigError(f"The app {spec.name!r} declares no judge.", hint="Declare one with @app.judge.")
    given = None if labels is None else (labels.name, labels.read_bytes())
    results = asyncio.run(_judged(app, given, settings, repeats=repeats, concurrency=concurrency))
    by_judge: dict[str, list[CaseResult]] = {}
    for result in results:
        by_judge.setdefault(result.case.judge.name, []).append(result)
    return results, [report(of_one, threshold=threshold) for of_one in by_judge.values()]


async def _judged(app: TaskApp, labels: tuple[str, bytes] | None, settings: Settings, **more: int) -> list[CaseResult]:
    store = store_of(settings.store) if labels is not None else open_store(str(settings.store), create=False)
    try:
        if labels is None:
            assert store is not None, "--annotations named it"
            labels = "annotation", await annotated_labels(app, store)
        name, text = labels
        return await judge_labels(app, name, text, settings, store, **more)
    finally:
        if store is not None:
            await store.close()
