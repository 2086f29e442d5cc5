"""`taskapp doctor`: examine an app, a running task app or a backend, and print what to do about each problem."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click
import orjson

from taskapp_kit.cli import local_app
from taskapp_kit.cli.job_options import job_settings
from taskapp_kit.cli.options import ENV_FILES, is_url, json_option
from taskapp_kit.cli.output.doctor_output import show, show_differences, summary
from taskapp_kit.cli.output.terminal import console, echo, example, print_json, write_file
from taskapp_kit.client import checks
from taskapp_kit.client import task_app as task_app_client
from taskapp_kit.config import load as load_settings
from taskapp_kit.doctor import doctor_options, examine_server, verify
from taskapp_kit.doctor import finding as doctor_finding
from taskapp_kit.doctor import report as doctor_report
from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate import runners
from taskapp_kit.jobs.client import backend_check
from taskapp_kit.net.redact import without_keys

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(
    epilog=example(
        "taskapp doctor adder.py",
        "taskapp doctor adder.py --quick --allow splits --html report.html",
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
@click.option("--judges", is_flag=True, help="For an APP, call its judges, and models that its environments call.")
@click.option(
    "--backend", "--backend-url", "backend_url", metavar="U", help="Also check the backend that will use the task app."
)
@click.option("--html", type=FILE, metavar="FILE", help="Also write the report as an HTML page.")
@click.option("--sarif", type=FILE, metavar="FILE", help="Also write the findings as SARIF, which code hosts display.")
@click.option(
    "--verify",
    "saved",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Examine again with the options of a report that --json printed, and print every difference.",
)
@ENV_FILES
@json_option("Print the report as JSON.")
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
    html: Path | None,
    sarif: Path | None,
    saved: Path | None,
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

    The report (--html, --json) states whether the app is safe to train on, and why. --verify makes the report again and
    compares the two.

    For an APP, `.env` is read only if --env-file names it, and no model is called without --judges. The settings that
    were used are printed.

    The task app's key is read from ENVIRONMENT_API_KEY and the backend's key from SYNTH_API_KEY. Both can be set in the
    environment or in an env file. The exit status is 1 if a finding is WRONG. Warnings don't change the exit status. With
    --verify, the exit status is 1 if the reports differ.
    """
    for option, file in (("--html", html), ("--sarif", sarif)):
        if file is not None and not file.parent.is_dir():  # before the examination, which may take long
            raise click.BadParameter(f"the directory {file.parent} does not exist.", param_hint=option)
    settings = job_settings(env_files=env_files, backend_url=backend_url)
    options = doctor_options.DoctorOptions(quick=quick, judges=judges, environment=environment, allow=allow)
    before = None if saved is None else verify.read_report(saved)
    if before is not None:
        options = verify.options_again(before, options)
    if is_url(app):
        report = asyncio.run(_running(app, settings.task_app_key, options, load=load))
    elif load:
        raise ConfigError("--load applies only to a URL.", hint="Omit --load. An APP is always played many times.")
    else:
        played = load_settings(env_files=env_files, dot_env=False)
        report = asyncio.run(doctor_report.report_on_app(local_app.open_app(app, played), app, options, played))
    if backend_url is not None:
        checked = asyncio.run(
            backend_check.check_backend(backend_url, settings.backend_key, app if is_url(app) else None)
        )
        report.findings += map(doctor_finding.of_server, checked)
    after: dict[str, Any] = without_keys(report.to_json(), settings.keys)
    if html is not None:
        write_file(html, doctor_report.page(after).encode())
    if sarif is not None:
        write_file(sarif, orjson.dumps(doctor_report.sarif(after), option=orjson.OPT_INDENT_2))
    differing = [] if before is None else verify.differences(before, after)
    if as_json:
        print_json(after if before is None else {"differences": [item.to_json() for item in differing], **after})
    elif before is not None:
        show_differences(differing, before["facts"], str(saved), console())
    else:
        show(report.findings, console(), settings.keys)
        if not is_url(app):
            echo(summary(report.findings))
            echo(f"Safe to train on: {doctor_report.WORDS[after['safe']]}.")
    ctx.exit(1 if differing or (before is None and not after["ok"]) else 0)


async def _running(
    url: str, key: str | None, options: doctor_options.DoctorOptions, *, load: bool
) -> doctor_report.DoctorReport:
    """Return the report on a server.

    load: whether to run the load test. Raises ConfigError if options apply only to an APP.
    """
    if options.quick or options.judges or options.environment is not None or options.allow:
        raise ConfigError(
            "--quick, --env, --allow and --judges apply only to an APP.", hint="Omit these options for a URL."
        )
    checked, info = await checks.check_task_app(url, key), {}
    if all(finding.ok for finding in checked):
        checked.append(await checks.try_rollout(url, key))
        async with task_app_client.TaskAppClient(url, key) as client:
            info = await client.task_info()
    findings = [doctor_finding.of_server(finding) for finding in checked]
    if load and all(finding.ok for finding in findings):
        findings += [finding async for finding in examine_server.examine_server(url, key)]
    facts = doctor_report.server_facts(findings, {name: info[name] for name in runners.DECLARED if name in info})
    return doctor_report.DoctorReport(url, options, at_url=True, findings=findings, facts=facts)
