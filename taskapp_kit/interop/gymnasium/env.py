"""Task apps as Gymnasium environments: `make(app)` or, after importing this module, `gymnasium.make("taskapp/…-v0")`.

Written against Gymnasium 1.4.0 (`Env.reset(seed, options)`, `Env.step(action)`). Gymnasium has no plugins, so importing
this module registers the ids. It needs the extra `taskapp-kit[gymnasium]`. An environment is a session
(docs/connect/sessions.md) with a service in this process or a task app at a URL, so observations and rewards are the
same as for `POST /rollout`.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import random
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gymnasium

from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.discovery import bundled_apps
from taskapp_kit.errors import (
    BadArgument,
    KitError,
    RequestError,
    RolloutFailed,
    SessionError,
    TaskAppError,
    UndefinedReward,
)
from taskapp_kit.interop.blocking_session import BlockingSession
from taskapp_kit.records.content import Json, text_of
from taskapp_kit.rollout.policy.sampling import Unbounded, compile_sampler

CHOICES_LIMIT = 256
"""The maximum number of actions that are numbered."""
SAMPLED_LENGTH = 16
"""The maximum length of a sampled string."""

Call = tuple[str, Json]
"""An action's name and arguments."""


class AnyText(gymnasium.spaces.Space[str]):
    """A space of all strings up to a maximum length, including the empty string.

    `gymnasium.spaces.Text` cannot be used. It lists its characters, and AsyncVectorEnv does not update observations of
    this space in shared memory (Gymnasium 1.4.0). With a space of another class, AsyncVectorEnv requires
    `shared_memory=False`.
    """

    def __init__(self, max_length: int) -> None:
        super().__init__(dtype=str)
        self.max_length = max_length

    def contains(self, x: Any) -> bool:
        """Return whether a value is a string of at most the maximum length."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a short random string. `mask` and `probability` are ignored."""
        length = int(self.np_random.integers(1, min(SAMPLED_LENGTH, self.max_length) + 1))
        return "".join(chr(97 + int(letter)) for letter in self.np_random.integers(0, 26, length))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.max_length})"

    def __eq__(self, other: object, /) -> bool:
        return type(other) is type(self) and vars(other)["max_length"] == self.max_length

    def __hash__(self) -> int:
        return hash((type(self), self.max_length))


class ActionText(AnyText):
    """A space of actions as strings: `{"tool": …, "args": {…}}` in JSON, or plain text. Samples match the schemas.

    actions: the name, description, parameters (JSON Schema) and `text` of each action.
    """

    def __init__(self, max_length: int, actions: Sequence[Mapping[str, Json]]) -> None:
        super().__init__(max_length)
        self.actions = [dict(action) for action in actions]

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a uniformly drawn action, or a random string if no action has arguments that can be sampled."""
        samplers = []
        for action in self.actions:
            try:
                samplers.append((action["name"], compile_sampler(action["parameters"])))
            except Unbounded:
                continue
        rng = random.Random(int(self.np_random.integers(2**63)))
        if samplers:
            name, draw = rng.choice(samplers)
            return json.dumps({"tool": name, "args": draw(rng)})
        return super().sample()


def numbered_calls(actions: Sequence[Mapping[str, Json]]) -> list[Call] | None:
    """Return every possible call of the actions in order, or None if they cannot be listed or are too many.

    A list argument has its minimum length, but at least one item. Crafter's `interact(actions)`, for example, becomes
    one call for each Crafter action.
    """
    calls: list[Call] = []
    for action in actions:
        values = _values(action["parameters"])
        if values is None:
            return None
        calls += [(action["name"], value) for value in values]
    return calls if 0 < len(calls) <= CHOICES_LIMIT else None


def _values(schema: Mapping[str, Any]) -> list[Json] | None:
    """Return every value that a JSON Schema allows, or None if the values cannot be listed."""
    if "const" in schema:
        return [schema["const"]]
    if "enum" in schema:
        return list(schema["enum"])
    kind = schema.get("type")
    if kind == "boolean":
        return [False, True]
    if kind == "integer" and {"minimum", "maximum"} <= schema.keys() and not {"multipleOf"} & schema.keys():
        low, high = int(schema["minimum"]), int(schema["maximum"])
        return list(range(low, high + 1)) if high - low < CHOICES_LIMIT else None
    if kind == "array" and "items" in schema and not schema.get("uniqueItems"):
        length = max(1, int(schema.get("minItems", 0)))
        return _products([_values(schema["items"])] * length)
    if kind == "object" and schema.get("additionalProperties") is False:
        properties = schema.get("properties", {})
        if set(properties) != set(schema.get("required", ())):
            return None
        combinations = _products([_values(part) for part in properties.values()])
        return None if combinations is None else [dict(zip(properties, values, strict=True)) for values in combinations]
    return None


def _products(parts: list[list[Json] | None]) -> list[list[Json]] | None:
    """Return every combination of one value from each list, or None if a list is None or the product is too large."""
    count = 1
    for part in parts:
        count *= len(part or ())
        if part is None or count > CHOICES_LIMIT:
            return None
    return [list(values) for values in itertools.product(*(part for part in parts if part is not None))]


ANY_APP = "taskapp/App-v0"
"""The id for any app: `gymnasium.make(ANY_APP, app="my_app.py")`."""
TEXT_LENGTH = 65_536
"""The default maximum length of observations and of actions as strings."""
DRAWS_LIMIT = 1000
"""How many rows are drawn at most to find a row with the `difficulty` and `tags` of the config."""
KEY_VARIABLE = "ENVIRONMENT_API_KEY"
PROTOCOL = "gymnasium"
"""The protocol's name, which is stored with the episodes."""

Played = tuple[str, float, bool, bool, dict[str, Any]]
"""The result of a step: observation, reward, terminated, truncated, info."""


def make(app: TaskApp | str | Path, environment: str | None = None, **options: Any) -> gymnasium.Env[str, Any]:
    """Return an environment of a task app for Gymnasium's trainers and wrappers.

    An environment that was made from a path, name or URL has a `spec`, and `env.spec.make()` makes another environment.

    Args:
        app: An app, a path ("my_app.py"), the name of a bundled app ("crafter"), or the URL of a served app.
        environment: The name of an environment. Defaults to the app's first environment.
        **options: Options of `GymnasiumEnv` and `gymnasium.make`.

    Returns:
        The environment.

    Raises:
        DiscoveryError, DeclarationError, RequestError, Unavailable, ConfigError, TaskAppError: As in `GymnasiumEnv`.
    """
    if isinstance(app, TaskApp):
        return GymnasiumEnv(app, environment, **options)
    env = gymnasium.make(ANY_APP, app=str(app), environment=environment, **options)
    spec, made = env.unwrapped.spec, env.unwrapped
    if spec is not None and isinstance(made, GymnasiumEnv):
        spec.nondeterministic = made.judged  # a model scores the episodes
    return env


class GymnasiumEnv(gymnasium.Env[str, Any]):
    """An environment of a task app. Observations are strings, and `info["images"]` contains images as PNG bytes.

    `reset(seed=s)` plays seed s if the split contains s. Otherwise `s` seeds `np_random`, which draws a seed of the
    split. Without `seed`, `np_random` draws the next seed. `info["seed"]` is the seed of the episode.
    `reset(options={"split": …, "config": …})` applies to one episode.

    Attributes:
        choices: The calls that numbered actions select, or None if actions are strings.
        rollout_id: The id of the latest episode.
        episode: The result of the latest scored episode, with its scorecard.
        judged: Whether a model scores episodes. If so, the rewards of equal episodes may differ.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(
        self,
        app: TaskApp | str | Path,
        environment: str | None = None,
        *,
        split: str | None = None,
        config: Mapping[str, Json] | None = None,
        reward: Mapping[str, float] | None = None,
        actions: Literal["auto", "text"] = "auto",
        on_failure: Literal["raise", "truncate"] = "raise",
        key_variable: str = KEY_VARIABLE,
        text_length: int = TEXT_LENGTH,
        render_mode: str | None = None,
    ) -> None:
        """Open a session.

        Args:
            app: An app, a path, the name of a bundled app, or the URL of a served app.
            environment: The name of an environment. Defaults to the app's first environment.
            split: The split from which `reset` draws seeds. Defaults to the environment's first split.
            config: `env.config` of each episode.
            reward: Weights `env`, `event` and `outcome`, which replace the app's weights.
            actions: With "auto", actions are numbers if all arguments can be listed, and otherwise strings. With
                "text", actions are strings: `{"tool": …, "args": {…}}` in JSON, or plain text if the environment
                accepts text.
            on_failure: With "raise", `step` raises if the episode or its scoring fails. With "truncate", the episode is
                truncated with the reward NaN and `info["failure"]`, so that a vector environment continues. Exclude
                these steps from training. A failure in `reset` always raises.
            key_variable: The environment variable that contains the API key for a URL. The key itself is not an
                argument, because it would become part of the spec.
            text_length: The maximum length of observations and actions as strings.
            render_mode: None, or "ansi" for `render` to return the latest observation.

        Raises:
            BadArgument: An argument is invalid.
            RequestError: The environment does not exist.
            DiscoveryError, DeclarationError, Unavailable, ConfigError, TaskAppError: The app cannot be used.
        """
        if actions not in ("auto", "text") or on_failure not in ("raise", "truncate"):
            raise BadArgument(
                f"actions={actions!r} or on_failure={on_failure!r} is not supported.",
                hint='Pass actions="auto" or "text", and on_failure="raise" or "truncate".',
            )
        if render_mode not in (None, "ansi"):
            raise BadArgument(f"render_mode={render_mode!r} is not supported.", hint='Pass None or "ansi".')
        self.render_mode = render_mode
        self._options: dict[str, Any] = {"split": split, "config": dict(config or {})}
        self._reward = None if reward is None else dict(reward)
        self._truncates = on_failure == "truncate"
        self._game = BlockingSession(app, environment, key_variable, PROTOCOL)
        self._finalizer = weakref.finalize(self, self._game.close)  # scripts rarely close their environments
        described = self._game.described
        rubric = described["rubric"]["outcome"] or {"criteria": []}
        self.judged = any(item.get("judge") for item in rubric["criteria"])
        self._dataset = described["dataset"]
        tools = described["action_space"]["tools"]
        self.choices = numbered_calls(tools) if actions == "auto" else None
        self.observation_space = AnyText(text_length)
        self.action_space = (
            ActionText(text_length, tools) if self.choices is None else gymnasium.spaces.Discrete(len(self.choices))
        )
        self.rollout_id: str | None = None
        self.episode: dict[str, Json] | None = None
        self._seen = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode, and cancel an unfinished episode.

        Raises BadArgument or RequestError for invalid options, and RolloutFailed or TaskAppError if the reset fails.
        """
        super().reset(seed=None if seed is None else int(seed))
        unknown = set(options or {}) - set(self._options)
        if unknown:
            raise BadArgument(f"reset does not accept the options {sorted(unknown)}.", hint="Pass split or config.")
        chosen = {**self._options, **(options or {})}
        split = chosen["split"] or self._dataset["default_split"]
        if split not in self._dataset["seeds"]:
            raise BadArgument(
                f"The split {split!r} does not exist.", hint=f"The splits are {', '.join(self._dataset['seeds'])}."
            )
        seeds = range(*self._dataset["seeds"][split])
        playable = seed is not None and int(seed) in seeds
        for left in reversed(range(DRAWS_LIMIT)):
            body = {
                "seed": int(seed) if playable and seed is not None else self._drawn(seeds),
                "split": split,
                "config": chosen["config"],
                "reward": self._reward,
            }
            try:
                started = self._game.reset(body)
                break
            except (RequestError, TaskAppError) as error:
                if error.code != "no_such_row" or playable or not left:
                    raise
        self.rollout_id = started["rollout_id"]
        info = {"seed": started["seed"], "split": started["split"], **self._look(started["observation"])}
        return self._seen, info

    def step(self, action: Any) -> Played:
        """Play an action.

        If the app rejects the action, `info["refused"]` contains the reason, and the step still counts.

        The values in `info["reward_parts"]` add up to the reward. In the last step, `info["result"]` contains the
        result of the episode.

        Raises:
            gymnasium.error.InvalidAction: The action is not in the action space.
            gymnasium.error.ResetNeeded: No episode is running.
            RolloutFailed, UndefinedReward: The episode failed, unless `on_failure` is "truncate".
            TaskAppError: The episode failed in an app at a URL. The exception has the `boundary`.
        """
        if not self.action_space.contains(action):
            message = f"{str(action)[:200]!r} is not in the action space {self.action_space}."
            raise gymnasium.error.InvalidAction(message)
        if self.choices is None:
            body = _decision(action)
        else:
            tool, args = self.choices[int(action)]
            body = {"tool": tool, "args": args}
        return self._played(partial(self._game.step, body))

    def finish(self) -> Played:
        """Truncate and score the episode, and return the result as a step.

        A time limit of a wrapper would instead end the episode without a score.
        """
        return self._played(self._game.finish)

    def render(self) -> Any:
        """Return the latest observation if the render mode is "ansi", else None."""
        return self._seen if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Close the session, and the service of an app in this process. An unfinished episode is cancelled."""
        self._finalizer()

    def _drawn(self, seeds: range) -> int:
        size = (seeds[-1] - seeds[0]) // seeds.step + 1  # `len` raises above 2⁶³ - 1
        return seeds[int(self.np_random.integers(min(size, 2**63 - 1)))]

    def _played(self, play: Callable[[], dict[str, Any]]) -> Played:
        try:
            step = play()
            if step["reward"] is None:
                raise UndefinedReward(rollout_id=step["rollout_id"])
        except (SessionError, RolloutFailed, TaskAppError) as error:
            if _code_of(error) in ("no_episode", "episode_over"):
                message = "No episode is running. Call reset first."
                raise gymnasium.error.ResetNeeded(message) from None
            boundary = error.boundary if isinstance(error, (RolloutFailed, TaskAppError)) else None
            if boundary is None or not self._truncates:
                raise
            failure = {"boundary": boundary, "code": _code_of(error), "message": error.message}
            return self._seen, math.nan, False, True, {"failure": failure}
        info = {"reward_parts": dict(step["reward_parts"]), **self._look(step["observation"])}
        for result in step["results"]:
            if result["refused"]:
                info["refused"] = result["refused"]
            elif result["info"]:
                info["step"] = result["info"]
        if step["episode"] is not None:
            self.episode = step["episode"]
            info["result"] = _result(self.episode)
        return self._seen, float(step["reward"]), step["terminated"], step["truncated"], info

    def _look(self, observation: dict[str, Json]) -> dict[str, Any]:
        """Store an observation's text for `render`, and return the part of `info` that contains the images."""
        blocks = observation.get("content")
        images: list[bytes] = []
        if observation.keys() == {"text"}:
            self._seen = str(observation["text"])
        elif observation.keys() == {"content"} and isinstance(blocks, list):
            texts = [block["text"] for block in blocks if block["type"] == "text"]
            urls = [block["image_url"]["url"] for block in blocks if block["type"] == "image_url"]
            images = [base64.b64decode(url.partition(",")[2]) for url in urls]
            self._seen = text_of(texts)
        else:
            self._seen = text_of(observation)
        limit = self.observation_space.max_length  # type: ignore[attr-defined]
        if len(self._seen) > limit:
            raise BadArgument(
                f"An observation has {len(self._seen)} characters, but text_length is {limit}.",
                hint="Pass a larger text_length when you make the environment.",
            )
        return {"images": images} if images else {}


def _decision(text: str) -> dict[str, Json]:
    """Convert an action to the body of a step request: an action in JSON, or plain text."""
    try:
        action = json.loads(text)
    except ValueError:
        action = None
    if isinstance(action, dict) and isinstance(action.get("tool"), str) and action.keys() <= {"tool", "args"}:
        return action
    return {"text": text}


def _result(episode: dict[str, Json]) -> dict[str, Json]:
    """Return an episode's result without undefined scores and without fields that differ between equal episodes."""
    scores = {item["name"]: item["score"] for item in episode["scorecard"]["criteria"] if item["score"] is not None}
    names = ("status", "stop_reason", "reward", "length", "digest", "metrics")
    return {**{name: episode[name] for name in names}, "scores": scores}


def _code_of(error: KitError) -> str:
    return error.failure.code if isinstance(error, RolloutFailed) else str(getattr(error, "code", ""))


def _register() -> None:
    """Register the generic id and the ids of the bundled apps."""
    entry_point = f"{__name__}:{GymnasiumEnv.__name__}"
    gymnasium.register(ANY_APP, entry_point=entry_point)
    for bundled in bundled_apps():
        gymnasium.register(f"taskapp/{bundled.name}-v0", entry_point=entry_point, kwargs={"app": bundled.name})


_register()
