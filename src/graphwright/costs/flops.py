"""`count_flops`: the floating-point operations of a step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from graphwright.analyze.flop_execution import Execution
from graphwright.analyze.flop_tally import UNKNOWN_DIRECTIONS, Sums, Tally
from graphwright.analyze.trip_counts import TripCount
from graphwright.costs.sized_step import open_shape
from graphwright.errors import ArgumentError, ErrorCode, GraphwrightError, UnknownShapeError
from graphwright.ir.edit.library import bodies
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.ir.graph import Graph
from graphwright.ops.flops import register_flops as register_flops
from graphwright.report.flop_count import FlopCount, FlopRow, Formula, UnknownOps
from graphwright.report.units import counted
from graphwright.run.measure_loops import measure_trip_counts
from graphwright.run.traced_step import TracedStep
from graphwright.source.attributes import constant_array
from graphwright.step.feeds import is_value, leaves_of
from graphwright.step.flatten import counted_graph
from graphwright.step.summary import count_executed
from graphwright.step.targets import Feed, Mode, about_a_step, read_target, trace

_SIZES = (3, 5, 8)  # of an open batch; odd and even ones, since steps may halve a batch; a batch of one example is often a special case

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
        A `FlopCount`, which prints itself. With an open batch size its `formula` is a line in the batch size, and its other figures are
        those of a batch of 8.

    Raises:
        UnknownShapeError: a dimension other than the batch is unknown, or the FLOPs are no line in the batch size.
        ArgumentError, FileFormatError: the target cannot be traced or read.

    >>> import tensorflow as tf
    >>> product = tf.function(lambda a, b: a @ b)
    >>> count_flops(product, feeds={"a": (256, 256), "b": (256, 256)}).total
    33554432.0
    >>> print(count_flops(product, feeds={"a": (None, 256), "b": (256, 256)}).formula)
    131,072 * batch
    """
    read = read_target(target, outputs, feeds)

    def count_at(open_batch: int | None = None) -> FlopCount:
        return _count(trace(read, feeds=feeds, inputs=inputs, mode=mode, batch=batch, open_batch=open_batch))

    try:
        return count_at()
    except (UnknownShapeError, ArgumentError) as error:
        for path, feed in leaves_of(feeds or {}).items():
            if not is_value(feed):
                open_shape(path, feed)
        try:
            counts = {size: count_at(size) for size in _SIZES}
        except GraphwrightError:
            raise error from None
    return _with_formula(counts)


def _with_formula(counts: Mapping[int, FlopCount]) -> FlopCount:
    """Return the count at the largest size, with a line through the totals at the others, which is checked there."""
    small, middle, size = counts
    first, second, last = counts.values()
    per_example = (second.total - first.total) / (middle - small)
    formula = Formula(per_example, first.total - small * per_example) if math.isfinite(last.total) else None
    if formula is not None and not math.isclose(formula(size), last.total, rel_tol=1e-9):
        listed = ", ".join(f"{count.total:,.0f} at {size}" for size, count in counts.items())
        raise UnknownShapeError(
            f"the FLOPs are not a line in the batch size: {listed}",
            where=f"target {last.name!r}",
            cause="the work per example depends on the batch size",
            remedy="give the batch size: feeds={name: shape}, or batch=...",
            code=ErrorCode.OPEN_BATCH,
        )
    shapes = {name: zip(shape, last.feeds[name], strict=True) for name, shape in first.feeds.items()}
    opened = {name: tuple(None if a != b else a for a, b in pairs) for name, pairs in shapes.items()}
    how = f"open; a line through the FLOPs at {small} and {middle}, checked at {size}, the batch size of all other figures"
    return replace(last, feeds=opened, how={**last.how, "batch size": how}, batch=size, formula=formula)


def _count(traced: TracedStep) -> FlopCount:
    graph, binding = counted_graph(traced)
    execution, counts = count_executed(graph)
    open_loops = [name for name, trip in execution.trips.items() if trip.kind in ("at most", "unknown")]
    if open_loops and traced.is_runnable:
        measured = measure_trip_counts(graph, binding, traced.arguments, open_loops, constant_array)
        if measured:
            graph.example.update(measured)
            execution, counts = count_executed(graph)
    whole = counts.whole
    return FlopCount(
        name=traced.name,
        feeds=traced.feeds,
        node_count=whole.ops,
        **whole.flops,
        bytes_moved=whole.bytes_moved,
        unknown=_unknown(counts),
        per_op_type=_rows(counts.per_op_type),
        per_layer=_rows(counts.per_layer),
        how=_how(execution, counts, graph),
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
