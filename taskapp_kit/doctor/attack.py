"""Checks with policies that know the rules and cheat: replies without the right answer must not be paid.

A reply is paid if it earns at least half of the mean reward of the right replies. The wrong replies are built from a
row's right answer, in the form of the right reply, or do not depend on the row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from taskapp_kit.doctor.finding import CheckResult, FindingEpisode, check, passed, skipped, warning, wrong
from taskapp_kit.doctor.policies import Function
from taskapp_kit.doctor.probes import BLIND, CONSTANT, FOR_CODE, FOR_JUDGES, HALF, NEAR, SPELLINGS, Probe
from taskapp_kit.doctor.row_answer import RowAnswer, answer_in, folded
from taskapp_kit.doctor.subject import GOLD, Budget, EnvironmentUnderTest, short
from taskapp_kit.errors import RolloutFailed
from taskapp_kit.records.content import Json, text_of
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.trajectory import ToolCall
from taskapp_kit.rollout.score.private import private_values

PAID = 0.5
"""The share of the right answers' mean reward from which a reply counts as paid."""
MOST_ROWS = 200
FIRST_ROWS = 4
"""How many rows must pay the same private field in the same form, if the app has no example of good play."""
FORMS = (("", ""), ("Answer: ", ""), ("<answer>", "</answer>"), (r"\boxed{", "}"), ('{"answer": "', '"}'))
"""The text before and after an answer, to try if the app has no example of good play."""
DO = "Compare the whole answer with a grader of taskapp_kit.grading (see docs/environments/graders.md)."


@dataclass
class Outcome:
    """The paid and the unpaid rollouts of a probe, each with its row and reply."""

    probe: Probe
    paid: list[tuple[RowAnswer, str, Rollout]] = field(default_factory=list)
    unpaid: list[tuple[RowAnswer, str, Rollout]] = field(default_factory=list)

    @property
    def played(self) -> int:
        """The number of rollouts."""
        return len(self.paid) + len(self.unpaid)


async def _play(subject: EnvironmentUnderTest, case: RowAnswer, text: str) -> Rollout | None:
    """Play one reply. Return None if the rollout fails or has no reward, which other checks report."""
    assert subject.base is not None
    own = Function("attack", lambda view: case.decision(text))
    try:
        rollout = await subject.play(subject.base, case.split, case.seed, own=own)
    except RolloutFailed:
        return None
    return None if rollout.reward is None else rollout


async def cases_of(subject: EnvironmentUnderTest) -> tuple[list[RowAnswer], str]:
    """Return the rows with their right answers and the answers' source, or [] and why the answers are unknown."""
    tasks = subject.environment.tasks
    if tasks is None:
        return [], "the environment has no rows"
    episodes = subject.seeds(MOST_ROWS)
    if GOLD in subject.attempts:
        await subject.more(GOLD, MOST_ROWS, subject.options.policy_seconds)
        cases = [case for rollout in subject.scored(GOLD) if (case := _case_of(subject, rollout)) is not None]
        if not cases:
            return [], "the policy gold does not reply in one action with a private value of the row"
        return cases, "the policy gold"
    for name in dict.fromkeys(name for name, _ in private_values(tasks, tasks.rows(episodes[0][0])[episodes[0][1]])):
        for before, after in FORMS:
            found = [_case_from_row(subject, split, seed, name, before, after) for split, seed in episodes]
            cases = [case for case in found if case is not None]
            rewards = []
            for case in cases[:FIRST_ROWS]:
                rollout = await _play(subject, case, case.reply(case.answer))
                rewards.append(0.0 if rollout is None or rollout.reward is None else rollout.reward)
            top = subject.spec.blend_for(subject.name)
            if rewards and min(rewards) >= top.outcome > 0:
                views = [await subject.first_view(case.split, case.seed) for case in cases]
                return [
                    replace(case, reward=min(rewards), prompt=text_of(view.observation))
                    for case, view in zip(cases, views, strict=True)
                ], f"the private field {name!r}"
    return [], "the app has no policy gold, and no private field earns full reward as the answer"


async def blind_cases(subject: EnvironmentUnderTest) -> list[RowAnswer]:
    """Return rows without their right answers, each with the reward that a right answer earns.

    The list is empty if this reward is unknown, or if the policy's first reply does not end the episode.
    """
    gold, blend = subject.mean_reward(GOLD), subject.spec.blend_for(subject.name)
    top = gold if gold is not None else blend.outcome if not blend.env and not blend.event else 0.0
    if not subject.environment.one_answer or top <= 0:
        return []
    words = _rubric_words(subject)
    episodes = subject.seeds(subject.options.seeds)
    views = [(split, seed, await subject.first_view(split, seed)) for split, seed in episodes]
    return [
        RowAnswer(split, seed, text_of(view.observation), "", "", "", frozenset(), reward=top, rubric_words=words)
        for split, seed, view in views
    ]


def _rubric_words(subject: EnvironmentUnderTest) -> str:
    """Return what the criteria state about themselves."""
    return " ".join(item.description for item in subject.spec.criteria if item.applies_to(subject.name))


def _row(subject: EnvironmentUnderTest, split: str, seed: int) -> tuple[dict[str, list[str]], frozenset[str]]:
    """Return a row's private strings and numbers, keyed by field, and the set of all these values, folded."""
    tasks = subject.environment.tasks
    assert tasks is not None
    values: dict[str, list[str]] = {}
    for name, value in private_values(tasks, tasks.rows(split)[seed]):
        if not isinstance(value, bool):
            values.setdefault(name, []).append(str(value))
    return values, frozenset(folded(value) for items in values.values() for value in items)


def _case_from_row(
    subject: EnvironmentUnderTest, split: str, seed: int, name: str, before: str, after: str
) -> RowAnswer | None:
    values, accepted = _row(subject, split, seed)
    answer = values.get(name, [""])[0]
    if not answer.strip() or subject.environment.text_action is None:
        return None
    return RowAnswer(split, seed, "", answer, before, after, accepted)


def _case_of(subject: EnvironmentUnderTest, rollout: Rollout) -> RowAnswer | None:
    """Return the right answer if gold was rewarded for a single action that contains a private string, else None."""
    steps = [step for step in rollout.trajectory.steps if step.refused is None and isinstance(step.args, dict)]
    if len(steps) != 1 or not rollout.reward or rollout.reward <= 0:
        return None
    (step,) = steps
    assert isinstance(step.args, dict)
    text = subject.environment.text_action
    values, accepted = _row(subject, rollout.split, rollout.seed)
    for parameter, value in step.args.items():
        if not isinstance(value, str):
            continue
        span = answer_in(value, values)
        if span is None:
            continue
        before, inside, after = value[: span[0]], value[slice(*span)], value[span[1] :]
        call = None if text is not None and step.tool == text.name else ToolCall(step.tool, step.args)
        prompt = text_of(rollout.trajectory.initial)
        words = _rubric_words(subject)
        return RowAnswer(
            rollout.split, rollout.seed, prompt, inside, before, after, accepted, call, parameter, rollout.reward, words
        )
    return None


async def _known(subject: EnvironmentUnderTest) -> tuple[list[RowAnswer], str]:
    """Return the result of `cases_of`, which is called only once."""
    if subject.right_answers is None:
        subject.right_answers = await cases_of(subject)
    return subject.right_answers


async def _attacked(
    subject: EnvironmentUnderTest, probes: Sequence[Probe], cases: Sequence[RowAnswer]
) -> list[Outcome]:
    """Play every probe on as many rows as the time allows."""
    outcomes = [Outcome(probe) for probe in probes]
    gold = fmean(case.reward for case in cases)
    budget = Budget(subject.options.check_seconds * 2)
    for case in budget.within(cases):
        for outcome in outcomes:
            text = outcome.probe.reply(case, cases)
            rollout = None if text is None else await _play(subject, case, text)
            if text is None or rollout is None or rollout.reward is None:
                continue
            (outcome.paid if rollout.reward >= PAID * gold else outcome.unpaid).append((case, text, rollout))
    return outcomes


def _defects(outcomes: Sequence[Outcome]) -> Iterator[Outcome]:
    """Yield the probes that were paid on at least the share `Probe.on` of the rows, the most often paid first."""
    for outcome in sorted(outcomes, key=lambda item: -len(item.paid)):
        probe = outcome.probe
        if outcome.paid and len(outcome.paid) >= probe.on * outcome.played and outcome.played >= probe.least:
            yield outcome


def _place(subject: EnvironmentUnderTest, rollout: Rollout) -> str:
    """Return `file:line` of the criterion that contributed most to the reward, or of the environment if none did."""
    scores = {item.name: item.score for item in rollout.scorecard.criteria if item.score}
    criteria = [item for item in subject.spec.criteria if item.name in scores and item.applies_to(subject.name)]
    return max(criteria, key=lambda item: scores[item.name] * item.weight).place if criteria else subject.place


def _finding(
    subject: EnvironmentUnderTest, defects: Sequence[Outcome], cases: Sequence[RowAnswer], source: str
) -> CheckResult:
    worst = defects[0]
    case, text, rollout = worst.paid[0]
    gold = fmean(item.reward for item in cases)
    found = (
        f"A reply with {worst.probe.name} was paid on {len(worst.paid)} of {worst.played} rows: {short(text)} for seed "
        f"{case.seed} earned {rollout.reward:.3g}, and the right answer {gold:.3g} (known from {source})."
    )
    if len(defects) > 1:
        found += f" Also paid: {', '.join(item.probe.name for item in defects[1:])}."
    action: Json = text if case.call is None else {case.call.tool: case.arguments(text)}
    episode = FindingEpisode(case.split, case.seed, action, rollout.reward, gold)
    return wrong(found, DO, _place(subject, rollout), episode)


@check(
    "attack",
    "A reply without the right answer earns less than half of the right answer.",
    plays=True,
    after=("policies",),
)
async def attack(subject: EnvironmentUnderTest) -> CheckResult:
    """Send replies that do not depend on the row, and replies that change, hedge, contradict or misplace the right answer."""
    cases, source = await _known(subject)
    judges = FOR_JUDGES if subject.options.judges else ()
    if cases:
        near = FOR_CODE if cases[0].function else (*NEAR, *CONSTANT)
        outcomes = await _attacked(subject, (*BLIND, *judges, *near), cases)
    elif blind := await blind_cases(subject):
        cases, source = blind, "the policy gold" if GOLD in subject.attempts else "the highest score of the formula"
        outcomes = await _attacked(subject, (*BLIND, *judges), cases)
    else:
        return skipped(f"Not checked, because the right answers are unknown: {source}.")
    if not any(outcome.played for outcome in outcomes):
        return skipped("Not checked, because no reply had a reward.")
    defects = list(_defects(outcomes))
    if defects:
        return _finding(subject, defects, cases, source)
    _, count = Counter(case.answer for case in cases).most_common(1)[0]
    frequent = f" The most frequent answer is right on {count / len(cases):.0%} of the rows." if cases[0].answer else ""
    return passed(f"{len(outcomes)} kinds of replies were not paid, on up to {len(cases)} rows.{frequent}")


@check("right-refused", "A right reply in another usual spelling earns as much.", plays=True, after=("policies",))
async def right_refused(subject: EnvironmentUnderTest) -> CheckResult:
    """Send the right reply with white space around it, in lower case, with commas between thousands and so on."""
    if subject.options.judges and any(item.weight for item in subject.spec.judges if item.applies_to(subject.name)):
        return skipped("Not checked, because judges score the replies.")
    cases, source = await _known(subject)
    if not cases:
        return skipped(f"Not checked, because the right answers are unknown: {source}.")
    outcomes = await _attacked(subject, SPELLINGS, cases)
    refused = [
        item
        for item in outcomes
        if item.unpaid and len(item.unpaid) > HALF * item.played and item.played >= item.probe.least
    ]
    if refused:
        case, text, _ = refused[0].unpaid[0]
        names = ", ".join(item.probe.name for item in refused)
        found = f"A right answer with {names} is not paid: {text[:60]!r} for seed {case.seed}."
        return warning(found, DO, subject.place)
    return passed(f"The right reply in other spellings is paid on {len(cases)} rows.")
