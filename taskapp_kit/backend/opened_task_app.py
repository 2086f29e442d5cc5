"""A client of a task app as a backend uses it: guarded on each connection, its answers bounded and without keys."""

from __future__ import annotations

from collections.abc import Sequence

from taskapp_kit.backend.task_app_addresses import TaskAppAddresses
from taskapp_kit.client.task_app import TaskAppClient
from taskapp_kit.errors import TaskAppError
from taskapp_kit.net.redact import without_key

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Of one answer of a task app, which is asked for numbers only; many may arrive at once."""


class OpenedTaskApp(TaskAppClient):
    """A task app, asked with one key, guarded on each connection, its answers bounded.

    shown: every key that its server has been sent until now, this one among them: it may say any of them.
    """

    def __init__(
        self, url: str, key: str | None, addresses: TaskAppAddresses, shown: Sequence[str], retries: int
    ) -> None:
        super().__init__(url, key, retries=retries, refuse=addresses.guard(url))
        self._transport.max_body_bytes = MAX_ANSWER_BYTES
        self._shown = tuple(shown)

    def cleaned(self, text: str) -> str:
        """The server's words without any part of a key that it was sent."""
        for key in self._shown:
            text = without_key(text, key)
        return text

    def told_again(self, error: TaskAppError) -> TaskAppError:
        """The error with its words cleaned."""
        return type(error)(
            self.cleaned(error.message),
            status=error.status,
            code=self.cleaned(error.code),
            boundary=error.boundary,
            rollout_id=self.cleaned(error.rollout_id),
            hint=self.cleaned(error.hint),
        )
