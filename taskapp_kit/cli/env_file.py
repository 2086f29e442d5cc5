"""Write variables to an env file that only its owner can read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

from dotenv.parser import parse_stream

from taskapp_kit.errors import ConfigError
from taskapp_kit.system.private_files import write_durable

_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,=-]*")


def write(path: Path, values: Mapping[str, str]) -> None:
    """Set variables in an env file without changing its other lines.

    The file is replaced atomically and always has mode 600. Symbolic links are followed. Raises ConfigError if a value
    contains a single quote or a control character, or if the file cannot be written. Messages never contain values.
    """
    for name, value in values.items():
        if "'" in value or any(ord(character) < 32 or ord(character) == 127 for character in value):
            raise ConfigError(
                f"The value of {name} contains a single quote or a control character, so an env file cannot store it.",
                hint="Choose a value without single quotes, line breaks and other control characters.",
            )
    target = path.expanduser().resolve()
    try:
        before = target.read_text("utf-8-sig") if target.exists() else ""
        write_durable(target, merged(before, values).encode())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not valid UTF-8"
        raise ConfigError(f"{path} cannot be written: {reason}.", hint="Choose another --file.") from None


def merged(before: str, values: Mapping[str, str]) -> str:
    """Return an env file's text with these variables set. Existing variables are replaced, and new ones are appended."""
    left = dict(values)
    parts = []
    for binding in parse_stream(StringIO(before.replace("\r\n", "\n"))):  # a value may span several lines
        if binding.key not in values:
            parts.append(binding.original.string)
        elif binding.key in left:
            blank = re.match(r"(?:\s*\n)?", binding.original.string)
            parts.append((blank[0] if blank else "") + _line(binding.key, left.pop(binding.key)) + "\n")
    text = "".join(parts)
    text += "" if not text or text.endswith("\n") else "\n"
    return text + "".join(f"{_line(name, value)}\n" for name, value in left.items())


def _line(name: str, value: str) -> str:
    if _PLAIN.fullmatch(value):
        return f"{name}={value}"
    escaped = value.replace("\\", "\\\\")
    return f"{name}='{escaped}'"
