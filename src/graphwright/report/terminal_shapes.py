"""Shapes explained, as text for a terminal."""

from __future__ import annotations

from rich.text import Text

from graphwright.report.shape_report import ShapeReport, ValueShape
from graphwright.report.terminal_layout import Page
from graphwright.report.units import format_count, printable, shorten_middle

_ROWS = 12
_SHAPE_WIDTH = 34


def print_shapes(report: ShapeReport, page: Page) -> None:
    page.headline(_verdict(report))
    if report.inputs:
        rows = [(printable(name), value.dtype, _shape(value)) for name, value in report.inputs.items()]
        page.table("Inputs", ("argument", "dtype", "shape"), rows, left=(1, 2))
    if report.free:
        free = [(symbol, f"the size of {', '.join(places)}") for symbol, places in report.free.items()]
        page.pairs("Free dimensions", free)
    found = report.expressions
    if found:
        rows = [
            (values[0].name, values[0].op_type, expression, format_count(len(values))) for expression, values in list(found.items())[:_ROWS]
        ]
        title = "What depends on them"
        page.table(title, ("first value", "op type", "dimension", "values"), rows, left=(1, 2))
        if len(found) > _ROWS:
            page.line(Text(f"  and {len(found) - _ROWS} other expressions: see .expressions"))
    if report.causes:
        lines = [
            (cause.node, f"{cause.op_type}: {cause.reason}; {format_count(len(cause.values))} value{'' if len(cause.values) == 1 else 's'}")
            for cause in report.causes[:_ROWS]
        ]
        page.pairs("Not known before the step runs", lines)
        if len(report.causes) > _ROWS:
            page.line(Text(f"  and {len(report.causes) - _ROWS} other nodes: see .causes"))
    outputs = [(value.name, value.dtype, _shape(value)) for value in report.outputs[:_ROWS]]
    if outputs:
        page.table("Outputs", ("value", "dtype", "shape"), outputs, left=(1, 2))
    page.origins(report.how.items())


def _verdict(report: ShapeReport) -> str:
    counts = report.counts
    parts = [f"{format_count(counts['static'])} of {format_count(len(report.values))} values have a static shape"]
    if counts["dynamic"]:
        parts.append(f"{format_count(counts['dynamic'])} depend on {' and '.join(report.free)}")
    if counts["unknown"]:
        parts.append(f"{format_count(counts['unknown'])} on data")
    return f"{printable(report.name)}: {', '.join(parts)}."


def _shape(value: ValueShape) -> str:
    return shorten_middle(printable(str(value)), _SHAPE_WIDTH)
