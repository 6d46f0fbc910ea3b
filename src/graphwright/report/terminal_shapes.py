"""Shapes explained, as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from graphwright.report.shape_report import ShapeReport, ValueShape
from graphwright.report.tables import Column
from graphwright.report.terminal_layout import Page
from graphwright.report.units import counted, format_count, printable

_ROWS = 12


def print_shapes(report: ShapeReport, page: Page) -> None:
    page.headline(_verdict(report))
    if report.inputs:
        page.table("Inputs", report.inputs.items(), _columns("argument"))
    page.pairs("Free dimensions", [(symbol, f"the size of {', '.join(places)}") for symbol, places in report.free.items()])
    if found := report.expressions:
        page.table("What depends on them", found.items(), _EXPRESSIONS, limit=_ROWS, more="other expressions: see .expressions")
    causes = [(c.node, f"{c.op_type}: {c.reason}; {counted(len(c.values), 'value')}") for c in report.causes[:_ROWS]]
    page.pairs("Not known before the step runs", causes)
    if len(report.causes) > _ROWS:
        page.line(Text(f"  and {len(report.causes) - _ROWS} other nodes: see .causes"))
    if report.outputs:
        page.table("Outputs", [(value.name, value) for value in report.outputs[:_ROWS]], _columns("value"))
    page.origins(report.how.items())


def _verdict(report: ShapeReport) -> str:
    counts = report.counts
    parts = [f"{format_count(counts['static'])} of {format_count(len(report.values))} values have a static shape"]
    if counts["dynamic"]:
        parts.append(f"{format_count(counts['dynamic'])} depend on {' and '.join(report.free)}")
    if counts["unknown"]:
        parts.append(f"{format_count(counts['unknown'])} on data")
    return f"{printable(report.name)}: {', '.join(parts)}."


def _columns(heading: str) -> Sequence[Column[tuple[str, ValueShape]]]:
    return (
        Column(heading, lambda row: row[0], kind="name"),
        Column("dtype", lambda row: row[1].dtype, kind="text"),
        Column("shape", lambda row: str(row[1]), kind="text"),
    )


_EXPRESSIONS: Sequence[Column[tuple[str, Sequence[ValueShape]]]] = (
    Column("first value", lambda row: row[1][0].name, kind="name"),
    Column("op type", lambda row: row[1][0].op_type, kind="text"),
    Column("dimension", lambda row: row[0], kind="text"),
    Column("values", lambda row: len(row[1])),
)
