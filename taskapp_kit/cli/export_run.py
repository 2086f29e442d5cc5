"""What `taskapp export` does: reads stored rollouts, or begins episodes for their prompts, and writes the file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from taskapp_kit.cli.local_app import failure_shown, local_service, open_app
from taskapp_kit.cli.options import command_with, is_url, shown_source
from taskapp_kit.cli.terminal import shown_from
from taskapp_kit.client.task_app import TaskAppClient
from taskapp_kit.config import Settings
from taskapp_kit.contract.protocols import RolloutQuery
from taskapp_kit.evaluate.own_directories import check_own
from taskapp_kit.evaluate.seeds import Seeds
from taskapp_kit.evaluate.source import open_source
from taskapp_kit.export.conversation import ToolSchemas
from taskapp_kit.export.report import ExportReport, ExportScope
from taskapp_kit.export.task_rows import TaskFormat, export_tasks, task_rows
from taskapp_kit.export.write import export
from taskapp_kit.rollout.policy.options import OutputMode
from taskapp_kit.rollout.source import RolloutSource


def exported(
    reference: str,
    key: str | None,
    settings: Settings,
    kind: Any,
    out: Path,
    query: RolloutQuery,
    split: str | None,
    filters: Any,
    app: str | None,
) -> ExportReport:
    """What was written to `out`. reference: a directory, a store or a URL. Raises ConfigError, StoreError, Unavailable."""
    with shown_from(shown_source(reference)):
        return asyncio.run(_exported(reference, key, settings, kind, out, query, split, filters, app))


async def _exported(
    reference: str,
    key: str | None,
    settings: Settings,
    kind: Any,
    out: Path,
    query: RolloutQuery,
    split: str | None,
    filters: Any,
    app: str | None,
) -> ExportReport:
    key = key or settings.environment_api_key
    source = open_source(reference, key=key)

    async def find_tools() -> ToolSchemas | None:
        return await _tools(source, reference, key, settings, app)

    try:
        scope = ExportScope(query, split)
        return await export(source, kind, out, scope=scope, filters=filters, find_tools=find_tools)
    finally:
        await source.close()


async def _tools(
    source: RolloutSource, reference: str, key: str | None, settings: Settings, app: str | None
) -> ToolSchemas | None:
    """The tools of the app: of --app, of the one that an evaluation names, or of the server at the URL."""
    named = app or source.config.get("app_reference")
    if app is None and isinstance(named, str):
        check_own(Path(reference), source.config, command_with(["--app", named]))
    if isinstance(named, str):
        return ToolSchemas.of_app(open_app(named, settings).freeze())
    if not is_url(reference):
        return None
    async with TaskAppClient(reference, key) as client:
        return ToolSchemas.of_info(await client.info())


def exported_tasks(
    reference: str,
    settings: Settings,
    kind: TaskFormat,
    out: Path,
    environment: str | None,
    split: str | None,
    seeds: str | None,
    config: dict[str, Any] | None,
    output_mode: OutputMode,
) -> int:
    """How many tasks were written to `out`. Raises ConfigError, RequestError, RolloutFailed, Unavailable."""
    chosen = None if seeds is None else Seeds.read(seeds)
    app = open_app(reference, settings)

    async def write() -> int:
        async with local_service(app, settings, skip_judges=True) as service:
            rows = task_rows(
                service, environment=environment, split=split, seeds=chosen, config=config, output_mode=output_mode
            )
            return await export_tasks(rows, kind, out)

    with failure_shown():
        return asyncio.run(write())
