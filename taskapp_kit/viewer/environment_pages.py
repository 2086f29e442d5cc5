"""The pages of a running app's environments, with actions, rewards, lines for clients, and a form to start playing."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.errors import RequestError, RolloutFailed, SessionError
from taskapp_kit.net.response import EncodedResponse
from taskapp_kit.records.content import Json
from taskapp_kit.rollout.sessions import EnvironmentSessions
from taskapp_kit.viewer.action_forms import BadFields, Field, fields_of, read_fields
from taskapp_kit.viewer.page import Page, PageRequest, not_found, redirect
from taskapp_kit.viewer.play_pages import begin, sitting_of, sittings

CONFIG = "config:"
"""The prefix of the names of controls for fields of `env.config`."""
PICTURES = "image"
"""The config field that is preset to true in the form, because people look at images. Models must request images."""


async def environments(request: PageRequest) -> Page:
    """Return the page with all environments and the caller's open sessions."""
    spec, sessions = _playable(request)
    found = list(spec.environments.values())
    mine = [
        {"sitting": sitting_of(one), "environment": one.environment.name, "state": one.state, "turn": one.turn}
        for one in sittings(sessions, request.caller)
    ]
    data = {
        "environments": [{"name": one.name, "description": one.description, "tags": list(one.tags)} for one in found],
        "open": mine,
    }
    return Page("environments.html", "Environments", data, {"found": found, "mine": mine}, "environments")


async def environment(request: PageRequest) -> Page:
    """Return the page of one environment."""
    return _page(request, request.query, {}, "")


async def start(request: PageRequest) -> Page | EncodedResponse:
    """Open a session, begin an episode and redirect to its page. Sending the form twice opens only one session."""
    spec, sessions = _playable(request)
    found = _environment(spec, request.form)
    sitting = request.form.get("sitting", "")
    if len(sitting) != 16 or not set(sitting) <= set("0123456789abcdef"):
        raise RequestError("The form is not valid for this page.", hint="Reload the page.")
    address = f"{request.link(f'play/{sitting}')}#now"
    if any(sitting_of(session) == sitting for session in sittings(sessions, request.caller)):
        return redirect(address)
    problems: dict[str, str] = {}
    config: dict[str, Json] = {}
    try:
        config = read_fields(found.config.schema, _config_controls(request.form))
    except BadFields as error:
        problems = {CONFIG + name: text for name, text in error.problems.items()}
    seed = request.form.get("seed", "").strip()
    if seed and (not seed.isascii() or not seed.isdigit() or len(seed) > 20):
        problems["seed"] = "must be an integer of at least 0"
    if problems:
        return _page(request, request.form, problems, "The episode did not start, because some fields are invalid.")
    for session in sittings(sessions, request.caller):  # close sessions whose episode has ended
        if session.state == "over":
            await session.close()
    try:
        split, number = request.form.get("split") or None, int(seed) if seed else None
        await begin(sessions, request.caller, found.name, sitting, seed=number, split=split, config=config)
    except RequestError as error:
        named = {name: f"f{index}" for index, name in enumerate(found.config.schema.get("properties") or {})}
        for problem in error.fields:
            last = str(problem.loc[-1])
            control = CONFIG + named[last] if last in named else last
            problems[control if control in ("seed", "split") or last in named else "config"] = problem.message
        return _page(request, request.form, problems, error.message)
    except (RolloutFailed, SessionError):
        pass  # the session's page shows the failure
    return redirect(address)


def _page(request: PageRequest, given: Mapping[str, str], problems: Mapping[str, str], message: str) -> Page:
    spec, _ = _playable(request)
    found = _environment(spec, given)
    clients = request.source.clients(request.api_url, found.name)
    seeds = {split: _seeds(found, split) for split in found.split_names}
    controls = _config_fields(found)
    data: dict[str, Any] = {
        "environment": found.name,
        "description": found.description,
        "version": found.version,
        "tags": list(found.tags),
        "splits": seeds,
        "actions": [
            {"name": one.name, "description": one.tool.description, "parameters": dict(one.tool.parameters)}
            for one in found.actions.values()
        ],
        "config_schema": dict(found.config.schema),
        "limits": {"max_turns": found.most_turns, "max_steps": found.max_steps, "max_refusals": found.max_refusals},
        "reward": spec.blend_for(found.name).words(),
        "clients": [{"protocol": one.summary, "clients": [list(pair) for pair in one.clients]} for one in clients],
    }
    view = {
        "environment": found,
        "seeds": seeds,
        "formula": data["reward"],
        "clients": clients,
        "fields": controls,
        "config_prefix": CONFIG,
        "given": given,
        "problems": problems,
        "message": message,
        "sitting": given.get("sitting") or secrets.token_hex(8),
        "action": request.link("environment"),
        "played": request.link("rollouts", environment=found.name, policy="person"),
    }
    return Page("environment.html", found.name, data, view, "environments")


def _playable(request: PageRequest) -> tuple[AppSpec, EnvironmentSessions]:
    if request.source.spec is None or request.source.sessions is None:
        raise not_found("environment")
    return request.source.spec, request.source.sessions


def _environment(spec: AppSpec, given: Mapping[str, str]) -> EnvironmentSpec:
    found = spec.environments.get(given.get("environment", ""))
    if found is None:
        raise not_found("environment")
    return found


def _config_fields(environment: EnvironmentSpec) -> list[Field]:
    schema = environment.config.schema
    switch = (schema.get("properties") or {}).get(PICTURES)
    shows = isinstance(switch, Mapping) and switch.get("type") == "boolean"
    return fields_of(schema, values={PICTURES: True} if shows else None)


def _config_controls(form: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(CONFIG): text for name, text in form.items() if name.startswith(CONFIG)}


def _seeds(environment: EnvironmentSpec, split: str) -> str:
    """Return the seeds of a split as text."""
    if environment.tasks is not None:
        return f"0 to {len(environment.tasks.rows(split)) - 1}"
    seeds = environment.splits[split]
    return f"{seeds[0]} to {seeds[-1]}" + (f" by {seeds.step}" if isinstance(seeds, range) and seeds.step != 1 else "")
