"""Sheets: the contents of a result, once for every medium.

A *sheet* holds the verdict of a result, its facts, tables and charts as *blocks*, and the origin of each figure. `Sheet.text` prints it for
a terminal, `page.py` draws it as an HTML page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

from graphwright.plain import Result
from graphwright.report.terminal_layout import PLAIN_WIDTH, continued, fact_lines, flowing, table_lines, wrapped
from graphwright.report.units import format_count, printable, shorten_apart, shorten_middle

NO_LAYER = "(no layer)"
Part = Literal["layers", "chart", "all"]
Tone = Literal["good", "bad", "neutral"]
Kind = Literal["name", "layer", "text", "role", "decision", "number"]
Item = TypeVar("Item")
_TEXT_WIDTH = 34  # cells of a text beside the names of a table


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure and its meaning. `value` or `note` may be empty."""

    label: str
    value: str
    note: str = ""


def pairs(rows: Iterable[tuple[str, str]]) -> list[Fact]:
    return [Fact(name, "", text) for name, text in rows]


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell. `value` is what a page sorts by; `href` begins with #."""

    text: str
    value: float | None = None
    href: str = ""


@dataclass(frozen=True)
class Column(Generic[Item]):
    """One column of a table.

    Attributes:
        of: the figure of a row, nan if unknown; or its text or cell.
        kind: figures are aligned at the right; a layer links to its place on a page.
        optional: left out of the text, and hidden on a page at first.
        wide: hidden on a page in a narrow window, as are all columns of words.
        bar: whether a page shows the share of each cell in the largest one.
    """

    label: str
    of: Callable[[Item], float | str | Cell]
    form: Callable[[Any], str] = format_count
    kind: Kind = "number"
    optional: bool = False
    wide: bool = False
    bar: bool = False
    note: str = ""

    def cell(self, item: Item) -> Cell:
        figure = self.of(item)
        if self.kind == "layer":
            return Cell(str(figure) or NO_LAYER, href=layer_href(str(figure)))
        if isinstance(figure, Cell):
            return figure
        if isinstance(figure, str):
            return Cell(figure)
        return Cell(self.form(figure), figure) if math.isfinite(figure) else Cell("", -1)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A piece of a sheet.

    Attributes:
        part: the text that shows it: "first" only the first screen, "always" also the whole text, "all" only the whole text.
        on: the media that show it.
    """

    title: str = ""
    part: Part | Literal["first", "always"] = "all"
    on: Literal["both", "text", "page"] = "both"
    hint: str = ""

    @property
    def macro(self) -> str:
        """The macro of `templates/blocks.html` that draws it on a page."""
        return type(self).__name__.lower()

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing to show, so that its title is left out, too."""
        return False

    def lines(self, width: int) -> list[str]:
        """Return its lines for a terminal, without the title."""
        raise NotImplementedError(f"{type(self).__name__} of {width} columns")


@dataclass(frozen=True)
class Paragraph(Block):
    """A text, and lines of code that are copied unchanged."""

    text: str
    code: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        return not self.text

    def lines(self, width: int) -> list[str]:
        code = [line for text in self.code if text for line in continued(printable(text), width).splitlines()]
        return wrapped(self.text, width) + code


@dataclass(frozen=True)
class Flow(Block):
    """Short texts one after another."""

    items: Sequence[str]
    gap: str = "   "
    indent: int = 2

    def lines(self, width: int) -> list[str]:
        return [" " * self.indent + line for line in flowing([printable(item) for item in self.items], self.gap, width - self.indent)]


def ranking(
    label: str, amounts: Iterable[tuple[str, float]], form: Callable[[float], str], part: Literal["first", "always"] = "first"
) -> Flow:
    largest = sorted((row for row in amounts if row[1] > 0), key=lambda row: -row[1])[:3]
    names = shorten_apart([printable(name) for name, _ in largest], PLAIN_WIDTH // 2)
    items = [f"{name} {form(amount)}" for name, (_, amount) in zip(names, largest, strict=True)]
    return labelled(label, items, part)


def labelled(label: str, items: Sequence[str], part: Literal["first", "always"] = "first") -> Flow:
    return Flow([f"{label}: {item}" for item in items[:1]] + list(items[1:]), ", ", 0, part=part)


@dataclass(frozen=True)
class Facts(Block):
    """Facts below one another."""

    rows: Sequence[Fact]

    @property
    def is_empty(self) -> bool:
        return not self.rows

    def lines(self, width: int) -> list[str]:
        return fact_lines([(fact.label, fact.value, fact.note) for fact in self.rows], width)


@dataclass(frozen=True)
class Table(Block, Generic[Item]):
    """A table with a row per item; columns without any text are left out.

    Attributes:
        more: names the rows beyond the limit.
        empty: replaces a table without rows; "" leaves out the block.
        fixed: whether a terminal shows all columns, however wide they are.
    """

    items: Sequence[Item]
    columns: Sequence[Column[Item]]
    id: str = ""
    caption: str = ""
    key: Callable[[Item], str] | None = None
    limit: int | None = 12
    more: str = "more"
    empty: str = ""
    fixed: bool = False

    @property
    def is_empty(self) -> bool:
        return not self.items and not self.empty

    def filled(self, limit: int | None, *, optional: bool = True) -> tuple[list[Column[Item]], list[list[Cell]]]:
        """Return the columns that hold something, and the cells of the first rows."""
        items = self.items[:limit]
        columns = [column for column in self.columns if optional or not column.optional]
        by_column = [[column.cell(item) for item in items] for column in columns]
        indices = [k for k, cells in enumerate(by_column) if k == 0 or not items or any(cell.text for cell in cells)]
        return [columns[k] for k in indices], [[by_column[k][row] for k in indices] for row in range(len(items))]

    def lines(self, width: int) -> list[str]:
        if not self.items:
            return [self.empty]
        columns, rows = self.filled(self.limit, optional=False)
        texts = [[_terminal_text(cell, column) for cell, column in zip(row, columns, strict=True)] for row in rows]
        at_right = [k > 0 and column.kind == "number" for k, column in enumerate(columns)]
        lines = table_lines([column.label for column in columns], texts, at_right, width, fixed=self.fixed)
        left_out = len(self.items) - len(rows)
        return [*lines, f"{format_count(left_out)} {self.more}"] if left_out else lines


def _terminal_text(cell: Cell, column: Column[Any]) -> str:
    text = printable(cell.text)
    return shorten_middle(text, _TEXT_WIDTH) if column.kind == "text" else text


@dataclass(frozen=True)
class Drawing(Block):
    """A drawing of a page.

    Attributes:
        data: returns the data of the scripts.
    """

    on: Literal["both", "text", "page"] = field(default="page", kw_only=True)
    template: str
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    scripts: Sequence[str] = ()
    data: Callable[[], Mapping[str, Any]] = dict

    @property
    def macro(self) -> str:
        return self.template


@dataclass(frozen=True, slots=True)
class Tab:
    """Blocks that a page shows together; a terminal prints the blocks of all tabs."""

    id: str
    label: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Sheet:
    """The contents of a result.

    Attributes:
        verdict: one sentence that answers the question.
        first: the rest of the first screen.
        tabs: all else; the origins go to the tab "overview".
    """

    verdict: str
    first: Sequence[Block] = ()
    tabs: Sequence[Tab] = ()
    origins: Sequence[tuple[str, str]] = ()
    name: str = ""
    kind: str = ""
    tone: Tone = "neutral"
    feeds: Mapping[str, Sequence[int | None]] = field(default_factory=dict[str, Sequence[int | None]])

    @property
    def blocks(self) -> list[Block]:
        return [block for tab in self.tabs for block in tab.blocks]

    def text(self, *parts: Part) -> str:
        """Return the first screen and these parts as plain text of 80 columns."""
        whole = "all" in parts
        lines = wrapped(self.verdict, PLAIN_WIDTH)
        for block in self.first:
            if not (block.is_empty or (whole and block.part == "first")):
                lines += block.lines(PLAIN_WIDTH)
        shown = [b for b in self.blocks if b.on != "page" and not b.is_empty and (whole or b.part == "always" or b.part in parts)]
        if whole and self.origins:
            shown.append(Facts(pairs(self.origins), title="How each figure was obtained"))
        for block in shown:
            lines += ["", *wrapped(block.title, PLAIN_WIDTH), *(f"  {line}" for line in block.lines(PLAIN_WIDTH - 2))]
        return "\n".join(line.rstrip() for line in lines)


class Printed(Result):
    """A value that prints its first screen, at most 14 lines of 80 columns; notebooks show the same text."""

    __slots__ = ()

    def _sheet(self) -> Sheet:
        raise NotImplementedError

    def text(self, *parts: Part) -> str:
        """Return the text that `print` shows, with more parts of the result.

        Args:
            parts: "layers" for the table of layers, "chart" for memory over the step, if the result has them; "all" for every section
                and the origin of each figure.

        >>> import tensorflow as tf, graphwright as gw
        >>> report = gw.predict_peak(tf.function(lambda x: tf.nn.relu(x) + 1.0), {"x": (256, 256)})
        >>> "How each figure was obtained" in report.text("all"), "How each figure" in report.text()
        (True, False)
        """
        return self._sheet().text(*parts)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def ratio(above: float, below: float) -> float:
    return above / below if below else math.nan


def layer_href(layer: str) -> str:
    return f"#layers/{quote(layer, safe='')}"
