"""Renders observations as message content: the form that is sent, and the recorded form without the pictures' bytes."""

from __future__ import annotations

from taskapp_kit.contract.content import Content, Image, Json, images, text_of

NOTHING = "(nothing to see)"
"""Sent for an observation of None: many endpoints refuse a message without text."""

MessageContent = str | list[dict[str, Json]]
"""A message's content: a text, or a list of parts."""


def words_of(observation: Content, *, pictures: str = "not shown") -> str:
    """The observation as text; a picture becomes its size and the note `pictures`."""
    if type(observation) is list:
        lines = [
            f"[picture {block.width} x {block.height}: {pictures}]" if isinstance(block, Image) else block
            for block in observation
        ]
        return "\n".join(lines) or NOTHING
    return text_of(observation) or NOTHING


def has_pictures(observation: Content) -> bool:
    """True when the observation contains a picture."""
    return next(images(observation), None) is not None


def joined(shown: list[tuple[str | None, Content]]) -> tuple[MessageContent, MessageContent]:
    """Joins observations with pictures, each after its heading if any, into one message's parts: to send, and to record."""
    sent: list[dict[str, Json]] = []
    recorded: list[dict[str, Json]] = []
    for line, observation in shown:
        for block in ([line] if line else []) + (observation if type(observation) is list else [words_of(observation)]):
            if isinstance(block, Image):
                sent.append(_picture(block.data_url()))
                recorded.append(_picture(f"/blobs/{block.hash}"))
            else:
                sent.append({"type": "text", "text": block})
                recorded.append(sent[-1])
    return sent, recorded


def _picture(address: str) -> dict[str, Json]:
    return {"type": "image_url", "image_url": {"url": address}}
