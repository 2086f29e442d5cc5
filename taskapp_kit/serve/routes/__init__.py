"""The routes of a task app. `ROUTES` lists them in the order of the documentation."""

from taskapp_kit.serve.route import RouteSpec
from taskapp_kit.serve.routes import about, blobs, rollout, rollout_list, score_group, sessions, task_info

ROUTES: tuple[RouteSpec, ...] = (
    rollout.ROUTE,
    rollout_list.ROUTE,
    rollout.GET,
    rollout.DELETE,
    score_group.ROUTE,
    *sessions.ROUTES,
    about.ROOT,
    about.HEALTH,
    about.METRICS,
    about.INFO,
    task_info.ROUTE,
    about.DONE,
    blobs.ROUTE,
)
DEBUG_ROUTES: tuple[RouteSpec, ...] = (about.DEBUG_ENV,)
