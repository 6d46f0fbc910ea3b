"""The only way to the terminal: what is printed loses the characters that a terminal would obey, whoever made the text."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from graphwright.errors import printable


class SafeConsole(Console):
    """A console whose text holds no control characters but ends of lines. Colors and the moves of a progress bar are not text.

    >>> SafeConsole().print("conv\\x1b[2Jrelu")
    conv\ufffd[2Jrelu
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What is printed, as pieces of text with a style each."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text, lines=True))
