"""Change or free the batch size of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Unpack

from graphwright.errors import ArgumentError, GraphError
from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.dtypes import Shape, agree, format_shape
from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph, Value
from graphwright.ir.jobs import Written, edits_in_place
from graphwright.ir.node import write_shape
from graphwright.ir.rules import ShapeTracker
from graphwright.ir.select import walk_forward
from graphwright.ir.traits.control_flow import is_call
from graphwright.ir.traits.values import MAY_BE_FED
from graphwright.transform.batch_rules import RULES, note
from graphwright.transform.batch_trace import RATIO, BatchTrace
from graphwright.transform.batch_write import write_size
from graphwright.transform.inline_calls import inline_calls
from graphwright.transform.interface import described, find_in_signatures, input_values, output_values, put_in_order


@edits_in_place
def change_batch_size(
    graph: Graph,
    size: int | None,
    *,
    inputs: Iterable[str] | None = None,
    axis: int = 0,
    means: bool | None = None,
    **written: Unpack[Written],
) -> int:
    """Let the model be fed batches of another size; returns how many nodes changed.

    The batch is followed through the graph and the bodies of its loops and branches. Sizes that operations hold follow it, such as the
    shape of a `Reshape` or of zeros, or the number of rounds of `map_fn`. What is done to each example of `tf.unstack` becomes a function
    that is mapped over the batch. Called functions are inlined first. The result is checked by the shapes at two batch sizes.

    Args:
        size: the new size; None frees it.
        inputs: names of the inputs that have the batch; by default those whose first dimension is open, or has the most frequent size.
        axis: which dimension the batch is.
        means: whether a sum over the batch that is divided by the batch size is a mean, so that the divisor follows. A graph does not say
            so: by default, such a division is refused unless it is the gradient of a `Mean`.

    Raises:
        ArgumentError: `size` is below 1, or a named input has no such dimension or is not a placeholder.
        GraphError: it cannot be known how a node follows the batch; the message names the node and the reason. The graph is unchanged.

    >>> from graphwright.ir.graph import DTYPES
    >>> g = Graph()
    >>> x = g.add_node("Placeholder", "x", attrs={"shape": ShapeAttribute((1, 3))}, output_types=[(DTYPES["float32"], (1, 3))])
    >>> g.inputs = x.outputs
    >>> change_batch_size(g, None), g.inputs
    (1, (<Value x:0 float32[?,3]>,))
    """
    if size is not None and size < 1:
        raise ArgumentError(f"the batch size {size} was given", argument="size", remedy="give a positive number, or None to free it")
    chosen, old = _chosen(graph, inputs, axis)
    changed = len(chosen)
    with _without_rules(graph) as trackers:
        if any(is_call(node, graph) for node in walk_forward(chosen)):
            inline_calls(graph)
        sized = [value for value in chosen if old not in (None, size) and (value.last_shape or ())[axis] == old]
        trace = BatchTrace(graph, trackers, old or 1, means, RULES, note)
        if sized:
            larger = {value: _with_size(value.last_shape, axis, trace.old * RATIO) for value in sized}
            trace.follow(larger, defaults=size is not None)
            changed += write_size(trace, size, (sized[0], axis))
        for node in walk_forward(chosen):
            graph.set_attr(node, "_output_shapes", None)
        for each in bodies(graph):
            put_in_order(each)
    is_checked = size is None and trace.after and not any(value.producer.inputs for value in chosen)  # a default has one size
    for batch, known in ((old, trace.before), (trace.old * RATIO, trace.after)) if is_checked else ():
        _set_size(graph, chosen, axis, batch)
        for value in output_values(graph):
            if value in known and not agree(value.shape, known[value]):
                raise GraphError(f"{described(value)} would be {format_shape(known[value])} in a model of batch size {batch}")
    _set_size(graph, chosen, axis, size)
    return changed


def _set_size(graph: Graph, chosen: Iterable[Value], axis: int, size: int | None) -> None:
    for value in chosen:
        shape = _with_size(value.last_shape, axis, size)
        graph.set_attr(value.producer, "shape", ShapeAttribute(shape))
        for name in ("_output_shapes", "_user_specified_shape"):
            graph.set_attr(value.producer, name, None)
        write_shape(value, shape)
    for each in bodies(graph):
        each.refresh_shapes()
        each.settle_shapes()


@contextmanager
def _without_rules(graph: Graph) -> Generator[dict[Graph, ShapeTracker | None]]:
    """Infer no shapes within the block, where sizes contradict each other; yields what infers them otherwise."""
    trackers = {g: g.shapes for g in bodies(graph)}
    for each in trackers:
        each.settle_shapes()
        each.shapes = None
    yield trackers
    for each, tracker in trackers.items():
        each.shapes = tracker


def _chosen(graph: Graph, names: Iterable[str] | None, axis: int) -> tuple[list[Value], int | None]:
    if names is None:
        values = [v for v in input_values(graph) if v.producer.op_type in MAY_BE_FED and v.dtype.name != "resource"]
        chosen = [v for v in values if v.shape is not None and len(v.shape) > axis and (v.uses or graph.is_border(v.producer))]
        if not chosen:
            raise ArgumentError(f"no input has a dimension {axis}", where=f"graph {graph.name!r}")
        sizes = Counter(size for v in chosen if (size := (v.shape or ())[axis]) is not None)
        old = sizes.most_common(1)[0][0] if sizes else None
        return [v for v in chosen if (v.shape or ())[axis] in (old, None)], old
    values = [meant[name] for name in names for meant in find_in_signatures(graph, [name], is_input=True)]
    chosen = list(dict.fromkeys(values))
    for value in chosen:
        if value.producer.op_type not in MAY_BE_FED:
            raise ArgumentError(f"{value.name} is not a placeholder", argument="inputs")
        if value.shape is None or len(value.shape) <= axis:
            raise ArgumentError(f"{described(value)} has no dimension {axis}", argument="inputs")
    sizes = {size: described(v) for v in chosen if (size := (v.shape or ())[axis]) is not None}
    if len(sizes) > 1:
        remedy = "name those that have the batch; it has one size"
        raise ArgumentError(f"{' and '.join(sizes.values())} have different sizes", argument="inputs", remedy=remedy)
    return chosen, next(iter(sizes), None)


def _with_size(shape: Shape, axis: int, size: int | None) -> Shape:
    return None if shape is None else (*shape[:axis], size, *shape[axis + 1 :])
