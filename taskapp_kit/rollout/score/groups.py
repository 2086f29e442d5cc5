"""Group judges, which compare the rollouts of one seed in one prompt, in a different order for each sample.

Models prefer answers in the first or last position, so the order varies. The first order is a shuffle that depends on judge,
environment, split and seed. Each further sample rotates this order by an equal share of the group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from taskapp_kit.declare.signature import finished
from taskapp_kit.declare.source_location import without_folder
from taskapp_kit.declare.specs import AppSpec, JudgeSpec
from taskapp_kit.records.content import Json, NotJson
from taskapp_kit.records.scorecard import CriterionScore, JudgeRecord, normalised
from taskapp_kit.records.seeds import derived_rng
from taskapp_kit.records.trajectory import Trajectory
from taskapp_kit.rollout.score.failures import BadScore, ScoringFailed, failed, sentence
from taskapp_kit.rollout.score.judge_calls import (
    JudgeCaller,
    JudgeFailed,
    JudgeUsage,
    NotConfigured,
    combined,
    reason_of,
    spread,
)
from taskapp_kit.rollout.score.judge_input import InputSection, JudgePrompt, NotReadable, fitted, sections
from taskapp_kit.rollout.score.judges import NOT_CONFIGURED, AuthorFailed, not_configured
from taskapp_kit.rollout.score.private import masker
from taskapp_kit.rollout.score.scoring import weighted
from taskapp_kit.rollout.score.verdict import Question, Verdict
from taskapp_kit.wire.chat.conversation import ModelPort

SIDE_BY_SIDE = (
    "{question}\n\nJudge each answer in comparison with the others. The order in which they stand means nothing. "
    "{names} are parts of the material, by the name in their first line; this verdict is about {name}."
)


@dataclass(slots=True)
class GroupJudgement:
    """The scores of one group judge, in the order of the members. All are None if the judge failed or was not called.

    normalised: the scores on a scale from 0 to 1. orders: the order of the members in each sample's prompt. reason:
    `not_configured` if no model is configured for the judge, else None. error: the error of a judge with weight 0. cost: US
    dollars. seconds: wall time.
    """

    judge: str
    weight: float
    scores: list[float | None]
    reasons: list[str | None]
    spreads: list[float | None]
    normalised: list[float | None]
    orders: list[list[int]] = field(default_factory=list)
    reason: str | None = None
    error: str | None = None
    seconds: float = 0.0
    cost: float | None = None

    @classmethod
    def of(cls, judge: JudgeSpec, members: int) -> GroupJudgement:
        """Return a judgement without scores, for a judge that was not called."""
        return cls(judge.name, judge.weight, [None] * members, [None] * members, [None] * members, [None] * members)


@dataclass(slots=True)
class GroupScored:
    """The scores, ranks and reasons of a group's members, in the order of the members, and the judgements.

    A score is the weighted mean of the normalized scores of all judges with weight > 0, or None if no such judge exists. Ranks
    begin with 1, and equal scores share a rank.
    """

    scores: list[float | None]
    ranks: list[int | None]
    reasons: list[str | None]
    judgements: list[GroupJudgement]
    judging: JudgeRecord


def group_judges(spec: AppSpec, environment: str) -> list[JudgeSpec]:
    """Return the group judges of an environment."""
    return [judge for judge in spec.judges if judge.group and judge.applies_to(environment)]


def score_group(
    spec: AppSpec, trajectories: Sequence[Trajectory], *, task: Any, config: Mapping[str, Json], models: ModelPort | None
) -> GroupScored:  # fmt: skip
    """Rank the rollouts of one seed. Blocks the calling thread, and runs the author's functions.

    trajectories: at least two trajectories with the same environment, split, seed and config. task: the row of the seed, with
    private fields. Raises ScoringFailed if a judge with weight > 0 gave no verdict.
    """
    environment, record, members = trajectories[0].environment, JudgeRecord(), len(trajectories)
    mask = masker(spec, environment, task)
    given = {"trajectories": list(trajectories), "task": task, "config": dict(config)}
    judgements = []
    for judge in group_judges(spec, environment):
        judgement = GroupJudgement.of(judge, members)
        judgements.append(judgement)
        try:
            if models is None:
                raise NotConfigured(judge.models[0])
            _judge(judge, judgement, given, JudgeCaller(models, mask, record, [judge.name]))
        except NotConfigured as missing:
            if judge.weight > 0:
                raise ScoringFailed(not_configured(judge, missing.role), record) from None
            judgement.reason = NOT_CONFIGURED
        except JudgeFailed as error:
            if judge.weight > 0 or error.stops:
                raise ScoringFailed(error.failure, record) from error
            judgement.error = error.failure.message
        except AuthorFailed as error:
            cause = error.__cause__
            assert cause is not None, "raised with `from` everywhere"
            if judge.weight > 0:
                broken = failed(f"judge {judge.name!r} ({without_folder(judge.place)})", cause)
                broken.judging = record
                raise broken from cause
            judgement.error = sentence(cause)
    return _group_scores(judgements, members, record)


def _judge(judge: JudgeSpec, judgement: GroupJudgement, given: Mapping[str, Any], caller: JudgeCaller) -> None:
    members: list[Trajectory] = given["trajectories"]
    readings = _readings(judge, given, len(members))
    orders: dict[int, list[int]] = {}
    samples = judge.samples * len(judge.models)
    first = members[0]
    base = list(range(len(members)))
    # derived from the seed, so that every machine shows a group in the same orders
    derived_rng("score_group", judge.name, first.environment, first.split, first.seed).shuffle(base)

    def prompt_of(sample: int) -> JudgePrompt:
        # rotated, because a second shuffle does not guarantee that each member is shown at different positions
        turn = sample * max(1, len(members) // samples) % len(members)
        order = orders[sample] = base[turn:] + base[:turn]
        return _make_prompt(judge, [readings[member] for member in order])

    spent = JudgeUsage()
    try:
        answers = caller.ask(judge, prompt_of, spent)
    finally:
        judgement.seconds, judgement.cost = spent.seconds, spent.cost
    judgement.orders = [orders[sample] for sample in range(samples)]
    for member in base:
        verdicts: list[Verdict] = [
            answer[_label(order.index(member))] for answer, order in zip(answers, judgement.orders, strict=True)
        ]
        scores = [verdict.score for verdict in verdicts]
        score = combined(scores, judge.combine)
        judgement.scores[member], judgement.spreads[member] = score, spread(scores)
        judgement.normalised[member] = normalised(score, judge.scale)
        judgement.reasons[member] = reason_of(verdicts, score)


def _readings(judge: JudgeSpec, given: Mapping[str, Any], members: int) -> list[list[InputSection]]:
    assert judge.function is not None, "a group judge has a function"
    try:
        returned = finished(judge.function(**{name: given[name] for name in judge.parameters}))
    except BaseException as error:  # sys.exit() in an author's function must not end the server
        raise AuthorFailed from error
    if not isinstance(returned, (list, tuple)) or len(returned) != members:
        found = f"{len(returned)} items" if isinstance(returned, (list, tuple)) else f"a {type(returned).__name__}"
        raise AuthorFailed from BadScore(
            f"returned {found}, expected a list with one item for each of the {members} trajectories"
        )
    try:
        return [sections(reading) for reading in returned]
    except (NotReadable, NotJson) as error:
        raise AuthorFailed from BadScore(str(error))


def _make_prompt(judge: JudgeSpec, shown: Sequence[Sequence[InputSection]]) -> JudgePrompt:
    labels = [_label(at) for at in range(len(shown))]
    parts = [
        InputSection(part.blocks, label if part.name is None else f"{label}: {part.name}")
        for label, reading in zip(labels, shown, strict=True)
        for part in reading
    ]
    questions = tuple(
        Question(
            label,
            SIDE_BY_SIDE.format(question=judge.description, names=", ".join(labels), name=label)
            if at == 0
            else f"The same about {label}.",
            judge.scale,
            judge.choices,
        )
        for at, label in enumerate(labels)
    )
    return JudgePrompt(questions, tuple(fitted(parts)), True, judge.form, judge.temperature)


def _label(position: int) -> str:
    """Return the name that the prompt and the verdict use for the answer at this position."""
    return f"answer_{position + 1}"


def _group_scores(judgements: list[GroupJudgement], members: int, record: JudgeRecord) -> GroupScored:
    scores, reasons = [], []
    for member in range(members):
        items = [
            CriterionScore(one.judge, "judge", one.scores[member], one.weight, normalised=one.normalised[member])
            for one in judgements
        ]
        scores.append(weighted(items))
        heaviest = max(
            (one for one in judgements if one.scores[member] is not None), key=lambda one: one.weight, default=None
        )
        # each member gets the reason of the judge with the largest share in the score
        reasons.append(None if heaviest is None else heaviest.reasons[member])
    return GroupScored(scores, ranks(scores), reasons, judgements, record)


def ranks(scores: Sequence[float | None]) -> list[int | None]:
    """Return the rank of each score. The highest score has rank 1, and equal scores share a rank (1, 2, 2, 4)."""
    known = [score for score in scores if score is not None]
    return [None if score is None else 1 + sum(other > score for other in known) for score in scores]
