"""Prints docs/reference/settings.md, made from the settings' declaration."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import click

from taskapp_kit.config import SETTINGS, Settings

HEAD = """# Settings

<!-- Made by `python docs/tools/settings_page.py > docs/reference/settings.md`; a test fails when it is stale. -->

How do you configure a server or a command? Set a variable, pass the flag, or write `taskapp.toml` in the working
directory:

```toml
store = "sqlite:///.taskapp/rollouts.db"
max_concurrent = 64
```

- The sources of a value, in order of precedence, are the flag, the process environment, `--env-file` (later files take
  precedence), `.env` and `taskapp.toml` in the working directory, and the default. `taskapp serve APP --show-config` prints
  the source of each value.
- A setting's name in `taskapp.toml` is the first column; its flag is `--` and the name with dashes, on the
  [commands](cli.md) that use it. Keys are only read from variables and env files.
- Lists are separated by commas; in `taskapp.toml` they may be arrays. Switches are `1`, `true`, `yes`, `on` or `0`,
  `false`, `no`, `off`. An empty variable is not set.
- Judges and other auxiliary models have their own variables: [judges](../environments/judges.md).

| setting | variable | type | default | meaning |
|---|---|---|---|---|
"""
TYPES = {
    "str | None": "string",
    "str": "string",
    "tuple[str, ...]": "list",
    "Path | None": "path",
    "Path": "path",
    "int": "integer",
    "float": "seconds",
    "bool": "switch",
    "bool | None": "switch",
    "Literal['text', 'json']": "`text` or `json`",
}


def reference() -> str:
    """The page, as Markdown."""
    declared = {field.name: field for field in fields(Settings)}
    meanings = _meanings()
    lines = []
    for setting in SETTINGS:
        field = declared[setting.name]
        kind = "key" if setting.secret else TYPES[str(field.type).replace('"', "'")]
        lines.append(
            f"| `{setting.name}` | `{setting.variable}` | {kind} | {_default(field.default)} | {meanings[setting.name]} |"
        )
    return HEAD + "\n".join(lines) + "\n"


def _meanings() -> dict[str, str]:
    """Return the attributes of the class's docstring by name."""
    _, _, attributes = inspect.cleandoc(Settings.__doc__ or "").partition("Attributes:\n")
    joined = re.sub(r"\n {8,}", " ", attributes)
    return dict(re.findall(r"^ {4}(\w+): (.+)$", joined, re.MULTILINE))


def _default(value: object) -> str:
    if value in (None, ()):
        return "–"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, str | Path):
        return f"`{value}`"
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    click.echo(reference(), nl=False)
