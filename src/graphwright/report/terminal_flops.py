"""A FLOP count as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from rich.console import RenderableType
from rich.text import Text

from graphwright.analyze.formula import Formula
from graphwright.report.flop_count import FlopCount, FlopRow
from graphwright.report.summary import NO_LAYER, Fact
from graphwright.report.terminal_layout import Page, figures_table
from graphwright.report.units import format_bytes, format_count, format_flops, format_percent, printable

_ROWS = 12


def print_flop_count(count: FlopCount, page: Page) -> None:
    page.headline(flop_verdict(count))
    page.facts(_facts(count))
    if count.unknown:
        page.section("Not counted", _unknown(count, page.body_width))
    page.section("Per op type", *_rows(count.per_op_type.values(), page.body_width, "op type"))
    page.section("Per layer", *_rows(count.per_layer.values(), page.body_width, "layer"))
    if count.loops:
        page.pairs("Loops", count.loops.items())
    if count.branches:
        page.pairs("Branches", [(k, _branches(v)) for k, v in count.branches.items()])
    page.origins(count.how.items())


def flop_verdict(count: FlopCount) -> str:
    """One sentence: how much work it is, and what could not be counted."""
    text = str(count.formula) + " FLOP" if count.formula is not None else format_flops(count.total)
    missing = sum(ops.count for ops in count.unknown.values())
    rest = f"; {format_count(missing)} of {format_count(count.node_count)} ops could not be counted" if missing else ""
    return f"{printable(count.name)}: {text}{rest}."


def _facts(count: FlopCount) -> list[Fact]:
    feeds = ", ".join(f"{name} {_shape(shape)}" for name, shape in count.feeds.items())
    facts = [
        Fact("forward", _flops(count.forward, count.formulas, "forward"), feeds),
        Fact("backward", _flops(count.backward, count.formulas, "backward"), "gradients"),
        Fact("optimizer", _flops(count.optimizer, count.formulas, "optimizer"), "from finished gradients to updated variables"),
        Fact("total", _flops(count.total, count.formulas, "total"), "a multiply-add counts as two"),
    ]
    if "bytes_moved" in count.formulas:
        moved = replace(count.formulas["bytes_moved"], unit="bytes")
        facts.append(Fact("bytes moved", moved.lines()[-1][1], "inputs read once, outputs written once"))
    if math.isfinite(count.bytes_moved):
        intensity = "" if math.isnan(count.arithmetic_intensity) else f"{count.arithmetic_intensity:.3g} FLOP per byte"
        facts.append(Fact("bytes moved", format_bytes(count.bytes_moved), intensity))
    return facts


def _shape(shape: Iterable[int | None]) -> str:
    return "(" + ", ".join("batch" if d is None else str(d) for d in shape) + ")"


def _flops(figure: float, formulas: Mapping[str, Formula], name: str) -> str:
    return format_flops(figure) if math.isfinite(figure) else str(formulas.get(name, "not known"))


def _unknown(count: FlopCount, width: int) -> RenderableType:
    rows = [
        (printable(op_type), format_count(ops.count), format_percent(ops.node_share), format_percent(ops.bytes_share), ops.reason)
        for op_type, ops in count.unknown.items()
    ]
    return figures_table(width, ("op type", "ops", "of the ops", "of the bytes", "reason"), rows, left=(4,))


def _rows(rows: Iterable[FlopRow], width: int, heading: str) -> list[RenderableType]:
    every = list(rows)
    if not every:
        return [Text("none", style="dim")]
    if every[0].formula is not None:
        cells = [(printable(row.name) or NO_LAYER, format_count(row.ops), str(row.formula)) for row in every[:_ROWS]]
        table = figures_table(width, (heading, "ops", "FLOPs"), cells)
    else:
        figures = [
            (
                printable(row.name) or NO_LAYER,
                format_count(row.ops),
                format_flops(row.forward),
                format_flops(row.backward + row.optimizer),
                format_bytes(row.bytes_moved),
                "" if math.isnan(row.arithmetic_intensity) else f"{row.arithmetic_intensity:.3g}",
            )
            for row in every[:_ROWS]
        ]
        table = figures_table(width, (heading, "ops", "forward", "back, opt.", "bytes", "FLOP/B"), figures)
    rest = len(every) - _ROWS
    return [table, Text(f"{format_count(rest)} more", style="dim")] if rest > 0 else [table]


def _branches(costs: Iterable[float]) -> str:
    return " or ".join(format_flops(cost) for cost in costs) + "; the largest is counted"
