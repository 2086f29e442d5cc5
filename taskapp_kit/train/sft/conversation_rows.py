"""Conversations as rows of an update: the ids that a rollout would have, trained on where the model answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from taskapp_kit.train.rendering.renderer import Renderer
from taskapp_kit.train.sft.conversations import ExportedConversation
from taskapp_kit.train.turns import NOT_SAMPLED, TrainingRow

SFT_ADVANTAGE = 1.0
"""Of each token that is learned: a row without an advantage would be left out of an update."""


def conversation_row(renderer: Renderer, conversation: ExportedConversation) -> TrainingRow:
    """Return the row of a conversation; what follows its last answer is left out.

    Which tokens are trained on follows from where the answers are, never from what a token is: padding may be the token
    that ends a message. Answers that are context only have the same tokens as those that are learned.
    """
    ids: tuple[int, ...] = ()
    mask: list[bool] = []
    new: list[Mapping[str, Any]] = []
    for place, message in enumerate(conversation.messages[: max(conversation.learned, default=-1) + 1]):
        if place not in conversation.answers:
            new.append(message)
            continue
        ids = renderer.extend(ids, new) if ids else renderer.prompt(new, conversation.tools)
        mask += [False] * (len(ids) - len(mask))
        answer = renderer.answer(message)
        ids += answer
        mask += [place in conversation.learned] * len(answer)
        new = []
    return TrainingRow(
        ids=ids,
        mask=tuple(mask),
        log_probs=(0.0,) * len(ids),
        versions=tuple(0 if on else NOT_SAMPLED for on in mask),
        advantages=tuple(SFT_ADVANTAGE if on else 0.0 for on in mask),
        group=conversation.name,
        rollout=conversation.name,
    )


def conversation_rows(
    renderer: Renderer, conversations: Sequence[ExportedConversation], context_tokens: int
) -> tuple[list[TrainingRow], Counter[str]]:
    """Return the rows that can be learned from, and how many were left out, by reason."""
    rows: list[TrainingRow] = []
    left_out: Counter[str] = Counter()
    for each in conversations:
        row = conversation_row(renderer, each)
        if any(on and len(list(span)) == 1 for on, span in groupby(row.mask)):
            left_out["with an answer that has no token of this model but its end"] += 1
        elif len(row.ids) > context_tokens:
            left_out[f"longer than the model's context of {context_tokens} tokens"] += 1
        else:
            rows.append(row)
    return rows, left_out


def not_learned_as_tokens(renderer: Renderer, conversations: Sequence[ExportedConversation]) -> Counter[str]:
    """Return how many of the answers have each of `Renderer.not_as_tokens`."""
    return Counter(
        phrase for each in conversations for at in each.learned for phrase in renderer.not_as_tokens(each.messages[at])
    )
