"""`count_flops`: the floating-point operations of a step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from graphwright.analyze.flop_execution import Execution
from graphwright.analyze.flop_tally import UNKNOWN_DIRECTIONS, Sums, Tally
from graphwright.analyze.flops import register_flops as register_flops
from graphwright.analyze.trip_counts import TripCount
from graphwright.costs.counted_graph import Countable, CountedGraph, countable
from graphwright.costs.flop_formulas import count_open
from graphwright.ir.edit.library import bodies
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.ir.graph import Graph
from graphwright.report.flop_count import FlopCount, FlopRow, UnknownOps
from graphwright.report.units import counted
from graphwright.run.measure_loops import measure_trip_counts
from graphwright.source.attributes import constant_array
from graphwright.step.summary import count_executed
from graphwright.step.targets import Feed, Mode, about_a_step

_HOW = {
    "FLOPs": "counted per operation from static shapes, a multiply-add as two, windows at borders in full; what no fetch and no effect "
    "needs is left out",
    "directions": "by dataflow: backward is what depends on the gradient of the loss, optimizer what comes after finished gradients",
    "bytes moved": "each input of an operation read once and each output written once, views not at all",
    "layers": "by name scope",
}


@garbage_collection_paused()
@about_a_step
def count_flops(
    target: Any,
    feeds: Mapping[str, Feed] | None = None,
    inputs: Any = None,
    outputs: Iterable[Any] | Any = None,
    *,
    mode: Mode = "auto",
    batch: int | None = None,
) -> FlopCount:
    """Count the floating-point operations of a step: forward, backward and optimizer, per op type and per layer.

    Only operations that the outputs and effects of the step need count. A loop counts as often as it runs: its trip count follows from
    constants, or from one run if `inputs` are given; otherwise one iteration counts and the loop is named. The costliest branch counts.
    Op types without a rule are listed in `unknown`, never taken for zero.

    Args:
        feeds: shape, or `tf.TensorSpec`, by argument name (by placeholder for a graph). None for one dimension leaves the batch size open.

    Returns:
        A `FlopCount`, which prints itself. With an open batch size its figures are nan, and its `formula` is a polynomial.

    Raises:
        UnknownShapeError: a dimension other than the batch is unknown, or the FLOPs are no polynomial of the batch size.
        ArgumentError, FileFormatError: the target cannot be traced or read.

    >>> import tensorflow as tf
    >>> product = tf.function(lambda a, b: a @ b)
    >>> count_flops(product, feeds={"a": (256, 256), "b": (256, 256)}).total
    33554432.0
    >>> print(count_flops(product, feeds={"a": (None, 256), "b": (256, 256)}).formula)
    131,072 * batch
    """
    read, first = countable(Countable(target, feeds, inputs, outputs, mode, batch))
    return count_open(read, _count) if read.is_open else _count(first)


def _count(counted: CountedGraph) -> FlopCount:
    execution, counts = count_executed(counted.graph)
    open_loops = [name for name, trip in execution.trips.items() if trip.kind in ("at most", "unknown")]
    if open_loops and counted.binding is not None and counted.arguments is not None:
        measured = measure_trip_counts(counted.graph, counted.binding, counted.arguments, open_loops, constant_array)
        if measured:
            counted.graph.example.update(measured)
            execution, counts = count_executed(counted.graph)
    whole = counts.whole
    return FlopCount(
        name=counted.name,
        feeds=counted.feeds,
        node_count=whole.ops,
        **whole.flops,
        bytes_moved=whole.bytes_moved,
        unknown=_unknown(counts),
        per_op_type=_rows(counts.per_op_type),
        per_layer=_rows(counts.per_layer),
        how=_how(execution, counts, counted.graph),
        loops={name: _words(trip, execution.per_round.get(name)) for name, trip in execution.trips.items()},
        branches=execution.branches,
    )


def _unknown(counts: Tally) -> dict[str, UnknownOps]:
    total, ops = counts.whole.bytes_moved, counts.whole.ops
    return {
        op_type: UnknownOps(count, counts.unknown_reason[op_type], count / ops, math.nan if open_ else moved / total if total else 0.0)
        for op_type, (count, moved, open_) in sorted(counts.unknown_counts.items(), key=lambda item: (-item[1][0], item[0]))
    }


def _rows(groups: Mapping[str, Sums]) -> dict[str, FlopRow]:
    rows = [FlopRow(name, s.ops, bytes_moved=s.bytes_moved, unknown=s.unknown, **s.flops) for name, s in groups.items()]
    return {row.name: row for row in sorted(rows, key=lambda r: (-r.total, -r.bytes_moved, r.name))}


def _how(execution: Execution, counts: Tally, graph: Graph) -> dict[str, str]:
    how = dict(_HOW)
    if counts.whole.flops["undivided"]:
        how["directions"] = UNKNOWN_DIRECTIONS
    if execution.trips:
        how["loops"] = "trip counts from constants or from the example call; totals are unknown if a count is"
    if execution.branches:
        how["branches"] = "the branch depends on data; the most expensive branch is counted"
    if any(body.at_most for body in bodies(graph)):
        how["sizes"] = "sizes that depend on data come from one run with the example inputs; otherwise they are upper bounds"
    if counts.whole.unknown:
        how["unknown"] = "operations without a rule are in no figure; register_flops(op_type, rule) adds a rule"
    if counts.whole.unknown_bytes:
        how["bytes moved"] += f"; {counts.whole.unknown_bytes} operations of unknown size are left out"
    return how


def _words(trip: TripCount, per_round: float | None) -> str:
    times = counted(trip.count, "iteration")
    each = "" if per_round is None else f": {per_round:,.0f} FLOPs per iteration"
    return {
        "exact": times,
        "at most": f"at most {times}; all are counted",
        "example": f"{times} (measured)",
        "unknown": f"not known, depends on data{each}; give example inputs",
    }[trip.kind]
