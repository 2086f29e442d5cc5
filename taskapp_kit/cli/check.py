"""`taskapp check`: whether an app, a running task app or a backend can be used, and what to do about what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from taskapp_kit.cli.job_options import job_settings
from taskapp_kit.cli.options import ENV_FILES, is_url, json_option
from taskapp_kit.cli.terminal import clean, console, example, print_json, table

if TYPE_CHECKING:
    from rich.console import Console

    from taskapp_kit.client import Finding


@click.command(
    epilog=example(
        "taskapp check adder.py",
        "taskapp check http://127.0.0.1:8001",
        "taskapp check https://my-app.modal.run --backend http://127.0.0.1:8500 --env-file .env",
    )
)
@click.argument("app", metavar="APP|URL")
@click.option("--backend", "--backend-url", "backend_url", metavar="U", help="A backend that is to use it, too.")
@ENV_FILES
@json_option("Print the findings as JSON.")
@click.pass_context
def command(ctx: click.Context, app: str, backend_url: str | None, env_files: tuple[str, ...], as_json: bool) -> None:
    """Check an app, or a running task app at its URL; and with --backend a backend and its key.

    Of an APP: every problem of its declarations; where there is none, one rollout in each environment by a policy that
    needs no model, in this process, one after the other. Nothing is stored, and no judge is asked. A rollout that fails,
    and one that changes a global random state, is wrong.

    At a URL: address, key and contract; where these are right, one rollout of at most five turns, which the app's judges
    score.

    The keys are ENVIRONMENT_API_KEY and SYNTH_API_KEY, from the environment or an env file. Exit status 1 when
    something is wrong.
    """
    from taskapp_kit.client import check_backend
    from taskapp_kit.net.redact import without_keys

    settings = job_settings(env_files=env_files, backend_url=backend_url)
    if is_url(app):
        findings = asyncio.run(_running(app, settings.task_app_key))
    else:
        findings = _declared(app, env_files)
    if backend_url is not None:
        served = app if is_url(app) else None
        findings += asyncio.run(check_backend(backend_url, settings.backend_key, served))
    if as_json:
        shown = without_keys([asdict(finding) for finding in findings], settings.keys)
        print_json({"ok": not failed(findings), "findings": shown})
    else:
        show(findings, console(), settings.keys)
    ctx.exit(1 if failed(findings) else 0)


async def _running(url: str, key: str | None) -> list[Finding]:
    from taskapp_kit.client import check_task_app, try_rollout

    found = await check_task_app(url, key)
    return found if failed(found) else [*found, await try_rollout(url, key)]


def _declared(app: str, env_files: Sequence[str]) -> list[Finding]:
    from taskapp_kit.cli.local_app import open_app
    from taskapp_kit.config import load
    from taskapp_kit.testing.app_checks import check_app

    return list(check_app(open_app(app, load(env_files=env_files))))


def failed(findings: Sequence[Finding]) -> bool:
    """Whether any of them is wrong."""
    return any(not finding.ok for finding in findings)


def show(findings: Sequence[Finding], out: Console, keys: Sequence[str | None]) -> None:
    """Print one row each: what was checked, whether it is right, what was found, what to do. keys: never shown.

    A check removes the key that it sends; here the other one is removed, too.
    """
    from taskapp_kit.net.redact import without_keys

    rows = table("part", "", "found")
    for finding in findings:
        mark = "ok" if finding.ok else "WRONG"
        found, do = clean(without_keys(finding.found, keys)), clean(without_keys(finding.do, keys))
        rows.add_row(finding.part, mark, found + (f"\n→ {do}" if do else ""))
    out.print(rows)
