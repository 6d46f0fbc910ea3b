"""Text for a terminal: a console of 80 columns, sections, facts, tables of figures that fit.

Every result that prints itself is laid out with these, so that they look alike. Nothing that comes from a graph is read as markup or
obeyed as a control character, and names that are too long lose their middle.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from graphwright.report.summary import Fact
from graphwright.report.units import glue_units, printable, shorten_middle

PLAIN_WIDTH = 80
MAX_WIDTH = 110
_GAP = 2  # cells between columns


def plain_console() -> Console:
    """A console that keeps its text: 80 columns, no color."""
    return Console(file=io.StringIO(), width=PLAIN_WIDTH, color_system=None, force_terminal=False, legacy_windows=False, _environ={})


def plain_text(console: Console) -> str:
    """What a plain console has kept, without spaces at the ends of lines."""
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()).strip("\n")


def print_on(console: Console, width: int, renderable: RenderableType) -> None:
    """Print as it is: no highlighting, no markup."""
    console.print(renderable, width=width, highlight=False, markup=False, emoji=False)


def print_section(console: Console, width: int, title: str, *body: RenderableType) -> None:
    """A title, and what belongs below it."""
    print_on(console, width, Text(f"\n{title}", style="bold cyan"))
    for renderable in body:
        print_on(console, width, Padding(renderable, (0, 0, 0, 2)))


def wrapped(text: str, width: int) -> str:
    """`text` broken at spaces, never between a number and its unit; a name wider than a line loses its middle."""
    glued = glue_units(printable(text))
    words = " ".join(shorten_middle(word, width) for word in glued.split(" "))
    # Python's own wrapping, unlike rich's, keeps a no-break space whole.
    lines = textwrap.wrap(words, max(width, 1), break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


def facts_table(facts: Sequence[Fact], width: int) -> RenderableType:
    """Label, figure and note of each fact."""
    label_width = max(cell_len(fact.label) for fact in facts)
    value_width = max(cell_len(fact.value) for fact in facts)
    note_width = max(width - 2 - label_width - value_width - 2 * _GAP, 12)
    table = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(no_wrap=True, justify="right", style="bold")
    table.add_column(overflow="fold")
    for fact in facts:
        table.add_row(Text(fact.label), Text(fact.value), Text(wrapped(fact.note, note_width)))
    return Padding(table, (1, 0, 0, 2))


def figures_table(width: int, columns: Sequence[str], rows: Sequence[Sequence[Text | str]], *, left: Sequence[int] = ()) -> Table:
    """A table of figures that fits in `width` cells: the names in the first column give way.

    Args:
        width: cells that the table may take.
        columns: headings; the first column holds names, the others figures.
        rows: one cell per column.
        left: columns beside the first whose cells are text, and set to the left.
    """
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    others = sum(max(cell_len(column), *(row[index].cell_len for row in cells), 0) + _GAP for index, column in enumerate(columns) if index)
    name_width = max(width - others, 8)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim", show_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 or index in left else "right", no_wrap=True)
    for row in cells:
        table.add_row(Text(shorten_middle(row[0].plain, name_width), style=row[0].style), *row[1:])
    return table


def origins_table(rows: Sequence[tuple[str, str]], width: int) -> RenderableType:
    """Pairs of a figure and how it was obtained."""
    labels = [shorten_middle(printable(label), 24) for label, _ in rows]
    text_width = max(width - 2 - max(map(cell_len, labels)) - _GAP, 12)
    table = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for label, (_, text) in zip(labels, rows, strict=True):
        table.add_row(Text(label), Text(wrapped(text, text_width)))
    return table
