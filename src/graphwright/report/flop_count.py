"""The result of `count_flops`: FLOPs by direction, op type and layer, bytes moved, and uncounted operations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from graphwright.plain import Result, fields_json, number
from graphwright.report.sheet import NO_LAYER, Block, Column, Fact, Facts, Flow, Paragraph, Printed, Sheet, Tab, Table, pairs, ranking
from graphwright.report.units import feeds_text, format_bytes, format_count, format_flops, format_percent, format_ratio, printable

_BY_DIRECTION = {"forward": "forward_flops", "backward": "backward_flops", "optimizer": "optimizer_flops", "undivided": "undivided_flops"}


@dataclass(frozen=True, slots=True)
class Formula(Result):
    """FLOPs as a line in the batch size.

    >>> formula = Formula(131072.0, 3.0)
    >>> print(formula)
    131,072 * batch + 3
    >>> formula(2)
    262147.0
    """

    per_example: float
    constant: float = 0.0

    def __call__(self, batch: int) -> float:
        return self.per_example * batch + self.constant

    def __str__(self) -> str:
        slope, constant = (number(round(figure, 2)) for figure in (self.per_example, self.constant))
        return f"{slope:,} * batch" + (f" {'-' if self.constant < 0 else '+'} {abs(constant or 0):,}" if constant else "")


class _Work:
    """Sums of FLOPs by direction."""

    __slots__ = ()
    forward: float
    backward: float
    optimizer: float
    undivided: float
    bytes_moved: float

    @property
    def total(self) -> float:
        """FLOPs in all directions, without uncounted operations."""
        return self.undivided or self.forward + self.backward + self.optimizer

    @property
    def arithmetic_intensity(self) -> float:
        """FLOPs per byte moved; nan if no bytes are moved."""
        return self.total / self.bytes_moved if self.bytes_moved else math.nan


@dataclass(frozen=True, slots=True)
class FlopRow(_Work):
    """An op type or a layer.

    Attributes:
        ops: executed nodes, each counted once however often a loop runs it.
        bytes_moved: of all executions; each input read once and each output written once.
        undivided: FLOPs in all directions, if the directions are unknown and nan.
    """

    name: str
    ops: int
    forward: float
    backward: float
    optimizer: float
    bytes_moved: float
    unknown: int = 0
    undivided: float = 0.0

    def to_json(self) -> dict[str, object]:
        """Return plain numbers."""
        return {**fields_json(self, "name", **_BY_DIRECTION, unknown="unknown_ops"), "flops_per_byte": number(self.arithmetic_intensity)}


@dataclass(frozen=True, slots=True)
class UnknownOps:
    """Uncounted nodes of an op type.

    Attributes:
        reason: "no rule" or "unknown shape".
        bytes_share: of all known bytes moved; nan if unknown.
    """

    count: int
    reason: str
    node_share: float
    bytes_share: float


@dataclass(frozen=True)
class FlopCount(_Work, Printed):
    """Floating-point operations of a step, a multiply-add counted as two. Returned by `graphwright.count_flops`.

    Attributes:
        optimizer: between finished gradients and the updates of variables, clipping and weight decay included.
        unknown: by op type, uncounted nodes; no figure includes them.
        undivided: FLOPs in all directions, if forward, backward and optimizer are unknown and nan; else 0.
        bytes_moved: each input of a node read once, each output written once.
        loops: by loop, its trip count: "10 iterations", "at most 10 iterations", "per iteration: ..." or "... (measured)".
        batch: the batch size of all figures if `feeds` leave it open, else None.
        formula: the total for any batch size, if `feeds` leave it open; else None.
    """

    name: str
    feeds: Mapping[str, tuple[int | None, ...]]
    node_count: int
    forward: float
    backward: float
    optimizer: float
    bytes_moved: float
    unknown: Mapping[str, UnknownOps]
    per_op_type: Mapping[str, FlopRow]
    per_layer: Mapping[str, FlopRow]
    how: Mapping[str, str]
    loops: Mapping[str, str] = field(default_factory=dict[str, str])
    branches: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    batch: int | None = None
    formula: Formula | None = None
    undivided: float = 0.0

    def to_json(self) -> dict[str, object]:
        """Return plain numbers and text."""
        return {
            **fields_json(self, **_BY_DIRECTION, branches="branches_flops"),
            "total_flops": number(self.total),
            "flops_per_byte": number(self.arithmetic_intensity),
            "formula": None if self.formula is None else str(self.formula),
        }

    def _sheet(self) -> Sheet:
        most = [*_most("op type", self.per_op_type), *_most("layer", self.per_layer)]
        not_counted = ranking("Not counted", [(name, ops.count) for name, ops in self.unknown.items()], lambda n: f"({format_count(n)})")
        branches = [(name, f"{' or '.join(map(format_flops, costs))}; the largest is counted") for name, costs in self.branches.items()]
        blocks: list[Block] = [
            Facts(_facts(self), part="always"),
            Table(list(self.unknown.items()), _UNKNOWN, title="Not counted"),
            _rows_table("op type", self.per_op_type),
            _rows_table("layer", self.per_layer),
            Facts(pairs(self.loops.items()), title="Loops"),
            Facts(pairs(branches), title="Branches"),
        ]
        first = [Paragraph(f"Inputs: {feeds_text(self.feeds)}" * bool(self.feeds)), *most, not_counted]
        return Sheet(_verdict(self), first, [Tab("overview", "Overview", blocks)], list(self.how.items()))


_UNKNOWN: Sequence[Column[tuple[str, UnknownOps]]] = (
    Column("op type", lambda row: row[0], kind="name"),
    Column("ops", lambda row: row[1].count),
    Column("of the ops", lambda row: row[1].node_share, format_percent),
    Column("of the bytes", lambda row: format_percent(row[1].bytes_share)),
    Column("reason", lambda row: row[1].reason, kind="text"),
)


def _verdict(count: FlopCount) -> str:
    text = format_flops(count.total) if count.formula is None else f"{count.formula} FLOP"
    missing = sum(ops.count for ops in count.unknown.values())
    rest = f"; {format_count(missing)} of {format_count(count.node_count)} ops could not be counted" if missing else ""
    size = f"; all other figures are for a batch of {count.batch}" if count.batch else ""
    return f"{printable(count.name)}: {text} per step{rest}{size}."


def _facts(count: FlopCount) -> list[Fact]:
    notes = {"forward": "a multiply-add counts as two", "backward": "gradients", "optimizer": "updates of the variables"}
    rows = [Fact(name, format_flops(amount), note) for name, note in notes.items() if (amount := getattr(count, name))]
    intensity = "" if math.isnan(count.arithmetic_intensity) else f", {count.arithmetic_intensity:.3g} FLOP per byte"
    return [*rows, Fact("bytes moved", format_bytes(count.bytes_moved), f"read and written{intensity}")]


def _most(heading: str, rows: Mapping[str, FlopRow]) -> Iterable[Flow]:
    finite = [(row.name or NO_LAYER, row.total) for row in rows.values() if math.isfinite(row.total)]
    total = sum(amount for _, amount in finite)
    if 2 * sum(amount for name, amount in finite if name != NO_LAYER) > total:
        yield ranking(f"Most by {heading}", finite, lambda amount: format_percent(amount / total))


def _rows_table(heading: str, rows: Mapping[str, FlopRow]) -> Table[FlopRow]:
    columns: list[Column[FlopRow]] = [
        Column(heading, lambda r: r.name or NO_LAYER, kind="name"),
        Column("ops", lambda r: r.ops),
        Column("forward", lambda r: r.forward, format_flops),
        Column("back, opt.", lambda r: r.backward + r.optimizer, format_flops),
        Column("bytes", lambda r: r.bytes_moved, format_bytes, note="bytes read and written"),
        Column("FLOP/B", lambda r: r.arithmetic_intensity, format_ratio, note="arithmetic intensity"),
    ]
    return Table(list(rows.values()), columns, title=f"Per {heading}")
