"""`from_gymnasium` declares a Gymnasium environment as an environment of an app.

Written against Gymnasium 1.4.0 (`Env.reset(seed, options)`, `Env.step(action) -> observation, reward, terminated,
truncated, info`). It needs the extra `taskapp-kit[gymnasium]`. Guarantees:

- Each episode has its own Gymnasium environment. `reset` seeds the environment and its spaces with the episode's seed,
  and the process's random state is not used. So the same seed and actions produce the same digest in every process.
- An action that is not in the action space is an InvalidAction, and the environment does not receive it.
- `terminated` and `truncated` remain separate. After a truncation, `info["truncated_by"]` names the limit.
- Nothing is rendered unless the caller's env.config sets `image`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType, FunctionType
from typing import Any, Literal

from taskapp_kit.declare.marks import action
from taskapp_kit.declare.signature import finished
from taskapp_kit.declare.source_location import did_you_mean
from taskapp_kit.errors import DeclarationError, Unavailable
from taskapp_kit.interop.class_parts import ClassParts, require
from taskapp_kit.interop.gymnasium.episode import GymnasiumEnvironment
from taskapp_kit.interop.gymnasium.spaces import (
    UnknownSpace,
    annotation_of,
    description_of,
    json_value,
    kind_of,
    needs_sampler,
    sampler_of,
)
from taskapp_kit.records.trajectory import Step


def from_gymnasium(
    source: str | Callable[..., Any],
    *,
    actions: Sequence[str] | None = None,
    describe: Callable[..., Any] | None = None,
    description: str = "",
    tool: str = "step",
    noop: Any = None,
    configurable: Mapping[str, Any] | None = None,
    reset_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> type[GymnasiumEnvironment]:
    """Return a class for `app.environment(...)` that plays a Gymnasium environment.

        app.environment("lake", splits={"train": range(100)})(
            from_gymnasium("FrozenLake-v1", actions=["left", "down", "right", "up"], is_slippery=False)
        )

    If the environment can render "rgb_array", the class has the option `image: bool = False`, which adds an image to
    the text. You may subclass the class to add methods or to override `reset` and `step`.

    This function makes one environment to read its spaces, and closes it. If the call contains a mistake, such as an
    unknown id, the returned class cannot be instantiated, and freezing the app that declares it raises
    DeclarationError.

    Args:
        source: A registered id ("CartPole-v1", "package:Name-v0"), or a class or function that makes an environment.
        actions: The names of a Discrete space's values, in order. The tool's argument is then a name.
        describe: `fn(observation)`, with optional parameters `info` and `env` (the unwrapped environment). It returns a
            string, a list of Text and Image, or any JSON. An array of shape (H, W, 3) and dtype uint8 becomes an image.
            By default the observation is JSON text such as "[0.02, -0.01, 0.03, 0.04]", which a policy function parses
            with `json.loads`.
        description: The tool's description for the model.
        tool: The tool's name.
        noop: The action that changes nothing, as a value of the tool's argument.
        configurable: Options that a caller may set in env.config. It maps each name to a default (bool, int, float or
            str) or to (annotation, default).
        reset_options: The options for `reset(options=...)` of the Gymnasium environment.
        **options: Keyword arguments for `gymnasium.make`, or for the class or function.

    Returns:
        A subclass of `GymnasiumEnvironment`.

    Raises:
        Unavailable: Gymnasium, or a package that the environment needs, is not installed.
    """
    builder = _ClassBuilder(source, options, sys._getframe(1))
    try:
        return builder.build(
            actions=actions,
            describe=describe,
            description=description,
            tool=tool,
            noop=noop,
            configurable=configurable or {},
            reset_options=reset_options,
        )
    except DeclarationError as error:
        return builder.without_environment(error, GymnasiumEnvironment)


class _ClassBuilder(ClassParts):
    """Builds the class. Problems point to the line of the author's call of `from_gymnasium`."""

    def __init__(self, source: str | Callable[..., Any], options: dict[str, Any], caller: FrameType) -> None:
        name = source if isinstance(source, str) else str(getattr(source, "__name__", "environment"))
        super().__init__("from_gymnasium", name, caller)
        self.source, self.options = source, options

    def build(
        self,
        *,
        actions: Sequence[str] | None,
        describe: Callable[..., Any] | None,
        description: str,
        tool: str,
        noop: Any,
        configurable: Mapping[str, Any],
        reset_options: Mapping[str, Any] | None,
    ) -> type[GymnasiumEnvironment]:
        """Create the class. Raises DeclarationError if the call is invalid, and Unavailable if a package is missing."""
        if "render_mode" in self.options:
            raise self.wrong("has render_mode=", "no render_mode", "remove it: env.config.image requests images")
        make = self._maker()
        probe = self._probe(make, self.defaults(configurable))
        space, spec, can_draw = probe.action_space, probe.spec, self._can_draw(probe)
        about = _about(probe, self.name, described=describe is not None)
        probe.close()
        choices = self._choices(space, actions)
        try:
            annotation = Literal[tuple(choices)] if choices else annotation_of(space)
        except UnknownSpace as error:
            raise self.wrong(
                f"of {self.name}: {error}", "a space with JSON values", "wrap it in a gymnasium.ActionWrapper"
            ) from None
        expected = f"one of {', '.join(choices)}" if choices else description_of(space)
        act = self.function(lambda self, action: self.step(action), "act", {"action": annotation, "return": Step})
        act.__doc__ = description or f"Take one step in {self.name}. `action` is {expected}."
        mark = action(
            name=tool,
            noop=None if noop is None else {"action": noop},
            sample=sampler_of(space, json_value) if needs_sampler(space) and not choices else None,
        )
        members = {
            "__doc__": about,
            "__init__": self._opened(configurable, can_draw),
            "act": mark(act),
            "name": self.name,
            "action_space": space,
            "_make": staticmethod(make),
            "_choices": choices,
            "_describe": None if describe is None else staticmethod(describe),
            "_describe_also": self._also(describe),
            "_reset_options": reset_options,
            "_left_out": set(),
            "step_limit": None if spec is None else spec.max_episode_steps,
        }
        return self.made(GymnasiumEnvironment, self.name.split(":")[-1], members)

    def _maker(self) -> Callable[..., Any]:
        """Return `fn(**options) -> Env`, which adds the options of the declaration."""
        gymnasium, source, options = _gymnasium(), self.source, self.options
        if isinstance(source, str):
            # the passive checker would repeat checks that this adapter makes, and print warnings
            return lambda **more: gymnasium.make(source, **{"disable_env_checker": True, **options, **more})
        return lambda **more: finished(source(**{**options, **more}))

    def _probe(self, make: Callable[..., Any], options: dict[str, Any]) -> Any:
        """Make an environment to read its spaces. Raises DeclarationError or Unavailable if this fails."""
        gymnasium = _gymnasium()
        try:
            probe = make(**options)
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            raise Unavailable(
                f"{self.name} needs a package that is not installed: {_first_line(error)}.", hint="Install the package."
            ) from error
        except gymnasium.error.UnregisteredEnv as error:
            raise self.wrong(
                f"names {self.name!r}: {_first_line(error)}",
                "a registered id",
                "pass one of the ids that gymnasium.pprint_registry() lists",
            ) from error
        except Exception as error:  # environments reject options with various exceptions, such as KeyError
            message = _first_line(error)
            named = message if isinstance(error, (TypeError, ValueError, gymnasium.error.Error)) else repr(error)
            raise self.wrong(
                f"cannot make {self.name}: {named}",
                "options that the environment accepts",
                self._meant("change the options"),
            ) from error
        if not isinstance(probe, gymnasium.Env):
            raise self.wrong(
                f"is called with {self.name!r}, which returned a {type(probe).__name__}",
                "a gymnasium.Env",
                "pass an id, or a class or function that makes an environment",
            )
        return probe

    def _meant(self, otherwise: str) -> str:
        """Return the fix for rejected options, one of which may be a misspelled parameter of `from_gymnasium`."""
        parameters = inspect.signature(from_gymnasium).parameters.values()
        ours = [item.name for item in parameters if item.kind is item.KEYWORD_ONLY]
        suggestions = (did_you_mean(name, ours, "") for name in self.options)
        return next((suggestion for suggestion in suggestions if suggestion), otherwise)

    def _can_draw(self, probe: Any) -> bool:
        """Return whether the environment can be made with render_mode="rgb_array"."""
        if "rgb_array" not in (probe.metadata or {}).get("render_modes", []):
            return False
        if isinstance(self.source, str):
            return True
        parameters = inspect.signature(self.source).parameters.values()
        return any(item.name == "render_mode" or item.kind is item.VAR_KEYWORD for item in parameters)

    def _choices(self, space: Any, actions: Sequence[str] | None) -> dict[str, int]:
        """Return a mapping from action names to values, or {} if the actions have no names."""
        if actions is None:
            return {}
        count = int(space.n) if kind_of(space) == "Discrete" else None
        if count is None:
            raise self.wrong(
                f"has actions=, but the action space of {self.name} is {space}", "a Discrete space", "remove actions="
            )
        names = [] if isinstance(actions, str) or not isinstance(actions, Iterable) else list(map(str, actions))
        if len(set(names)) != len(names) or len(names) != count:
            raise self.wrong(
                f"has actions={actions!r}, but {self.name} has {count} actions",
                f"{count} different names, in the order of the values",
                "fix actions=",
            )
        return {name: int(space.start) + index for index, name in enumerate(names)}

    def _also(self, describe: Callable[..., Any] | None) -> tuple[str, ...]:
        """Return the names of the parameters of `describe` after the observation."""
        if describe is None:
            return ()
        try:
            parameters = inspect.signature(describe).parameters
            names = tuple(
                name
                for name, item in parameters.items()  # parameters with defaults are not passed
                if name in ("info", "env") or (item.default is item.empty and item.kind is not item.VAR_KEYWORD)
            )
        except (TypeError, ValueError):  # some builtins have no signature, such as `str`
            names = ("observation",) if callable(describe) else ()
        unknown = [name for name in names[1:] if name not in ("info", "env")]
        if not names or unknown:
            raise self.wrong(
                f"has a describe function with the parameters ({', '.join(names)})",
                "fn(observation, info, env)",
                "use only these parameters; `info` and `env` are optional",
            )
        return names[1:]

    def _opened(self, configurable: Mapping[str, Any], can_draw: bool) -> FunctionType:
        """Return the class's constructor, with the configurable options, and `image` if the environment can render."""

        def body(environment: GymnasiumEnvironment, options: dict[str, Any]) -> None:
            environment.open(bool(options.pop("image", False)) if can_draw else False, options)

        return self.constructor(configurable, body, **({"image": (bool, False)} if can_draw else {}))


def _gymnasium() -> Any:
    """Import and return gymnasium. Raises Unavailable if it is not installed."""
    require("from_gymnasium", "gymnasium", "Gymnasium", "gymnasium")
    import gymnasium

    return gymnasium


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0].rstrip(".")


def _about(env: Any, name: str, described: bool) -> str:
    """Return the description of the environment: the first paragraph of its docstring, and its observation space.

    described: whether `describe` is set. If so, the observation space is omitted.
    """
    text = inspect.cleandoc(type(env.unwrapped).__doc__ or "")
    if text.startswith("#"):
        text = text.split("## Description", 1)[-1].strip()
    paragraph = " ".join(text.split("\n\n", 1)[0].split())
    paragraph = name if not paragraph or paragraph.startswith("#") else paragraph
    return paragraph if described else f"{paragraph}\n\nObservation: {description_of(env.observation_space)}."
