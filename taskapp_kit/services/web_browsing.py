"""`WebBrowsingEnv`: tasks in a real browser as a service, the bundled environments `web` and `miniwob` (extra `web`)."""

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
"""Of this machine, for one browser: a page that is drawn and read keeps more than one busy."""


class WebBrowsingEnv(EnvironmentActor):
    """A window in a browser, with a task to do on the site that it shows.

        browser = WebBrowsingEnv.options(procs=1, with_gpus=False, num_replicas=8).as_service()
        async with browser.session() as session:
            observation = await session.reset.route(seed=0)
            result = await session.execute_action.route({"click": {"bid": 3}})

    `num_replicas` is the number of windows at once. They share browsers, of which there is one in each process: at most one
    per two cores of this machine, so that on two cores eight replicas are eight windows of one browser. environment: `web`
    (the default) or `miniwob`.
    """

    @classmethod
    def options(cls, *, procs: int = 1, browsers: int | None = None, **options: Any) -> ActorClass:
        """Return the class with options for a service.

        Args:
            procs: As of `Actor.options`.
            browsers: Processes with a browser each, at most so many as there are windows; by default, and on this machine
                at most, one per two cores. On Ray give the number for the whole cluster.
            **options: `ServiceOptions` describes each.

        Raises:
            BadArgument: An option is unknown, or has no valid value.
        """
        given = super().options(procs=procs, **options).options
        most = max(1, (os.cpu_count() or 1) // CORES_EACH)
        if browsers is not None and (isinstance(browsers, bool) or not isinstance(browsers, int) or browsers < 1):
            raise BadArgument(f"browsers is {browsers!r}; expected a whole number of at least 1.")
        if browsers is not None and browsers > most and given.backend != "ray":
            raise BadArgument(
                f"browsers is {browsers}; expected at most {most}, one per {CORES_EACH} cores of this machine.",
                hint='More run on the machines of a Ray cluster: backend="ray".',
            )
        windows = given.num_replicas * given.sessions_per_replica
        processes = min(given.num_replicas, browsers or most)
        options |= {"num_replicas": processes, "sessions_per_replica": -(-windows // processes)}
        return super().options(procs=procs, **options)

    @classmethod
    def sent_arguments(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Check the environment's name. Raises BadArgument."""
        return (), _checked(*args, **kwargs)

    @endpoint
    async def execute_action(self, action: Any) -> EnvironmentStep:
        """Do one action in the window, as `step` does.

        Args:
            action: `{"click": {"bid": 3}}`, a list of these, or a model's words, in which the action is written.
        """
        return await self.step(action)


def _checked(environment: str = ENVIRONMENTS[0]) -> dict[str, str]:
    if environment not in ENVIRONMENTS:
        raise BadArgument(f"environment is {environment!r}; expected one of {', '.join(ENVIRONMENTS)}.")
    return {"app": APP, "environment": environment}
