"""`taskapp doctor`, also as `taskapp check`: whether an app, a running task app or a backend is sound, and what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from taskapp_kit.cli.job_options import job_settings
from taskapp_kit.cli.options import ENV_FILES, is_url, json_option
from taskapp_kit.cli.terminal import clean, console, counted, example, print_json, table
from taskapp_kit.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from taskapp_kit.testing.doctor.finding import DoctorFinding
    from taskapp_kit.testing.doctor.options import DoctorOptions

MARKS = {"ok": "ok", "warning": "warning", "wrong": "WRONG", "skipped": "skipped", "allowed": "allowed"}


@click.command(
    epilog=example(
        "taskapp doctor adder.py",
        "taskapp doctor adder.py --quick --allow splits",
        "taskapp doctor http://127.0.0.1:8001",
        "taskapp check https://my-app.modal.run --backend http://127.0.0.1:8500 --env-file .env",
    )
)
@click.argument("app", metavar="APP|URL")
@click.option("--quick", is_flag=True, help="Fewer rollouts: under 20 s.")
@click.option("--env", "environment", metavar="NAME", help="This environment of an APP alone.  [default: all of them]")
@click.option(
    "--allow", multiple=True, metavar="CHECK", help="Accept what this check finds, and print it; may be repeated."
)
@click.option("--judges", is_flag=True, help="Ask the judges of an APP; without it their scores are null.")
@click.option("--backend", "--backend-url", "backend_url", metavar="U", help="A backend that is to use it, too.")
@ENV_FILES
@json_option("Print the findings as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    app: str,
    quick: bool,
    environment: str | None,
    allow: tuple[str, ...],
    judges: bool,
    backend_url: str | None,
    env_files: tuple[str, ...],
    as_json: bool,
) -> None:
    """Find out whether an app is sound, or a running task app at its URL; and with --backend a backend and its key.

    `taskapp check` and `taskapp doctor` are one command.

    Of an APP: every problem of its declarations; where there is none, rollouts in each environment by policies that need
    no model, in this process, and one line for each check: the same seed gives the same episode, here and in another
    process; rewards and rubrics hold; nothing private shows; nothing is left behind; and more. Nothing is stored.

    At a URL: address, key and contract; where these are right, one rollout of at most five turns, which the app's judges
    score.

    The keys are ENVIRONMENT_API_KEY and SYNTH_API_KEY, from the environment or an env file. Exit status 1 when
    something is WRONG; a warning does not change it.
    """
    from taskapp_kit.client import check_backend
    from taskapp_kit.net.redact import without_keys
    from taskapp_kit.testing.doctor.finding import of_server
    from taskapp_kit.testing.doctor.options import DoctorOptions

    settings = job_settings(env_files=env_files, backend_url=backend_url)
    options = DoctorOptions(quick=quick, judges=judges, environment=environment, allow=allow)
    if is_url(app):
        findings = asyncio.run(_running(app, settings.task_app_key, options))
    else:
        findings = asyncio.run(_declared(app, env_files, options))
    if backend_url is not None:
        served = app if is_url(app) else None
        findings += map(of_server, asyncio.run(check_backend(backend_url, settings.backend_key, served)))
    if as_json:
        shown = without_keys([finding.to_json() for finding in findings], settings.keys)
        print_json({"ok": not failed(findings), "findings": shown})
    else:
        show(findings, console(), settings.keys)
        if not is_url(app):
            click.echo(summary(findings))
    ctx.exit(1 if failed(findings) else 0)


async def _running(url: str, key: str | None, options: DoctorOptions) -> list[DoctorFinding]:
    from taskapp_kit.client import check_task_app, try_rollout
    from taskapp_kit.testing.doctor.finding import of_server

    if options.quick or options.judges or options.environment is not None or options.allow:
        raise ConfigError("--quick, --env, --allow and --judges are about an APP.", hint="Leave them out for a URL.")
    found = await check_task_app(url, key)
    if all(finding.ok for finding in found):
        found.append(await try_rollout(url, key))
    return [of_server(finding) for finding in found]


async def _declared(app: str, env_files: Sequence[str], options: DoctorOptions) -> list[DoctorFinding]:
    from taskapp_kit.cli.local_app import open_app
    from taskapp_kit.config import load
    from taskapp_kit.testing.doctor.examine import examine

    settings = load(env_files=env_files)
    return [finding async for finding in examine(open_app(app, settings), options, settings)]


def failed(findings: Sequence[DoctorFinding]) -> bool:
    """Return whether any of them is wrong."""
    return any(not finding.ok for finding in findings)


def summary(findings: Sequence[DoctorFinding]) -> str:
    """Return the counts in one line."""
    counts = {status: sum(finding.status == status for finding in findings) for status in MARKS}
    parts = [counted(counts["ok"], "check") + " ok"]
    parts += [f"{counts[status]} {MARKS[status]}" for status in list(MARKS)[1:] if counts[status]]
    return ", ".join(parts) + "."


def show(findings: Sequence[DoctorFinding], out: Console, keys: Sequence[str | None]) -> None:
    """Print one row each: what was checked, whether it is right, what was found, where, what to do. keys: never shown.

    A check of a server removes the key that it sends; here the other one is removed, too.
    """
    from taskapp_kit.net.redact import without_keys

    rows = table("check" if any(finding.environment for finding in findings) else "part", "", "found")
    for finding in findings:
        found, do = (clean(str(without_keys(text, keys))) for text in (finding.found, finding.do))
        if finding.place and finding.status not in ("ok", "skipped") and finding.place not in found:
            found = f"{clean(finding.place)}: {found}"
        name = finding.name if finding.environment is not None else finding.part
        rows.add_row(name, MARKS[finding.status], found + (f"\n→ {do}" if do else ""))
    out.print(rows)
