"""A console that removes the control characters of all text."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from graphwright.errors import printable


class SafeConsole(Console):
    r"""A console whose text holds no control characters but line ends; colors and the motion of a progress bar are not text.

    >>> SafeConsole().print("conv\x1b[2Jrelu")
    conv�[2Jrelu
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text, lines=True))
