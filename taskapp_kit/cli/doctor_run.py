"""What `taskapp doctor` does: checks an app in this process, or a server at its URL, and a backend."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from taskapp_kit.cli.job_options import JobSettings
from taskapp_kit.cli.local_app import open_app
from taskapp_kit.cli.options import is_url
from taskapp_kit.client.checks import check_backend, check_task_app, try_rollout
from taskapp_kit.config import load as load_settings
from taskapp_kit.errors import ConfigError
from taskapp_kit.testing.doctor.examine import examine
from taskapp_kit.testing.doctor.finding import DoctorFinding, of_server
from taskapp_kit.testing.doctor.options import DoctorOptions
from taskapp_kit.testing.doctor.server import examine_server


def findings_of(
    app: str,
    backend_url: str | None,
    settings: JobSettings,
    env_files: Sequence[str],
    options: DoctorOptions,
    *,
    load: bool = False,
) -> list[DoctorFinding]:
    """What was found of an APP or URL and, where one is named, of a backend. Raises DiscoveryError, ConfigError.

    load: send a server many requests.
    """
    served = app if is_url(app) else None
    if served is None and load:
        raise ConfigError("--load is about a URL.", hint="An APP is always played many times; leave it out.")
    if served is None:
        findings = asyncio.run(_declared(app, env_files, options))
    else:
        findings = asyncio.run(_running(served, settings.task_app_key, options, load=load))
    if backend_url is not None:
        findings += map(of_server, asyncio.run(check_backend(backend_url, settings.backend_key, served)))
    return findings


async def _running(url: str, key: str | None, options: DoctorOptions, *, load: bool) -> list[DoctorFinding]:
    if options.quick or options.judges or options.environment is not None or options.allow:
        raise ConfigError("--quick, --env, --allow and --judges are about an APP.", hint="Leave them out for a URL.")
    found = await check_task_app(url, key)
    if all(finding.ok for finding in found):
        found.append(await try_rollout(url, key))
    lines = [of_server(finding) for finding in found]
    if load and all(line.ok for line in lines):
        lines += [line async for line in examine_server(url, key)]
    return lines


async def _declared(app: str, env_files: Sequence[str], options: DoctorOptions) -> list[DoctorFinding]:
    settings = load_settings(env_files=env_files)
    return [finding async for finding in examine(open_app(app, settings), options, settings)]
