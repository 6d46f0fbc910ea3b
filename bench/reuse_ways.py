"""Ways of computing the same thing, side by side: processor time in turns, kernels that ran, FLOPs of these, memory.

Times are processor times of all threads, medians of turns in which the ways run in another order each time. Kernels are counted by
TensorFlow's profiler in one call. FLOPs are their number times the FLOPs of one operation of the type (`gw.count_flops`), for matrix
products and solves only. Memory is the peak of TensorFlow's allocator during one call, above the level before it; *kept* is the memory
that stays between calls, in a variable or a cache.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from rich import box
from rich.console import Console
from rich.table import Table

import graphwright as gw
from bench.processor_time import processor_times
from graphwright.report.units import format_bytes, format_flops
from graphwright.run.allocations import check_counting, count_allocations
from graphwright.run.meter import COUNTING_ENVIRONMENT
from graphwright.source.private_tensorflow import read_xspace

COUNTED = ("MatMul", "BatchMatMulV2", "MatrixSolve")
"""Op types whose FLOPs count."""
SESSION_LEVEL = 1
"""The highest level that TensorFlow 2.21 names is L1, which is 0, and does all that there is; 1 is what "L2" would be."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way.

    Attributes:
        call: computes it once.
        kept: bytes that stay between calls.
        flops: total FLOPs, if the kernels of one op type differ in size.
    """

    call: Callable[[], Any]
    kept: Callable[[], int] = int
    flops: float | None = None


def tell_of_allocations() -> None:
    """Use an allocator that records each allocation; call this before TensorFlow creates its first tensor."""
    os.environ.update({name: value for name, value in COUNTING_ENVIRONMENT.items() if name.startswith("TF_")})


def session_call(build: Callable[[Any], Any], value: Any, *, reference: bool = False) -> Callable[[], Any]:
    """Return a call of a TF1 session that computes `build(variable)`.

    Args:
        value: of the variable.
        reference: whether it is a reference variable, as TF1 made them by default, not a resource.
    """
    v1 = tf.compat.v1
    options = v1.GraphOptions(optimizer_options=v1.OptimizerOptions(opt_level=SESSION_LEVEL))
    with tf.Graph().as_default() as graph:
        variable = v1.Variable(value, use_resource=not reference)
        result = build(variable)
    session = v1.Session(graph=graph, config=v1.ConfigProto(graph_options=options))
    session.run(variable.initializer)
    return session.make_callable(result)


def kernels(call: Callable[[], Any]) -> Counter[str]:
    """Return the number of kernels that ran by op type; fused kernels count as their parts."""
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        call()
        tf.profiler.experimental.stop()
        planes = read_xspace(next(Path(folder).rglob("*.xplane.pb")).read_bytes()).planes
    names = [plane.event_metadata[event.metadata_id].name for plane in planes for line in plane.lines for event in line.events]
    return Counter({op_type: count for op_type in COUNTED if (count := sum(name.endswith(op_type) for name in names))})


def flops_per_kernel(step: Any, inputs: Any = None) -> dict[str, float]:
    """Return the FLOPs of one operation of each type, on average over the step."""
    rows = gw.count_flops(step, inputs=inputs).per_op_type
    return {kind: (rows[kind].forward + rows[kind].backward) / rows[kind].ops for kind in COUNTED if kind in rows}


def print_ways(
    title: str, ways: Mapping[str, Way], rounds: int, *, base: str, kernel: str, flops: Mapping[str, float] | None = None
) -> None:
    """Measure all ways and print a table.

    Args:
        base: the way that the others are compared with.
        kernel: the op type whose kernels have a column.
        flops: per kernel, by op type.
    """
    check_counting()
    expected = [np.asarray(part) for part in tf.nest.flatten(ways[base].call())]
    apart = {name: difference(way.call(), expected) for name, way in ways.items()}
    seconds = processor_times({name: way.call for name, way in ways.items()}, rounds, grappler=list(ways))
    unit = seconds[base]
    table = Table(title=f"{title}, ratios to: {base}", box=box.MARKDOWN)
    for column in ("", "CPU time", "ratio", kernel, "FLOPs", "memory of a call", "kept", "largest difference"):
        table.add_column(column, justify="right" if column else "left")
    for name, way in ways.items():
        ran = kernels(way.call)
        total = sum(count * (flops or {}).get(kind, 0.0) for kind, count in ran.items()) if way.flops is None else way.flops
        table.add_row(
            name,
            f"{np.median(seconds[name]) * 1e3:.1f} ms",
            f"{np.median(seconds[name] / unit):.2f}",
            str(ran[kernel]),
            format_flops(total),
            format_bytes(count_allocations(way.call).tensors_bytes),
            format_bytes(way.kept()),
            f"{apart[name]:.0e}" if apart[name] else "0",
        )
    Console(width=160).print(table)


def difference(found: Any, expected: list[Any]) -> float:
    """Return the largest difference, relative to the largest number."""
    pairs = zip(tf.nest.flatten(found), expected, strict=True)
    return max(float(np.max(np.abs(np.asarray(a) - b))) / float(np.max(np.abs(b))) for a, b in pairs)
