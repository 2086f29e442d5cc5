"""Calls the judges of one rollout with the author's input, and adds the scores to the scorecard."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taskapp_kit.declare.signature import finished
from taskapp_kit.declare.source_location import without_folder
from taskapp_kit.declare.specs import AppSpec, JudgeSpec
from taskapp_kit.errors import Failure, Unavailable
from taskapp_kit.records.content import Json, NotJson
from taskapp_kit.records.scorecard import JUDGES_SKIPPED, CriterionScore, JudgeRecord, normalised
from taskapp_kit.rollout.score.failures import BadScore, ScoringFailed, failed, sentence
from taskapp_kit.rollout.score.judge_calls import (
    ANSWER,
    JudgeCaller,
    JudgeFailed,
    JudgeUsage,
    NotConfigured,
    combined,
    mapped_json,
    read_reward,
    reason_of,
    reward_request,
    spread,
)
from taskapp_kit.rollout.score.judge_input import (
    MATERIAL_CHARACTERS,
    JudgePrompt,
    NotReadable,
    fitted,
    sections,
    shortened,
)
from taskapp_kit.rollout.score.private import masker
from taskapp_kit.rollout.score.verdict import Question, UnreadableVerdict
from taskapp_kit.wire.chat.conversation import ChatReply, ModelPort, role_variable

log = logging.getLogger("taskapp_kit.score")

NOT_CONFIGURED = "not_configured"
OF_A_GROUP = "scored_in_groups"
"""The reason for the null score of a group judge, which is only called by `POST /score_group`."""


@dataclass(frozen=True, slots=True)
class RoleNeed:
    """A model role, and the names of the judges and environments that use it.

    must: whether a judge with weight > 0 uses the role. judge, place: the name and source line of such a judge.
    """

    role: str
    judges: tuple[str, ...]
    must: bool
    judge: str
    place: str
    environments: tuple[str, ...] = ()

    @property
    def users(self) -> str:
        """The judges and environments that call the model, as the plural subject of a sentence."""
        named = (("judges", self.judges), ("environments", self.environments))
        return " and ".join(f"{kind} {', '.join(names)}" for kind, names in named if names)


def needed_roles(spec: AppSpec) -> list[RoleNeed]:
    """Return the roles of an app's judges (including group judges) and environments, in the order of declaration."""
    found: dict[str, list[JudgeSpec]] = {}
    for judge in spec.judges:
        for role in judge.models:
            found.setdefault(role, []).append(judge)
    for environment in spec.environments.values():
        for role in environment.models:
            found.setdefault(role, [])
    needs = []
    for role, judges in found.items():
        # prefer a judge with a weight, because the error should name the judge without which nothing can be scored
        first = max(judges, key=lambda judge: judge.weight > 0, default=None)
        users = tuple(item.name for item in spec.environments.values() if role in item.models)
        needs.append(
            RoleNeed(
                role,
                tuple(judge.name for judge in judges),
                first is not None and first.weight > 0,
                "" if first is None else first.name,
                "" if first is None else without_folder(first.place),
                users,
            )
        )
    return needs


def check_judges(spec: AppSpec, configured: Callable[[str], bool]) -> list[str]:
    """Return a warning for each role that has no model and is used by environments or judges with weight 0.

    configured: a function that returns whether a model has a role. Raises Unavailable if a judge with weight > 0 has no
    model, because no rollout would have a reward.
    """
    warnings = []
    for need in needed_roles(spec):
        if configured(need.role):
            continue
        variable = role_variable(need.role)
        if need.must:
            raise Unavailable(
                f"Judge {need.judge!r} ({need.place}) has a weight above 0, but no model is configured for it ({variable}).",
                hint=f"Set {variable}, {variable.removesuffix('URL')}MODEL and …KEY, or declare the judge with weight=0. "
                "To skip judges, pass `--judges skip` to `taskapp rollout`, `eval` or `play`.",
            )
        if need.judges:
            names = ", ".join(need.judges)
            warnings.append(
                f"judges {names} have no model ({variable} is unset); their scores are null ({NOT_CONFIGURED})"
            )
        if need.environments:
            names = ", ".join(need.environments)
            warnings.append(f"environments {names} call a model with the role {need.role!r}, but {variable} is not set")
    return warnings


def skipped_warning(spec: AppSpec, environment: str) -> list[str]:
    """Return the warning for a rollout with skipped judges, or an empty list if the environment has no judges."""
    names = [judge.name for judge in spec.judges if judge.applies_to(environment) and not judge.group]
    return [f"judges were skipped ({', '.join(names)}): their scores are null ({JUDGES_SKIPPED})"] if names else []


def expected_calls(spec: AppSpec, environment: str, configured: Callable[[str], bool]) -> dict[str, int]:
    """Return the number of model calls by role for one rollout, if all judges apply and no call is repeated.

    configured: a function that returns whether a model has a role. Judges without a model and group judges are not counted.
    """
    calls: dict[str, int] = {}
    judges = [judge for judge in spec.judges if judge.applies_to(environment) and not judge.group]
    for first, *_ in _calls(judges):
        if configured(first.models[0]):
            for role in first.models:
                calls[role] = calls.get(role, 0) + first.samples
    return calls


def judge_scores(
    spec: AppSpec,
    environment: str,
    given: Mapping[str, Any],
    models: ModelPort | None,
    record: JudgeRecord,
    *,
    skip: bool = False,
) -> list[CriterionScore]:
    """Return the score of each judge that applies, in the order of declaration.

    given: the available arguments of judge functions, by name. record: receives every call. skip: whether to skip all
    judges and return null scores (`judges_skipped`). Raises ScoringFailed if a judge with weight > 0 gave no verdict, or if the
    rollout's time is up during a judge's call.
    """
    judges = [judge for judge in spec.judges if judge.applies_to(environment)]
    scores = {
        judge.name: CriterionScore(judge.name, "judge", None, judge.weight, judge.required, reason=OF_A_GROUP)
        for judge in judges
    }
    alone = [judge for judge in judges if not judge.group]
    if skip:
        for judge in alone:
            scores[judge.name].reason = JUDGES_SKIPPED
        return list(scores.values())
    # a judge's input may contain the reference answer, which must not be stored or shown
    mask = masker(spec, environment, given["task"]) if alone else str
    for together in _calls(alone):
        items = [scores[judge.name] for judge in together]
        for item in items:
            item.reason = None
        # The judges of one call fail together. The highest weight decides whether the rollout has a reward without them.
        heaviest = max(together, key=lambda judge: judge.weight)
        try:
            if models is None:
                raise NotConfigured(together[0].models[0])
            caller = JudgeCaller(models, mask, record, [judge.name for judge in together])
            _judge(together, items, given, caller)
        except NotConfigured as missing:
            if heaviest.weight > 0:
                raise ScoringFailed(not_configured(heaviest, missing.role), record) from None
            for item in items:
                item.score, item.reason = None, NOT_CONFIGURED
        except JudgeFailed as error:
            # when the rollout's time is up, no score is recorded, even for a judge with weight 0
            if heaviest.weight > 0 or error.stops:
                raise ScoringFailed(error.failure, record) from error
            _record_error(items, error.failure.message, error)
        except AuthorFailed as error:
            cause = error.__cause__
            assert cause is not None, "raised with `from` everywhere"
            if heaviest.weight > 0:
                broken = failed(f"judge {heaviest.name!r} ({without_folder(heaviest.place)})", cause)
                broken.judging = record
                raise broken from cause
            _record_error(items, sentence(cause), cause)
    return list(scores.values())


class AuthorFailed(Exception):
    """The author's function raised, or returned an unreadable value. `__cause__` is the original exception."""


def not_configured(judge: JudgeSpec, role: str) -> Failure:
    """Return the failure of a judge with weight > 0 whose role has no model."""
    message = f"judge {judge.name!r} ({without_folder(judge.place)}) uses the role {role!r}, but no model is configured for it"
    return Failure("scoring", "judge_not_configured", message, f"Set {role_variable(role)} on the server.")


def _record_error(items: Sequence[CriterionScore], error: str, cause: BaseException) -> None:
    for item in items:
        item.score, item.reason, item.error = None, None, error
        log.warning("judge %r with weight 0 failed: %s", item.name, error, exc_info=cause)


def _calls(judges: Sequence[JudgeSpec]) -> Iterator[list[JudgeSpec]]:
    """Yield the judges of each model call as a list. A judge without a shared call is alone in its list."""
    shared: dict[tuple[str, str], list[JudgeSpec]] = {}
    for judge in judges:
        if judge.call is not None:
            shared.setdefault(judge.call, []).append(judge)
    done = set()
    for judge in judges:
        if judge.call is None:
            yield [judge]
        elif judge.call not in done:
            done.add(judge.call)
            yield shared[judge.call]


def _judge(
    together: Sequence[JudgeSpec], items: Sequence[CriterionScore], given: Mapping[str, Any], caller: JudgeCaller
) -> None:
    """Set the scores of judges that share a call. They have the same input and share seconds and cost evenly."""
    first, spent = together[0], JudgeUsage()
    reading = _reading(first, given)
    if reading is None:
        for item in items:
            item.reason = "not_applicable"
        return
    try:
        if first.kind == "reward_model":
            _reward(first, items[0], reading, caller, spent)
        else:
            _verdicts(together, items, reading, caller, spent)
    finally:
        for item in items:
            item.seconds = spent.seconds / len(items)
            item.cost = None if spent.cost is None else spent.cost / len(items)


def _reading(judge: JudgeSpec, given: Mapping[str, Any]) -> Any:
    """Return the result of the judge's function, or the transcript by default. None means that the judge does not apply."""
    if judge.function is None:
        return given["trajectory"].transcript()
    try:
        return finished(judge.function(**{name: given[name] for name in judge.parameters}))
    except BaseException as error:  # sys.exit() in an author's function must not end the server
        raise AuthorFailed from error


def _verdicts(
    together: Sequence[JudgeSpec], items: Sequence[CriterionScore], reading: Any, caller: JudgeCaller, spent: JudgeUsage
) -> None:
    try:
        parts = tuple(fitted(sections(reading)))
    except (NotReadable, NotJson) as error:
        raise AuthorFailed from BadScore(str(error))
    first = together[0]
    questions = tuple(Question(judge.name, judge.description, judge.scale, judge.choices) for judge in together)
    prompt = JudgePrompt(questions, parts, len(together) > 1, first.form, first.temperature)
    answers = caller.ask(first, lambda _: prompt, spent)
    for judge, item in zip(together, items, strict=True):
        verdicts = [answer[judge.name] for answer in answers]
        scores = [verdict.score for verdict in verdicts]
        item.reason = reason_of(verdicts, _set_score(item, judge, scores))


def _reward(judge: JudgeSpec, item: CriterionScore, reading: Any, caller: JudgeCaller, spent: JudgeUsage) -> None:
    try:
        body: dict[str, Json] = mapped_json(reward_request(reading), lambda text: shortened(text, MATERIAL_CHARACTERS))
    except (NotReadable, NotJson) as error:
        raise AuthorFailed from BadScore(str(error))

    def read(reply: ChatReply) -> float:
        if ANSWER not in reply.message:
            raise UnreadableVerdict("it was a chat model's")
        return read_reward(reply.message[ANSWER], judge.scale)

    _set_score(item, judge, caller.ask_for_rewards(judge, body, read, spent))


def _set_score(item: CriterionScore, judge: JudgeSpec, scores: Sequence[float]) -> float:
    """Set the combined score of the samples and return it."""
    score = item.score = combined(scores, judge.combine)
    item.normalised, item.spread = normalised(score, judge.scale), spread(scores)
    return score
