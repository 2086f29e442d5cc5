"""What an environment shows, as the content of a message; and the same as it is recorded, without the pictures' bytes."""

from __future__ import annotations

from taskapp_kit.contract.content import Content, Image, Json, images, text_of

NOTHING = "(nothing to see)"
"""In place of an observation of None: many endpoints refuse a message without words."""

Said = str | list[dict[str, Json]]
"""A message's content: words, or parts."""


def words_of(observation: Content, *, pictures: str = "not shown") -> str:
    """The observation in words; a picture is named by its size, with `pictures` beside it."""
    if type(observation) is list:
        told = [
            f"[picture {block.width} x {block.height}: {pictures}]" if isinstance(block, Image) else block
            for block in observation
        ]
        return "\n".join(told) or NOTHING
    return text_of(observation) or NOTHING


def has_pictures(observation: Content) -> bool:
    """True when there is a picture in it."""
    return next(images(observation), None) is not None


def joined(shown: list[tuple[str | None, Content]]) -> tuple[Said, Said]:
    """Observations with pictures, each after a line of its own (or none), as the parts of one message: sent, and kept."""
    sent: list[dict[str, Json]] = []
    kept: list[dict[str, Json]] = []
    for line, observation in shown:
        for block in ([line] if line else []) + (observation if type(observation) is list else [words_of(observation)]):
            if isinstance(block, Image):
                sent.append(_picture(block.data_url()))
                kept.append(_picture(f"/blobs/{block.hash}"))
            else:
                sent.append({"type": "text", "text": block})
                kept.append(sent[-1])
    return sent, kept


def _picture(address: str) -> dict[str, Json]:
    return {"type": "image_url", "image_url": {"url": address}}
