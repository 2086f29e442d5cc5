"""The jobs of a backend: a list, and one job with its rewards and rollouts by iteration."""

from __future__ import annotations

from typing import Any

from taskapp_kit.serve.viewer.page import Page, PageRequest, not_found
from taskapp_kit.serve.viewer.plots import line

MOST = 200
"""Jobs in the list."""
ENDED = ("succeeded", "failed", "cancelled")
REFRESH_SECONDS = 2


async def jobs(request: PageRequest) -> Page:
    """The newest jobs."""
    if not request.source.runs_jobs:
        raise not_found("backend here")
    found = await request.source.jobs(request.caller, MOST)
    return Page("jobs.html", "Jobs", {"jobs": found}, {"most": MOST, "refresh": REFRESH_SECONDS}, "jobs")


async def job(request: PageRequest) -> Page:
    """One job, and the rollouts of one of its iterations: that of the query, else the last one."""
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
    curves: dict[str, list[tuple[float, float]]] = {}
    for one in found.iterations:
        if one["reward"] is not None:
            curves.setdefault(one["phase"], []).append((one["iteration"], one["reward"]))
    view: dict[str, Any] = {
        "curve": line(curves, title="Mean reward by iteration", x_label="iteration", y_label="reward"),
        "task_app": found.task_app_url if found.task_app_url.startswith(("https://", "http://")) else None,
    }
    if found.view["status"] not in ENDED:
        view["refresh"] = REFRESH_SECONDS
    return Page("job.html", f"Job {job_id}", data, view, "jobs")
