"""A FLOP count as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from graphwright.analyze.formula import Formula
from graphwright.report.flop_count import FlopCount, UnknownOps
from graphwright.report.summary import Fact
from graphwright.report.tables import Column, chosen, flop_columns
from graphwright.report.terminal_layout import Page
from graphwright.report.units import NOT_KNOWN, feeds_text, format_bytes, format_count, format_flops, format_percent, printable

_ROWS = 12


def print_flop_count(count: FlopCount, page: Page) -> None:
    page.headline(flop_verdict(count))
    page.facts(flop_facts(count))
    if count.unknown:
        page.table("Not counted", count.unknown.items(), _UNKNOWN)
    if not page.shows("all"):
        page.ranking("Most", [(row.name, row.total) for row in count.per_op_type.values()], format_flops)
        return
    for heading, rows in (("op type", count.per_op_type.values()), ("layer", count.per_layer.values())):
        columns = flop_columns(heading, rows)
        if len(columns) > 3:
            columns = chosen(columns, heading, "ops", "forward", "back, opt.", "bytes", "FLOP/B")
        page.table(f"Per {heading}", rows, columns, limit=_ROWS)
    page.pairs("Loops", count.loops.items())
    branches = ((name, " or ".join(map(format_flops, costs))) for name, costs in count.branches.items())
    page.pairs("Branches", [(name, f"{costs}; the largest is counted") for name, costs in branches])
    page.origins(count.how.items())


def flop_verdict(count: FlopCount) -> str:
    """One sentence: how much work it is, and what could not be counted."""
    text = str(count.formula) + " FLOP" if count.formula is not None else format_flops(count.total)
    missing = sum(ops.count for ops in count.unknown.values())
    rest = f"; {format_count(missing)} of {format_count(count.node_count)} ops could not be counted" if missing else ""
    return f"{printable(count.name)}: {text}{rest}."


def flop_facts(count: FlopCount) -> list[Fact]:
    facts = [
        Fact("forward", _flops(count.forward, count.formulas, "forward"), feeds_text(count.feeds)),
        Fact("backward", _flops(count.backward, count.formulas, "backward"), "gradients"),
        Fact("optimizer", _flops(count.optimizer, count.formulas, "optimizer"), "from finished gradients to updated variables"),
        Fact("total", _flops(count.total, count.formulas, "total"), "a multiply-add counts as two"),
    ]
    if "bytes_moved" in count.formulas:
        facts.append(Fact("bytes moved", count.formulas["bytes_moved"].in_bytes(), "inputs read once, outputs written once"))
    if math.isfinite(count.bytes_moved):
        intensity = "" if math.isnan(count.arithmetic_intensity) else f"{count.arithmetic_intensity:.3g} FLOP per byte"
        facts.append(Fact("bytes moved", format_bytes(count.bytes_moved), intensity))
    return facts


def _flops(figure: float, formulas: Mapping[str, Formula], name: str) -> str:
    return format_flops(figure) if math.isfinite(figure) else str(formulas.get(name, NOT_KNOWN))


_UNKNOWN: Sequence[Column[tuple[str, UnknownOps]]] = (
    Column("op type", lambda row: row[0], kind="name"),
    Column("ops", lambda row: row[1].count),
    Column("of the ops", lambda row: row[1].node_share, format_percent),
    Column("of the bytes", lambda row: row[1].bytes_share if math.isfinite(row[1].bytes_share) else NOT_KNOWN, format_percent),
    Column("reason", lambda row: row[1].reason, kind="text"),
)
