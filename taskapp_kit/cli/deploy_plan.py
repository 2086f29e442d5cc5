"""The plan of `deploy` and `modal-serve`, from their flags and the app's own declarations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from taskapp_kit.config import load
from taskapp_kit.contract.chat import role_variable
from taskapp_kit.deploy.modal.declared_requirements import read_needs
from taskapp_kit.deploy.modal.plan import DeployPlan, make_plan
from taskapp_kit.deploy.modal.settings import ModalSettings
from taskapp_kit.deploy.packaging.source_files import Target, parse_target, resolve
from taskapp_kit.deploy.tunnel.settings import on_loopback
from taskapp_kit.errors import ConfigError


def planned(app: str, said: ModalSettings, *, env_files: Sequence[str] = ()) -> DeployPlan:
    """The plan; the app's own name is the default for Modal's. Raises DiscoveryError, ConfigError.

    env_files: where the Secret's values would come from; an address of a model in them that only this machine reaches is
    a warning.
    """
    here = Path.cwd()
    parsed = parse_target(resolve(app, beside=here))
    if parsed.kind == "file" and _is_entry(here / parsed.name):
        raise ConfigError(
            f"{parsed.name} is an entry for Modal's own command, not a task app.",
            hint=f"Run `modal deploy {parsed.name}`, or give the app's own file here.",
        )
    declared = read_needs(parsed, beside=here).settings
    if said.app_name is None and declared.app_name is None:
        said = dataclasses.replace(said, app_name=_own_name(parsed, here))
    plan = make_plan(app, said, beside=here)
    return dataclasses.replace(plan, warnings=(*plan.warnings, *_unreachable(plan, env_files)))


def _unreachable(plan: DeployPlan, env_files: Sequence[str]) -> Iterator[str]:
    """A warning for each model's address that leads to the container itself; of any role, where not all are known."""
    settings = load(env_files=env_files)
    known = (
        None if plan.rehearsal is None or plan.rehearsal.context else {*plan.required_keys, *plan.rehearsal.optional}
    )
    start, end = role_variable("{role}").split("{ROLE}")
    for name in sorted(settings.variables if known is None else known):
        url = settings.variable(name) if name.startswith(start) and name.endswith(end) else None
        if url and on_loopback(url):
            yield f"{name} is a loopback address: a container would look for the model in itself. Give one that it reaches."


def _is_entry(path: Path) -> bool:
    text = path.read_text("utf-8", errors="replace") if path.is_file() else ""
    return "taskapp_kit.deploy.modal" in text and "TaskApp(" not in text


def _own_name(parsed: Target, here: Path) -> str:
    """The file's, of an `app.py` its folder's; of a package or a bundled app its own."""
    if parsed.kind != "file":
        return parsed.name.partition(".")[0]
    path = (here / parsed.name).resolve()
    return path.parent.name if path.stem == "app" and path.parent.name else path.stem
