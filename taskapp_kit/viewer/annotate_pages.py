"""The pages on which a person scores rollouts. The scores are stored as annotations, which calibration reads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson

from taskapp_kit.errors import FieldProblem, RequestError
from taskapp_kit.net.response import EncodedResponse
from taskapp_kit.records.protocols import Annotation, RolloutRow
from taskapp_kit.viewer.page import Page, PageRequest, not_found, read_details, redirect
from taskapp_kit.viewer.pages import rewards_of
from taskapp_kit.viewer.source import Scale

QUEUE = 500
"""The maximum number of rollouts in the queue to annotate."""
MAX_NOTE = 2000
SCORE = "score:"
"""The prefix of the names of score fields. The criterion's name follows."""


async def annotate(request: PageRequest) -> Page:
    """Return a page to score one of the rollouts that match the filters and did not fail."""
    if not request.source.annotates:
        raise not_found("page of annotations")
    order = request.order()
    rows = [
        row
        for row in await request.source.rows(request.rollout_query(QUEUE), order, request.caller)
        if row.status != "failed"
    ]
    mine = {
        (item.rollout_id, item.criterion): item
        for item in await request.source.annotations(request.caller)
        if item.annotator == request.caller.key_label
    }
    done = {rollout_id for rollout_id, _ in mine}
    at = _position(rows, request.text("id"), done)
    filters = {**request.filters(), "order": order}
    data: dict[str, Any] = {
        "rollouts": len(rows),
        "annotated": sum(row.rollout_id in done for row in rows),
        "rollout_id": None,
    }
    if at is None:
        return Page("annotate_nothing.html", "Annotate", data, {}, "annotate")
    stored = await request.source.load(rows[at].rollout_id, request.caller)
    if stored is None:
        raise not_found("rollout")
    details = await read_details(stored)
    scales = [scale for scale in request.source.scales if scale.applies_to(details.stored.environment)] or _plain(
        rows[at]
    )
    given = {
        scale.name: item for scale in scales if (item := mine.get((details.stored.rollout_id, scale.name))) is not None
    }
    data |= {
        "rollout_id": details.stored.rollout_id,
        "position": at,
        "scales": [asdict(scale) for scale in scales],
        "annotations": [asdict(item) for item in given.values()],
    }
    view = {
        "details": details,
        "picture": request.picture,
        "strip": rewards_of(details),
        "scales": scales,
        "given": given,
        "score_field": SCORE,
        "max_note": MAX_NOTE,
        "action": request.link("annotate", **filters),
        "next": request.link("annotate", **filters, id=rows[at + 1].rollout_id) if at + 1 < len(rows) else None,
        "previous": request.link("annotate", **filters, id=rows[at - 1].rollout_id) if at else None,
        "next_id": rows[at + 1].rollout_id if at + 1 < len(rows) else "",
    }
    return Page("annotate.html", "Annotate", data, view, "annotate")


def _position(rows: Sequence[RolloutRow], wanted: str | None, done: set[str]) -> int | None:
    """Return the position of the rollout to show.

    If a rollout is requested, this is its position, or None if it is not in `rows`. Otherwise, it is the first rollout
    without a score, or else the first rollout. None if `rows` is empty.
    """
    if wanted is not None:
        return next((at for at, row in enumerate(rows) if row.rollout_id == wanted), None)
    return next((at for at, row in enumerate(rows) if row.rollout_id not in done), 0 if rows else None)


def _plain(row: RolloutRow) -> list[Scale]:
    """Return scales from 0 to 1 for the recorded criteria. They are used if no app declares scales."""
    return [Scale(name, "") for name in row.criteria] or [Scale("score", "How good is this rollout?")]


async def store_annotation(request: PageRequest) -> EncodedResponse:
    """Store the scores in the form, and redirect to the next rollout.

    Raises RequestError if a score is not on its scale or a criterion is unknown.
    """
    rollout_id = request.form.get("rollout_id", "")
    stored = await request.source.load(rollout_id, request.caller) if request.source.annotates else None
    if stored is None:
        raise not_found("rollout")
    scales = {scale.name: scale for scale in request.source.scales if scale.applies_to(stored.environment)}
    note = request.form.get("note", "").replace("\x00", "")[:MAX_NOTE]
    made = []
    for name, text in request.form.items():
        if name.startswith(SCORE) and text.strip():
            criterion = name.removeprefix(SCORE)
            scale = scales.get(criterion) if scales else Scale(criterion, "")
            score = _score(scale, criterion, text)
            made.append(Annotation(rollout_id, criterion, request.caller.key_label or "", score, note, time.time()))
    if (rollouts := request.source.rollouts(request.caller)) is not None:
        await rollouts.annotate(made)
    filters = {**request.filters(), "order": request.order()}
    return redirect(request.link("annotate", **filters, id=request.form.get("next") or rollout_id))


def _score(scale: Scale | None, criterion: str, text: str) -> float:
    loc = ("body", SCORE + criterion[:60])
    if scale is None or not criterion or len(criterion) > 200:
        raise RequestError("Unknown criterion.", fields=(FieldProblem(loc, "is not a criterion of the rubric"),))
    try:
        score = float(text)
    except ValueError:
        score = float("nan")
    if not scale.low <= score <= scale.high:
        words = f"must be a number from {scale.low:g} to {scale.high:g}"
        raise RequestError(f"A score {words}.", fields=(FieldProblem(loc, words),))
    return score


async def annotations_file(request: PageRequest) -> EncodedResponse:
    """Return people's scores for the app's judges as JSON Lines, for `taskapp judge calibrate --labels`.

    Only annotations that the caller may see are included. The JSON of the annotations page contains all fields of the
    annotations.
    """
    judges = {scale.name for scale in request.source.scales if scale.judge}
    lines = [
        orjson.dumps({"judge": item.criterion, "rollout_id": item.rollout_id, "label": item.score})
        for item in await request.source.annotations(request.caller)
        if item.criterion in judges
    ]
    headers = [
        (b"content-type", b"application/x-ndjson"),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        (b"content-disposition", b'attachment; filename="annotations.jsonl"'),
    ]
    return EncodedResponse(200, b"".join(line + b"\n" for line in lines), headers)


async def annotation_list(request: PageRequest) -> Page:
    """Return the page with all annotations that the caller may see."""
    found = await request.source.annotations(request.caller)
    data = {"annotations": [asdict(item) for item in found]}
    return Page("annotations.html", "Annotations", data, {"found": found}, "annotate")
