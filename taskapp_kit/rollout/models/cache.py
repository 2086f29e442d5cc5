"""A cache of model replies in a directory. Identical requests to the same model at the same address are sent once.

There is one file for each request. Its name is the SHA-256 of the address (without the query), the model, the whole body and
the rollout's sample number. Samples of one seed should differ, so each sample has its own entry. Two processes may share the
directory. An unreadable file is a miss. If the directory is not writable, a warning is logged once.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import orjson

from taskapp_kit.records.content import Json
from taskapp_kit.system.private_files import make_private_folder
from taskapp_kit.wire.chat.conversation import ChatReply

log = logging.getLogger("taskapp_kit.policy")


class ResponseCache:
    """The directory of cached replies. Only the directory's owner may read it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._told = False

    @staticmethod
    def key(url: str, model: str | None, body: Mapping[str, Json], sample: int = 0) -> str:
        """Return the key of a request, 64 hex digits. The key does not depend on the order of the fields in the body."""
        # without the query, which contains the rollout's correlation id
        written = orjson.dumps([url.partition("?")[0], model, body, sample], option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(written).hexdigest()

    def load(self, key: str) -> ChatReply | None:
        """Return the cached reply with `cached` set, or None for a miss."""
        try:
            reply = ChatReply.from_json(orjson.loads(self._file(key).read_bytes()))
        # TypeError: a reply of another version has different fields
        except (OSError, ValueError, TypeError):
            return None
        return replace(reply, cached=True, cost=0.0 if reply.cost is not None else None, seconds=0.0)

    def save(self, key: str, reply: ChatReply) -> None:
        """Store the reply. The file is written completely or not at all."""
        # retries and attempts are not part of the reply
        content = orjson.dumps(replace(reply, retries=[], attempts=1).to_json())
        file = self._file(key)
        temporary: Path | None = None
        try:
            make_private_folder(file.parent)
            handle, name = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=".part")
            temporary = Path(name)
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            # atomic, so that another process never reads a partial file
            temporary.replace(file)
        except OSError as error:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    temporary.unlink()
            # only once, or a full disk would log each call
            if not self._told:
                self._told = True
                log.warning(
                    "The response cache %s is not writable: %s. Replies are not cached.", self.folder, error.strerror
                )

    def _file(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
