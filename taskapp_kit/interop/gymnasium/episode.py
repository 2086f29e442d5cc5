"""Plays an episode of a Gymnasium environment, and converts Gymnasium's five values to the kit's `Step`.

This module copies Gymnasium's values and converts them to JSON, so that recorded values cannot change later. Only
`interop/gymnasium/importer.py`, which creates the classes, imports Gymnasium.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from taskapp_kit.declare.signature import finished
from taskapp_kit.errors import InvalidAction, Unavailable
from taskapp_kit.interop.gymnasium.spaces import is_image, json_value, value_in
from taskapp_kit.records.content import Content, Image, Json, NotJson, Text, plain
from taskapp_kit.records.trajectory import Step

log = logging.getLogger("taskapp_kit.interop.gymnasium")

RESET_INFO = "reset_info"
"""The key in the first step's info that contains the info of `reset`."""


class GymnasiumEnvironment:
    """An episode of a Gymnasium environment. `from_gymnasium` creates the subclasses that an app declares.

    The only action, `act`, passes its argument to `step`. A subclass may override `reset` and `step`.

    Attributes:
        env: The Gymnasium environment, including its wrappers.
        action_space: The space that the declared action describes.
        step_limit: Gymnasium's own time limit (`max_episode_steps`), or None for no limit.
    """

    name: str
    action_space: Any
    _make: Callable[..., Any]
    _choices: Mapping[str, int]
    _describe: Callable[..., Any] | None
    _describe_also: tuple[str, ...]
    _reset_options: Mapping[str, Any] | None
    step_limit: int | None
    _left_out: set[str]

    def open(self, image: bool, options: Mapping[str, Any]) -> None:
        """Make the Gymnasium environment. It may raise ValueError for invalid options."""
        self.image = image
        self.env: Any = self._make(**options, **({"render_mode": "rgb_array"} if image else {}))
        self._steps, self._over = 0, False
        self._reset_info: dict[str, Json] = {}

    def reset(self, seed: int) -> Content:
        """Reset the environment, seed its spaces, and return the first observation."""
        self.env.action_space.seed(seed)
        self.env.observation_space.seed(seed)
        options = None if self._reset_options is None else dict(self._reset_options)
        observation, info = self.env.reset(seed=seed, options=options)
        self._steps, self._over, self._reset_info = 0, False, self._recorded(info)
        return self._shown(observation, info)

    def step(self, action: Any) -> Step:
        """Take a step. Raises InvalidAction if the action is not in the action space or the episode has ended."""
        if self._over:
            raise InvalidAction("The episode is over; nothing was done.")
        space = self.env.action_space
        try:
            value = value_in(space, self._choices[action] if self._choices else action)
            fits = bool(space.contains(value))
        except (ValueError, TypeError, KeyError, OverflowError):
            fits = False
        if not fits:
            raise InvalidAction(f"Nothing was done: the action {json.dumps(action)} is not in {space}.")
        observation, reward, terminated, truncated, info = self.env.step(value)
        self._steps += 1
        self._over = bool(terminated or truncated)
        recorded = self._recorded(info)
        if truncated:
            reached = self.step_limit is not None and self._steps >= self.step_limit
            recorded["truncated_by"] = f"time limit of {self.step_limit} steps" if reached else "the environment"
        if self._reset_info:
            recorded[RESET_INFO], self._reset_info = self._reset_info, {}
        return Step(self._shown(observation, info), reward, terminated, truncated, recorded)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _shown(self, observation: Any, info: Mapping[str, Any]) -> Content:
        """Return the observation: text from `describe` or JSON text, then images.

        The text does not depend on the images.
        """
        if self._describe is not None:
            also = {"info": info, "env": self.env.unwrapped}
            shown = finished(self._describe(observation, **{name: also[name] for name in self._describe_also}))
        else:
            shown = observation
        if is_image(shown):
            blocks: list[Any] = [Image(shown)]
        elif isinstance(shown, list) and any(isinstance(block, (Text, Image)) for block in shown):
            blocks = list(shown)
        elif isinstance(shown, str):
            blocks = [Text(shown)]
        else:
            try:
                recorded = plain(json_value(shown), "observation")
            except NotJson:
                return {"observation": shown}  # `content` rejects this value and names its path
            blocks = [Text(json.dumps(recorded, ensure_ascii=False))]
        if self.image:
            blocks.append(self._image())
        return blocks[0].text if len(blocks) == 1 and isinstance(blocks[0], Text) else blocks

    def _image(self) -> Image:
        try:
            return Image(self.env.render())
        except Exception as error:
            if not isinstance(error, ImportError) and type(error).__name__ != "DependencyNotInstalled":
                raise
            raise Unavailable(
                f"{self.name} cannot render an image: {error}.",
                hint="Install the missing package, or remove `image` from env.config.",
            ) from error

    def _recorded(self, info: Mapping[str, Any]) -> dict[str, Json]:
        """Copy the info as JSON. Values that are not JSON are omitted, and each omitted key is logged once."""
        recorded: dict[str, Json] = {}
        for key, value in info.items():
            try:
                recorded[str(key)] = plain(json_value(value), f"info.{key}")
            except NotJson as error:
                if str(key) not in self._left_out:
                    self._left_out.add(str(key))
                    log.warning("%s: %s; it is omitted from every step's info", self.name, error)
        return recorded
