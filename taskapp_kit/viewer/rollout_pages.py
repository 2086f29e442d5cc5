"""The pages of rollouts: lists, one rollout, two rollouts side by side, and all rollouts of one seed."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from dataclasses import asdict
from typing import Any

from taskapp_kit.net.response import EncodedResponse
from taskapp_kit.records.difference import Difference, located_difference
from taskapp_kit.records.events import fold, from_json
from taskapp_kit.records.protocols import RolloutQuery, RolloutRow, StoredRollout
from taskapp_kit.records.trajectory import Trajectory
from taskapp_kit.rollout.details import Picture
from taskapp_kit.viewer.page import (
    BOUNDARIES,
    FILTERS,
    NEWEST,
    ORDERS,
    STATUSES,
    Page,
    PageRequest,
    not_found,
    read_details,
    redirect,
)
from taskapp_kit.viewer.pages import rewards_of

PER_PAGE = 50
MOST_PAGES = 100
MOST_IN_GRID = 60
MAX_RAW = 200_000
"""The maximum length of raw JSON in a page, in characters. The page of a longer rollout has a link instead."""
KEY_HEADER = '-H "X-API-Key: $ENVIRONMENT_API_KEY"'
ROLLOUT_ID = re.compile(r"[0-9a-f]{32}")
BLOB_HEADERS = [
    (b"content-type", b"image/png"),
    (b"cache-control", b"private, max-age=31536000, immutable"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'"),
]


async def rollouts(request: PageRequest) -> Page:
    """Return a page with a list of the rollouts that match the filters."""
    page = request.whole("page", 0, most=MOST_PAGES - 1)
    order = request.order()
    wanted = request.rollout_query((page + 1) * PER_PAGE + 1)
    found = (await request.source.rows(wanted, order, request.caller))[page * PER_PAGE :]
    rows = found[:PER_PAGE]
    filters = request.filters()
    data = {"rollouts": [asdict(row) for row in rows], "order": order, "filters": filters, "page": page}
    more = len(found) > PER_PAGE and page + 1 < MOST_PAGES
    view = {
        "rows": rows,
        "orders": ORDERS,
        "statuses": STATUSES,
        "boundaries": BOUNDARIES,
        "chosen": {name: filters.get(name, "") for name in FILTERS},
        "next": request.link("rollouts", **filters, order=order, page=page + 1) if more else None,
        "previous": request.link("rollouts", **filters, order=order, page=page - 1) if page else None,
        "by_order": {name: request.link("rollouts", **filters, order=name) for name in ORDERS},
        "environments": sorted({row.environment for row in rows}),
    }
    return Page("rollouts.html", "Rollouts", data, view, "rollouts")


async def rollout(request: PageRequest) -> Page | EncodedResponse:
    """Return the page of one rollout, with turns, scores, calls to judges and auxiliary models, and timing."""
    stored = await request.source.load(request.path["rollout_id"], request.caller)
    if stored is None:
        if await request.source.live_rollout(request.path["rollout_id"], request.caller) is None:
            raise not_found("rollout")
        return redirect(request.link(f"live/{request.path['rollout_id']}"))
    details = await read_details(stored)
    annotations = await request.source.annotations(request.caller, details.stored.rollout_id)
    data = {**details.to_json(), "annotations": [asdict(item) for item in annotations]}
    raw = json.dumps(data, ensure_ascii=False, indent=2)
    view = {
        "details": details,
        "picture": request.picture,
        "strip": rewards_of(details),
        "curl": curl_line(request, details.stored.rollout_id) if request.source.plays else None,
        "replay": replay_line(request, details.stored.rollout_id),
        "annotations": annotations,
        "annotates": request.source.annotates,
        "group": request.link(
            "group", run_id=stored.run_id, environment=stored.environment, split=stored.split, seed=stored.seed
        ),
        "run": request.link("run", run_id=stored.run_id),
        "raw": raw if len(raw) <= MAX_RAW else None,
    }
    return Page("rollout.html", f"{details.stored.environment} seed {details.stored.seed}", data, view, "rollouts")


def curl_line(request: PageRequest, rollout_id: str) -> str:
    """Return the command that fetches the rollout from the server's API. It reads the API key from ENVIRONMENT_API_KEY."""
    return f"curl {KEY_HEADER} {shlex.quote(f'{request.api_url}/rollouts/{rollout_id}?events=1')}"


def replay_line(request: PageRequest, rollout_id: str) -> str:
    """Return the command that replays a rollout.

    The command uses the server's policy `replay`, or `taskapp replay` for rollouts in a file.
    """
    source = request.source
    if not source.plays:
        return shlex.join(["taskapp", "replay", *source.replay_arguments, rollout_id, "--from", source.place])
    policy = {"config": {"policy": "replay", "rollout_id": rollout_id}}
    body = json.dumps(
        {"run_id": "replay", "mode": "eval", "env": {}, "policy": policy, "ops": []}, separators=(",", ":")
    )
    address = shlex.quote(f"{request.api_url}/rollout")
    return f"curl {KEY_HEADER} -H 'Content-Type: application/json' {address} -d {shlex.quote(body)}"


async def blob(request: PageRequest) -> EncodedResponse:
    """Return an image by its hash. Browsers may cache it, because the image of a hash never changes."""
    rollouts = request.source.rollouts(request.caller)
    data = None if rollouts is None else await rollouts.blob(request.path["sha256"])
    if data is None:
        raise not_found("picture")
    return EncodedResponse(200, data, BLOB_HEADERS)


async def compare(request: PageRequest) -> Page:
    """Return the page with two rollouts side by side. Equal turns before the first difference are folded."""
    asked = [request.text("a"), request.text("b")]
    if None in asked:
        found = await request.source.rows(request.rollout_query(PER_PAGE), "newest", request.caller)
        data: dict[str, Any] = {"rollouts": None, "difference": None}
        return Page("compare_choose.html", "Compare", data, {"rows": found, "first": asked[0]}, "compare")
    pair = [await _loaded(request, str(name)) for name in asked]
    located = await asyncio.to_thread(_located, *pair)
    details = [await read_details(stored) for stored in pair]
    equal, difference = located or (min(len(one.turns) for one in details), None)
    data = {
        "rollouts": [one.to_json() for one in details],
        "equal_turns": equal,
        "difference": None if difference is None else asdict(difference),
    }
    rows = [
        [one.turns[index] if index < len(one.turns) else None for one in details]
        for index in range(max(len(one.turns) for one in details))
    ]
    view = {
        "pair": details,
        "rows": rows,
        "equal": equal,
        "difference": difference,
        "difference_words": None if difference is None else _words(difference),
        "picture": request.picture,
        "same_seed": len({(one.stored.environment, one.stored.split, one.stored.seed) for one in details}) == 1,
    }
    return Page("compare.html", "Compare two rollouts", data, view, "compare")


async def _loaded(request: PageRequest, rollout_id: str) -> StoredRollout:
    stored = await request.source.load(rollout_id, request.caller) if ROLLOUT_ID.fullmatch(rollout_id) else None
    if stored is None:
        raise not_found("rollout")
    return stored


def _located(one: StoredRollout, two: StoredRollout) -> tuple[int, Difference] | None:
    return located_difference(_trajectory(one), _trajectory(two))


def _trajectory(stored: StoredRollout) -> Trajectory:
    """Return the episode as a trajectory. It contains neither private state nor the bytes of images."""
    return fold(from_json(event) for event in stored.events)


def _words(difference: Difference) -> tuple[str, str]:
    return tuple(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for value in (difference.was, difference.now)
    )  # type: ignore[return-value]


async def group(request: PageRequest) -> Page:
    """Return a page with a grid of the rollouts of one group, or of one seed in all runs or in one run."""
    named = request.text("group_id")
    seed = request.text("seed")
    wanted = RolloutQuery(
        environment=request.text("environment"), run_id=request.text("run_id"), group_id=named, limit=NEWEST
    )
    if named is None and (seed is None or wanted.environment is None):
        raise not_found("group")
    rows = [
        row
        for row in await request.source.rows(wanted, "newest", request.caller)
        if (seed is None or str(row.seed) == seed) and request.text("split") in (None, row.split)
    ]
    if not rows:
        raise not_found("group")
    rows.sort(key=lambda row: (row.model or row.policy or "", row.sample or 0, row.created_at or 0.0))
    cards = [await _card(request, row) for row in rows[:MOST_IN_GRID]]
    data = {"rollouts": [asdict(row) for row in rows]}
    title = f"Group {named}" if named else f"{rows[0].environment}, {rows[0].split} seed {rows[0].seed}"
    return Page("group.html", title, data, {"cards": cards, "total": len(rows), "picture": request.picture}, "rollouts")


async def _card(request: PageRequest, row: RolloutRow) -> dict[str, Any]:
    """Return a rollout's entry in the grid: figures, the last text and the last image."""
    stored = await request.source.load(row.rollout_id, request.caller)
    if stored is None:
        return {"row": row, "strip": None, "words": "", "picture": None}
    details = await read_details(stored)
    words = next((turn.words or _calls(turn) for turn in reversed(details.turns) if turn.words or turn.calls), "")
    shown = [block for step in details.steps for block in step.observation if isinstance(block, Picture)]
    strip = rewards_of(details, request.link(f"rollouts/{row.rollout_id}"))
    return {"row": row, "strip": strip, "words": words, "picture": shown[-1] if shown else None}


def _calls(turn: Any) -> str:
    return "\n".join(f"{call.tool}({json.dumps(call.args, ensure_ascii=False)})" for call in turn.calls)


MOST_LIVE = 500
"""The maximum number of rollouts in the list."""


async def live(request: PageRequest) -> Page:
    """Return the page with the rollouts that are being played, oldest first."""
    found = request.source.live(request.caller)
    data = {"rollouts": [asdict(row) for row in found[:MOST_LIVE]], "running": len(found)}
    return Page("live.html", "Live", data, {"refresh": 2}, "live")


async def live_rollout(request: PageRequest) -> Page | EncodedResponse:
    """Return the page of a running rollout. It reloads every second, and redirects to the stored rollout at the end."""
    rollout_id = request.path["rollout_id"]
    stored = await request.source.live_rollout(rollout_id, request.caller)
    if stored is None:
        if await request.source.load(rollout_id, request.caller) is None:
            raise not_found("rollout")
        return redirect(request.link(f"rollouts/{rollout_id}"))
    details = await read_details(stored)
    view = {"details": details, "picture": request.picture, "strip": rewards_of(details), "refresh": 1}
    title = f"Live: {details.stored.environment} seed {details.stored.seed}"
    return Page("live_rollout.html", title, details.to_json(), view, "live")
