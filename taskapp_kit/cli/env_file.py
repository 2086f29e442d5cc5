"""Writing variables into an env file, for its owner alone to read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

from dotenv.parser import parse_stream

from taskapp_kit.errors import ConfigError
from taskapp_kit.system.private_files import write_durable

BACKSLASH = "\\"
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,=-]*")


def write(path: Path, values: Mapping[str, str]) -> None:
    """Sets these variables in the file, mode 600 from its first byte on; its other lines stay as they are.

    The file is replaced in one step, so a reader sees the old one or the new one. A link is followed. Raises
    ConfigError; its sentence names variables, never values.
    """
    for name, value in values.items():
        if any(ord(letter) < 32 or ord(letter) == 127 for letter in value) or "'" in value:
            raise ConfigError(
                f"The value of {name} cannot stand in an env file.",
                hint="Give one without quotes and control characters.",
            )
    target = path.expanduser().resolve()
    try:
        before = target.read_text("utf-8-sig") if target.exists() else ""
        write_durable(target, merged(before, values).encode())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ConfigError(f"{path} cannot be written: {reason}.", hint="Give another --file.") from None


def merged(before: str, values: Mapping[str, str]) -> str:
    """The text of an env file with these variables set: in their old place, else at the end."""
    left = dict(values)
    parts = []
    for binding in parse_stream(StringIO(before.replace("\r\n", "\n"))):  # a value may go over several lines
        if binding.key not in values:
            parts.append(binding.original.string)
        elif binding.key in left:
            blank = re.match(r"(?:\s*\n)?", binding.original.string)
            parts.append((blank[0] if blank else "") + _line(binding.key, left.pop(binding.key)) + "\n")
    text = "".join(parts)
    text += "" if not text or text.endswith("\n") else "\n"
    return text + "".join(f"{_line(name, value)}\n" for name, value in left.items())


def _line(name: str, value: str) -> str:
    return f"{name}={value}" if _PLAIN.fullmatch(value) else f"{name}='{value.replace(BACKSLASH, BACKSLASH * 2)}'"
