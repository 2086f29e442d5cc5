"""A console that never prints control characters that are contained in text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment


class CleanConsole(Console):
    """A rich console that applies `clean` to printed text, but not to the styles and cursor movements of rich."""

    def __init__(self, clean: Callable[[str], str], **options: Any) -> None:
        self._clean = clean
        super().__init__(**options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the cleaned segments of a renderable. rich also calls this method for each cell of a table."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else self._clean(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)
