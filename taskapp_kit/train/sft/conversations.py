"""Conversations for fine-tuning, from a file that `taskapp export --format sft` wrote. Some are held out.

Each conversation becomes a training row with the same token ids as a rollout of this conversation. Only the model's
replies are trained on.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson

from taskapp_kit.errors import ConfigError, RequestError
from taskapp_kit.records.content import plain, read_exactly
from taskapp_kit.records.formatting import cut
from taskapp_kit.records.seeds import derived_rng
from taskapp_kit.train.rendering.messages import ROLES, NormalMessage, normal_messages, reasoning_of
from taskapp_kit.train.rendering.renderer import Renderer
from taskapp_kit.train.sft.sft_settings import SftSettings
from taskapp_kit.train.turns import NOT_SAMPLED, TrainingRow

Origin = tuple[str, str, int | str]
"""The environment, split and seed of a conversation, or its name if the seed is missing. Equal origins are not separated."""
LINES_SHOWN = 5
"""Maximum number of line numbers in a message about lines that are omitted for one reason."""
SHOWN_CHARACTERS = 80
NOTHING_LEARNED = "in which each answer has the weight 0"
NO_ARGUMENTS = "with a call whose arguments are not a JSON object"


@dataclass(frozen=True, slots=True)
class ExportedConversation:
    """The conversation in one line of a file. Values that the file does not specify are None or "".

    Attributes:
        name: The rollout's id, or the line's number if the id is missing.
        answers: The positions of the messages that the model wrote.
        weightless: The positions of replies that are only context.
        line: The line's number in the file.
        digest: A hash that is equal for equal conversations.
        unfit: Why the conversation cannot be used for training, or None if it can.
    """

    name: str
    messages: Sequence[dict[str, Any]]
    answers: frozenset[int]
    tools: Sequence[dict[str, Any]]
    reward: float | None
    environment: str
    split: str
    seed: int | None
    weightless: frozenset[int] = frozenset()
    line: int = 0
    digest: str = ""
    unfit: str | None = None

    @property
    def learned(self) -> frozenset[int]:
        """The positions of the replies that are trained on."""
        return self.answers - self.weightless

    @property
    def origin(self) -> Origin:
        """The key that determines whether the conversation is held out."""
        return self.environment, self.split, self.name if self.seed is None else self.seed


@dataclass(frozen=True, slots=True)
class ChosenConversations:
    """The conversations of a job. `left_out` is the number of omitted conversations by reason."""

    learned: list[ExportedConversation]
    held_out: list[ExportedConversation]
    left_out: Counter[str]


def read_conversations(path: Path) -> Iterator[ExportedConversation]:
    """Yield the conversations in a file. Raises ConfigError, which names the line, if a line is invalid.

    Only `messages` is required, and unknown fields are ignored. If a line has no `answers`, all assistant messages are
    trained on, except messages with `weight` 0.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _conversation(line, f"{path}, line {number}", number)
    except OSError as error:
        raise ConfigError(
            f"The file of conversations {path} cannot be read: {error.strerror}.",
            hint="Set [data] train to a file that `taskapp export … --format sft --out FILE` wrote.",
        ) from None


def chosen_conversations(settings: SftSettings) -> ChosenConversations:
    """Return the conversations to train on and to hold out.

    Conversations that are equal or have the same seed are never split between the two. Raises ConfigError if a file
    cannot be read, or if no conversation remains to train on.
    """
    left_out: Counter[str] = Counter()
    found = _filtered(settings.train, settings, left_out)
    if settings.held_out is not None:
        held_out = _filtered(settings.held_out, settings, left_out)
        held = {each.origin for each in held_out if each.seed is not None}
        held_digests = {each.digest for each in held_out}
        others = [each for each in found if each.origin not in held]
        learned = [each for each in others if each.digest not in held_digests]
        left_out["a seed of the held-out file"] += len(found) - len(others)
        left_out["equal to one of the held-out file"] += len(others) - len(learned)
        left_out = +left_out
    else:
        sides = _linked(found)
        held = _drawn(sorted(set(sides.values()), key=repr), settings.held_out_share)
        learned = [each for each in found if sides[each.origin] not in held]
        held_out = [each for each in found if sides[each.origin] in held]
    if not learned:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise ConfigError(
            f"{settings.train} has no conversation to train on." + (f" Omitted: {reasons}." if reasons else ""),
            hint="Check [data] min_reward and rl_config, and the filters of `taskapp export`.",
        )
    return ChosenConversations(learned, held_out, left_out)


def _filtered(path: Path, settings: SftSettings, left_out: Counter[str]) -> list[ExportedConversation]:
    found = []
    unfit: dict[str, list[int]] = {}
    for each in read_conversations(path):
        reason = _reason_against(each, settings)
        if reason is not None:
            left_out[reason] += 1
        elif each.unfit is not None:
            unfit.setdefault(each.unfit, []).append(each.line)
        else:
            found.append(each)
    for reason, lines in unfit.items():
        shown = ", ".join(map(str, lines[:LINES_SHOWN])) + (", …" if len(lines) > LINES_SHOWN else "")
        left_out[f"{reason} ({path.name}, line {shown})"] = len(lines)
    return found


def _reason_against(conversation: ExportedConversation, settings: SftSettings) -> str | None:
    """Return why a conversation is neither trained on nor held out, or None if it is used."""
    if settings.min_reward is not None and conversation.reward is None:
        return "without a reward"
    if settings.min_reward is not None and (conversation.reward or 0.0) < settings.min_reward:
        return f"with a reward below {settings.min_reward:g}"
    reserved = settings.reserved
    if (
        reserved is not None
        and conversation.seed in reserved.seeds
        and reserved.environment in (None, conversation.environment)
    ):
        return f"of a seed that {reserved.config} evaluates on"
    return None


def _linked(conversations: Sequence[ExportedConversation]) -> dict[Origin, Origin]:
    """Map each origin to a representative of the origins that are connected to it through equal conversations."""
    first: dict[str, Origin] = {}
    above: dict[Origin, Origin] = {}

    def root(origin: Origin) -> Origin:
        while (next_one := above.setdefault(origin, origin)) != origin:
            origin = next_one
        return origin

    for each in conversations:
        above[root(each.origin)] = root(first.setdefault(each.digest, each.origin))
    return {each.origin: root(each.origin) for each in conversations}


def _drawn(origins: Sequence[Origin], share: float) -> set[Origin]:
    """Draw a share of the origins, at least one but not all. If the share is 0 or only one origin exists, draw none."""
    if share == 0 or len(origins) < 2:
        return set()
    count = min(max(round(share * len(origins)), 1), len(origins) - 1)
    return set(derived_rng("sft", "held out").sample(origins, count))


def _conversation(line: bytes, place: str, number: int) -> ExportedConversation:
    try:
        value = plain(read_exactly(line), "row")
    except ValueError as error:
        raise ConfigError(f"{place}: invalid JSON ({error}). Expected an object with `messages`.") from None
    messages = value.get("messages") if isinstance(value, dict) else None
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise ConfigError(
            f"{place}: `messages` is not a list of objects{f' ({_members(value)})' if isinstance(value, dict) else ''}. "
            "Expected a conversation in the format that `taskapp export --format sft` writes."
        )
    normal = _normal(messages, place)
    assistant = [at for at, message in enumerate(normal) if message.role == "assistant"]
    if not assistant:
        raise ConfigError(f"{place}: `messages` has no assistant message. Expected at least one to train on.")
    # A prompt may contain example replies of the assistant, so an export lists the positions of the model's own replies.
    answers = assistant if value.get("answers") is None else value["answers"]
    if (
        not isinstance(answers, list)
        or not answers
        or not all(type(each) is int and each in assistant for each in answers)
    ):
        raise ConfigError(
            f"{place}: `answers` is {answers!r}. Expected a list of at least one position of an assistant message."
        )
    weightless = {at for at in answers if _weight(messages[at], f"{place}: messages.{at}") == 0}
    learned = sorted(set(answers) - weightless)
    for at, (message, read) in enumerate(zip(messages, normal, strict=True)):
        _check_content(message, read, f"{place}: messages.{at}", learned=at in learned)
    tools, reward, seed = value.get("tools") or [], value.get("reward"), value.get("seed")
    if not isinstance(tools, list) or not all(isinstance(each, dict) for each in tools):
        raise ConfigError(f"{place}: `tools` is not a list of objects. Expected schemas of functions, or null.")
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float)):
        raise ConfigError(f"{place}: the reward is {reward!r}. Expected a number, or null.")
    unfit = None if learned else NOTHING_LEARNED
    if any(not isinstance(call.arguments, dict) for at in learned for call in normal[at].calls):
        unfit = NO_ARGUMENTS
    shown = normal[: learned[-1] + 1] if learned else normal
    unequal = [shown, [reasoning_of(messages[at]) for at in learned], learned, tools]
    return ExportedConversation(
        name=str(value.get("rollout") or f"line {number}"),
        messages=messages,
        answers=frozenset(answers),
        tools=tools,
        reward=reward,
        environment=str(value.get("environment") or ""),
        split=str(value.get("split") or ""),
        seed=seed if type(seed) is int else None,
        weightless=frozenset(weightless),
        line=number,
        digest=hashlib.sha256(orjson.dumps(unequal, option=orjson.OPT_SORT_KEYS)).hexdigest(),
        unfit=unfit,
    )


def _normal(messages: Sequence[Mapping[str, Any]], place: str) -> list[NormalMessage]:
    """Return the normalized messages. Raises ConfigError, which names the position of an invalid message."""
    unknown = {at: message.get("role") for at, message in enumerate(messages) if message.get("role") not in ROLES}
    if unknown:
        at = min(unknown)
        roles = ", ".join(dict.fromkeys(cut(str(role), SHOWN_CHARACTERS) for role in unknown.values()))
        raise ConfigError(
            f"{place}: messages have unknown roles ({roles}). The first is messages.{at} ({_members(messages[at])}). "
            f"Expected {', '.join(ROLES)}."
        )
    try:
        return normal_messages(messages)
    except RequestError as error:
        raise ConfigError(f"{place}: {error.message}") from None


def _weight(message: Mapping[str, Any], place: str) -> int:
    """Return the `weight` of a reply as in OpenAI's format: 0 for a reply that is only context, otherwise 1."""
    weight = message.get("weight")
    if weight is not None and (isinstance(weight, bool) or weight not in (0, 1)):
        raise ConfigError(
            f"{place} has the weight {cut(repr(weight), SHOWN_CHARACTERS)}. Expected 0 (not trained on) or 1."
        )
    return 1 if weight is None else int(weight)


def _check_content(message: Mapping[str, Any], read: NormalMessage, place: str, *, learned: bool) -> None:
    """Raise ConfigError for a message without content, or for a trained reply with a call in `function_call`."""
    if learned and message.get("function_call"):
        raise ConfigError(f"{place} has a call in `function_call`, which is not supported. Use `tool_calls` instead.")
    has_content = bool(read.text.strip()) if learned else message.get("content") not in (None, [])
    if not (has_content or read.calls or reasoning_of(message)):
        raise ConfigError(
            f"{place} ({_members(message)}) has neither content nor tool calls. Expected text in `content`."
        )


def _members(message: Mapping[str, Any]) -> str:
    return "its members: " + cut(", ".join(message) or "none", SHOWN_CHARACTERS)


SFT_ADVANTAGE = 1.0
"""The advantage of each trained token. It is not 0, because updates omit rows without an advantage."""


def conversation_row(renderer: Renderer, conversation: ExportedConversation) -> TrainingRow:
    """Return the row of a conversation up to the last reply that is trained on.

    The mask is built from the positions of the replies. It cannot be derived from token ids, because padding may use
    the token that ends a message.
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
    """Return the rows that can be trained on, and the number of omitted conversations by reason."""
    rows: list[TrainingRow] = []
    left_out: Counter[str] = Counter()
    for each in conversations:
        row = conversation_row(renderer, each)
        if any(on and len(list(span)) == 1 for on, span in groupby(row.mask)):
            left_out["with an answer that has only an end token for this model"] += 1
        elif len(row.ids) > context_tokens:
            left_out[f"longer than the model's context of {context_tokens} tokens"] += 1
        else:
            rows.append(row)
    return rows, left_out


def not_learned_as_tokens(renderer: Renderer, conversations: Sequence[ExportedConversation]) -> Counter[str]:
    """Count the replies by the phrases that `Renderer.not_as_tokens` returns for them."""
    return Counter(
        phrase for each in conversations for at in each.learned for phrase in renderer.not_as_tokens(each.messages[at])
    )
