"""Writing variables into an env file, for its owner alone to read."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from taskapp_kit.errors import ConfigError

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
        before = target.read_text("utf-8") if target.exists() else ""
        descriptor, name = tempfile.mkstemp(prefix=".env-", dir=target.parent)  # made with mode 600
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(merged(before, values))
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(target)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ConfigError(f"{path} cannot be written: {reason}.", hint="Give another --file.") from None


def merged(before: str, values: Mapping[str, str]) -> str:
    """The text of an env file with these variables set: in their old place, else at the end."""
    left = dict(values)
    lines = []
    for line in before.splitlines():
        found = re.match(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=", line)
        if found is None or found[1] not in values:
            lines.append(line)
        elif found[1] in left:
            lines.append(_line(found[1], left.pop(found[1])))
    lines += [_line(name, value) for name, value in left.items()]
    return "".join(f"{line}\n" for line in lines)


def _line(name: str, value: str) -> str:
    return f"{name}={value}" if _PLAIN.fullmatch(value) else f"{name}='{value}'"
