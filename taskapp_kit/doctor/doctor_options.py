"""The settings of the doctor: what it checks, and how many rollouts it plays."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from taskapp_kit.config import MASK, Settings

MOST_TURNS = 1000
"""The number of turns after which the doctor ends a rollout, even if no limit is declared."""


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """What the doctor checks, and how many rollouts it plays.

    Attributes:
        quick: Whether to play fewer rollouts, in less than 20 s in total.
        judges: Whether to call the app's judges, and the models that its environments call.
        environment: If set, examine only this environment.
        allow: Names of checks whose findings are accepted.
        rollout_seconds: The deadline of each rollout. Defaults to 60 s, or to 10 s with `quick`.
        processes: Whether to play episodes in a second process, whose start takes almost a second.
    """

    quick: bool = False
    judges: bool = False
    environment: str | None = None
    allow: Collection[str] = field(default_factory=tuple)
    rollout_seconds: float | None = None
    processes: bool = True

    @property
    def seconds(self) -> float | None:
        """The time limit of the full examination in seconds, or None for no limit."""
        return 15.0 if self.quick else None

    @property
    def hint_for_time(self) -> str:
        """The hint of a check that ran out of time. Empty if `quick` is not set."""
        return "Run the doctor without --quick." if self.quick else ""

    @property
    def deadline_seconds(self) -> float:
        """The deadline of each rollout, in seconds."""
        return self.rollout_seconds or (10.0 if self.quick else 60.0)

    @property
    def seeds(self) -> int:
        """How many rollouts of each policy are played, if the environment is fast enough."""
        return 6 if self.quick else 20

    @property
    def policy_seconds(self) -> float:
        """The time for one policy's rollouts, in seconds."""
        return 0.7 if self.quick else 8.0

    @property
    def check_seconds(self) -> float:
        """The time for the repetitions in one check, in seconds."""
        return 1.0 if self.quick else 15.0

    @property
    def first_views(self) -> int:
        """The number of episodes in which only the first observation is read."""
        return 20 if self.quick else 60

    @property
    def resets(self) -> int:
        """The number of resets in the check `memory`."""
        return 60 if self.quick else 200

    @property
    def at_once(self) -> int:
        """The number of concurrent rollouts."""
        return 8 if self.quick else 20


def settings_words(settings: Settings, *, judges: bool) -> str:
    """Return the settings that are not defaults, and where each comes from, as sentences. Secrets are omitted."""
    changed = [f"{name} = {text} ({source})" for name, text, source in settings.shown() if source != "default"]
    shown = ", ".join(item for item in changed if MASK not in item) or "only defaults"
    models = "Judges and models of environments are called." if judges else "No model is called without --judges."
    return f"Settings: {shown}. A file `.env` is read only if --env-file names it. {models}"
