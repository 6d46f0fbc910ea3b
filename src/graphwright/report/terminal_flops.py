"""A FLOP count as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from graphwright.report.flop_count import FlopCount, UnknownOps
from graphwright.report.summary import NO_LAYER, Fact
from graphwright.report.tables import Column, chosen, flop_columns
from graphwright.report.terminal_layout import Page
from graphwright.report.units import NOT_KNOWN, feeds_text, format_bytes, format_count, format_flops, format_percent, printable

_ROWS = 12
_LARGE = 1000  # a batch at which the largest are told where it is open


def print_flop_count(count: FlopCount, page: Page) -> None:
    page.headline(flop_verdict(count))
    if count.feeds:
        page.paragraph(f"Inputs: {feeds_text(count.feeds)}")
    page.facts(_flop_facts(count))
    if not page.shows("all"):
        for heading, rows in (("op type", count.per_op_type), ("layer", count.per_layer)):
            amounts = [(row.name or NO_LAYER, row.total if row.formula is None else row.formula(_LARGE)) for row in rows.values()]
            total = sum(amount for _, amount in amounts if math.isfinite(amount)) or 1.0
            if sum(amount for name, amount in amounts if name != NO_LAYER and math.isfinite(amount)) > total / 2:
                page.ranking(f"Most by {heading}", amounts, lambda amount, total=total: format_percent(amount / total))
        page.ranking("Not counted", [(name, ops.count) for name, ops in count.unknown.items()], lambda n: f"({format_count(n)})")
        return
    if count.unknown:
        page.table("Not counted", count.unknown.items(), _UNKNOWN)
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
    text = format_flops(count.total)
    if count.formula is not None:
        first = f" ({count.formula(1):,} for a batch of 1)" if count.formula.at_one is not None else ""
        text = f"{replace(count.formula, at_one=None)} FLOP{first}"
    missing = sum(ops.count for ops in count.unknown.values())
    rest = f"; {format_count(missing)} of {format_count(count.node_count)} ops could not be counted" if missing else ""
    return f"{printable(count.name)}: {text} per step{rest}."


def _flop_facts(count: FlopCount) -> list[Fact]:
    """What each direction takes, and the bytes that all operations read and write."""
    notes = {"forward": "a multiply-add counts as two", "backward": "gradients", "optimizer": "updates of the variables"}
    rows: list[Fact] = []
    for name, note in notes.items():
        known, amount = count.formulas.get(name), getattr(count, name)
        figure = format_flops(amount) if math.isfinite(amount) else str(replace(known, at_one=None)) if known else NOT_KNOWN
        rows += [Fact(name, figure, note)] if (any(known.coefficients) if known else amount) else []
    moved = count.formulas["bytes_moved"].in_bytes() if "bytes_moved" in count.formulas else ""
    if math.isfinite(count.bytes_moved):
        moved = format_bytes(count.bytes_moved)
    intensity = "" if math.isnan(count.arithmetic_intensity) else f", {count.arithmetic_intensity:.3g} FLOP per byte"
    return [*rows, Fact("bytes moved", moved, f"read and written{intensity}")] if moved else rows


_UNKNOWN: Sequence[Column[tuple[str, UnknownOps]]] = (
    Column("op type", lambda row: row[0], kind="name"),
    Column("ops", lambda row: row[1].count),
    Column("of the ops", lambda row: row[1].node_share, format_percent),
    Column("of the bytes", lambda row: row[1].bytes_share if math.isfinite(row[1].bytes_share) else NOT_KNOWN, format_percent),
    Column("reason", lambda row: row[1].reason, kind="text"),
)
