"""Before and after a deploy to Modal: check the name and the Secret; wait for an answer and play one rollout."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dotenv import dotenv_values

from taskapp_kit.cli import env_file
from taskapp_kit.cli.output.terminal import clean, echo, print_json
from taskapp_kit.client.blocking_portal import run
from taskapp_kit.config import load
from taskapp_kit.deploy.modal import account as modal_account
from taskapp_kit.deploy.modal import check as modal_check
from taskapp_kit.deploy.modal.account import ModalRefused, make_secret
from taskapp_kit.deploy.modal.container import why_not_shared
from taskapp_kit.deploy.modal.settings import WEB_FUNCTION
from taskapp_kit.errors import ConfigError

if TYPE_CHECKING:
    from taskapp_kit.deploy.modal.account import Account
    from taskapp_kit.deploy.modal.plan import DeployPlan
    from taskapp_kit.deploy.modal.run import DeployOptions


KEY, STORE = "ENVIRONMENT_API_KEY", "TASKAPP_STORE"
STAYS = (
    "SYNTH_API_KEY",
    "DEV_ENVIRONMENT_API_KEY",
    "MODAL_",
    "TASKAPP_KEYS_FILE",
    "TASKAPP_MODEL_ALIASES",
    "TASKAPP_MODELS",
    "TASKAPP_VLLM",
    "TASKAPP_CACHE",
    "TASKAPP_HOST",
    "TASKAPP_PORT",
)
"""Prefixes of names that are not sent: keys that a container does not need, and paths and addresses of this machine."""


def ready(plan: DeployPlan, how: DeployOptions, flags: dict[str, Any]) -> str | None:
    """Check that the name is free or ours, and make sure of the Secret; the key, where it is known here.

    Raises ModalRefused, ConfigError, Unavailable.
    """
    modal_account.require_client()
    apart = why_not_shared(
        plan.coordinator, max_containers=plan.settings.max_containers, keeps=plan.settings.store == "postgres-secret"
    )
    if apart is not None:
        raise ModalRefused(f"{plan.app_name!r} is not deployed: {apart}")
    for warning in plan.warnings:
        echo(f"Warning: {clean(warning)}", err=True)
    echo("Asking Modal about the app's name and its Secret ...", err=True)
    account = modal_account.look(plan.app_name, plan.secret_names, plan.required_keys, environment=how.environment)
    if account.owner == "others" and not flags["take_over"]:
        raise ModalRefused(
            f"An app {plan.app_name!r} is deployed there already, and taskapp did not deploy it.",
            hint="Give another --name, or replace it with --take-over.",
        )
    _secrets(plan, how, flags, account)
    return load(env_files=flags["env_files"]).environment_api_key


def _secrets(plan: DeployPlan, how: DeployOptions, flags: dict[str, Any], account: Account) -> None:
    """Make or update the app's own Secret where a flag says so. Raises ModalRefused: a Secret or key is missing."""
    own, lacking = plan.secret_names[-1], set(account.lacking)
    for name in account.missing:
        if name != own:
            raise ModalRefused(
                f"There is no Secret {name!r} on Modal.", hint=f"Make it: modal secret create {name} --from-dotenv F"
            )
    missing = own in account.missing
    if missing and not flags["create_secret"]:
        raise ModalRefused(
            f"There is no Secret {own!r} on Modal, which holds the keys ({', '.join(plan.required_keys)}).",
            hint="--create-secret makes it, from .env here or an --env-file F, with a new key where they have none.",
        )
    if missing or flags["update_secret"]:
        lacking = set(plan.required_keys) if missing else lacking
        values = secret_values(plan, flags["env_files"], mint=KEY in lacking)
        lacking -= set(values)
        if lacking and missing:
            raise ModalRefused(
                f"The env files lack {', '.join(sorted(lacking))}, which the Secret {own!r} must hold.",
                hint="Add it to an --env-file.",
            )
        if not make_secret(own, values, environment=how.environment, update=flags["update_secret"]):
            raise ModalRefused(
                f"The Secret {own!r} was made by another process meanwhile, and is not changed.",
                hint="Run this again to use it.",
            )
        echo(f"Secret {own}: {'made' if missing else 'set'} {', '.join(sorted(values))}.", err=True)
    elif flags["create_secret"]:
        echo(f"Secret {own} exists and stays as it is; --update-secret sets keys in it.", err=True)
    if lacking:
        raise ModalRefused(
            f"The Secret {own!r} on Modal lacks {', '.join(sorted(lacking))}.",
            hint="Add it with --update-secret and an env file that has it.",
        )


def after(plan: DeployPlan, how: DeployOptions, key: str | None, *, wait: bool, as_json: bool) -> None:
    """Print where the app is, once it answers there, and what to do next. Raises ModalRefused."""
    url = modal_account.address(plan.app_name, WEB_FUNCTION, environment=how.environment)
    deployed: dict[str, Any] = {"app_name": plan.app_name, "url": url, "environment": how.environment}
    if wait:
        deployed["smoke"] = look_at(plan, url, key)
    if as_json:
        print_json(deployed)
        return
    echo(
        f"\n{clean(plan.app_name)} answers at {clean(url)}" if wait else f"\n{clean(plan.app_name)} is at {clean(url)}"
    )
    echo(f"Next: taskapp rollout {clean(url)}   (its key as ENVIRONMENT_API_KEY)")


def look_at(plan: DeployPlan, url: str, key: str | None) -> dict[str, Any] | None:
    """Wait for /health, then play one short rollout, reported on stderr. None without the key. Raises ModalRefused."""
    echo(f"Waiting for {clean(url)}/health ...", err=True)
    seconds = float(plan.settings.startup_timeout_seconds or 0) + 60.0
    last: list[str] = []

    def report_progress(text: str) -> None:
        if last != [text]:
            echo(clean(text), err=True)
        last[:] = [text]

    known = run(modal_check.healthy(url, key, seconds=seconds, report=report_progress))
    if key is None or not known:
        why = "The key here is not the one in the Secret" if key else "It answers; its key is not known here"
        echo(f"{why}, so no rollout was tried. Give --env-file, or ENVIRONMENT_API_KEY.", err=True)
        return None
    rehearsal = plan.rehearsal
    if rehearsal is None or not rehearsal.policy:
        why = (
            "Without a rehearsal no policy is known"
            if rehearsal is None
            else "No policy of the app plays without a model"
        )
        echo(f"It answers. {why}, so no rollout was tried.", err=True)
        return None
    smoke = run(
        modal_check.smoke(
            url,
            key,
            rehearsal.policy,
            environment=rehearsal.environment,
            seed=rehearsal.seed,
            seconds=float(plan.settings.timeout_seconds or 0),
        )
    )
    reward = "no reward" if smoke.reward is None else f"reward {smoke.reward:.6g}"
    echo(f"One rollout with policy {smoke.policy}: {smoke.steps} steps, {reward}, {smoke.seconds:.1f} s.", err=True)
    return {"policy": smoke.policy, "reward": smoke.reward, "steps": smoke.steps, "seconds": round(smoke.seconds, 3)}


def end_on_signals() -> None:
    """Let a closed terminal and SIGTERM end a command as Ctrl-C does: what Modal runs for it is then stopped."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # nohup asks to ignore one
            signal.signal(number, signal.default_int_handler)


def print_line(line: str) -> None:
    """A line of Modal's, on stderr."""
    echo(clean(line), err=True)


def secret_values(plan: DeployPlan, env_files: Sequence[str], *, mint: bool) -> dict[str, str]:
    """The values for the Secret, from the env files; without --env-file from `.env` here.

    mint: an ENVIRONMENT_API_KEY that neither they nor the process environment have is made, and written into the last
    env file, mode 600, before it goes anywhere: Modal never shows it again. It is not printed.

    Raises ConfigError: an env file cannot be read or written, or TASKAPP_STORE names no Postgres.
    """
    key = load(env_files=env_files).environment_api_key  # and each file can be read
    files = [Path(name) for name in env_files] or [Path(".env")]
    values: dict[str, str] = {}
    for path in files:
        if path.is_file():
            values |= {name: value or "" for name, value in dotenv_values(path, interpolate=False).items()}
    values = {name: value for name, value in values.items() if value and not name.startswith(STAYS)}
    if plan.settings.store == "none":
        values.pop(STORE, None)
    elif not values.get(STORE, "postgresql://").startswith(("postgresql://", "postgres://", "postgresql+")):
        raise ConfigError(
            f"{STORE} in the env file names no Postgres; a file on this machine is not there.",
            hint="Give the address of a database (postgresql://...), or --store none.",
        )
    if mint and KEY not in values:
        values[KEY] = key or secrets.token_hex(32)
        if key is None:
            env_file.write(files[-1], {KEY: values[KEY]})
            echo(f"{KEY} was made and written to {files[-1]} (mode 600); it is shown nowhere.", err=True)
    return values
