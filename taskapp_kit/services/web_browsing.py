"""`WebBrowsingEnv`, a service for tasks in a real browser, with the bundled environments `web` and `miniwob`."""

from __future__ import annotations

import os
from typing import Any

from taskapp_kit.errors import BadArgument
from taskapp_kit.services.actor import ActorClass
from taskapp_kit.services.endpoints import endpoint
from taskapp_kit.services.environment_service import EnvironmentActor, EnvironmentStep

APP = "web"
ENVIRONMENTS = ("web", "miniwob")
CORES_EACH = 2
"""Number of CPU cores for each browser. Rendering and reading a page keeps more than one core busy."""


class WebBrowsingEnv(EnvironmentActor):
    """A browser window that shows a website with a task.

        browser = WebBrowsingEnv.options(procs=1, with_gpus=False, num_replicas=8).as_service()
        async with browser.session() as session:
            observation = await session.reset.route(seed=0)
            result = await session.execute_action.route({"click": {"bid": 3}})

    `num_replicas` is the number of concurrent windows. Windows share browsers: each process has one browser, and there
    is at most one browser per two cores. On a machine with two cores, eight replicas are eight windows of one browser.
    The argument `environment` is `web` (the default) or `miniwob`.
    """

    @classmethod
    def options(cls, *, procs: int = 1, browsers: int | None = None, **options: Any) -> ActorClass:
        """Return this class together with options for a service.

        Args:
            procs: Number of processes per replica, as for `Actor.options`.
            browsers: Number of processes with one browser each. Must not exceed the number of windows. Defaults to one
                per two cores, which is also the maximum on this machine. On Ray, this is the number for the whole
                cluster.
            **options: The attributes of `ServiceOptions`.

        Raises:
            BadArgument: An option is unknown or has an invalid value.
        """
        given = super().options(procs=procs, **options).options
        most = max(1, (os.cpu_count() or 1) // CORES_EACH)
        if browsers is not None and (isinstance(browsers, bool) or not isinstance(browsers, int) or browsers < 1):
            raise BadArgument(f"`browsers` is {browsers!r}. Expected an integer of at least 1.")
        if browsers is not None and browsers > most and given.backend != "ray":
            raise BadArgument(
                f"`browsers` is {browsers}. Expected at most {most}, one per {CORES_EACH} cores of this machine.",
                hint='For more browsers, use a Ray cluster: backend="ray".',
            )
        windows = given.num_replicas * given.sessions_per_replica
        processes = min(given.num_replicas, browsers or most)
        options |= {"num_replicas": processes, "sessions_per_replica": -(-windows // processes)}
        return super().options(procs=procs, **options)

    @classmethod
    def sent_arguments(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Check the environment's name. Raises BadArgument if it is neither `web` nor `miniwob`."""
        return (), _checked(*args, **kwargs)

    @endpoint
    async def execute_action(self, action: Any) -> EnvironmentStep:
        """Execute one action in the window, as `step` does.

        Args:
            action: `{"click": {"bid": 3}}`, a list of such objects, or a model's reply that contains the action.
        """
        return await self.step(action)


def _checked(environment: str = ENVIRONMENTS[0]) -> dict[str, str]:
    if environment not in ENVIRONMENTS:
        raise BadArgument(f"`environment` is {environment!r}. Expected one of {', '.join(ENVIRONMENTS)}.")
    return {"app": APP, "environment": environment}
