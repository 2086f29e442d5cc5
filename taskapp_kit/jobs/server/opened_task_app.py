"""The backend's client of a task app: it checks every address, bounds responses, and removes keys from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from taskapp_kit.client.task_app import TaskAppClient
from taskapp_kit.errors import ConfigError, TaskAppError
from taskapp_kit.jobs.server.task_app_addresses import SETTING, TaskAppAddresses
from taskapp_kit.net.redact import without_key

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Of one response: the engine needs only its numbers, and many may arrive at once."""


@dataclass(frozen=True, slots=True)
class TaskAppHandover:
    """What another process needs to call a task app as this one does: its keys, and the rules for addresses."""

    url: str
    key: str | None = field(repr=False)
    shown: Sequence[str] = field(repr=False)
    retries: int
    local: bool
    allow: Sequence[str]


class OpenedTaskApp(TaskAppClient):
    """A client with one key.

    shown: every key that was sent to the server so far, this one included: its texts may hold any of them.
    """

    def __init__(
        self, url: str, key: str | None, addresses: TaskAppAddresses, shown: Sequence[str], retries: int
    ) -> None:
        super().__init__(url, key, retries=retries, refuse=addresses.guard(url))
        self._transport.max_body_bytes = MAX_ANSWER_BYTES
        self._shown = tuple(shown)
        self._addresses = addresses

    def handover(self) -> TaskAppHandover:
        """Return what `taken_over` needs in another process. It has keys: pass it over a private socket only."""
        rules = self._addresses
        return TaskAppHandover(self.url, self._key, self._shown, self.retries, rules.local, rules.allow)

    @classmethod
    def taken_over(cls, given: TaskAppHandover) -> Self:
        """Return the client that another process opened."""
        addresses = TaskAppAddresses(local=given.local, allow=given.allow)
        return cls(given.url, given.key, addresses, given.shown, given.retries)

    def elsewhere(self, url: str) -> OpenedTaskApp:
        """Return a client of another task app, with the same key. Raises ConfigError where that key may not be sent there."""
        if not self._addresses.trusts(url):
            raise ConfigError(
                f"The task app's key is not sent to {url}, another address than the job's own.",
                hint=f"The backend's operator may allow it with {SETTING} HOST.",
            )
        return OpenedTaskApp(url, self._key, self._addresses, self._shown, self.retries)

    def cleaned(self, text: str) -> str:
        """Return a text of the server without any part of a key that was sent to it."""
        for key in self._shown:
            text = without_key(text, key)
        return text

    def cleaned_error(self, error: TaskAppError) -> TaskAppError:
        """Return the error without any part of those keys."""
        return type(error)(
            self.cleaned(error.message),
            status=error.status,
            code=self.cleaned(error.code),
            boundary=error.boundary,
            rollout_id=self.cleaned(error.rollout_id),
            hint=self.cleaned(error.hint),
        )
