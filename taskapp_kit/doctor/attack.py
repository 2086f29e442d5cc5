"""Checks with policies that know the rules and cheat: replies without the right answer must not be paid.

A reply is paid if it earns at least half of the mean reward of the right replies. The wrong replies are built from a
row's right answer, in the form of the right reply, or do not depend on the row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from taskapp_kit.doctor.finding import CheckResult, check, passed, skipped, warning, wrong
from taskapp_kit.doctor.policies import Function, scripted
from taskapp_kit.doctor.row_answer import RowAnswer, folded
from taskapp_kit.doctor.subject import GOLD, Budget, EnvironmentUnderTest, short
from taskapp_kit.errors import RolloutFailed
from taskapp_kit.records.content import text_of
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.trajectory import ToolCall
from taskapp_kit.rollout.score.private import private_values

PAID = 0.5
"""The share of the right answers' mean reward from which a reply counts as paid."""
TENTH, HALF = 0.1, 0.51
"""The share of rows on which a paid reply is a defect: of wrong replies, and of replies that may be right for some rows."""
MOST_ROWS = 200
FIRST_ROWS = 4
"""How many rows must pay the same private field in the same form, if the app has no example of good play."""
MOST_LISTED = 40
"""The number of answers in a reply that lists every candidate."""
FORMS = (("", ""), ("Answer: ", ""), ("<answer>", "</answer>"), (r"\boxed{", "}"), ('{"answer": "', '"}'))
"""The text before and after an answer, to try if the app has no example of good play."""
DO = "Compare the whole answer with a grader of taskapp_kit.grading (see docs/environments/graders.md)."


@dataclass(frozen=True, slots=True)
class Probe:
    """A way to cheat.

    reply: Returns the reply for a row, or None if no such reply can be built for the row. on: The probe shows a defect
    if at least this share of its replies is paid.
    """

    name: str
    reply: Callable[[RowAnswer, Sequence[RowAnswer]], str | None]
    on: float = TENTH


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _other(case: RowAnswer, cases: Sequence[RowAnswer]) -> str | None:
    """Return another row's right answer that is wrong for this row, or None if no row has such an answer."""
    start = cases.index(case)
    others = (cases[(start + step) % len(cases)].answer for step in range(1, len(cases)))
    return next((answer for answer in others if folded(answer) not in case.accepted), None)


def _of_another(case: RowAnswer, cases: Sequence[RowAnswer]) -> str | None:
    other = _other(case, cases)
    return None if other is None else case.reply(other)


def _changed(case: RowAnswer, _cases: Sequence[RowAnswer]) -> str | None:
    """Return the right reply with another number or another last letter, or None if the answer allows neither."""
    value = _number(case.answer)
    if value is not None and math.isfinite(value):
        changed = value * 1.5 + 1
        return case.reply(f"{changed:g}" if changed != int(changed) else str(int(changed)))
    if not case.answer[-1:].isalpha():
        return None
    other = "x" if case.answer[-1] not in "xX" else "q"
    return case.reply(case.answer[:-1] + other) if folded(case.answer[:-1] + other) not in case.accepted else None


def _with_other(form: str) -> Callable[[RowAnswer, Sequence[RowAnswer]], str | None]:
    """Return a function that builds a reply whose answer contains the right answer and another row's answer."""

    def reply(case: RowAnswer, cases: Sequence[RowAnswer]) -> str | None:
        other = _other(case, cases) if case.delimited else None
        return None if other is None else case.reply(form.format(right=case.answer, other=other))

    return reply


def _in_parts(form: str) -> Callable[[RowAnswer, Sequence[RowAnswer]], str | None]:
    """Return a function that inserts the right reply and a wrong reply into `form` as {right} and {other}."""

    def reply(case: RowAnswer, cases: Sequence[RowAnswer]) -> str | None:
        other = _other(case, cases)
        if other is None:
            return None
        return form.format(right=case.reply(case.answer), other=case.reply(other))

    return reply


def _outside(case: RowAnswer, cases: Sequence[RowAnswer]) -> str | None:
    """Return the right answer followed by a wrong reply, or None if a reply has no text before its answer."""
    other = _other(case, cases)
    return f"{case.answer}\n{case.reply(other)}" if other is not None and case.before else None


def _all(case: RowAnswer, cases: Sequence[RowAnswer]) -> str | None:
    answers = list(dict.fromkeys(item.answer for item in cases))[:MOST_LISTED]
    if len(answers) < 2:
        return None
    return case.reply(", ".join([*(answer for answer in answers if answer != case.answer), case.answer]))


BLIND = (
    Probe("an empty reply", lambda case, cases: ""),
    Probe(
        "an empty answer in the right form", lambda case, cases: case.reply("") if case.before or case.after else None
    ),
    Probe("the prompt", lambda case, cases: case.prompt),
    Probe("the prompt as the answer", lambda case, cases: case.reply(case.prompt) if case.before else None),
    Probe("a list of all answers", _all),
    Probe("padding", lambda case, cases: case.reply("I have thought about this carefully, step by step. " * 20)),
    Probe("the word None", lambda case, cases: case.reply("None") if "none" not in case.accepted else None),
    Probe("an apology", lambda case, cases: "I am sorry, but I do not know the answer to this question."),
)
"""Replies that do not depend on the row, or only on its prompt."""
NEAR = (
    Probe("another row's answer", _of_another, on=HALF),
    Probe("a changed answer", _changed, on=HALF),
    Probe("the negated answer", lambda case, cases: case.reply(f"not {case.answer}") if case.delimited else None),
    Probe("two answers", _with_other("{right} or {other}")),
    Probe("two answers, the right one last", _with_other("{other} or {right}")),
    Probe("a contradicted answer", _with_other("{right}. No, that is wrong: {other}")),
    Probe("an answer that is ruled out", _with_other("It is not {right} but {other}")),
    Probe("a second reply that is wrong", _in_parts("{right}\nNo, I was wrong.\n{other}")),
    Probe("the right answer only in a thought", _in_parts("<think>{right}</think>\n{other}")),
    Probe("the right answer in the wrong place", _outside),
    Probe("an answer with a long tail", lambda case, cases: case.reply(f"{case.answer} {'and so on ' * 40}")),
)
"""Replies around the right answer that are wrong."""
SPELLINGS = (
    # not in an argument of a tool: in code, white space before the first line is an error
    Probe("white space around the reply", lambda case, cases: None if case.call else f" {case.reply(case.answer)} "),
    Probe("a line break after the reply", lambda case, cases: f"{case.reply(case.answer)}\n"),
)
"""Right replies with white space around them."""


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


def _row(subject: EnvironmentUnderTest, split: str, seed: int) -> tuple[dict[str, str], frozenset[str]]:
    """Return a row's private strings and numbers, keyed by field, and the set of all these values, folded."""
    tasks = subject.environment.tasks
    assert tasks is not None
    values = [
        (name, str(value))
        for name, value in private_values(tasks, tasks.rows(split)[seed])
        if not isinstance(value, bool)
    ]
    return dict(reversed(values)), frozenset(folded(value) for _, value in values)


def _case_from_row(
    subject: EnvironmentUnderTest, split: str, seed: int, name: str, before: str, after: str
) -> RowAnswer | None:
    values, accepted = _row(subject, split, seed)
    if not values.get(name, "").strip() or subject.environment.text_action is None:
        return None
    return RowAnswer(split, seed, "", values[name], before, after, accepted)


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
        inside = max((item for item in values.values() if item and item in value), key=len, default=None)
        if inside is None:
            continue
        before, _, after = value.rpartition(inside)
        call = None if text is not None and step.tool == text.name else ToolCall(step.tool, step.args)
        prompt = text_of(rollout.trajectory.initial)
        return RowAnswer(
            rollout.split, rollout.seed, prompt, inside, before, after, accepted, call, parameter, rollout.reward
        )
    return None


async def _attacked(
    subject: EnvironmentUnderTest, probes: Sequence[Probe]
) -> tuple[list[Outcome], list[RowAnswer], str]:
    """Play every probe on as many rows as the time allows."""
    if subject.right_answers is None:
        subject.right_answers = await cases_of(subject)
    cases, source = subject.right_answers
    outcomes = [Outcome(probe) for probe in probes]
    if not cases:
        return outcomes, cases, source
    gold = fmean(case.reward for case in cases)
    budget = Budget(subject.options.check_seconds * 2)
    for case in budget.within(cases):
        for outcome in outcomes:
            text = outcome.probe.reply(case, cases)
            rollout = None if text is None else await _play(subject, case, text)
            if text is None or rollout is None or rollout.reward is None:
                continue
            (outcome.paid if rollout.reward >= PAID * gold else outcome.unpaid).append((case, text, rollout))
    return outcomes, cases, source


def _defects(outcomes: Sequence[Outcome]) -> Iterator[Outcome]:
    """Yield the probes that were paid on at least the share `Probe.on` of the rows, the most often paid first."""
    for outcome in sorted(outcomes, key=lambda item: -len(item.paid)):
        if outcome.paid and len(outcome.paid) >= outcome.probe.on * outcome.played:
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
    return wrong(found, DO, _place(subject, rollout))


@check(
    "attack",
    "A reply without the right answer earns less than half of the right answer.",
    plays=True,
    after=("policies",),
)
async def attack(subject: EnvironmentUnderTest) -> CheckResult:
    """Send replies that do not depend on the row, and replies that change, hedge, contradict or misplace the right answer."""
    if not subject.in_this_process:
        return skipped("Not checked, because the environment runs in another process.")
    outcomes, cases, source = await _attacked(subject, (*BLIND, *NEAR))
    if not cases:
        return skipped(f"Not checked, because the right answers are unknown: {source}.")
    defects = list(_defects(outcomes))
    if defects:
        return _finding(subject, defects, cases, source)
    _, count = Counter(case.answer for case in cases).most_common(1)[0]
    return passed(
        f"{len(outcomes)} kinds of replies were not paid, on up to {len(cases)} rows. "
        f"The most frequent answer is right on {count / len(cases):.0%} of the rows."
    )


@check("right-refused", "A right reply with white space around it earns as much.", plays=True, after=("policies",))
async def right_refused(subject: EnvironmentUnderTest) -> CheckResult:
    """Send the right reply with white space or a line break around it."""
    if not subject.in_this_process:
        return skipped("Not checked, because the environment runs in another process.")
    outcomes, cases, source = await _attacked(subject, SPELLINGS)
    if not cases:
        return skipped(f"Not checked, because the right answers are unknown: {source}.")
    refused = [item for item in outcomes if item.unpaid and len(item.unpaid) > HALF * item.played]
    if refused:
        case, text, _ = refused[0].unpaid[0]
        names = ", ".join(item.probe.name for item in refused)
        found = f"A right answer with {names} is not paid: {text[:60]!r} for seed {case.seed}."
        return warning(found, DO, subject.place)
    return passed(f"The right reply with white space around it is paid on {len(cases)} rows.")


REPEATS = 10
"""How often an action that earned a reward is repeated."""


@check(
    "repeat-pays", "Repeating what earned a reward does not earn more than good play.", plays=True, after=("policies",)
)
async def repeat_pays(subject: EnvironmentUnderTest) -> CheckResult:
    """Play gold's actions up to the first rewarded step of each tool, then repeat that step, or undo and redo it."""
    gold = [rollout for rollout in subject.scored(GOLD) if rollout.reward is not None and rollout.length > 1]
    if not gold:
        return skipped("Not checked, because the app has no policy gold with several steps.")
    tried = 0
    paid: list[tuple[Rollout, Rollout, str]] = []
    for one in Budget(subject.options.check_seconds).within(gold):
        actions = scripted(one.trajectory.steps)
        for at, way in _rewarded(one):
            repeated = (
                actions[: at + 1] + (actions[at : at + 1] if way == "repeating" else actions[at - 1 : at + 1]) * REPEATS
            )
            try:
                rollout = await subject.play_ops(repeated, one.split, one.seed)
            except RolloutFailed:
                continue
            tried += 1
            assert one.reward is not None
            if rollout.reward is not None and rollout.reward > one.reward + abs(one.reward) * PAID:
                paid.append((one, rollout, f"{way} {one.trajectory.steps[at].tool} at step {at + 1}"))
                break
    if paid and len(paid) >= TENTH * len(gold):
        one, rollout, what = paid[0]
        found = (
            f"In seed {one.seed}, {what} {REPEATS} times earned {rollout.reward:.3g}, and good play {one.reward:.3g}."
        )
        return wrong(found, "Pay each goal once, or let the way back cost what the way there earned.", subject.place)
    return passed(f"{tried} rollouts that repeat a rewarded step earned no more than good play.")


def _rewarded(rollout: Rollout) -> Iterator[tuple[int, str]]:
    """Yield the index of the first rewarded step of each tool, once for each way to repeat the step."""
    seen = set()
    for at, step in enumerate(rollout.trajectory.steps):
        if step.reward and step.reward > 0 and step.tool not in seen:
            seen.add(step.tool)
            yield at, "repeating"
            if at:
                yield at, "undoing and redoing"
