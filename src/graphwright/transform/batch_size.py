"""Change the batch size of a model, or free it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from graphwright.errors import ArgumentError
from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.constants import add_constant, constant_array
from graphwright.ir.dtypes import Shape
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits import is_call
from graphwright.transform.inline_calls import inline_calls
from graphwright.transform.interface import PLACEHOLDERS, find_in_signatures, input_values, put_in_order


def change_batch_size(graph: Graph, size: int | None, *, inputs: Iterable[str] | None = None, axis: int = 0) -> int:
    """Let the model be fed batches of another size; returns how many nodes changed.

    The placeholders get the new size, a constant shape that a `Reshape`, `BroadcastTo` or `Fill`
    gives with the old size in front gets it too, and the shapes of what depends on them follow
    (those recorded as attributes are forgotten, TensorFlow infers them anew). Functions that are
    called with the inputs are inlined first, since their arguments have shapes of their own.

    Args:
        size: the new size; None frees it.
        inputs: names of inputs; by default each whose first dimension is the batch, which is
            every one of known rank above zero.
        axis: which dimension the batch is.

    Raises:
        ArgumentError: `size` is below 1, or a named input has no such dimension or is no placeholder.

    >>> from graphwright.ir.graph import DTYPES
    >>> g = Graph()
    >>> x = g.add_node("Placeholder", "x", attrs={"shape": ShapeAttribute((1, 3))}, output_types=[(DTYPES["float32"], (1, 3))])
    >>> g.inputs = x.outputs
    >>> change_batch_size(g, None), g.inputs
    (1, (<Value x:0 float32[?,3]>,))
    """
    if size is not None and size < 1:
        raise ArgumentError(
            f"the batch size {size} was given", where="argument 'size'", remedy="give a positive number, or None to free it"
        )
    chosen = _chosen(graph, inputs, axis)
    old_sizes = {value.shape[axis] for value in chosen if value.shape is not None}
    with graph.restored_on_error():
        if any(is_call(node, graph) for value in chosen for node in value.consumers):
            inline_calls(graph)
        changed = 0
        for value in chosen:
            shape = _with_size(value.shape, axis, size)
            if shape != value.shape:
                graph.set_attr(value.producer, "shape", ShapeAttribute(shape))
                graph.set_attr(value.producer, "_output_shapes", None)
                graph.set_attr(value.producer, "_user_specified_shape", None)
                value.shape = shape
                changed += 1
        behind = _behind(chosen)
        if axis == 0 and len(old_sizes) == 1 and (old := next(iter(old_sizes))) is not None and old != size:
            changed += sum(_change_shape_constant(graph, node, old, size) for node in behind)
        for node in behind:
            graph.set_attr(node, "_output_shapes", None)
            if graph.shape_rule is None:
                _forget_batch(node, old_sizes, axis, size)
        put_in_order(graph)
        return changed


def _chosen(graph: Graph, names: Iterable[str] | None, axis: int) -> list[Value]:
    if names is None:
        values = [v for v in input_values(graph) if v.producer.op_type in PLACEHOLDERS and v.dtype.name != "resource"]
        chosen = [v for v in values if v.shape is not None and len(v.shape) > axis]
        if not chosen:
            raise ArgumentError(f"no input has a dimension {axis}", where=f"graph {graph.name!r}")
        return chosen
    found = [meant[name] for name in names for meant in find_in_signatures(graph, [name], is_input=True)]
    chosen = list(dict.fromkeys(found))
    for value in chosen:
        if value.producer.op_type not in PLACEHOLDERS:
            raise ArgumentError(f"{value.name} is no placeholder", where="argument 'inputs'")
        if value.shape is None or len(value.shape) <= axis:
            raise ArgumentError(f"{value!r} has no dimension {axis}", where="argument 'inputs'")
    return chosen


def _with_size(shape: Shape, axis: int, size: int | None) -> Shape:
    return None if shape is None else (*shape[:axis], size, *shape[axis + 1 :])


def _behind(values: Iterable[Value]) -> list[Node]:
    """The nodes that depend on the values."""
    found: dict[Node, None] = {}
    waiting = [node for value in values for node in value.consumers]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found[node] = None
            waiting += [c for v in node.outputs for c in v.consumers]
    return list(found)


def _forget_batch(node: Node, old_sizes: set[int | None], axis: int, size: int | None) -> None:
    """Without a rule for shapes: a leading dimension that was the old batch size is the new one, or not known."""
    for value in node.outputs:
        if value.shape is not None and len(value.shape) > axis and value.shape[axis] in old_sizes:
            value.shape = _with_size(value.shape, axis, size if value.shape[axis] is not None else None)


_SHAPE_INPUT = {"Reshape": 1, "BroadcastTo": 1, "Fill": 0}


def _change_shape_constant(graph: Graph, node: Node, old: int, size: int | None) -> bool:
    """A shape that was written down with the batch size in front."""
    index = _SHAPE_INPUT.get(node.op_type)
    if index is None:
        return False
    value = node.inputs[index]
    dims = constant_array(value.producer)
    if dims is None or dims.ndim != 1 or dims.size == 0 or int(dims[0]) != old:
        return False
    free = size is None
    if free and (node.op_type != "Reshape" or bool(np.any(dims == -1))):
        return False
    changed = dims.copy()
    changed[0] = -1 if free else size
    constant = add_constant(graph, f"{value.producer.name}/batch", changed)
    graph.replace_input(node, index, constant)
    if not value.uses and not value.producer.control_consumers and not graph.is_border(value.producer):
        graph.remove_node(value.producer)
    return True
