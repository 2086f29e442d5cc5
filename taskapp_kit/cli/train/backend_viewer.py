"""The viewer of `taskapp backend serve`, which shows jobs as pages at `/ui`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from taskapp_kit.config import Settings
from taskapp_kit.jobs.server.auth import BearerKeys
from taskapp_kit.jobs.server.engine import Phase
from taskapp_kit.jobs.server.job_views import job_view
from taskapp_kit.jobs.server.jobs import Jobs
from taskapp_kit.rollout.admission import Caller
from taskapp_kit.serve.auth import Keys
from taskapp_kit.viewer.source import JobProgress, UiSource
from taskapp_kit.viewer.viewer import Viewer

MOST_POINTS = 200
"""The maximum number of points of a metric on a job's page, which reloads them every two seconds."""


class JobSource(UiSource):
    """The jobs of a running backend. A caller sees only the jobs of its organization.

    orgs: The organization of each key label.
    """

    def __init__(self, jobs: Jobs, orgs: Mapping[str, str]) -> None:
        super().__init__(place="taskapp backend", runs_jobs=True)
        self._jobs = jobs
        self._orgs = orgs

    async def jobs(self, caller: Caller, limit: int) -> list[dict[str, Any]]:
        """See UiSource."""
        org = self._orgs.get(caller.key_label or "")
        return [] if org is None else [job_view(row) for row in await self._jobs.records.jobs(org, limit=limit)]

    async def job(self, job_id: str, caller: Caller) -> JobProgress | None:
        """See UiSource."""
        org = self._orgs.get(caller.key_label or "")
        row = None if org is None else await self._jobs.records.job(job_id, org)
        if row is None:
            return None
        document, _ = await self._jobs.records.work(job_id)
        iterations = [asdict(iteration) for iteration in await self._jobs.records.iterations(job_id)]
        view = job_view(row, updates_weights=self._jobs.engine.updates_weights)
        rows = await self._jobs.records.curves(job_id, most=MOST_POINTS)
        points = [(row.point.name, row.point.step, row.point.value) for row in rows]
        return JobProgress(view, str(document.get("task_app_url", "")), iterations, points)

    async def job_rollouts(self, job_id: str, phase: str, iteration: int) -> list[dict[str, Any]]:
        """See UiSource."""
        chosen: Phase = "eval" if phase == "eval" else "train"
        return [asdict(rollout) for rollout in await self._jobs.records.stored(job_id, chosen, iteration)]


def backend_viewer(jobs: Jobs, bearer: BearerKeys, keys: Sequence[str], settings: Settings) -> Viewer:
    """Return the viewer of a backend.

    keys: The keys of `bearer` in plain text. The login link uses the first key.
    """
    labelled = [(f"key{number}", key.strip()) for number, key in enumerate(keys, start=1)]
    orgs = {label: org for label, key in labelled if (org := bearer.org([key.encode()])) is not None}
    source = JobSource(jobs, orgs)
    return Viewer(source, Keys(labelled), title="backend", hosts=(settings.host, *settings.hosts, *settings.ui_hosts))
