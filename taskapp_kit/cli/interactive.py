"""A person as a policy: the environment's thread asks, the terminal's thread answers."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable

from taskapp_kit.cli.local_app import local_service
from taskapp_kit.config import Settings
from taskapp_kit.contract.protocols import PolicyStops, View
from taskapp_kit.contract.result import Rollout
from taskapp_kit.contract.trajectory import Decision
from taskapp_kit.contract.wire import RolloutRequest
from taskapp_kit.declare.app import TaskApp

DAY_SECONDS = 86_400.0


class InteractivePolicy:
    """A LocalPolicy whose decisions are typed. An answer of None ends the episode: truncated, `left`."""

    name = "person"

    def __init__(self) -> None:
        self.questions: queue.SimpleQueue[View | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[Decision | None] = queue.SimpleQueue()

    def decide(self, view: View) -> Decision:
        """Waits for the person. Raises PolicyStops when the person leaves."""
        self.questions.put(view)
        answer = self.answers.get()
        if answer is None:
            raise PolicyStops("left")
        return answer


def play(
    app: TaskApp,
    settings: Settings,
    request: RolloutRequest,
    answer: Callable[[View], Decision | None],
    *,
    skip_judges: bool = False,
) -> Rollout:
    """Plays one episode; `answer` is called in this thread, which is the terminal's, whenever it is the person's turn.

    settings: have the models of judges and of the environment. skip_judges: no judge is asked.

    Raises what `Service.rollout` raises. Ctrl-C while the environment computes leaves at the next turn.
    """
    person = InteractivePolicy()
    outcome: list[Rollout | BaseException] = []

    async def episode() -> Rollout:
        async with local_service(app, settings, skip_judges=skip_judges, max_time_seconds=DAY_SECONDS) as service:
            return await service.rollout(request, policy=person)

    def run() -> None:
        try:
            outcome.append(asyncio.run(episode()))
        except BaseException as error:
            outcome.append(error)
        finally:
            person.questions.put(None)

    threading.Thread(target=run, name="taskapp-play", daemon=True).start()
    left = False
    while True:
        try:
            view = person.questions.get()
        except KeyboardInterrupt:
            if left:
                raise
            left = True
            person.answers.put(None)  # the view may have been taken from the queue just when the signal came
            continue
        if view is None:
            break
        person.answers.put(None if left else answer(view))
    (result,) = outcome
    if isinstance(result, BaseException):
        raise result
    return result
