"""What the local trainer reads of a config about its loops (`train/loops/`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taskapp_kit.client.config.review import Review
from taskapp_kit.train.loops.settings import Curriculum, EarlyStopping, EnvironmentShare, LoopSettings
from taskapp_kit.train.update.settings import CLIP_RANGES, Loss

AHEAD = ("training", "iterations_ahead")
ASYNC_GSPO_CLIP = (0.05, 0.06)
"""Of gspo where rollouts are played ahead: measured in fits that learned, while 3e-4 and 4e-4 clipped most of the tokens."""


def read_loops(review: Review) -> LoopSettings:
    """Return the settings; problems are added to the review. A job of type offline plays evaluations only."""
    offline = review.at("algorithm", "type") == "offline"
    ahead = 0 if offline else review.at(*AHEAD) or 0
    if ahead and review.at("sampler", "deterministic"):
        review.mismatch(
            ("sampler", "deterministic"),
            True,
            "false with [training] iterations_ahead",
            "Which weights play depends on time.",
        )
    environments = review.at("rollout", "environments") or []
    for number, given in enumerate(environments, start=1):
        if given.get("task_app") and not given.get("task_url"):
            review.problem(
                ("rollout", "environments"),
                f"[rollout] environments: the task_app of number {number} is a file, which `taskapp train --local` serves. "
                "Give its address as task_url.",
            )
    curriculum = _curriculum(review)
    if environments and curriculum.levels:
        review.problem(
            ("curriculum",),
            "[curriculum]: found beside [rollout] environments; expected one environment, whose level it chooses. Take one out.",
        )
    return LoopSettings(
        stopping=EarlyStopping(review.at("evaluation", "stop_at"), review.at("evaluation", "patience")),
        curriculum=Curriculum() if offline else curriculum,
        ahead=ahead,
        environments=_shares(environments),
    )


def clip_range(review: Review, loss: Loss) -> tuple[float, float] | None:
    """Return the clip range, None for the loss's own. With rollouts ahead, gspo's is another, and its usual one a problem."""
    given = review.at("training", "clip")
    ahead = loss == "gspo" and bool(review.at(*AHEAD))
    if given is None:
        return ASYNC_GSPO_CLIP if ahead else None
    lower, upper = CLIP_RANGES["gspo"]
    if ahead and (given[0] <= lower or given[1] <= upper):
        expected = f"more than {lower:g} and {upper:g} with [training] iterations_ahead"
        review.mismatch(("training", "clip"), given, expected, f"Write for example clip = {list(ASYNC_GSPO_CLIP)}.")
    return float(given[0]), float(given[1])


def _curriculum(review: Review) -> Curriculum:
    found = review.at("curriculum") or {}
    levels, down = found.get("levels"), found.get("down")
    if not levels:
        return Curriculum()
    made = Curriculum(
        tuple(levels), **{name: found[name] for name in ("up", "down", "window") if found.get(name) is not None}
    )
    if len(set(levels)) != len(levels):
        review.mismatch(("curriculum", "levels"), levels, "different ones", "Name each level once.")
    if down is not None and down >= made.up:
        expected = f"less than up, {made.up:g}"
        review.mismatch(("curriculum", "down"), down, expected, "It would go up and down at one reward.")
    return made


def _shares(environments: Sequence[Mapping[str, Any]]) -> tuple[EnvironmentShare, ...]:
    shares: list[EnvironmentShare] = []
    for number, given in enumerate(environments, start=1):
        name = given.get("env_name") or f"environment_{number}"
        if name in {share.name for share in shares}:
            name = f"{name}_{number}"
        seeds = {key: tuple(given[key]) for key in ("seeds", "eval_seeds") if given.get(key)}
        shares.append(
            EnvironmentShare(
                name,
                given["weight"],
                given.get("env_name"),
                (given.get("task_url") or "").rstrip("/") or None,
                given.get("env_config") or {},
                **seeds,
            )
        )
    return tuple(shares)
