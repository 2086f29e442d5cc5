"""What is being played now: the list, and one rollout as it goes."""

from __future__ import annotations

from dataclasses import asdict

from taskapp_kit.net.response import EncodedResponse
from taskapp_kit.serve.viewer.page import Page, PageRequest, not_found, read_details, redirect
from taskapp_kit.serve.viewer.pages import rewards_of
from taskapp_kit.serve.viewer.rollout_pages import pictures_at

MOST = 500
"""Rollouts in the list."""


async def live(request: PageRequest) -> Page:
    """The rollouts that are being played, oldest first."""
    found = request.source.live(request.caller)
    data = {"rollouts": [asdict(row) for row in found[:MOST]], "running": len(found)}
    return Page("live.html", "Live", data, {"refresh": 2}, "live")


async def live_rollout(request: PageRequest) -> Page | EncodedResponse:
    """A rollout so far. Its page asks for itself again every second, and becomes the rollout's own page at the end."""
    rollout_id = request.path["rollout_id"]
    stored = await request.source.live_rollout(rollout_id, request.caller)
    if stored is None:
        if await request.source.load(rollout_id, request.caller) is None:
            raise not_found("rollout")
        return redirect(request.link(f"rollouts/{rollout_id}"))
    details = await read_details(stored)
    view = {"details": details, "picture": pictures_at(request), "strip": rewards_of(details), "refresh": 1}
    return Page(
        "live_rollout.html", f"Live: {details.environment} seed {details.seed}", details.to_json(), view, "live"
    )
