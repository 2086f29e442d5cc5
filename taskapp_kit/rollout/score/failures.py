"""The failure of scoring: one exception with a sentence, and an id under which the cause is logged."""

from __future__ import annotations

import logging
import uuid

from taskapp_kit.errors import Failure
from taskapp_kit.records.scorecard import JudgeRecord

log = logging.getLogger("taskapp_kit.score")


class ScoringFailed(Exception):
    """A criterion with weight > 0 could not be computed. `failure` names it; `__cause__` is the original exception.

    judging: the judge calls made until then.
    """

    def __init__(self, failure: Failure, judging: JudgeRecord | None = None) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.judging = judging if judging is not None else JudgeRecord()


class BadScore(Exception):
    """A criterion returned an invalid score."""


def sentence(error: BaseException) -> str:
    """Describe the error of an author's function, without the text of an exception that is not ours."""
    return str(error) if isinstance(error, BadScore) else f"raised {type(error).__name__}"


def failed(what: str, error: BaseException) -> ScoringFailed:
    """Return the failure of the author's function `what`. Logs the traceback."""
    error_id = uuid.uuid4().hex[:12]
    message = f"{what} {sentence(error)}, so the rollout has no reward"
    log.error("%s (error_id %s)", message, error_id, exc_info=error)
    return ScoringFailed(Failure("scoring", "criterion_failed", message, "Fix the function.", error_id))
