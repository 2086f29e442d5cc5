"""The failures of rollouts that did not end by themselves: cancelled, too late, without a thread."""

from __future__ import annotations

import logging
import uuid

from taskapp_kit.errors import Failure

log = logging.getLogger("taskapp_kit.service")


def cancelled() -> Failure:
    """Return the failure of a rollout that a client cancelled, or that no client waits for."""
    return Failure(
        "cancelled",
        "cancelled",
        "the client went away, or cancelled the rollout, before it ended",
        error_id=uuid.uuid4().hex[:12],
    )


def overdue(seconds: float, *, played: bool) -> Failure:
    """Return the failure of a thread that did not return in time. Its events so far are stored, the rest is lost.

    played: the episode is over, and scoring or writing it takes long.
    """
    if played:
        message = (
            f"the rollout reached its deadline of {seconds:g} s after its episode, before it was scored and written"
        )
        return _logged(Failure("timeout", "deadline", message, "Give safety.max_time_s more seconds."))
    message = f"the environment did not come back within the rollout's deadline of {seconds:g} s; its thread is stuck"
    return _logged(Failure("timeout", "environment_hung", message, "Give the environment's own calls a time limit."))


def no_thread(seconds: float) -> Failure:
    """Return the failure of a rollout for which no thread became free."""
    message = f"no thread came free within the rollout's deadline of {seconds:g} s, so the episode never began"
    return _logged(Failure("timeout", "no_thread", message, "Send fewer rollouts at once, or give them more time."))


def thread_blocked() -> Failure:
    """Return the failure of a rollout whose thread another rollout blocks."""
    message = "the environment of another rollout blocked the thread that this rollout shared with it"
    hint = 'Send it again. Give the environment\'s own calls a time limit, or declare isolation="process".'
    return _logged(Failure("timeout", "thread_blocked", message, hint))


def _logged(failure: Failure) -> Failure:
    failure.error_id = uuid.uuid4().hex[:12]
    log.error("%s (error_id %s)", failure.message, failure.error_id)
    return failure
