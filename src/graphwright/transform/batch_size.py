"""Change the batch size of a model, or free it."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Unpack

import numpy as np

from graphwright.errors import ArgumentError
from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.constants import add_constant
from graphwright.ir.dtypes import DTYPES, Shape
from graphwright.ir.edit.insert import add_op
from graphwright.ir.edit.library import bodies, reached_functions
from graphwright.ir.given import Written, edits_in_place
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.select import walk_forward
from graphwright.ir.traits.control_flow import is_call, is_control_flow
from graphwright.ir.traits.values import MAY_BE_FED, is_constant
from graphwright.transform.constant_values import Array, Constants, remove_unread
from graphwright.transform.inline_calls import inline_calls
from graphwright.transform.interface import described, find_in_signatures, input_values, put_in_order


@edits_in_place
def change_batch_size(
    graph: Graph, size: int | None, *, inputs: Iterable[str] | None = None, axis: int = 0, **written: Unpack[Written]
) -> int:
    """Let the model be fed batches of another size; returns how many nodes changed.

    The placeholders get the new size, a constant shape that a `Reshape`, `BroadcastTo` or `Fill`
    gives with the old size in front gets it too, also where it is made of constants and in the bodies
    of branches and loops, and the shapes of what depends on them follow (those recorded as attributes
    are forgotten, TensorFlow infers them again). Functions that are called with the inputs are inlined
    first, since their arguments have shapes of their own. So do constants of one number, such as the
    zeros that a recurrent layer starts from. What else was written down for one size is not seen.

    Args:
        size: the new size; None frees it.
        inputs: names of inputs; by default each whose first dimension is the batch, which is
            every one of known rank above zero.
        axis: which dimension the batch is.

    Raises:
        ArgumentError: `size` is below 1, or a named input has no such dimension or is not a placeholder.
        GraphError: the graph has a rule for shapes, which refuses the new size somewhere; nothing is changed then.

    >>> from graphwright.ir.graph import DTYPES
    >>> g = Graph()
    >>> x = g.add_node("Placeholder", "x", attrs={"shape": ShapeAttribute((1, 3))}, output_types=[(DTYPES["float32"], (1, 3))])
    >>> g.inputs = x.outputs
    >>> change_batch_size(g, None), g.inputs
    (1, (<Value x:0 float32[?,3]>,))
    """
    if size is not None and size < 1:
        raise ArgumentError(f"the batch size {size} was given", argument="size", remedy="give a positive number, or None to free it")
    chosen = _chosen(graph, inputs, axis)
    old_sizes = {value.shape[axis] for value in chosen if value.shape is not None}
    with graph.restored_on_error(), _shapes_settled_once(graph):
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
        behind = walk_forward(chosen)
        old = next(iter(old_sizes)) if axis == 0 and len(old_sizes) == 1 else None
        if old is not None and old != size:
            sizes = _Sizes(graph, old, size, chosen[0])
            changed += sum(sizes.change(node) for node in behind)
            changed += sum(sizes.change_beside(node) for node in behind)
        changed += _change_bodies(graph, behind, old_sizes, old if old != size else None, axis, size)
        for node in behind:
            _state_shapes(node, old_sizes, axis, size)
            graph.set_attr(node, "_output_shapes", None)
            _forget_batch(node, old_sizes, axis, size)
        put_in_order(graph)
        return changed


@contextmanager
def _shapes_settled_once(graph: Graph) -> Generator[None]:
    """Ask no rule for shapes within the block, where sizes contradict each other, and all rules behind it."""
    rules = {g: g.shape_rule for g in bodies(graph)}
    for each in rules:
        each.settle_shapes()
        each.shape_rule = None
    yield
    for each, rule in rules.items():
        each.shape_rule = rule
        each.refresh_shapes()
        each.settle_shapes()


def _chosen(graph: Graph, names: Iterable[str] | None, axis: int) -> list[Value]:
    if names is None:
        values = [v for v in input_values(graph) if v.producer.op_type in MAY_BE_FED and v.dtype.name != "resource"]
        chosen = [v for v in values if v.shape is not None and len(v.shape) > axis]
        if not chosen:
            raise ArgumentError(f"no input has a dimension {axis}", where=f"graph {graph.name!r}")
        return chosen
    found = [meant[name] for name in names for meant in find_in_signatures(graph, [name], is_input=True)]
    chosen = list(dict.fromkeys(found))
    for value in chosen:
        if value.producer.op_type not in MAY_BE_FED:
            raise ArgumentError(f"{value.name} is not a placeholder", argument="inputs")
        if value.shape is None or len(value.shape) <= axis:
            raise ArgumentError(f"{described(value)} has no dimension {axis}", argument="inputs")
    return chosen


def _with_size(shape: Shape, axis: int, size: int | None) -> Shape:
    return None if shape is None else (*shape[:axis], size, *shape[axis + 1 :])


def _forget_batch(node: Node, old_sizes: set[int | None], axis: int, size: int | None) -> None:
    """Without a rule for shapes: a leading dimension that was the old batch size is the new one, or not known."""
    for value in node.outputs:
        if value.shape is not None and len(value.shape) > axis and value.shape[axis] in old_sizes:
            value.shape = _with_size(value.shape, axis, size if value.shape[axis] is not None else None)


_ELEMENTWISE = frozenset("Add AddV2 Sub Mul RealDiv Maximum Minimum SquaredDifference ConcatV2 SelectV2".split())
_SHAPE_INPUT = {"Reshape": 1, "BroadcastTo": 1, "Fill": 0}


class _Sizes:
    """Shapes that were written down with the batch size in front, in one graph or body."""

    def __init__(self, graph: Graph, old: int, new: int | None, source: Value | None) -> None:
        self._graph, self._old, self._new, self._source = graph, old, new, source
        self._constants = Constants()
        self._batch: Value | None = None

    def change(self, node: Node) -> bool:
        """Give a node another shape to make, where it names the old batch size."""
        index = _SHAPE_INPUT.get(node.op_type)
        dims = self._constants(node.inputs[index]) if index is not None else None
        if index is None or dims is None or dims.ndim != 1 or dims.size == 0:
            return False
        times = self._times(node, dims)
        if not times:
            return False
        shape, old = node.inputs[index], node.inputs[index].producer
        name = f"{node.name}/batch"
        if self._new is not None:
            new = add_constant(self._graph, name, np.concatenate([[times * self._new], dims[1:]]).astype(dims.dtype))
        elif node.op_type == "Reshape" and not np.any(dims == -1):
            new = add_constant(self._graph, name, np.concatenate([[-1], dims[1:]]).astype(dims.dtype))
        elif times == 1 and self._source is not None and shape.dtype.name == "int32":
            new = self._with_batch(self._source, dims, name)
        else:
            return False
        self._graph.replace_input(node, index, new)
        self._graph.set_attr(node, "_output_shapes", None)
        _forget_batch(node, {self._old}, 0, self._new)
        remove_unread(self._graph, [old])
        return True

    def change_beside(self, node: Node) -> int:
        """Give zeros and the like, which meet a batch in a node or are the state that a loop starts from, another size."""
        if node.op_type not in _ELEMENTWISE and not is_control_flow(node):
            return 0
        changed = 0
        for index, value in enumerate(node.inputs):
            if value.producer.op_type in ("Fill", "BroadcastTo"):
                changed += self.change(value.producer)
                continue
            array = self._constants(value) if is_constant(value.producer) else None
            if array is None or array.ndim < 2 or array.shape[0] != self._old or self._old == 1 or np.any(array != array.flat[0]):
                continue
            name = f"{value.producer.name}/batch"
            one = add_constant(self._graph, f"{name}/element", array.reshape(-1)[:1].reshape(()), dtype=value.dtype)
            dims = add_constant(self._graph, f"{name}/size", np.array(array.shape, np.int32))
            shape = (self._new, *array.shape[1:])
            filled = add_op(self._graph, "Fill", name, [dims, one], value.dtype, shape, T=value.dtype, index_type=DTYPES["int32"])
            if self.change(filled.producer):
                self._graph.replace_input(node, index, filled)
                changed += 1
            else:
                self._graph.remove_node(filled.producer)
            remove_unread(self._graph, [value.producer, one.producer, dims.producer])
        return changed

    def _times(self, node: Node, dims: Array) -> int:
        """How many batches the first dimension is; 0 where it is none."""
        first = int(dims[0])
        if first == self._old:
            return 1
        data = node.inputs[0].shape if node.op_type == "Reshape" else None
        if self._old == 1 or first <= 0 or first % self._old or not data or data[0] not in (self._old, self._new, None):
            return 0
        if np.any(dims == -1):
            return 0
        return first // self._old  # such as all steps of all sequences

    def _with_batch(self, source: Value, dims: Array, name: str) -> Value:
        graph, int32 = self._graph, DTYPES["int32"]
        if self._batch is None:
            rank = None if source.shape is None else (len(source.shape),)
            name_of = f"{source.producer.name}/shape"
            shape = add_op(graph, "Shape", name_of, [source], int32, rank, T=source.dtype, out_type=int32)
            ends = [add_constant(graph, f"{name_of}/{end}", np.array([k], np.int32)) for end, k in (("begin", 0), ("size", 1))]
            self._batch = add_op(graph, "Slice", f"{name_of}/batch", [shape, *ends], int32, (1,), T=int32, Index=int32)
        rest = add_constant(graph, f"{name}/rest", dims[1:].astype(np.int32))
        axis = add_constant(graph, f"{name}/axis", np.array(0, np.int32))
        return add_op(graph, "ConcatV2", name, [self._batch, rest, axis], int32, (dims.size,), N=2, T=int32, Tidx=int32)


def _change_bodies(graph: Graph, behind: Iterable[Node], old_sizes: set[int | None], old: int | None, axis: int, size: int | None) -> int:
    """The same in the bodies of branches and loops that depend on the inputs."""
    changed = 0
    control_flow = [node for node in behind if is_control_flow(node)]
    for name in reached_functions(graph, control_flow):
        body = graph.functions[name].body
        sizes = None if old is None else _Sizes(body, old, size, None)
        inside = walk_forward(v for v in body.inputs if v.shape is None or v.shape[axis : axis + 1] in [(s,) for s in old_sizes])
        changed += 0 if sizes is None else sum(sizes.change(node) + sizes.change_beside(node) for node in inside)
        for node in [*(v.producer for v in body.inputs), *inside]:
            _forget_batch(node, old_sizes, axis, size)
        put_in_order(body)
    return changed


def _state_shapes(node: Node, old_sizes: set[int | None], axis: int, size: int | None) -> None:
    """What a branch or loop states of its results."""
    stated = node.attrs.get("output_shapes")
    if not is_control_flow(node) or not isinstance(stated, tuple):
        return
    shapes = [s.shape if isinstance(s, ShapeAttribute) else None for s in stated]
    if all(isinstance(s, ShapeAttribute) for s in stated):
        changed = [_with_size(s, axis, size) if s is not None and len(s) > axis and s[axis] in old_sizes else s for s in shapes]
        node.graph.set_attr(node, "output_shapes", tuple(ShapeAttribute(s) for s in changed))
