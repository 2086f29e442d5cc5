"""Checks of scores: which policies earn them, and whether rubrics and judges distinguish rollouts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from taskapp_kit.declare.signature import finished
from taskapp_kit.declare.specs import CriterionSpec, JudgeSpec
from taskapp_kit.doctor.finding import CheckResult, check, passed, skipped, warning, wrong
from taskapp_kit.doctor.subject import GOLD, EnvironmentUnderTest, kind_of
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.scorecard import JUDGES_SKIPPED
from taskapp_kit.records.trajectory import Trajectory

ERRORS = 2.0
"""The number of standard errors by which a mean must exceed a limit."""
BASELINE_SEEDS = 100
HIGH = 0.8
"""The share of gold's reward, or of the scale, that is too high for a policy without knowledge of the task."""
CROSSED = 5
"""The number of rollouts whose parts are exchanged to find out whether a criterion's score changes."""
LEAST = 3
"""The minimum number of rollouts for a mean."""


def surely(values: Sequence[float]) -> float | None:
    """Return a value that the true mean very likely exceeds, or None if there are too few values."""
    if len(values) < LEAST:
        return None
    return fmean(values) - ERRORS * stdev(values) / math.sqrt(len(values))


@check("baselines", "Idling, chance and one repeated action score no more than `baselines=` allows.", plays=True)
async def baselines(subject: EnvironmentUnderTest) -> CheckResult:
    """Compare mean rewards with the declared baselines. If a mean is higher, play more seeds."""
    declared = subject.environment.baselines
    if not declared:
        return passed("No baselines are declared.")
    said = []
    for name, highest in declared.items():
        labels = [label for label in subject.attempts if kind_of(label) == name]
        for label in labels:
            mean = subject.mean_reward(label)
            if mean is not None and mean > highest:
                await subject.more(label, BASELINE_SEEDS, subject.options.policy_seconds)
            rewards = subject.rewards(label)
            certain = surely(rewards)
            if certain is not None and certain > highest:
                mean_words = f"{fmean(rewards):.3g} over {len(rewards)} rollouts"
                found = f"Policy {label} has a mean reward of {mean_words}, but `baselines=` allows only {highest:g}."
                do = "This policy does not know the task. Change the rubric or the reward, not the baseline."
                return wrong(found, do, subject.place)
            if rewards:
                said.append(f"{label} {fmean(rewards):.3g} of {highest:g}")
    return passed(f"Mean rewards: {', '.join(said)}." if said else "No policy in baselines could be played.")


@check("idle-scores", "Idling, chance and one repeated action score little.", after=("baselines",))
async def idle_scores(subject: EnvironmentUnderTest) -> CheckResult:
    """Compare policies without knowledge of the task with gold, or with the reward's scale if there is no gold."""
    gold, blend = subject.mean_reward(GOLD), subject.spec.blend_for(subject.name)
    top = gold if gold is not None and gold > 0 else blend.outcome if not blend.env and not blend.event else None
    said, high = [], []
    for label in subject.idle_labels():
        if kind_of(label) in subject.environment.baselines:
            continue
        rewards = subject.rewards(label)
        certain = surely(rewards)
        if rewards:
            said.append(f"{label} {fmean(rewards):.3g}")
        if top is not None and certain is not None and certain >= HIGH * top:
            high.append((fmean(rewards), label))
    if gold is not None:
        said.append(f"gold {gold:.3g}")
    found = f"Mean rewards: {', '.join(said) or 'none is defined'}."
    if high:
        _, label = max(high)
        do = f"Policy {label} has no knowledge of the task. Change the reward, or declare `baselines=` if this is intended."
        return warning(found, do, subject.place)
    return passed(found)


@check(
    "gold-better",
    "The app's example of good play scores more than idling, chance and one repeated action.",
    after=("policies",),
)
async def gold_better(subject: EnvironmentUnderTest) -> CheckResult:
    """Compare gold with policies without knowledge of the task, on the same seeds."""
    gold = subject.rewards(GOLD)
    if GOLD not in subject.attempts:
        return skipped(
            "The app has no policy gold.", 'Declare it with @app.policy("gold") to show which score is possible.'
        )
    if not gold:
        return skipped("Gold has no reward.")
    for label in subject.idle_labels():
        pairs = _pairs(subject, label)
        if len(pairs) < _least(subject):
            continue
        mine, theirs = fmean(one for one, _ in pairs), fmean(other for _, other in pairs)
        if mine <= theirs:
            found = (
                f"Gold has a mean reward of {mine:.3g}, but {label} has {theirs:.3g} on the same {len(pairs)} seeds."
            )
            do = "Improve gold if it plays badly. Otherwise make the reward distinguish good play from bad."
            return wrong(found, do, _gold_place(subject))
    return passed(f"Gold: mean reward {fmean(gold):.3g} over {len(gold)} rollouts.")


def _least(subject: EnvironmentUnderTest) -> int:
    """Return the minimum number of rollouts for a comparison: LEAST, or the number of seeds if there are fewer."""
    return min(LEAST, len(subject.seeds(LEAST)))


def _pairs(subject: EnvironmentUnderTest, label: str) -> list[tuple[float, float]]:
    """Return the rewards of gold and of another policy on the seeds that both played."""

    def of(name: str) -> dict[tuple[str, int], float]:
        return {(item.split, item.seed): item.reward for item in subject.scored(name) if item.reward is not None}

    gold, other = of(GOLD), of(label)
    return [(gold[episode], other[episode]) for episode in gold if episode in other]


def _gold_place(subject: EnvironmentUnderTest) -> str:
    own = (policy.place for policy in subject.spec.policies if policy.name == GOLD and policy.applies_to(subject.name))
    return next(own, subject.place)


@check("reward-attainable", "Good play reaches the highest values of reward_range and the scales.")
async def reward_attainable(subject: EnvironmentUnderTest) -> CheckResult:
    """Compare gold's best step reward with the declared range, and gold's best outcome with the scale."""
    rollouts = subject.scored(GOLD)
    if not rollouts:
        return skipped("The app has no policy gold, or gold has no reward.")
    if len(rollouts) < _least(subject):
        return skipped(f"Gold played only {len(rollouts)} rollouts in time, too few for a comparison.")
    declared = subject.environment.reward_range
    steps = [step.reward for rollout in rollouts for step in rollout.trajectory.steps if step.reward is not None]
    if declared is not None and steps and max(steps) < declared[1]:
        found = f"The best step of gold earns {max(steps):g}, but reward_range promises {declared[1]:g}."
        return warning(found, "Correct reward_range=, or make gold earn this reward.", subject.place)
    scores = [rollout.scorecard.outcome_score for rollout in rollouts if rollout.scorecard.outcome_score is not None]
    if scores and max(scores) < 1 - HIGH:
        found = f"The best outcome score of gold is {max(scores):.3g}, but 1 is possible."
        return warning(
            found, "Improve gold if it plays badly. Otherwise make the rubrics attainable.", _gold_place(subject)
        )
    reached = f"best step {max(steps):g}" if steps else "no step has a reward"
    return passed(f"Gold: {reached}" + (f", best outcome {max(scores):.3g}." if scores else "."))


@check("criteria-move", "Every criterion with a weight distinguishes rollouts.")
async def criteria_move(subject: EnvironmentUnderTest) -> CheckResult:
    """Report criteria that give one score to all rollouts, including gold and nonsense, and to changed copies of them.

    All rollouts may meet a criterion such as "no rule was broken". Copies with another final state, no steps or other
    rewards show whether the criterion's score can change.
    """
    rollouts = [*subject.scored(), *(item for items in subject.nonsense.values() for item in items)]
    weighed = [item for item in subject.spec.criteria if item.weight > 0 and item.applies_to(subject.name)]
    if not weighed or len(rollouts) < 2 * LEAST:
        return passed("The app has no criterion with a weight." if not weighed else "Too few rollouts to compare.")
    said = []
    for criterion in weighed:
        scores = {score for score in (_score(rollout, criterion.name) for rollout in rollouts) if score is not None}
        said.append(f"{criterion.name} {len(scores)} scores")
        still = _still(subject, criterion, scores)
        if still is not None and not _moved(subject, criterion, rollouts, scores):
            do = f"Its weight of {criterion.weight:g} has no effect. Make the score depend on the actions, or set weight=0."
            return warning(f"Criterion {criterion.name!r} {still} of {len(rollouts)} rollouts.", do, criterion.place)
    return passed(f"{', '.join(said)} over {len(rollouts)} rollouts.")


def _still(subject: EnvironmentUnderTest, criterion: CriterionSpec, scores: set[float]) -> str | None:
    """Describe how a criterion scored, if it gave all rollouts the same score.

    Return None if the scores differ, or if only gold could show a difference.
    """
    if len(scores) > 1:
        return None
    good = bool(subject.scored(GOLD))
    if not scores:
        return "did not apply to any" if good else None
    score = next(iter(scores))
    bottom = criterion.scale[0] if criterion.of == "outcome" else 0.0
    return f"gave {score:g} to each" if good or score != bottom else None


def _moved(
    subject: EnvironmentUnderTest, criterion: CriterionSpec, rollouts: Sequence[Rollout], scores: set[float]
) -> bool:
    """Return whether a changed copy of a rollout gets another score or makes the criterion raise an exception."""
    different = list({rollout.digest: rollout for rollout in rollouts}.values())[:CROSSED]
    for one in different:
        for other in different:
            for trajectory in _changed(one.trajectory, other.trajectory):
                given = {
                    "trajectory": trajectory,
                    "task": _task(subject, other),
                    "config": dict(one.trajectory.config),
                    "answer_text": other.trajectory.answer_text,
                }
                if criterion.of == "events":
                    if not trajectory.steps:
                        continue
                    given["step"] = trajectory.steps[-1]
                try:
                    found = finished(criterion.function(**{name: given[name] for name in criterion.parameters}))
                except Exception:
                    return True
                if found is None or float(found) not in scores:
                    return True
    return False


def _changed(one: Trajectory, other: Trajectory) -> Iterator[Trajectory]:
    """Yield copies of a trajectory with another final state, no steps, or other rewards, infos and stop reasons."""
    steps = [
        replace(step, reward=(step.reward or 0.0) + 1.0, info={}, refused=None, terminated=True) for step in one.steps
    ]
    worse = [replace(step, reward=-1.0, info={}, refused="no", terminated=False) for step in one.steps]
    yield replace(one, final_state=other.final_state, metrics=other.metrics)
    yield replace(one, steps=[], turns=[], status="truncated", stop_reason="max_steps", metrics={})
    yield replace(one, steps=steps, status="terminated", stop_reason="environment")
    yield replace(one, steps=worse * 2, status="truncated", stop_reason="max_refusals", initial="")


def _task(subject: EnvironmentUnderTest, rollout: Rollout) -> Any:
    tasks = subject.environment.tasks
    return None if tasks is None else tasks.rows(rollout.split)[rollout.seed]


def _score(rollout: Rollout, name: str) -> float | None:
    return next((item.score for item in rollout.scorecard.criteria if item.name == name), None)


@check("judge-reads", "What a judge reads depends on what the policy did.")
async def judge_reads(subject: EnvironmentUnderTest) -> CheckResult:
    """Compare what each judge would read in different rollouts of the same seed. No model is called."""
    judges = [judge for judge in subject.spec.judges if judge.applies_to(subject.name) and not judge.group]
    if not judges:
        return passed("The environment has no judges.")
    rollouts = _of_one_seed(subject)
    if len({rollout.digest for rollout in rollouts}) < 2:
        return skipped("Not checked, because no seed has two different rollouts.")
    for judge in judges:
        texts = {text for text in (_material(subject, judge, rollout) for rollout in rollouts) if text is not None}
        if len(texts) == 1:
            found = f"Judge {judge.name!r} reads the same text for {len(rollouts)} different rollouts of seed {rollouts[0].seed}."
            return wrong(
                found,
                "Return the policy's text or actions, such as answer_text or trajectory.transcript().",
                judge.place,
            )
    return passed(f"The judges {', '.join(judge.name for judge in judges)} read different text for different rollouts.")


def _of_one_seed(subject: EnvironmentUnderTest) -> list[Rollout]:
    """Return all policies' rollouts of the first seed, including nonsense."""
    every = [*subject.scored(), *(item for items in subject.nonsense.values() for item in items)]
    return [item for item in every if (item.split, item.seed) == (every[0].split, every[0].seed)] if every else []


def _material(subject: EnvironmentUnderTest, judge: JudgeSpec, rollout: Rollout) -> str | None:
    """Return what the judge would read, or None if the judge does not apply or its function raises an exception."""
    if judge.function is None:
        return rollout.trajectory.transcript()
    given = {
        "trajectory": rollout.trajectory,
        "task": _task(subject, rollout),
        "config": dict(rollout.trajectory.config),
        "answer_text": rollout.trajectory.answer_text,
    }
    try:
        read = finished(judge.function(**{name: given[name] for name in judge.parameters}))
    except Exception:
        return None
    return None if read is None else repr(read)


@check("judge-moves", "A judge gives different scores to different rollouts.")
async def judge_moves(subject: EnvironmentUnderTest) -> CheckResult:
    """Compare each judge's scores over all rollouts. This check runs only with --judges."""
    judges = [judge for judge in subject.spec.judges if judge.applies_to(subject.name) and not judge.group]
    if not judges:
        return passed("The environment has no judges.")
    if not subject.options.judges:
        return skipped("Not checked, because judges were not called.", "Call judges with --judges.")
    rollouts = [*subject.scored(), *(item for items in subject.nonsense.values() for item in items)]
    said = []
    for judge in judges:
        items = [item for rollout in rollouts for item in rollout.scorecard.criteria if item.name == judge.name]
        if any(item.reason == JUDGES_SKIPPED for item in items):
            continue
        scores = [item.score for item in items if item.score is not None]
        if len(scores) >= 2 * LEAST and len(set(scores)) == 1:
            found = f"Judge {judge.name!r} gave {scores[0]:g} to each of {len(scores)} rollouts, including nonsense."
            do = "Ask a question whose answer depends on the text. `taskapp judge calibrate` compares judges with labels."
            return warning(found, do, judge.place)
        gold = _mean_of(subject.scored(GOLD), judge.name)
        idle = _mean_of([item for label in subject.idle_labels() for item in subject.scored(label)], judge.name)
        if gold is not None and idle is not None and gold <= idle:
            found = (
                f"Judge {judge.name!r} gives gold {gold:.3g}, but policies without knowledge of the task {idle:.3g}."
            )
            return warning(found, "Read the judge's reasons with `taskapp rollout --policy gold`.", judge.place)
        said.append(f"{judge.name} {len(set(scores))} scores of {len(scores)} rollouts")
    return passed(f"{'; '.join(said) or 'No judge gave a score'}.")


def _mean_of(rollouts: Sequence[Rollout], name: str) -> float | None:
    scores = [score for score in (_score(rollout, name) for rollout in rollouts) if score is not None]
    return fmean(scores) if scores else None
