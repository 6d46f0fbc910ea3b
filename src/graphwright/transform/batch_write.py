"""Write another batch size into a graph that was traced: as numbers, or computed when the graph runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphwright.analyze.frames import frame_names
from graphwright.ir.constants import add_constant, tensor_attribute
from graphwright.ir.dtypes import DType
from graphwright.ir.edit.insert import add_op
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.node import write_shape
from graphwright.ir.traits.control_flow import ENTERS
from graphwright.ir.traits.rounds import is_list
from graphwright.ir.traits.values import RESHAPES
from graphwright.transform.batch_trace import INT, Baked, BatchTrace
from graphwright.transform.constant_values import remove_unread

_Frame = tuple[str, ...]


def write_size(trace: BatchTrace, size: int | None, source: tuple[Value, int]) -> int:
    """Give baked constants the numbers of another batch size; a free one is computed. Returns how many nodes read them.

    Args:
        size: the new size; None for a free one.
        source: an input of the graph, and its dimension that is the batch.
    """
    batch = _BatchSize(trace, source)
    for constant, baked in trace.baked.items():
        graph, reader, dtype = constant.graph, baked.reader, constant.outputs[0].dtype
        if not graph.owns(constant):
            continue
        if size is not None:
            graph.set_attr(constant, "value", tensor_attribute(baked.at(size / trace.old), dtype))
        elif reader.op_type in RESHAPES and len(baked.powers) == 1 and baked.old.all():
            known = zip(baked.old.tolist(), trace.before[reader.outputs[0]] or (), strict=True)
            sizes = np.array([-1 if k in baked.powers else d or n for k, (n, d) in enumerate(known)], baked.old.dtype)
            graph.set_attr(constant, "value", tensor_attribute(sizes, dtype))
        else:
            graph.replace_input(reader, baked.index, _computed(baked, batch.at(reader), trace.old, dtype))
            remove_unread(graph, [constant])
    for value, after in trace.after.items():
        pairs = zip(after or (), trace.before[value] or (), strict=False)
        if after is not None and value.producer.graph.owns(value.producer) and not is_list(value):
            write_shape(value, tuple(a if a == b else None if size is None or b is None else b * size // trace.old for a, b in pairs))
    return len({baked.reader for baked in trace.baked.values()})


class _BatchSize:
    def __init__(self, trace: BatchTrace, source: tuple[Value, int]) -> None:
        self._trace, self._source = trace, source
        self._values: dict[tuple[Graph, _Frame], Value] = {}
        self._frames: dict[Graph, dict[Node, _Frame]] = {}

    def at(self, reader: Node) -> Value:
        """Return the batch size where a node can read it."""
        if reader.graph not in self._frames:
            self._frames[reader.graph] = frame_names(reader.graph)
        frame = self._frames[reader.graph].get(reader, ())
        return self._in_frame(reader.graph, frame[:-1] if reader.op_type in ENTERS else frame)

    def _in_frame(self, graph: Graph, frame: _Frame) -> Value:
        if (graph, frame) not in self._values:
            self._values[graph, frame] = self._entered(graph, frame) if frame else self._outside(graph)
        return self._values[graph, frame]

    def _entered(self, graph: Graph, frame: _Frame) -> Value:
        outer = self._in_frame(graph, frame[:-1])
        enter = next(n for n, its in self._frames[graph].items() if its == frame and n.op_type in ENTERS)
        attrs: dict[str, Any] = {name: enter.attrs[name] for name in ("frame_name", "parallel_iterations") if name in enter.attrs}
        return add_op(graph, "Enter", f"{enter.name}/batch", [outer], INT, (), T=INT, is_constant=True, **attrs)

    def _outside(self, graph: Graph) -> Value:
        trace = self._trace
        values = [] if graph is trace.graph else [v for v in graph.inputs if not is_list(v)]
        places = [self._source] if graph is trace.graph else [(v, axis) for v in values for axis in trace.grown(v)]
        sized = [(v, axis, trace.size(v, axis) or 0) for v, axis in places if trace.power(v, axis) == 1]
        lists = [v for v in graph.inputs if trace.length(v)[0] not in (None, trace.length(v)[1])]
        batches = next((place for place in sized if place[2] % trace.old == 0), None)
        if batches is not None:
            value, axis, count = batches
            name = f"{value.producer.name}/batch"
            shape = add_op(graph, "Shape", name, [value], INT, (len(trace.before[value] or ()),), T=value.dtype, out_type=INT)
            ends = [add_constant(graph, f"{name}/{k}", np.array([n], np.int32)) for k, n in enumerate((axis, axis + 1, 1))]
            size = add_op(graph, "StridedSlice", name, [shape, *ends], INT, (), T=INT, Index=INT, shrink_axis_mask=1)
        elif lists:
            count = trace.length(lists[0])[0] or trace.old
            size = add_op(graph, "TensorListLength", f"{lists[0].producer.name}/batch", lists[:1], INT, ())
        else:
            trace.refuse(graph.nodes[0], "is in a function that needs the batch size, and reads nothing that has it")
        return size if count == trace.old else _with("FloorDiv", size, count // trace.old)


def _with(op_type: str, value: Value, number: Any, *, is_first: bool = False) -> Value:
    graph, name = value.producer.graph, f"{value.producer.name}/{op_type.lower()}"
    other = _beside(value, f"{name}/by", number, value.dtype)
    return add_op(graph, op_type, name, [other, value] if is_first else [value, other], value.dtype, (), T=value.dtype)


def _beside(value: Value, name: str, number: Any, dtype: DType) -> Value:
    constant = add_constant(value.producer.graph, name, np.array(number), dtype=dtype)
    value.producer.graph.add_control_input(constant.producer, value.producer)
    return constant


def _computed(baked: Baked, batch: Value, old: int, dtype: DType) -> Value:
    graph, name, items = batch.producer.graph, f"{baked.reader.name}/batch", list[Value]()
    for element, number in enumerate(baked.old.reshape(-1)):
        power = baked.powers.get(element, 0)
        value, unit = batch, old ** abs(power)
        if abs(power) == 2:
            value = add_op(graph, "Mul", f"{name}/square", [batch, batch], INT, (), T=INT)
        if dtype != INT:
            value = add_op(graph, "Cast", f"{name}/cast", [value], dtype, (), SrcT=INT, DstT=dtype, Truncate=False)
        if power < 0:
            value = _with("RealDiv", value, number * unit, is_first=True)
        elif not power:
            value = _beside(batch, f"{name}/{element}", number, dtype)
        elif number != unit:
            value = _with("Mul", value, number)
            value = _with("FloorDiv", value, unit) if baked.old.dtype.kind == "i" else _with("RealDiv", value, unit)
        items.append(value)
    return items[0] if not baked.old.ndim else add_op(graph, "Pack", name, items, dtype, baked.old.shape, N=len(items), T=dtype, axis=0)
