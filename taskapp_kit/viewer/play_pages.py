"""The page on which a person plays an episode of any environment, with forms made from the actions' schemas.

The viewer opens a session for the caller's key, so an episode is limited, scored and stored like any other rollout. Such a
session is called a sitting. The page's address and the `run_id` of the rollouts contain the sitting's id (16 hex digits), so the
rollouts can be found after the session has ended.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from taskapp_kit.declare.signature import BadArguments
from taskapp_kit.errors import IdempotencyKeyReused, RolloutFailed, Saturated, SessionError, StoreError, Unavailable
from taskapp_kit.net.response import EncodedResponse
from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import RolloutQuery
from taskapp_kit.rollout.admission import Caller
from taskapp_kit.rollout.details import Picture, RolloutDetails
from taskapp_kit.rollout.policy.options import PERSON
from taskapp_kit.rollout.session import EnvironmentSession
from taskapp_kit.rollout.sessions import EnvironmentSessions
from taskapp_kit.viewer.action_forms import ActionForm, BadFields, action_forms, read_fields
from taskapp_kit.viewer.page import Page, PageRequest, not_found, read_details, redirect
from taskapp_kit.viewer.pages import rewards_of

VIEWER = "viewer"
"""The protocol that is stored with the rollouts of these sessions."""
RUN = "play-"
LATEST_TURNS = 10
"""How many of the latest turns the page shows. The page of the stored rollout shows all turns."""
MOVED = "moved"
NOTES = {
    MOVED: "Nothing was done, because the episode changed after your page was loaded. This is the current state.",
    "full": "No episode can start now, because the server is full or its store is failing. Try again later.",
    "busy": "Nothing was done, because the previous action was still running.",
}
"""The notes that a page shows after a redirect, by the name in the page's query."""


def sittings(sessions: EnvironmentSessions, caller: Caller) -> list[EnvironmentSession]:
    """Return the caller's open sessions in the viewer, in the order in which they were opened."""
    return [
        session
        for session in sessions.listed(caller)
        if session.protocol == VIEWER and session.caller.key_label == caller.key_label
    ]


def sitting_of(session: EnvironmentSession) -> str:
    """Return the 16 hex digits of a session that these pages opened."""
    return session.run_id.removeprefix(RUN)


async def begin(
    sessions: EnvironmentSessions,
    caller: Caller,
    environment: str,
    sitting: str,
    *,
    seed: int | None,
    split: str | None,
    config: Mapping[str, Json],
) -> None:
    """Open a session with the digits `sitting`, and begin an episode. Raises the errors of `EnvironmentSession.reset`.

    If the first reset fails with RolloutFailed, the session stays open, and its page shows the failure. Any other error
    closes the session.
    """
    session = await sessions.open(environment, caller=caller, protocol=VIEWER, run_id=RUN + sitting, policy=PERSON)
    try:
        await session.reset(seed, split=split, config=config)
    except RolloutFailed:
        raise
    except BaseException:
        await session.close()
        raise


async def play(request: PageRequest) -> Page | EncodedResponse:
    """Return the page with the current state of the episode."""
    session = _session(request)
    if session is None:
        return await _ended(request)
    return await _page(request, session, note=NOTES.get(request.query.get("note", ""), ""))


async def act(request: PageRequest) -> Page | EncodedResponse:
    """Handle a form of the page: an action, `finish`, another episode, or the end of the session.

    The form's field `at` is the state of the episode when the page was rendered. It is also the request's id, so sending the
    same form again returns the same response. A form of an earlier page does nothing.
    """
    session = _session(request)
    here = request.link(f"play/{request.path['sitting']}")
    if session is None:
        return redirect(here)
    form, at = request.form, request.form.get("at", "")
    wanted = form.get("do", "act")
    if not session.busy and at != _at(session):
        return redirect(f"{here}?note={MOVED}#now")
    actions: list[tuple[str, Json]] = []
    words: str | None = None
    if wanted == "act":
        try:
            actions, words = _decision(session, form)
        except BadFields as error:
            return await _page(request, session, form=form, problems=error.problems)
    try:
        if wanted == "close":
            await session.close()
            return redirect(request.link("environment", environment=session.environment.name))
        if wanted == "finish":
            await session.finish(request_id=at)
        elif wanted in ("again", "another"):
            await _reset(session, at, same=wanted == "again")
        else:
            await session.step(actions, text=words, request_id=at)
    except IdempotencyKeyReused:
        return redirect(f"{here}?note={MOVED}#now")
    except SessionError as error:
        return redirect(f"{here}?note={'busy' if error.code == 'session_busy' else MOVED}#now")
    except Saturated:
        return redirect(f"{here}?note=full#now")
    except (RolloutFailed, StoreError):
        pass  # the page shows the failure
    return redirect(f"{here}#now")


# -- internals -------------------------------------------------------------------------------------------------------


def _session(request: PageRequest) -> EnvironmentSession | None:
    """Return the caller's session that the page's address names, or None if it does not exist. Reset its idle time."""
    sessions = request.source.sessions
    if sessions is None:
        raise not_found("environment")
    for session in sittings(sessions, request.caller):
        if sitting_of(session) == request.path["sitting"]:
            session.touch()
            return session
    return None


def _at(session: EnvironmentSession) -> str:
    """Return a string that identifies the state of a session: its episode, turn and status."""
    return f"{session.rollout_id}-{session.turn}-{session.state}"


async def _reset(session: EnvironmentSession, at: str, *, same: bool) -> None:
    """Begin another episode with the same settings, and with either the same seed or a different one.

    Raises the errors of `EnvironmentSession.reset`, and SessionError if no episode has begun.
    """
    rollout = session.rollout
    if rollout is None:
        raise SessionError("no_episode", "The episode cannot be played again, because no episode has begun.")
    plan = rollout.plan
    await session.reset(plan.seed if same else None, split=plan.split, config=plan.config, request_id=at)


def _decision(session: EnvironmentSession, form: Mapping[str, str]) -> tuple[list[tuple[str, Json]], str | None]:
    """Return the tool call or the text that an action's form describes. Raises BadFields if the form is invalid.

    As in `taskapp play`, the arguments are checked before they are sent, so that a typo costs no turn.
    """
    specs = list(session.environment.actions.values())
    index = form.get("which", "")
    if not (index.isascii() and index.isdigit() and len(index) < 5 and int(index) < len(specs)):
        raise BadFields({"": "The environment has no such action."})
    spec = specs[int(index)]
    if spec.tool.text:
        text = form.get("text", "").replace("\r\n", "\n")
        if not text.strip():
            raise BadFields({"text": "must not be empty"})
        return [], text
    args: Any
    if "args" in form:
        try:
            args = json.loads(form["args"])
        except ValueError:
            raise BadFields({"": "The button's arguments cannot be read."}) from None
    else:
        args = read_fields(spec.tool.parameters, form)
    try:
        spec.arguments.read(args)
    except BadArguments as error:
        controls = {name: f"f{at}" for at, name in enumerate(spec.tool.parameters.get("properties") or {})}
        raise BadFields(
            {controls.get(str(path[0]), "") if path else "": _said(path[1:], text) for path, text in error.fields}
        ) from None
    return [(spec.name, args)], None


def _said(path: tuple[str | int, ...], text: str) -> str:
    return f"{'.'.join(map(str, path))}: {text}" if path else text


async def _page(
    request: PageRequest,
    session: EnvironmentSession,
    *,
    form: Mapping[str, str] | None = None,
    problems: Mapping[str, str] | None = None,
    note: str = "",
) -> Page:
    stored = await request.source.played(session)
    name = session.environment.name
    sitting = request.path["sitting"]
    state: dict[str, Any] = {
        "sitting": sitting,
        "state": session.state,
        "busy": session.busy,
        "turn": session.turn,
        "environment": name,
    }
    if stored is None or not stored.events:  # the first episode is starting
        waiting = {"refresh": 1}
        return Page("play_waiting.html", f"Play {name}", {**state, "episode": None}, waiting, "environments")
    details = await read_details(stored)
    steps = details.steps
    seen = next((step.observation for step in reversed(steps) if step.refused is None and step.observation), ())
    available = details.tools or tuple(session.environment.actions)
    forms = action_forms(list(session.environment.actions.values()), available) if session.state == "playing" else []
    left = _limits_left(session, details)
    last = details.turns[-1] if details.turns else None
    rewards = session.rewards
    data = {**state, "rewards": rewards, "limits": left, "episode": details.to_json()}
    view: dict[str, Any] = {
        "details": details,
        "environment": name,
        "environment_link": request.link("environment", environment=name),
        "at": _at(session),
        "address": request.link(f"play/{sitting}"),
        "busy": session.busy,
        "over": session.state == "over",
        "failed": details.stored.status == "failed",
        "seen": seen or details.initial,
        "is_start": not seen,
        "opening": details.initial if seen and details.initial else (),
        "opening_is_open": not any(isinstance(block, Picture) for block in details.initial)
        and (session.environment.text_action is not None or session.environment.tasks is not None),
        "last": last,
        "refused": [step for step in last.steps if step.refused is not None] if last else [],
        "problem": last.problem if last and not last.steps else None,
        "forms": forms,
        "with_keys": any(button.keys for one in forms for button in one.buttons),
        "form": form or {},
        "problems": problems or {},
        "refill": _refill(forms, details),
        "left": left,
        "rewards": rewards,
        "running": None if None in rewards.values() else sum(value or 0.0 for value in rewards.values()),
        "formula": details.formula,
        "latest": list(reversed(details.turns[-LATEST_TURNS:])),
        "strip": rewards_of(details, request.link(f"live/{details.stored.rollout_id}")) if steps else None,
        "whole": request.link(f"{'rollouts' if session.state == 'over' else 'live'}/{details.stored.rollout_id}"),
        "is_stored": session.state == "over" and await _is_stored(request, details.stored.rollout_id),
        "picture": request.picture,
        "note": note,
        "idle_minutes": _idle_minutes(request),
    }
    if session.busy:
        view["refresh"] = 1
    return Page("play.html", f"Play {name}, seed {details.stored.seed}", data, view, "environments")


async def _is_stored(request: PageRequest, rollout_id: str) -> bool:
    return await request.source.load(rollout_id, request.caller) is not None


def _idle_minutes(request: PageRequest) -> float:
    sessions = request.source.sessions
    return 0.0 if sessions is None else sessions.idle_seconds / 60


def _limits_left(session: EnvironmentSession, details: RolloutDetails) -> list[tuple[str, str]]:
    """Return how much of each limit is used: turns, steps, and consecutive turns without an accepted action."""
    limits = session.limits
    in_a_row = 0
    for turn in reversed(details.turns if session.state == "playing" else ()):
        if any(step.refused is None for step in turn.steps):
            break
        in_a_row += 1
    found = []
    for words, used, name in (
        ("turn", session.turn, "max_turns"),
        ("step", details.stored.length if details.stored.status != "running" else len(details.steps), "max_steps"),
        ("consecutive refusals", in_a_row, "max_refusals"),
    ):
        most = limits.get(name)
        if words != "consecutive refusals" or used:
            found.append((words, f"{used}" if most is None else f"{used} of {most:g}"))
    return found


def _refill(forms: list[ActionForm], details: RolloutDetails) -> dict[str, str]:
    """Return the last multi-line string that was sent for each parameter, so that a person can edit it."""
    names = {one.name for form in forms for one in form.fields if one.kind == "text" and one.long}
    found: dict[str, str] = {}
    for step in details.steps:
        args = step.args if isinstance(step.args, Mapping) else {}
        found.update({name: text for name in names if isinstance(text := args.get(name), str) and "\n" in text})
    return found


async def _ended(request: PageRequest) -> Page | EncodedResponse:
    """Return the page of a session that was closed or has expired. The page shows the session's last rollout."""
    try:
        wanted = RolloutQuery(run_id=RUN + request.path["sitting"], limit=1)
        rows = await request.source.rows(wanted, "newest", request.caller)
    except Unavailable:
        rows = []
    stored = await request.source.load(rows[0].rollout_id, request.caller) if rows else None
    if stored is None:
        raise not_found("session")
    details = await read_details(stored)
    data = {"sitting": request.path["sitting"], "state": "closed", "episode": details.to_json()}
    view = {
        "details": details,
        "picture": request.picture,
        "whole": request.link(f"rollouts/{details.stored.rollout_id}"),
        "environment_link": request.link("environment", environment=details.stored.environment),
    }
    return Page("play_ended.html", f"Play {details.stored.environment}: ended", data, view, "environments")
