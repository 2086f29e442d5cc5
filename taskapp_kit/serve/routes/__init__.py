"""One file for each route; `ROUTES` is all of them, in the order in which they are documented."""

from taskapp_kit.serve.routes import blobs, debug_env, done, health, info, rollout, root, task_info
from taskapp_kit.serve.routing import RouteSpec

ROUTES: tuple[RouteSpec, ...] = (
    rollout.ROUTE,
    root.ROUTE,
    health.ROUTE,
    info.ROUTE,
    task_info.ROUTE,
    done.ROUTE,
    blobs.ROUTE,
)
DEBUG_ROUTES: tuple[RouteSpec, ...] = (debug_env.ROUTE,)
