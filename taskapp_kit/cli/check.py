"""`taskapp check`: whether a task app and a backend can be used, and what to do about what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from taskapp_kit.cli.job_settings import job_settings
from taskapp_kit.cli.terminal import clean, console, example, print_json, table
from taskapp_kit.cli.values import is_url
from taskapp_kit.errors import Unavailable

if TYPE_CHECKING:
    from rich.console import Console

    from taskapp_kit.client import Finding


@click.command(
    epilog=example(
        "taskapp check http://127.0.0.1:8001",
        "taskapp check https://my-app.modal.run --backend http://127.0.0.1:8500 --env-file .env",
    )
)
@click.argument("url")
@click.option("--backend", "--backend-url", "backend_url", metavar="U", help="A backend that is to use it, too.")
@click.option("--env-file", "env_files", multiple=True, metavar="F", help="Read keys from this file; a later one wins.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_context
def command(ctx: click.Context, url: str, backend_url: str | None, env_files: tuple[str, ...], as_json: bool) -> None:
    """Check a running task app: its address, its key, its contract; and with --backend the backend and its key.

    Where these are right, one rollout of at most five turns is played by a policy that needs no model; an app's judges
    score it.

    The keys are ENVIRONMENT_API_KEY and SYNTH_API_KEY, from the environment or an env file. Exit status 1 when
    something is wrong.
    """
    from taskapp_kit.client import check_backend, check_task_app, try_rollout
    from taskapp_kit.contract.redaction import without_keys
    from taskapp_kit.declare.discovery import is_host_and_port

    if not is_url(url):
        raise Unavailable(
            "`taskapp check` looks at running task apps in this release, and so takes a URL.",
            hint=f"Did you mean http://{url}?"
            if is_host_and_port(url)
            else "Start the app (`taskapp serve APP`) and give its address; `taskapp info APP` checks declarations.",
        )
    settings = job_settings(env_files=env_files, backend_url=backend_url)

    async def look() -> list[Finding]:
        found = list(await check_task_app(url, settings.task_app_key))
        if not failed(found):
            found.append(await try_rollout(url, settings.task_app_key))
        if backend_url is not None:
            found += await check_backend(backend_url, settings.backend_key, url)
        return found

    findings = asyncio.run(look())
    if as_json:
        told = without_keys([asdict(finding) for finding in findings], settings.keys)
        print_json({"ok": not failed(findings), "findings": told})
    else:
        show(findings, console(), settings.keys)
    ctx.exit(1 if failed(findings) else 0)


def failed(findings: Sequence[Finding]) -> bool:
    """Whether any of them is wrong."""
    return any(not finding.ok for finding in findings)


def show(findings: Sequence[Finding], out: Console, keys: Sequence[str | None]) -> None:
    """One row each: what was looked at, whether it is right, what was found, what to do. keys: are not shown.

    A check keeps the key out that it asks with; here the other one is, too.
    """
    from taskapp_kit.contract.redaction import without_keys

    rows = table("part", "", "found")
    for finding in findings:
        mark = "ok" if finding.ok else "WRONG"
        found, do = clean(without_keys(finding.found, keys)), clean(without_keys(finding.do, keys))
        rows.add_row(finding.part, mark, found + (f"\n→ {do}" if do else ""))
    out.print(rows)
