"""Text for a terminal: a page with its headline, facts and sections, and tables of figures that fit.

Every result that prints itself is laid out as a `Page`, so that they look alike. Nothing that comes from a graph is read as markup or
obeyed as a control character, and names that are too long lose their middle.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVarTuple

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from graphwright.report.safe_console import SafeConsole
from graphwright.report.summary import Fact
from graphwright.report.tables import Column, Item
from graphwright.report.units import format_count, glue_units, printable, shorten_apart, shorten_middle

PLAIN_WIDTH = 80
MAX_WIDTH = 110
_GAP = 2  # cells between columns
_INDENT = 2  # cells before what belongs to a section
_TEXT_WIDTH = 34  # cells of a text beside the names
ROLE_STYLES: Mapping[str, str] = {
    "weights": "bright_black",
    "optimizer state": "white",
    "inputs": "yellow",
    "residuals": "blue",
    "gradients": "magenta",
    "temporaries": "green",
}
_Values = TypeVarTuple("_Values")


class Page:
    """A result on a console: what it comes to, the facts, sections, and how each figure was obtained.

    Args:
        console: what is printed on; standard output by default.
        parts: of the result that are printed beside its first screen; "all" for the whole.

    Attributes:
        width: cells that a line may take: what the console has, up to `MAX_WIDTH`.
        body_width: cells that a line of a section may take.

    Example:
        >>> columns = (Column("op type", lambda row: row[0], kind="name"), Column("FLOPs", lambda row: row[1], "{} G".format))
        >>> def print_step(name: str, page: Page) -> None:
        ...     page.headline(f"{name}: 3.00 GFLOP.")
        ...     page.table("Per op type", [("Conv2D", 2.0), ("MatMul", 1.0)], columns)
        >>> print(rendered(print_step, "step"))
        step: 3.00 GFLOP.
        <BLANKLINE>
        Per op type
          op type  FLOPs
          Conv2D   2.0 G
          MatMul   1.0 G
    """

    def __init__(self, console: Console | None = None, parts: Sequence[str] = ()) -> None:
        self._console = console or SafeConsole()
        self._parts = parts
        self.width = min(self._console.width, MAX_WIDTH)
        self.body_width = self.width - _INDENT

    def shows(self, part: str) -> bool:
        """Whether a part of the result is printed beside its first screen."""
        return part in self._parts or "all" in self._parts

    def line(self, renderable: RenderableType) -> None:
        """Print as it is: no highlighting, no markup."""
        self._console.print(renderable, width=self.width, highlight=False, markup=False, emoji=False)

    def lines(self, renderables: Iterable[RenderableType]) -> None:
        """Print one below another."""
        for renderable in renderables:
            self.line(renderable)

    def paragraph(self, text: str, style: str = "") -> None:
        """Text, broken at spaces."""
        self.line(Text(wrapped(text, self.width), style=style))

    def flow(self, items: Sequence[str], gap: str, *, indent: int = 0) -> None:
        """Short texts one after another, each whole on a line."""
        lines = [""]
        for item in items:
            fits = cell_len(lines[-1] + gap + item) <= self.width - indent
            lines[-1:] = [lines[-1] + gap * bool(lines[-1]) + item] if fits or not lines[-1] else [lines[-1] + gap.rstrip(), item]
        for line in filter(None, lines):
            self.line(Text(" " * indent + line, no_wrap=True))

    def ranking(self, label: str, amounts: Iterable[tuple[str, float]], form: Callable[[float], str], limit: int = 3) -> None:
        """The largest amounts by name, in a line or two."""
        known = sorted((row for row in amounts if row[1] > 0), key=lambda row: -row[1])[:limit]
        names = shorten_apart([printable(name) for name, _ in known], self.width // 2)
        items = [f"{name} {form(amount)}" for name, (_, amount) in zip(names, known, strict=True)]
        self.flow([f"{label}: {item}" for item in items[:1]] + items[1:], ", ")

    def headline(self, text: str, style: str = "bold") -> None:
        """The one sentence that says what the result comes to."""
        self.paragraph(text, style)

    def facts(self, facts: Sequence[Fact]) -> None:
        """Label, figure and note of each fact."""
        self.line(Padding(_grid([(fact.label, fact.value, fact.note) for fact in facts], self.body_width), (1, 0, 0, _INDENT)))

    def section(self, title: str, *body: RenderableType) -> None:
        """A title, and what belongs below it."""
        self.line(Text(f"\n{title}", style="bold cyan"))
        for renderable in body:
            self.line(Padding(renderable, (0, 0, 0, _INDENT)))

    def table(
        self,
        title: str,
        items: Iterable[Item],
        columns: Sequence[Column[Item]],
        *,
        limit: int | None = None,
        more: str = "more",
        empty: str = "none",
    ) -> None:
        """A section that is a table.

        Args:
            title: of the section.
            items: a row each.
            columns: the first one gives way where the table is too wide.
            limit: rows at most; a line says how many more there are.
            more: what that line calls them.
            empty: what is said where there are no rows.
        """
        self.section(title, *listed(self.body_width, items, columns, limit=limit, more=more, empty=empty))

    def pairs(self, title: str, rows: Iterable[tuple[str, str]]) -> None:
        """A section of names, each with a text; none where there are none."""
        if pairs := [(shorten_middle(printable(label), 24), text) for label, text in rows]:
            self.section(title, _grid(pairs, self.body_width))

    def origins(self, how: Iterable[tuple[str, str]]) -> None:
        """The last section of the whole result: each figure, and how it was obtained."""
        if self.shows("all"):
            self.pairs("How each figure was obtained", how)


def rendered(print_function: Callable[[*_Values, Page], None], *values: *_Values, parts: Sequence[str] = ()) -> str:
    """What `print_function(*values, page)` puts on a page, as plain text of 80 columns."""
    console = plain_console()
    print_function(*values, Page(console, parts))
    return plain_text(console)


def plain_console() -> Console:
    """A console that keeps its text, in a notebook too: 80 columns, no color."""
    return SafeConsole(
        file=io.StringIO(),
        width=PLAIN_WIDTH,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        legacy_windows=False,
        _environ={},
    )


def plain_text(console: Console) -> str:
    """What a plain console has kept, without spaces at the ends of lines."""
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()).strip("\n")


def wrapped(text: str, width: int) -> str:
    """`text` broken at spaces, never between a number and its unit; a name wider than a line loses its middle."""
    glued = glue_units(printable(text))
    words = " ".join(shorten_middle(word, width) for word in glued.split(" "))
    # Python's own wrapping, unlike rich's, keeps a no-break space whole.
    lines = textwrap.wrap(words, max(width, 1), break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


def continued(command: str, width: int) -> str:
    """A command in lines of a width, broken before options.

    >>> print(continued("graphwright optimize net.keras --batch 8 --budget 2GiB", 42))
    graphwright optimize net.keras --batch 8 \\
      --budget 2GiB
    """
    first, *options = command.split(" --")
    lines = [first]
    for option in options:
        if len(lines[-1]) + len(option) + len(" -- \\") > width:
            lines[-1] += " \\"
            lines.append(f"  --{option}")
        else:
            lines[-1] += f" --{option}"
    return "\n".join(lines)


def _grid(rows: Sequence[tuple[str, ...]], width: int) -> RenderableType:
    """A label, perhaps a figure, and a text in the room that they leave."""
    heads = range(len(rows[0]) - 1)
    text_width = max(width - sum(max(cell_len(row[k]) for row in rows) + _GAP for k in heads), 12)
    table = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
    for k in heads:
        table.add_column(no_wrap=True, justify="right" if k else "left", style="bold" if k else "dim")
    table.add_column(overflow="fold")
    for *cells, text in rows:
        table.add_row(*map(Text, cells), Text(wrapped(text, text_width)))
    return table


def listed(
    width: int,
    items: Iterable[Item],
    columns: Sequence[Column[Item]],
    *,
    limit: int | None = None,
    more: str = "more",
    empty: str = "none",
) -> list[RenderableType]:
    """A table in `width` cells, and a line that says how many rows more there are; see `Page.table`."""
    every = list(items)
    if not every:
        return [Text(empty, style="dim")]
    table = _figures_table(width, every[:limit], columns)
    left_out = 0 if limit is None else len(every) - limit
    return [table, Text(f"{format_count(left_out)} {more}", style="dim")] if left_out > 0 else [table]


def _figures_table(width: int, items: Sequence[Item], columns: Sequence[Column[Item]]) -> Table:
    rows = [[_cell(item, column) for column in columns] for item in items]
    others = sum(max(cell_len(c.label), *(row[k].cell_len for row in rows)) + _GAP for k, c in enumerate(columns) if k)
    name_width = max(width - others, 8)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim", show_edge=False)
    for k, column in enumerate(columns):
        table.add_column(column.label, justify="right" if k and column.kind == "number" else "left", no_wrap=True)
    for name, row in zip(shorten_apart([row[0].plain for row in rows], name_width), rows, strict=True):
        table.add_row(Text(name, style=row[0].style), *row[1:])
    return table


def _cell(item: Item, column: Column[Item]) -> Text:
    text = printable(column.cell(item).text)
    style = column.style(item) if column.style else ROLE_STYLES.get(text, "") if column.kind == "role" else ""
    return Text(shorten_middle(text, _TEXT_WIDTH) if column.kind == "text" else text, style=style)
