"""Training data from stored rollouts: conversations (`sft`), and pairs of rollouts of the same seed (`dpo`).

The lines have the columns of TRL's conversational formats, which other trainers also read. Rollouts are read one by one.
Only each rollout's id, reward and hashes stay in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate.export.conversation import (
    EMPTY_ANSWER,
    NO_MODEL,
    Chat,
    FindTools,
    Message,
    ToolSchemas,
    Unfit,
    conversation_of,
    demonstration_of,
    recorded_messages,
)
from taskapp_kit.evaluate.export.report import ExportReport, ExportScope, loaded, selected
from taskapp_kit.records.content import Json
from taskapp_kit.records.events import EpisodeRecord
from taskapp_kit.records.protocols import StoredRollout

if TYPE_CHECKING:
    from taskapp_kit.rollout.source import RolloutSource

UNKNOWN_TOOL = "an action that the app does not declare"
OTHER_DECLARATIONS = "{many} have another spec hash, but are exported with the app's current tool schemas."


@dataclass(frozen=True, slots=True)
class TrainingFilters:
    """Selects the scored rollouts that become training data.

    Attributes:
        min_reward: The lowest reward of an `sft` rollout, or of the chosen rollout of a pair.
        terminated: Whether to exclude truncated rollouts. They may still be the rejected rollout of a pair.
        max_tokens: The maximum number of tokens in a conversation.
        best_of_seed: `sft` only. Whether to export only the best rollout of each environment, split and seed.
        margin: `dpo` only. The lowest reward difference of a pair. Must be above 0.
        pairs: `dpo` only. The maximum number of pairs per seed.
        demonstrations: Whether to include rollouts of policies without a model, converted as if a model had played
            them.
    """

    min_reward: float | None = None
    terminated: bool = False
    max_tokens: int | None = None
    best_of_seed: bool = False
    margin: float = 0.1
    pairs: int = 1
    demonstrations: bool = False

    def against(self, rollout: _Scored) -> str | None:
        """Return why the rollout is excluded, or None if it is included."""
        if self.terminated and not rollout.terminated:
            return "not terminated"
        if self.min_reward is not None and rollout.reward < self.min_reward:
            return f"a reward below {self.min_reward:g}"
        return None


class _Scored(NamedTuple):
    """The data of a scored rollout that stays in memory. place: The environment, the split and the seed."""

    place: tuple[str, str, int]
    reward: float
    terminated: bool
    length: int
    rollout_id: str
    group: bytes = b""

    @property
    def origin(self) -> dict[str, Json]:
        return dict(zip(("environment", "split", "seed"), self.place, strict=True))


class TrainingData:
    """The training data of a source. Each object can be used only once."""

    def __init__(
        self,
        source: RolloutSource,
        scope: ExportScope,
        filters: TrainingFilters,
        find_tools: FindTools,
        report: ExportReport,
    ) -> None:
        self._source = source
        self._scope = scope
        self._filters = filters
        self._find_tools = find_tools
        self._tools: ToolSchemas | None = None
        self._report = report
        self._seen: set[bytes] = set()
        self._other_declarations: set[str] = set()

    async def sft(self) -> AsyncIterator[dict[str, Json]]:
        """Yield lines with `messages`, `answers`, `tools` and the rollout's identity.

        Equal conversations are yielded once.
        """
        rewards: list[float] = []
        async for candidates in self._best_of_seeds() if self._filters.best_of_seed else self._one_by_one():
            for place, rollout in enumerate(candidates):
                found = await self._conversation(rollout)
                if found is None:
                    continue
                self._leave_out("not the best of its seed", len(candidates) - place - 1)
                conversation, tools = found
                if self._is_repeated(rollout.place[0], conversation.messages):
                    break
                self._report.rollouts += 1
                rewards = (
                    [min(rollout.reward, *rewards), max(rollout.reward, *rewards)] if rewards else [rollout.reward]
                )
                yield {
                    "messages": conversation.messages,
                    "answers": conversation.answers,
                    "tools": tools,
                    "reward": rollout.reward,
                    **rollout.origin,
                    "rollout": rollout.rollout_id,
                }
                break
        self._add_notes()
        if len(set(rewards)) > 1:
            more = "" if self._filters.min_reward is not None else "; --min-reward excludes low rewards"
            self._report.notes.append(f"Rewards from {rewards[0]:.4g} to {rewards[-1]:.4g}{more}.")

    async def dpo(self) -> AsyncIterator[dict[str, Json]]:
        """Yield lines with `prompt`, `chosen`, `rejected`, `tools` and the identity of both rollouts.

        The rollouts with the same environment, split, seed and first prompt are a group. The best rollout is paired
        with the worst, the second best with the second worst, and so on, as long as the rewards differ by at least the
        margin. The prompt of a pair is the common beginning of both conversations.
        """
        members = [one async for one in self._candidates()]
        members.sort(key=lambda one: (*one.place, one.group, -one.reward, one.rollout_id))
        used: set[str] = set()
        lines = 0
        for _, same in groupby(members, key=lambda one: one.group):
            for better, worse in self._pairs(list(same)):
                line = await self._pair(better, worse)
                if line is not None:
                    lines += 1
                    used |= {better.rollout_id, worse.rollout_id}
                    yield line
        self._report.rollouts, self._report.lines = len(used), lines
        self._leave_out("no rollout of its seed to pair it with", len(members) - len(used))
        self._add_notes()

    def _leave_out(self, reason: str, many: int = 1) -> None:
        if many:
            self._report.left_out[reason] += many

    # -- rows -----------------------------------------------------------------------------------------------------

    async def _scored(self) -> AsyncIterator[_Scored]:
        async for row in selected(self._source, self._scope, self._report):
            if row.status == "failed":
                self._leave_out("failed")
            elif row.reward is None:
                self._leave_out("no reward")
            else:
                terminated = row.status == "terminated"
                place = (row.environment, row.split, row.seed)
                yield _Scored(place, row.reward, terminated, row.length or 0, row.rollout_id)

    async def _one_by_one(self) -> AsyncIterator[list[_Scored]]:
        async for rollout in self._scored():
            reason = self._filters.against(rollout)
            if reason is not None:
                self._leave_out(reason)
            else:
                yield [rollout]

    async def _best_of_seeds(self) -> AsyncIterator[list[_Scored]]:
        """Yield the rollouts of each seed, best first. Among equal rewards, shorter rollouts come first."""
        seeds: dict[tuple[str, str, int], list[_Scored]] = {}
        async for (rollout,) in self._one_by_one():
            seeds.setdefault(rollout.place, []).append(rollout)
        for rollouts in seeds.values():
            yield sorted(rollouts, key=lambda one: (-one.reward, one.length))

    # -- conversations --------------------------------------------------------------------------------------------

    async def _conversation(self, rollout: _Scored) -> tuple[Chat, list[dict[str, Json]] | None] | None:
        """Return the conversation and its tool schemas.

        If the rollout cannot be exported, count it as excluded and return None.
        """
        stored = await loaded(self._source, rollout.rollout_id, self._report)
        if stored is None:
            return None
        try:
            conversation = await self._chat(stored)
            if conversation.has_empty_answer:
                raise Unfit(EMPTY_ANSWER)
            limit = self._filters.max_tokens
            if limit is not None and conversation.tokens > limit:
                raise Unfit(f"more than {limit} tokens")
            tools = await self._schemas(stored, conversation)
        except Unfit as reason:
            self._leave_out(str(reason))
            return None
        return conversation, tools

    def _is_repeated(self, *what: Json) -> bool:
        """Return whether the value was seen before. If it was, count the rollout as excluded."""
        key = _hash(what)
        if key in self._seen:
            self._leave_out("the same conversation as another")
            return True
        self._seen.add(key)
        return False

    async def _schemas(self, stored: StoredRollout, conversation: Chat) -> list[dict[str, Json]] | None:
        """Return the tool schemas for a conversation, or None if it has no tool calls."""
        if not conversation.calls_tools:
            return None
        declared = await self._declared()
        if declared is None:
            raise ConfigError(
                f"The model in rollout {stored.rollout_id} called tools, but the store has no tool schemas.",
                hint="Pass the app: --app APP.",
            )
        tools = declared.of(stored.environment, conversation.tools)
        if tools is None:
            raise Unfit(UNKNOWN_TOOL)
        self._compare(stored, declared)
        return tools

    async def _chat(self, stored: StoredRollout) -> Chat:
        """Return the model's conversation.

        If demonstrations are exported and no model played, convert the rollout with `demonstration_of`.
        """
        if not self._filters.demonstrations or recorded_messages(stored):
            return conversation_of(stored)
        declared = await self._declared()
        if declared is None or declared.app is None:
            raise ConfigError(
                f"Rollout {stored.rollout_id} was played without a model, so its conversation requires the app's "
                "declarations.",
                hint="Pass the app: --app APP.",
            )
        self._compare(stored, declared)
        return demonstration_of(stored, declared.app)

    async def _declared(self) -> ToolSchemas | None:
        if self._tools is None:
            self._tools = await self._find_tools()
        return self._tools

    def _compare(self, stored: StoredRollout, declared: ToolSchemas) -> None:
        if declared.spec_hash not in (None, stored.spec_hash):
            self._other_declarations.add(stored.rollout_id)

    def _add_notes(self) -> None:
        without = self._report.left_out[NO_MODEL]
        if without and not self._filters.demonstrations:
            self._report.notes.append(f"--demonstrations includes the {without} that no language model played.")
        if self._other_declarations:
            self._report.notes.append(OTHER_DECLARATIONS.format(many=len(self._other_declarations)))

    # -- pairs ----------------------------------------------------------------------------------------------------

    async def _candidates(self) -> AsyncIterator[_Scored]:
        async for rollout in self._scored():
            found = await self._conversation(rollout)
            if found is None:
                continue
            messages = found[0].messages
            opening = messages[: next(at for at, message in enumerate(messages) if message["role"] == "assistant")]
            group = _hash([*rollout.place, opening, found[0].tools])
            if not self._is_repeated(group.hex(), messages):
                yield rollout._replace(group=group)

    def _pairs(self, members: Sequence[_Scored]) -> Iterator[tuple[_Scored, _Scored]]:
        """Yield the pairs of one group. `members` must be sorted best first. The rewards of a pair always differ."""
        chosen = (one for one in members if self._filters.against(one) is None)
        for better, worse in islice(zip(chosen, reversed(members), strict=False), self._filters.pairs):
            if better.reward - worse.reward < self._filters.margin:
                return
            yield better, worse

    async def _pair(self, better: _Scored, worse: _Scored) -> dict[str, Json] | None:
        stored = [await self._source.load(one.rollout_id) for one in (better, worse)]
        chosen, rejected = [await self._chat(one) for one in stored]
        at = shared_prompt(chosen.messages, rejected.messages)
        if at is None:
            return None
        tools = [
            await self._schemas(one, conversation) for one, conversation in zip(stored, (chosen, rejected), strict=True)
        ]
        return {
            "prompt": chosen.messages[:at],
            "chosen": chosen.messages[at:],
            "rejected": rejected.messages[at:],
            "tools": tools[0] or tools[1],
            "chosen_reward": better.reward,
            "rejected_reward": worse.reward,
            **better.origin,
            "chosen_rollout": better.rollout_id,
            "rejected_rollout": worse.rollout_id,
        }


def shared_prompt(one: Sequence[Message], two: Sequence[Message]) -> int | None:
    """Return the number of messages in the common prompt, which ends before a reply in both conversations.

    Return None if there is no common prompt, or if one conversation is the beginning of the other.
    """
    differs = next((at for at, (mine, other) in enumerate(zip(one, two, strict=False)) if mine != other), None)
    if differs is None:
        return None
    return max((at for at in range(1, differs + 1) if one[at]["role"] == two[at]["role"] == "assistant"), default=None)


def _hash(value: Json) -> bytes:
    return hashlib.blake2b(orjson.dumps(value, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()


NO_REWARD = "no reward"
NO_TOKENS = (
    "a model call without token ids or log-probabilities (set record.logprobs and policy.config.return_token_ids)"
)


async def token_lines(
    source: RolloutSource, scope: ExportScope, report: ExportReport
) -> AsyncIterator[dict[str, Json]]:
    """Yield one object for each rollout that has a reward and the tokens of every model call."""
    # The task app's store has the token ids and log-probabilities that an endpoint returned, so a trainer needs no
    # separate record, and can learn from rollouts with any such endpoint.
    async for row in selected(source, scope, report):
        if row.reward is None:
            report.left_out[NO_REWARD] += 1
            continue
        stored = await loaded(source, row.rollout_id, report)
        if stored is None:
            continue
        found = sequences_of(stored)
        if not found:
            report.left_out[NO_MODEL if found is not None else NO_TOKENS] += 1
            continue
        report.rollouts += 1
        yield {
            "environment": row.environment,
            "split": row.split,
            "seed": row.seed,
            "rollout": row.rollout_id,
            "status": row.status,
            "reward": row.reward,
            "model": row.model,
            "temperature": stored.policy.get("temperature"),
            "sequences": found,
        }


def sequences_of(stored: StoredRollout) -> list[dict[str, Any]] | None:
    """Return the token sequences of a rollout's model calls.

    A call whose prompt begins with the whole last sequence extends this sequence. Any other call begins a new sequence.
    In each sequence, `tokens`, `mask` (1 for sampled tokens) and `logprobs` (0.0 for other tokens) have equal lengths.
    Return None if a call lacks token ids, or does not have one log-probability per sampled token.
    """
    found: list[dict[str, Any]] = []
    for call in _calls(stored):
        prompt, sampled, log_probs = (call.get(name) for name in ("prompt_token_ids", "token_ids", "logprobs"))
        if not prompt or not sampled or log_probs is None or len(sampled) != len(log_probs):
            return None
        if not found or prompt[: len(found[-1]["tokens"])] != found[-1]["tokens"]:
            found.append({"tokens": [], "mask": [], "logprobs": []})
        last = found[-1]
        read = prompt[len(last["tokens"]) :]
        last["tokens"] += [*read, *sampled]
        last["mask"] += [0] * len(read) + [1] * len(sampled)
        last["logprobs"] += [0.0] * len(read) + log_probs
    return found


def _calls(stored: StoredRollout) -> Iterator[dict[str, Any]]:
    for answer in EpisodeRecord.of(stored.events).answers:
        details = answer.get("details") or {}
        if "attempts" in details:  # this turn called a model
            yield from details.get("earlier_calls") or ()
            yield answer
