"""The sections and keys of an RL config as a page's tables."""

from __future__ import annotations

from taskapp_kit.client.config.sections import SECTIONS


def table_of_keys() -> str:
    """Every section and key as Markdown: `docs/rl-config.md` holds this very text, and a test compares them."""
    parts = []
    for section in SECTIONS:
        needed = " Required in the full form." if section.required else ""
        parts.append(f"### `[{section.name}]`\n\n{section.about[0].upper()}{section.about[1:]}.{needed}")
        if section.keys:
            rows = ["| key | expected | what it is | written |", "|---|---|---|---|"]
            for key in section.keys:
                mark = " *" if key.required else ""
                rows.append(f"| `{key.name}`{mark} | {key.expected} | {key.about} | `{key.name} = {key.example}` |")
            parts.append("\n".join(rows))
        elif section.free:
            parts.append("Any keys.")
    return "\n\n".join(parts) + "\n"
