"""A tokenizer in the Hugging Face file format `tokenizer.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from taskapp_kit.errors import ConfigError
from taskapp_kit.records.content import without_surrogates


class JsonTokenizer:
    """A tokenizer from `tokenizer.json`. Its added tokens are the layout tokens.

    A copy without layout tokens encodes text. A tokenizer that could produce layout tokens from ordinary text is
    rejected. Raises ConfigError if the definition is invalid.
    """

    def __init__(self, definition: str) -> None:
        try:
            parsed = json.loads(definition)
            self._whole = Tokenizer.from_str(definition)
            self._added = {token["content"]: token["id"] for token in parsed["added_tokens"]}
            self._text = Tokenizer.from_str(json.dumps(_text_only(parsed)))
        except Exception as error:  # `tokenizers` raises plain Exception
            raise ConfigError(f"The tokenizer's definition cannot be read: {error}.") from None

    @classmethod
    def from_file(cls, path: Path) -> JsonTokenizer:
        """Read a `tokenizer.json`. Raises ConfigError if it cannot be read."""
        try:
            return cls(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"The tokenizer {path} cannot be read: {error.strerror}.") from None

    def encode(self, text: str) -> list[int]:
        """Encode text, treating names of layout tokens as ordinary text."""
        ids: list[int] = self._text.encode(without_surrogates(text), add_special_tokens=False).ids
        return ids

    def token(self, name: str) -> int | None:
        """Return the id of a layout token, or None if it does not exist."""
        return self._added.get(name)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the ids, with the names of layout tokens."""
        text: str = self._whole.decode(list(ids), skip_special_tokens=False)
        return text


def _text_only(definition: dict[str, Any]) -> dict[str, Any]:
    """Return the definition without special tokens. It is invalid if merges of ordinary text produce a special token."""
    special = {token["content"] for token in definition["added_tokens"] if token["special"]}
    model = dict(definition["model"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {token: number for token, number in model["vocab"].items() if token not in special}
    return {**definition, "added_tokens": [], "post_processor": None, "model": model}
