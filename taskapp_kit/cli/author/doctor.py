"""`taskapp doctor`: examine an app, a running task app or a backend, and print what to do about each problem."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from taskapp_kit.cli import local_app
from taskapp_kit.cli.job_options import job_settings
from taskapp_kit.cli.options import ENV_FILES, is_url, json_option
from taskapp_kit.cli.output.doctor_output import failed, show, summary
from taskapp_kit.cli.output.terminal import console, echo, example, print_json
from taskapp_kit.client import checks
from taskapp_kit.config import load as load_settings
from taskapp_kit.doctor import doctor_options, examine, examine_server
from taskapp_kit.doctor import finding as doctor_finding
from taskapp_kit.errors import ConfigError
from taskapp_kit.jobs.client import backend_check
from taskapp_kit.net.redact import without_keys


@click.command(
    epilog=example(
        "taskapp doctor adder.py",
        "taskapp doctor adder.py --quick --allow splits",
        "taskapp doctor http://127.0.0.1:8001",
        "taskapp doctor https://my-app.modal.run --backend http://127.0.0.1:8500 --env-file .env",
    )
)
@click.argument("app", metavar="APP|URL")
@click.option("--quick", is_flag=True, help="Play fewer rollouts. Takes less than 20 s.")
@click.option("--env", "environment", metavar="NAME", help="For an APP, check only this environment.  [default: all]")
@click.option(
    "--allow", multiple=True, metavar="CHECK", help="Print what this check finds, but don't fail; may be repeated."
)
@click.option("--load", is_flag=True, help="For a URL, also test keys, errors, limits and 20 concurrent rollouts.")
@click.option("--judges", is_flag=True, help="For an APP, call its judges. By default, judge scores are null.")
@click.option(
    "--backend", "--backend-url", "backend_url", metavar="U", help="Also check the backend that will use the task app."
)
@ENV_FILES
@json_option("Print the findings as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    app: str,
    quick: bool,
    environment: str | None,
    allow: tuple[str, ...],
    load: bool,
    judges: bool,
    backend_url: str | None,
    env_files: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check an app or a running task app, and with --backend also a backend.

    For an APP, every problem in its declarations is reported. If no problem is found, policies that need no model play
    rollouts in each environment, in this process, and one line is printed for each check. Among other things, the
    checks find episodes that differ although the seed is the same, rewards and rubrics that cannot be trusted, private
    fields that the policy can see, and state that leaks into the next episode. Nothing is stored.

    For a URL, the address, the key and the HTTP contract are checked. Then one rollout of at most five turns is played,
    and the app's judges score it. With --load, requests without a key and requests with invalid bodies are also sent,
    and 20 rollouts are played twice, first one by one and then concurrently.

    The task app's key is read from ENVIRONMENT_API_KEY and the backend's key from SYNTH_API_KEY. Both can be set in the
    environment or in an env file. The exit status is 1 if a finding is WRONG. Warnings don't change the exit status.
    """
    settings = job_settings(env_files=env_files, backend_url=backend_url)
    options = doctor_options.DoctorOptions(quick=quick, judges=judges, environment=environment, allow=allow)
    if is_url(app):
        findings = asyncio.run(_running(app, settings.task_app_key, options, load=load))
    elif load:
        raise ConfigError("--load applies only to a URL.", hint="Omit --load. An APP is always played many times.")
    else:
        findings = asyncio.run(_declared(app, env_files, options))
    if backend_url is not None:
        checked = asyncio.run(
            backend_check.check_backend(backend_url, settings.backend_key, app if is_url(app) else None)
        )
        findings += map(doctor_finding.of_server, checked)
    if as_json:
        shown = without_keys([finding.to_json() for finding in findings], settings.keys)
        print_json({"ok": not failed(findings), "findings": shown})
    else:
        show(findings, console(), settings.keys)
        if not is_url(app):
            echo(summary(findings))
    ctx.exit(1 if failed(findings) else 0)


async def _running(
    url: str, key: str | None, options: doctor_options.DoctorOptions, *, load: bool
) -> list[doctor_finding.DoctorFinding]:
    """Return the findings about a server.

    load: whether to run the load test. Raises ConfigError if options apply only to an APP.
    """
    if options.quick or options.judges or options.environment is not None or options.allow:
        raise ConfigError(
            "--quick, --env, --allow and --judges apply only to an APP.", hint="Omit these options for a URL."
        )
    checked = await checks.check_task_app(url, key)
    if all(finding.ok for finding in checked):
        checked.append(await checks.try_rollout(url, key))
    findings = [doctor_finding.of_server(finding) for finding in checked]
    if load and all(finding.ok for finding in findings):
        findings += [finding async for finding in examine_server.examine_server(url, key)]
    return findings


async def _declared(
    app: str, env_files: Sequence[str], options: doctor_options.DoctorOptions
) -> list[doctor_finding.DoctorFinding]:
    """Import an app, play its environments in this process and return the findings."""
    settings = load_settings(env_files=env_files)
    return [finding async for finding in examine.examine(local_app.open_app(app, settings), options, settings)]
