"""Rollouts in a file from `taskapp export --format tokens`. Each rollout is read when an update needs it.

A line is `{"environment", "seed", "status", "reward", "temperature", "sequences": [{"tokens", "mask", "logprobs"}, …], …}`.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, BinaryIO

import orjson

from taskapp_kit.errors import ConfigError
from taskapp_kit.records.formatting import counted
from taskapp_kit.train.turns import RecordedTurn, recorded_turns

MAX_LINE_BYTES = 2**26
MAX_STORED = 1_000_000
"""Maximum number of rollouts in one file. The offset of each rollout stays in memory."""
FOLDER = "rollouts"
"""The subdirectory of the models directory that contains the files that a request may use."""

OTHER_ENVIRONMENT = "of another environment"
HELD_OUT = "of seeds that the evaluation plays"
TOO_LONG = "longer than the model's context"


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """A rollout with a reward. The version of its turns is 0, because no weights of this job sampled them."""

    rollout: str
    seed: int
    status: str
    reward: float
    turns: tuple[RecordedTurn, ...]


@dataclass(frozen=True, slots=True)
class RolloutFit:
    """Which rollouts a job can learn from.

    Attributes:
        environment: The required name of the environment, or None to accept every environment.
        held_out: Seeds whose rollouts are omitted.
        temperature: The required sampling temperature, because log-probabilities depend on it.
        vocabulary: The number of token ids of the model.
        context_tokens: The maximum length of a sequence in tokens.
    """

    environment: str | None
    held_out: Collection[int]
    temperature: float
    vocabulary: int
    context_tokens: int


class StoredRollouts:
    """The rollouts of a file that fit a job. The constructor checks all lines and raises ConfigError for an invalid line.

    Attributes:
        by_seed: The offsets of each seed's rollouts in the file.
        left_out: The number of rollouts that are not used, by reason.
        sha256: The hash of the file. A later change of the file is an error, because the job would use other rollouts.
    """

    def __init__(self, path: Path, fit: RolloutFit) -> None:
        self.path = path
        self.by_seed: dict[int, list[int]] = {}
        self.left_out: Counter[str] = Counter()
        self._fit = fit
        self._rewards: dict[int, list[float]] = {}
        try:
            with path.open("rb") as file:
                self._version = _version(file)
                self.sha256 = self._read(file)
        except OSError as error:
            raise ConfigError(
                f"[data] rollouts: {path} cannot be read: {error.strerror or error}.",
                hint="To write a file of rollouts, run: taskapp export STORE --format tokens --out FILE",
            ) from None
        if not self.by_seed:
            reasons = "".join(f" Omitted: {many} {reason}." for reason, many in self.left_out.most_common())
            raise ConfigError(f"[data] rollouts: {path} has no rollout that this job can use.{reasons}")

    def episode(self, place: int) -> StoredEpisode:
        """Return the rollout at this offset. Raises ConfigError if the file has changed."""
        with self.path.open("rb") as file:
            if _version(file) != self._version:
                raise ConfigError(
                    f"[data] rollouts: {self.path} changed while the job was learning from it.",
                    hint="Restore the file and start the job again, or start a new job with the changed file.",
                )
            # Only the offset of each line is in memory. Updates need no special case for stored rollouts: their weight
            # min(old / sampler, 2) already corrects for the policy that sampled the rollout.
            file.seek(place)
            return _episode(self._parsed(file.readline(MAX_LINE_BYTES), f"at byte {place}"))

    @property
    def facts(self) -> dict[str, Any]:
        """Statistics of the usable rollouts, as a JSON object."""
        rewards = [reward for each in self._rewards.values() for reward in each]
        return {
            "rollouts": len(rewards),
            "seeds": len(self.by_seed),
            "seeds_without_spread": sum(len(set(each)) < 2 for each in self._rewards.values()),
            "reward": fmean(rewards),
            "lowest_reward": min(rewards),
            "highest_reward": max(rewards),
            "left_out": dict(self.left_out),
        }

    @property
    def sentence(self) -> str:
        """The statistics as a sentence for people."""
        facts = self.facts
        left_out = "".join(f" Omitted: {many} {reason}." for reason, many in self.left_out.most_common())
        return (
            f"The job learns from {counted(facts['rollouts'], 'stored rollout')} of {counted(facts['seeds'], 'seed')}, with "
            f"rewards from {facts['lowest_reward']:g} to {facts['highest_reward']:g}, {facts['reward']:.3f} on average. "
            f"{counted(facts['seeds_without_spread'], 'seed')} without spread.{left_out}"
        )

    def _read(self, file: BinaryIO) -> str:
        place, number, digest = 0, 0, hashlib.sha256()
        while raw := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            digest.update(raw)
            if len(raw) > MAX_LINE_BYTES or number > MAX_STORED:
                raise self._wrong(f"line {number}", f"over {MAX_LINE_BYTES} bytes, or a number over {MAX_STORED}")
            line = self._parsed(raw, f"line {number}")
            reason = self._unfit(line)
            if reason is None:
                self.by_seed.setdefault(line["seed"], []).append(place)
                self._rewards.setdefault(line["seed"], []).append(float(line["reward"]))
            else:
                self.left_out[reason] += 1
            place += len(raw)
        return digest.hexdigest()

    def _unfit(self, line: Mapping[str, Any]) -> str | None:
        fit = self._fit
        if fit.environment is not None and line.get("environment") not in (None, fit.environment):
            return OTHER_ENVIRONMENT
        if line["seed"] in fit.held_out:
            return HELD_OUT
        if any(len(each["tokens"]) > fit.context_tokens for each in line["sequences"]):
            return TOO_LONG
        return None

    def _parsed(self, raw: bytes, where: str) -> dict[str, Any]:
        """Parse a line and check the fields that the job needs. Raises ConfigError if a field is invalid."""
        try:
            line = orjson.loads(raw)
        except ValueError:
            raise self._wrong(where, "no JSON") from None
        if not isinstance(line, dict):
            raise self._wrong(where, "JSON that is not an object")
        seed, reward, sequences = line.get("seed"), line.get("reward"), line.get("sequences")
        if type(seed) is not int or seed < 0:
            raise self._wrong(where, "no seed")
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
            raise self._wrong(where, "no reward")
        if not isinstance(line.get("status"), str) or not isinstance(line.get("rollout"), str):
            raise self._wrong(where, "no `status` or no `rollout`")
        if not isinstance(sequences, list) or not sequences:
            raise self._wrong(where, "no sequences")
        for each in sequences:
            self._check(each, where)
        temperature = line.get("temperature")
        if temperature not in (None, self._fit.temperature):
            raise self._wrong(
                where,
                f"the temperature {temperature}, but the job samples at {self._fit.temperature:g}, so the line's "
                "log-probabilities cannot be compared",
            )
        return line

    def _check(self, sequence: Any, where: str) -> None:
        try:
            tokens, mask, log_probs = (sequence[name] for name in ("tokens", "mask", "logprobs"))
            fits = (
                len(tokens) == len(mask) == len(log_probs)
                and all(type(each) is int for each in tokens)
                and all(each in (0, 1) for each in mask)
                and any(mask)
                and not mask[0]
                and all(type(each) in (int, float) and math.isfinite(each) for each in log_probs)
            )
        except (TypeError, KeyError):
            fits = False
        if not fits:
            raise self._wrong(
                where,
                "an invalid sequence. Expected tokens, a 0-1 mask that starts with 0, and finite logprobs, all of one length",
            )
        if not 0 <= min(tokens) <= max(tokens) < self._fit.vocabulary:
            raise self._wrong(
                where, f"token ids that the model does not have. The model's ids are 0 to {self._fit.vocabulary - 1}"
            )

    def _wrong(self, where: str, found: str) -> ConfigError:
        return ConfigError(
            f"[data] rollouts: {where} of {self.path} has {found}.",
            hint="Expected a file written by `taskapp export --format tokens`.",
        )


def _version(file: BinaryIO) -> tuple[int, int]:
    """Return the file's size and modification time, to detect changes."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def find_rollouts(name: str, models: Path, *, paths: bool) -> Path:
    """Return the path of the file with this name.

    If `paths` is true, the name may be any path. Otherwise it comes from a request and must be the name of a file in
    MODELS/rollouts. Raises ConfigError for any other name.
    """
    if paths:
        return Path(name).expanduser()
    if Path(name).name != name or name.startswith("."):
        raise ConfigError(
            f"[data] rollouts: {name!r} is a path, but this server only accepts file names.",
            hint=f"Ask the server's operator to copy the file to {models / FOLDER}, then pass the file's name.",
        )
    return models / FOLDER / name


def _episode(line: Mapping[str, Any]) -> StoredEpisode:
    turns: list[RecordedTurn] = []
    for sequence in line["sequences"]:
        columns = (sequence[name] for name in ("tokens", "mask", "logprobs"))
        turns += recorded_turns(*columns, version=0, before=len(turns))
    return StoredEpisode(line["rollout"], line["seed"], line["status"], float(line["reward"]), tuple(turns))
