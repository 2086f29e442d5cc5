"""The failure of scoring: an exception with a message and an error id. The cause is logged under this id."""

from __future__ import annotations

import logging
import uuid

from taskapp_kit.errors import Failure
from taskapp_kit.records.scorecard import JudgeRecord

log = logging.getLogger("taskapp_kit.score")


class ScoringFailed(Exception):
    """A criterion with weight > 0 could not be computed. `__cause__` is the original exception.

    failure: the rollout's failure, which names the criterion. judging: the judge calls so far.
    """

    def __init__(self, failure: Failure, judging: JudgeRecord | None = None) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.judging = judging if judging is not None else JudgeRecord()


class BadScore(Exception):
    """A criterion returned an invalid score."""


def sentence(error: BaseException) -> str:
    """Describe an error in an author's function. The message of an exception other than BadScore is omitted."""
    return str(error) if isinstance(error, BadScore) else f"raised {type(error).__name__}"


def failed(what: str, error: BaseException) -> ScoringFailed:
    """Return the exception for an author's function that failed, and log the traceback. what: the function."""
    error_id = uuid.uuid4().hex[:12]
    message = f"{what} {sentence(error)}, so the rollout has no reward"
    log.error("%s (error_id %s)", message, error_id, exc_info=error)
    return ScoringFailed(Failure("scoring", "criterion_failed", message, "Fix the function.", error_id))
