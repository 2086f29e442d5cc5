"""Checks that read the sample: the rollouts of every policy that needs no model, on the first seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from taskapp_kit.declare.source_location import shown_path
from taskapp_kit.doctor.doctor_options import MOST_TURNS
from taskapp_kit.doctor.finding import CheckResult, check, passed, skipped, warning, wrong
from taskapp_kit.doctor.subject import Attempt, EnvironmentUnderTest, kind_of, outcome_words, short
from taskapp_kit.errors import RolloutFailed
from taskapp_kit.records.content import images, text_of
from taskapp_kit.records.scorecard import POLICY
from taskapp_kit.rollout.score.judges import needed_roles

REWARD_CODES = {"reward_not_finite": "reward-finite", "reward_out_of_range": "reward-range"}
SCHEMA_CODES = frozenset(
    """observation_not_json info_not_json final_state_not_json not_a_number flag_not_bool shared_object
    reset_returned_step unknown_action no_action""".split()
)
LATE_CODES = frozenset({"deadline", "environment_hung", "no_thread"})
LEAST_REFUSED = 20


def check_of(error: RolloutFailed) -> str:
    """Return the name of the check that reports a failed rollout."""
    code = error.failure.code
    if code in REWARD_CODES:
        return REWARD_CODES[code]
    if code in SCHEMA_CODES:
        return "schema"
    if code in LATE_CODES:
        return "in-time"
    if error.boundary == "scoring":
        return "scoring"
    if error.boundary == "policy":
        return "policies"
    return "close" if error.failure.message.endswith("in close") else "rollout"


def _failed(subject: EnvironmentUnderTest, name: str) -> list[tuple[Attempt, RolloutFailed]]:
    return [(attempt, error) for attempt, error in subject.failures() if check_of(error) == name]


def failure_words(attempt: Attempt, error: RolloutFailed) -> str:
    """Describe a failed rollout in a sentence, without the exception's message, which may contain anything."""
    said = error.message.rstrip(".")
    return f"{attempt.words}: failed at boundary {error.boundary} ({error.failure.code}): {said}."


def raised_at(error: RolloutFailed, folder: str) -> str:
    """Return `file:line` of the last frame in the author's directory, or "" if no frame is in it."""
    cause, place = error.__cause__, ""
    trace = None if cause is None else cause.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(folder) and "site-packages" not in file[len(folder) :]:
            place = f"{shown_path(file)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _verdict(subject: EnvironmentUnderTest, name: str, holds: str, do: str) -> CheckResult:
    """Return the result of a check that looks for failures. holds: The finding if no rollout failed."""
    found = _failed(subject, name)
    if not found:
        return passed(holds)
    attempt, error = found[0]
    more = "" if len(found) == 1 else f" {len(found)} of {len(subject.tried())} rollouts failed this way."
    hint = error.hint or do
    shows = f"`taskapp rollout` with --env {subject.name} --seed {attempt.seed} shows the step."
    place = raised_at(error, str(subject.app.file.parent)) or subject.place
    return wrong(failure_words(attempt, error) + more, f"{hint} {shows}".strip(), place)


def _played(subject: EnvironmentUnderTest) -> str:
    count = len(subject.tried())
    return f"{count} rollouts of {len(subject.attempts)} policies"


@check("rollout", "A rollout of each policy that needs no model ends without a failure.")
async def rollout_ends(subject: EnvironmentUnderTest) -> CheckResult:
    """Report how the base policy's first rollout ended."""
    assert subject.base is not None
    refused = next((attempt for attempt in subject.tried() if attempt.error and not _is_failure(attempt)), None)
    if refused is not None and refused.error is not None:
        return wrong(f"{refused.words} was not played: {refused.error.message}", refused.error.hint, subject.place)
    first = subject.attempts[subject.base.label][0]
    if first.rollout is None:
        holds = f"{first.words} failed, which another check reports."
    else:
        ended = "; ".join([outcome_words(first.rollout), *first.rollout.warnings])
        holds = f"Environment {subject.name}: {first.words}: {ended}."
    verdict = _verdict(subject, "rollout", holds, "Fix the environment.")
    codes = {error.failure.code for _, error in _failed(subject, "rollout")}
    if codes == {"auxiliary_model_not_configured"} and not subject.options.judges:
        return skipped(verdict.found, "Call the environment's models with --judges.")
    if verdict.status == "ok" and subject.base.own is not None:
        do = "Add bounds or @action(sample=fn) to its actions, so that `random` can play."
        return CheckResult("ok", verdict.found, do, verdict.place)
    return verdict


def _is_failure(attempt: Attempt) -> bool:
    return isinstance(attempt.error, RolloutFailed)


@check("schema", "The environment returns values that can be recorded: JSON, finite, and a new object at each step.")
async def schema(subject: EnvironmentUnderTest) -> CheckResult:
    """Report values that could not be recorded."""
    return _verdict(subject, "schema", f"All values of {_played(subject)} were JSON.", "Return JSON values.")


@check("reward-finite", "Every reward is a finite number.")
async def reward_finite(subject: EnvironmentUnderTest) -> CheckResult:
    """Report rewards that are NaN or infinite."""
    return _verdict(subject, "reward-finite", "Every reward was finite.", "Return a finite reward.")


@check("reward-range", "Every step's reward lies within the declared reward_range.")
async def reward_range(subject: EnvironmentUnderTest) -> CheckResult:
    """Report rewards outside `reward_range`."""
    declared = subject.environment.reward_range
    rewards = [
        step.reward for rollout in subject.scored() for step in rollout.trajectory.steps if step.reward is not None
    ]
    seen = f"{min(rewards):g} to {max(rewards):g}" if rewards else "none"
    holds = f"Rewards of steps: {seen}" + (
        f", declared {declared[0]:g} to {declared[1]:g}." if declared else "; no range is declared."
    )
    return _verdict(subject, "reward-range", holds, "Correct reward_range= or the reward.")


@check("scoring", "Every rubric returns a score, or None if it does not apply.")
async def scoring(subject: EnvironmentUnderTest) -> CheckResult:
    """Report criteria that raise an exception or return an invalid score."""
    return _verdict(subject, "scoring", f"{_played(subject)} were scored.", "Fix the criterion.")


@check("policies", "The app's policies choose actions that are accepted.")
async def policies(subject: EnvironmentUnderTest) -> CheckResult:
    """Report policies of the app that raise exceptions, or whose actions are all rejected."""
    verdict = _verdict(subject, "policies", f"Policies: {', '.join(subject.attempts) or 'none'}.", "Fix the policy.")
    if verdict.status == "wrong":
        return verdict
    own = {policy.name: policy.place for policy in subject.spec.policies if policy.applies_to(subject.name)}
    for label, place in own.items():
        played = [rollout for rollout in subject.scored(label) if rollout.length]
        if played and all(step.refused for rollout in played for step in rollout.trajectory.steps):
            refused = played[0].trajectory.steps[0].refused
            return wrong(f"Every action of policy {label} was rejected: {short(refused)}.", "Fix the policy.", place)
    return verdict


@check("close", "close() ends without raising.")
async def close(subject: EnvironmentUnderTest) -> CheckResult:
    """Report an exception in `close`."""
    if not subject.environment.has_close:
        return passed("The environment has no close method.")
    return _verdict(subject, "close", f"close succeeded in {len(subject.scored())} rollouts.", "Fix close.")


@check("in-time", "A rollout ends before its deadline.")
async def in_time(subject: EnvironmentUnderTest) -> CheckResult:
    """Report rollouts that reached the doctor's deadline."""
    late = _failed(subject, "in-time")
    if late and late[0][1].failure.code == "deadline":
        attempt, _ = late[0]
        seconds = subject.options.deadline_seconds
        found = f"{attempt.words}: the rollout did not end within {seconds:g} s."
        if subject.options.quick:
            return skipped(found, "Run the doctor without --quick. A rollout then has 60 s.")
        return warning(found, "Make steps faster, or declare a lower max_steps= or max_turns=.", subject.place)
    return _verdict(subject, "in-time", "No rollout reached the deadline.", "Limit the time of the app's calls.")


@check("ends", "An episode ends, by its rules or by a declared limit.")
async def ends(subject: EnvironmentUnderTest) -> CheckResult:
    """Report episodes that neither a rule nor a declared limit ended."""
    rollouts = subject.scored()
    if not rollouts:
        return skipped("No rollout was scored.")
    cut = [
        item
        for item in subject.tried()
        if item.rollout and item.rollout.stop_reason in ("default_max_turns", "max_ops")
    ]
    environment = subject.environment
    declared = environment.max_steps is not None or environment.max_turns is not None
    longest = max(rollout.length for rollout in rollouts)
    if not cut or declared:
        return passed(f"{len(rollouts)} rollouts ended, the longest after {longest} steps.")
    words = f"{cut[0].words} was stopped after {MOST_TURNS} turns, because neither the environment nor a limit ended it"
    do = "Declare max_steps= or max_turns=, or end the episode: Step(terminated=True)."
    if environment.default_max_turns is None and len(cut) == len(rollouts):
        return wrong(f"{words}, and no other policy's episode ended either.", do, subject.place)
    return warning(f"{words} ({len(cut)} of {len(rollouts)} rollouts).", do, subject.place)


@check("observation", "The first observation shows something.")
async def observation(subject: EnvironmentUnderTest) -> CheckResult:
    """Report episodes whose first observation is empty."""
    empty = [
        rollout
        for rollout in subject.scored()
        if not text_of(rollout.trajectory.initial).strip() and not any(images(rollout.trajectory.initial))
    ]
    if empty:
        found = f"The first observation of seed {empty[0].seed} is empty, so a model must act without any information."
        return warning(found, "Return the first observation from reset.", subject.line("reset"))
    return passed("Every episode begins with an observation.")


@check("actions-accepted", "At least some actions that fit their schema are accepted.")
async def actions_accepted(subject: EnvironmentUnderTest) -> CheckResult:
    """Report an environment that rejects every action that is drawn from its schemas."""
    steps = [
        step
        for label in subject.attempts
        if kind_of(label) in ("random", "schema")
        for rollout in subject.scored(label)
        for step in rollout.trajectory.steps
    ]
    refused = [step for step in steps if step.refused is not None]
    if len(refused) >= LEAST_REFUSED and len(refused) == len(steps):
        first = short(refused[0].refused)
        found = f"All {len(steps)} actions drawn from the schemas were rejected. The first was {first}."
        do = "Restrict the schema to accepted actions (Literal, Field bounds), or add a sampler: @action(sample=fn)."
        return warning(found, do, subject.line(refused[0].tool))
    return passed(f"{len(steps) - len(refused)} of {len(steps)} randomly drawn actions were accepted.")


@check("reward-defined", "A rollout has a reward.")
async def reward_defined(subject: EnvironmentUnderTest) -> CheckResult:
    """Report environments without a reward: no rubric, and no step with a reward."""
    rollouts = subject.scored()
    if not rollouts:
        return skipped("No rollout was scored.")
    formula = rollouts[0].scorecard.formula
    skipped_judges = any(item.reason == "judges_skipped" and item.weight > 0 for item in rollouts[0].scorecard.criteria)
    if skipped_judges:
        return skipped(f"{formula} is unknown, because judges were not called.", "Call judges with --judges.")
    undefined = [rollout for rollout in rollouts if rollout.reward is None]
    blend = subject.spec.blend_for(subject.name)
    if len(undefined) == len(rollouts):
        found = f"The reward of all {len(rollouts)} rollouts is undefined ({formula})."
        return wrong(found, "Make a criterion in the formula apply, or change `reward=`.", subject.place)
    done = [step for rollout in rollouts for step in rollout.trajectory.steps if step.refused is None]
    if not any(step.reward is not None for step in done) and done and not blend.event and not blend.outcome:
        found = f"None of {len(done)} steps has a reward, and no rubric scores the rollout ({formula})."
        return wrong(found, "Return Step(reward=…), or declare a rubric with @app.rubric.", subject.place)
    return passed(f"{formula}. It is defined in {len(rollouts) - len(undefined)} of {len(rollouts)} rollouts.")


@check("models", "The environment declares the roles of the models that it calls.")
async def models(subject: EnvironmentUnderTest) -> CheckResult:
    """Report called models whose role neither the environment nor a judge declares."""
    declared = {need.role for need in needed_roles(subject.spec) if need.judges or subject.name in need.environments}
    undeclared = sorted(subject.service.models.called - declared - {POLICY})
    if not undeclared:
        return passed("No rollout called a model with an undeclared role.")
    found = f"Environment {subject.name} calls models with roles that it does not declare: {', '.join(undeclared)}."
    do = f"Declare models=({''.join(f'{role!r}, ' for role in undeclared).strip()}); then `info` and deployment plans list them."
    return warning(found, do, subject.place)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that is at least as large as the given share of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]
