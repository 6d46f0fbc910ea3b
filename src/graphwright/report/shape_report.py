"""The result of `infer_shapes`: the shapes of all values, with their dimensions explained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphwright.analyze.dimension_fit import Dimension
from graphwright.errors import ArgumentError
from graphwright.plain import fields_json, plain
from graphwright.report.sheet import Block, Column, Facts, Printed, Sheet, Tab, Table, pairs
from graphwright.report.units import counted, format_count, printable


@dataclass(frozen=True, slots=True)
class ValueShape:
    """The shape of a value.

    Attributes:
        dims: per dimension a size, an expression of free dimensions, or None if it is known only at run time; None for an unknown rank.
    """

    name: str
    op_type: str
    dtype: str
    dims: tuple[Dimension, ...] | None

    @property
    def kind(self) -> str:
        """ "static", "dynamic" (it follows from free dimensions), or "unknown"."""
        if self.dims is None or None in self.dims:
            return "unknown"
        return "dynamic" if any(isinstance(d, str) for d in self.dims) else "static"

    def __str__(self) -> str:
        return "[...]" if self.dims is None else f"[{', '.join('?' if d is None else str(d) for d in self.dims)}]"


@dataclass(frozen=True, slots=True)
class UnknownCause:
    """A node that makes shapes known only at run time.

    Attributes:
        values: names of the values whose shapes depend on it, its own first.
    """

    node: str
    op_type: str
    reason: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class ShapeReport(Printed):
    """The shapes of a step. Returned by `graphwright.infer_shapes`.

    Attributes:
        free: by free dimension ("batch"), its dimensions of inputs ("x[0]").
    """

    name: str
    inputs: Mapping[str, ValueShape]
    free: Mapping[str, tuple[str, ...]]
    outputs: tuple[ValueShape, ...]
    values: tuple[ValueShape, ...]
    causes: tuple[UnknownCause, ...]
    how: Mapping[str, str]

    def __getitem__(self, name: str) -> ValueShape:
        """Return the shape of a value ("conv1/Conv2D:0"), or of the first output of a node.

        Raises:
            ArgumentError: no value has this name.
        """
        value_name = name if ":" in name else f"{name}:0"
        shape = next((value for value in self.values if value.name == value_name), None)
        if shape is None:
            raise ArgumentError(f"there is no value {name!r}", where=f"shapes of {self.name!r}", remedy="see .values")
        return shape

    @property
    def counts(self) -> dict[str, int]:
        """Number of values by kind: static, dynamic, unknown."""
        kinds = Counter(value.kind for value in self.values)
        return {kind: kinds[kind] for kind in ("static", "dynamic", "unknown")}

    @property
    def expressions(self) -> dict[str, tuple[ValueShape, ...]]:
        """By expression of free dimensions, the values with such a dimension; the most frequent first."""
        counts = Counter(d for value in self.values for d in {d for d in value.dims or () if isinstance(d, str)})
        names = sorted(counts, key=lambda name: (-counts[name], name))
        return {name: tuple(value for value in self.values if name in (value.dims or ())) for name in names}

    def to_json(self) -> dict[str, object]:
        """Return text and plain numbers; null for an unknown dimension or shape."""
        return {
            **fields_json(self),
            "inputs": {name: plain(value.dims) for name, value in self.inputs.items()},
            "outputs": {value.name: plain(value.dims) for value in self.outputs},
            "counts": self.counts,
            "values": [{**fields_json(value, dims="shape"), "kind": value.kind} for value in self.values],
        }

    def _sheet(self) -> Sheet:
        causes = [(c.node, f"{c.op_type}: {c.reason}; {counted(len(c.values), 'value')}") for c in self.causes[:_ROWS]]
        if len(self.causes) > _ROWS:
            causes.append(("", f"and {len(self.causes) - _ROWS} other nodes: see .causes"))
        free = [(symbol, f"the size of {', '.join(places)}") for symbol, places in self.free.items()]
        other, outputs = "other expressions: see .expressions", [(value.name, value) for value in self.outputs]
        expressions = list(self.expressions.items())
        blocks: list[Block] = [
            _shapes("argument", list(self.inputs.items()), "Inputs"),
            Facts(pairs(free), title="Free dimensions", part="always"),
            Table(expressions, _EXPRESSIONS, title="What depends on them", more=other, part="always"),
            Facts(pairs(causes), title="Not known before the step runs", part="always"),
            _shapes("value", outputs, "Outputs"),
        ]
        return Sheet(_verdict(self), (), [Tab("overview", "Overview", blocks)], list(self.how.items()))


_ROWS = 12
_EXPRESSIONS: Sequence[Column[tuple[str, Sequence[ValueShape]]]] = (
    Column("first value", lambda row: row[1][0].name, kind="name"),
    Column("op type", lambda row: row[1][0].op_type, kind="text"),
    Column("dimension", lambda row: row[0], kind="text"),
    Column("values", lambda row: len(row[1])),
)


def _verdict(report: ShapeReport) -> str:
    counts = report.counts
    parts = [f"{format_count(counts['static'])} of {format_count(len(report.values))} values have a static shape"]
    if counts["dynamic"]:
        parts.append(f"{format_count(counts['dynamic'])} depend on {' and '.join(report.free)}")
    if counts["unknown"]:
        parts.append(f"{format_count(counts['unknown'])} on data")
    return f"{printable(report.name)}: {', '.join(parts)}."


def _shapes(heading: str, rows: Sequence[tuple[str, ValueShape]], title: str) -> Table[tuple[str, ValueShape]]:
    columns: list[Column[tuple[str, ValueShape]]] = [
        Column(heading, lambda row: row[0], kind="name"),
        Column("dtype", lambda row: row[1].dtype, kind="text"),
        Column("shape", lambda row: str(row[1]), kind="text"),
    ]
    return Table(rows, columns, title=title, part="always")
