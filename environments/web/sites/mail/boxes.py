"""The current folders and labels of the received messages, and which messages a list shows."""

from __future__ import annotations

from .data import FOLDERS, Content, Message
from .letters import Refused

TITLES = {"inbox": "Inbox", "archive": "Archive", "spam": "Spam", "all": "All mail"}
"""The titles of the lists of received messages. `all` contains the inbox and the archive."""


class Boxes:
    """Folders and labels."""

    def __init__(self, content: Content) -> None:
        self._labels = content.labels
        self.messages = {message.id: message for message in content.messages}
        self.folder = {message.id: message.folder for message in content.messages}
        self.labels = {message.id: message.labels for message in content.messages}

    @property
    def actions(self) -> tuple[str, ...]:
        """What can be done with the marked messages of a list."""
        return (
            *(f"Move to {TITLES[folder]}" for folder in FOLDERS),
            *(f"Add label {label}" for label in self._labels),
        )

    def listed(self, name: str, query: str) -> list[Message]:
        """Return the messages of a list in which every word of the query occurs, newest first."""
        wanted = query.lower().split()
        found = []
        for message in self.messages.values():
            folder = self.folder[message.id]
            if folder != name and (name != "all" or folder == "spam"):
                continue
            sender = message.sender
            whole = " ".join((sender.name, sender.company, sender.address, message.subject, *message.text)).lower()
            if all(word in whole for word in wanted):
                found.append(message)
        return found

    def apply(self, action: str, ids: list[int]) -> str:
        """Apply an action of the list to these messages, and return a description. Raises Refused."""
        if not ids:
            raise Refused("Mark at least one message.")
        if action not in self.actions:
            raise Refused("Choose what to do with the marked messages.")
        count = f"{len(ids)} message was" if len(ids) == 1 else f"{len(ids)} messages were"
        if action.startswith("Move to "):
            title = action.removeprefix("Move to ")
            folder = next(folder for folder in FOLDERS if TITLES[folder] == title)
            self.folder.update(dict.fromkeys(ids, folder))
            return f"{count} moved to {title}."
        label = action.removeprefix("Add label ")
        for id_ in ids:
            self.labels[id_] = tuple(sorted({*self.labels[id_], label}))
        return f"{count} labelled “{label}”."

    def unlabel(self, id_: int, label: str) -> str:
        """Take a label off a message. Raises Refused."""
        if label not in self.labels[id_]:
            raise Refused("The message does not have that label.")
        self.labels[id_] = tuple(other for other in self.labels[id_] if other != label)
        return f"Label “{label}” was removed."
