"""The pages of a backend's jobs: the list, and one job with rewards and rollouts by iteration."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from markupsafe import Markup

from taskapp_kit.records.job_curves import REWARD, CurveGroup, curve_groups
from taskapp_kit.records.job_status import best_checkpoint, tag_texts
from taskapp_kit.viewer.page import Page, PageRequest, not_found
from taskapp_kit.viewer.pages import shown
from taskapp_kit.viewer.plots import line

MOST = 200
"""The maximum number of jobs in the list."""
ENDED = ("succeeded", "failed", "cancelled")
REFRESH_SECONDS = 2


async def jobs(request: PageRequest) -> Page:
    """Return the page with the newest jobs."""
    if not request.source.runs_jobs:
        raise not_found("page of jobs")
    found = await request.source.jobs(request.caller, MOST)
    return Page("jobs.html", "Jobs", {"jobs": found}, {"most": MOST, "refresh": REFRESH_SECONDS}, "jobs")


async def job(request: PageRequest) -> Page:
    """Return the page of one job, with the rollouts of the iteration that the query selects (by default the last)."""
    found = await request.source.job(request.path["job_id"], request.caller)
    if found is None:
        raise not_found("job")
    phase, number = request.text("phase"), request.whole("iteration", 0, most=10**9)
    asked = [one for one in found.iterations if (one["phase"], one["iteration"]) == (phase, number)]
    chosen = next(iter(asked or found.iterations[-1:]), None)
    job_id = found.view["job_id"]
    rollouts = [] if chosen is None else await request.source.job_rollouts(job_id, chosen["phase"], chosen["iteration"])
    data: dict[str, Any] = {
        "job": found.view,
        "iterations": found.iterations,
        "chosen": chosen and {"phase": chosen["phase"], "iteration": chosen["iteration"]},
        "rollouts": rollouts,
    }
    rewards = {
        name: [
            (one["iteration"], one["reward"])
            for one in found.iterations
            if one["phase"] == phase and one["reward"] is not None
        ]
        for name, phase in (("training", "train"), ("evaluation", "eval"))
    }
    named, others = curve_groups(found.points)
    data["curves"] = [asdict(group) for group in (*named, *others)]
    # computed from rollouts, because a running iteration has no metrics yet
    curves = [CurveGroup(REWARD, "reward", rewards), *(group for group in named if group.title != REWARD)]
    view: dict[str, Any] = {
        "best": best_checkpoint(found.view),
        "plots": [_drawn(group) for group in curves],
        "tags": " ".join(tag_texts(found.view)),
        "more_plots": [_drawn(group) for group in others],
        "task_app": found.task_app_url if found.task_app_url.startswith(("https://", "http://")) else None,
    }
    if found.view["status"] not in ENDED:
        view["refresh"] = REFRESH_SECONDS
    return Page("job.html", f"Job {job_id}", data, view, "jobs")


def _drawn(group: CurveGroup) -> tuple[str, Markup]:
    title = shown(group.title)
    return title, line(group.curves, title=title, x_label="iteration", y_label=group.unit)
