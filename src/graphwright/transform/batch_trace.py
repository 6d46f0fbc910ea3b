"""Follow the batch through a graph: find the sizes that were written down for it, and let them grow with it.

The graph is looked at with two batches: its own, and one `RATIO` times as large. Each dimension either has the same size with both, or
grows with the batch. Where a node cannot take the larger inputs, a size was written down for the batch; the dimensions that go together
(`ops`) say which one. A constant that holds such a size is *baked*: it is noted, and follows the batch. A constant with a
row for each example follows too, where all rows are equal or count the examples. What cannot follow is refused by name. The trace ends
with a pass over the graph that changes nothing, which proves that all shapes fit together at the larger size.

Sizes that no shape contradicts are found by the rules in `batch_rules`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from graphwright.errors import GraphError, first_line
from graphwright.ir.constants import Array, add_constant, tensor_attribute
from graphwright.ir.dtypes import DTYPES, DType, Shape, filled
from graphwright.ir.edit.insert import add_op
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.node import write_shape
from graphwright.ir.rules import ShapeTracker
from graphwright.ir.traits.arithmetic import SCALES, TAKES_OUT_OF_LIST
from graphwright.ir.traits.control_flow import (
    BRANCHES,
    CALL_TYPES,
    FORWARDS_IN_TF1,
    LOOPS,
    MERGES,
    SWITCHES,
    called_functions,
    is_back_edge,
)
from graphwright.ir.traits.rounds import is_list, keeps_length, reserves, unstacks
from graphwright.ir.traits.values import IDENTITIES, RESHAPES, index_behind, is_constant, origin
from graphwright.ir.traits.variables import READS_OF_VARIABLES
from graphwright.ir.walk import backward_reachable, topological_order
from graphwright.ops.catalog import SPLITS
from graphwright.ops.contraction import matrix_product
from graphwright.ops.dimensions import Dimensions, rows
from graphwright.ops.elementwise import by_elements
from graphwright.ops.sizes import UnknownSizeError
from graphwright.transform.constant_values import Constants, remove_unread
from graphwright.transform.interface import output_values

RATIO = 13
"""How many times as large the other batch is: a prime, so that few other sizes are multiples of it by chance."""
INT = DTYPES["int32"]
FORWARDS = FORWARDS_IN_TF1 | IDENTITIES
GRADIENT_OF_FUNCTION = "SymbolicGradient"
RUNS_FUNCTIONS = BRANCHES | LOOPS | CALL_TYPES | {GRADIENT_OF_FUNCTION}
LABELS = {**SPLITS, "CropAndResize": rows("---- n- n - -> n---")}
_PASSES = 40
_CAN_COUNT = frozenset({"int32", "int64", "float32", "float64"})

Rule = Callable[["BatchTrace", Node], None]


class RestartPassError(Exception):
    """Nodes were replaced, so the pass starts again."""


@dataclass
class Baked:
    """A constant that holds sizes of the batch, read by `reader` at its input `index`; `old` are its numbers in the original graph.

    `powers` maps an element to the power of the batch that it is proportional to.
    """

    old: Array
    reader: Node
    index: int
    powers: dict[int, int] = field(default_factory=dict[int, int])

    def at(self, ratio: float) -> Array:
        """Return the numbers for a batch that is `ratio` times as large."""
        factors = [float(ratio) ** self.powers.get(k, 0) for k in range(self.old.size)]
        numbers = self.old * np.reshape(factors, self.old.shape)
        if self.old.dtype.kind == "i" and (numbers != np.round(numbers)).any():
            where, remedy = f"node {self.reader.name!r}", "give a batch size of which the old one is a divisor"
            what = f"{self.reader.name!r} takes a part of the batch, which would be {numbers.tolist()}"
            raise GraphError(what, where=where, remedy=remedy)
        return numbers.astype(self.old.dtype)


class BatchTrace:
    """A graph and the bodies of its functions, with two batch sizes, `old` and `RATIO` times as many.

    Args:
        trackers: what infers the shapes of each graph.
        means: whether numbers that divide a sum over the batch follow it; None where that has to be proved.
        rules: what to do for nodes of some op types before their shapes are computed; `note` notes facts about each node afterwards.

    Attributes:
        before, after: the shapes with the old batch and with the larger one; of a list, the shape of its elements.
        lengths: list -> its length before and after.
        dependent: the values that depend on the batch; `counting`, those that number the examples.
        baked: the constants that follow the batch.
        labels: which dimensions of a node go together.
        callers: body of a function -> the node that runs it, and the index of its input that is the first argument.
        digits: (value, axis) -> for each batch in this dimension, how many of its elements stand before the batch.
        terms: sum over the batch -> the sizes that were summed, and how many of them are batches; so too for a value that was repeated for
            the batch (the last item), as in the gradient of a mean.
    """

    def __init__(
        self,
        graph: Graph,
        trackers: Mapping[Graph, ShapeTracker | None],
        old: int,
        means: bool | None,
        rules: Mapping[str, Rule],
        note: Rule,
    ) -> None:
        self.graph, self.old, self.means = graph, old, means
        self.before: dict[Value, Shape] = {}
        self.after: dict[Value, Shape] = {}
        self.lengths: dict[Value, tuple[int | None, int | None]] = {}
        self.dependent: set[Value] = set()
        self.baked: dict[Node, Baked] = {}
        self.labels: dict[Node, Dimensions] = {}
        self.callers: dict[Graph, tuple[Node, int]] = {}
        self.counting: set[Value] = set()
        self.digits: dict[tuple[Value, int], tuple[int, ...]] = {}
        self.terms: dict[Value, tuple[tuple[int, ...], int, bool]] = {}
        self._trackers, self._rules, self._note = trackers, rules, note
        self._larger: Mapping[Value, Shape] = {}
        self._asked: set[tuple[Node, int, int]] = set()
        self._is_changed = False
        self._constants = Constants(lambda node: node in self.baked or (node.op_type in SCALES and node.outputs[0].last_shape != ()))

    def follow(self, larger: Mapping[Value, Shape], *, defaults: bool) -> None:
        """Let everything that was written down for the batch follow it, or raise `GraphError` where it is not known how.

        `larger` maps inputs to their shapes with the larger batch; `defaults` tells whether the default values of inputs follow too.
        """
        self._begin(self.graph)
        for node in self.graph.nodes:
            if node.op_type.startswith("TensorArray"):
                self.refuse(node, "uses a TensorArray of TF1, in which the batch is not followed")
        self.after, self._larger = dict(larger), larger
        self.dependent.update(larger)
        for value, axis in ((v, a) for v in larger for a in self.grown(v) if defaults and v.producer.inputs):
            self.grow(value.producer, 0, axis)
        for _ in range(_PASSES):
            self._is_changed = False
            self.after, self.lengths, self.digits, self.terms, self.counting = dict(larger), {}, {}, {}, set()
            with suppress(RestartPassError):
                self._pass(self.graph)
                if not self._is_changed:
                    self._check_outputs()
                    return
        raise GraphError("the sizes that follow the batch do not converge", where=f"graph {self.graph.name!r}")

    def refuse_mean(self, node: Node, why: str) -> NoReturn:
        """Raise an error for a node that may be a part of a mean over the batch."""
        remedy = "state it: with means=True the divisor follows the batch, with means=False it stays"
        self.refuse(node, f"{why}; whether that is for a mean over the batch is not known", remedy=remedy)

    def refuse(self, node: Node, why: str, cause: str = "", remedy: str = "") -> NoReturn:
        """Raise an error that names the node."""
        where = f"node {node.name!r}" + ("" if node.graph is self.graph else f" of function {node.graph.name!r}")
        remedy = remedy or "build the model with sizes from tf.shape, or for the other batch; or replace this node before"
        raise GraphError(f"{node.op_type} {node.name!r} {why}", where=where, cause=cause, remedy=remedy)

    # Passes

    def _begin(self, graph: Graph) -> None:
        for node in topological_order(graph):
            shapes = [self.before.setdefault(value, value.last_shape) for value in node.outputs]
            if node.inputs and any(is_list(v) or None in (shape or (None,)) for v, shape in zip(node.outputs, shapes, strict=True)):
                for value, shape in zip(node.outputs, self._inferred(node, self.before), strict=True):
                    self.before[value] = shape if is_list(value) else filled(self.before[value], shape)
            self._write(node.outputs, self.before)
        for node in graph.nodes:
            rule = None if node.op_type in RESHAPES or not node.outputs else LABELS.get(node.op_type)
            for k, value in enumerate(node.inputs if rule is not None and rule is not by_elements else ()):
                array = self._constants(value) if value.dtype == INT and not is_constant(value.producer) else None
                if array is not None and not (array.size == 1 and value.producer.op_type == "Range"):  # may count one example
                    graph.replace_input(node, k, self.add_constant(f"{node.name}/value", array.astype(np.int32), value))
            with suppress(UnknownSizeError, IndexError, ValueError):
                self.labels.update({node: rule(node)} if rule is not None else {})

    def _pass(self, graph: Graph) -> None:
        for node in topological_order(graph):
            for value in node.outputs:
                self.before.setdefault(value, value.last_shape)
            is_dependent = any(value in self.dependent for value in node.inputs if not is_back_edge(value, node))
            self.dependent.update(node.outputs if is_dependent else ())
            has_list = bool(node.inputs) and any(map(is_list, (*node.inputs, *node.outputs)))
            if (is_dependent or has_list) and self._larger.keys().isdisjoint(node.outputs):
                self._visit(node)
            for value in node.outputs:
                self.after.setdefault(value, self.before[value])
            self._write(node.outputs, self.after)

    def _visit(self, node: Node) -> None:
        labels = self.labels.get(node)
        if node.op_type in RUNS_FUNCTIONS:
            self._run(node)
        elif node.op_type in self._rules:
            self._rules[node.op_type](self, node)
        if labels is not None:
            self._agree(node, labels)
        if node.op_type not in RUNS_FUNCTIONS:
            shape = self._by_labels(node, labels)
            self.after.update(zip(node.outputs, self._inferred(node, self.after) if shape is None else [shape], strict=True))
        for value in node.outputs:
            before, after = self.before[value], self.after[value]
            if before is not None and after is not None and len(after) != len(before):
                self.refuse(node, f"makes {len(before)} dimensions of the batch of {self.old}, and {len(after)} of a larger one")
        self._note(self, node)

    def _check_outputs(self) -> None:
        for value in output_values(self.graph):
            if value in self.dependent and self.size(value, 0) == self.old and not self.grown(value):
                self.refuse(value.producer, f"makes an output whose first dimension is {self.old}, and does not follow the batch")

    def depend_later(self, values: Iterable[Value]) -> None:
        """Note what depends on the batch from the second round of a loop on."""
        new = set(values) - self.dependent
        self._is_changed |= bool(new)
        self.dependent |= new

    # Shapes

    def size(self, value: Value, axis: int) -> int | None:
        shape = self.before.get(value) or ()
        return shape[axis] if axis < len(shape) else None

    def power(self, value: Value, axis: int) -> int:
        """Return the power of the batch that a dimension is proportional to."""
        before, after = self.size(value, axis), dict(enumerate(self.after.get(value) or ())).get(axis)
        if before is None or after in (None, before):
            return 0
        return 2 if after == before * RATIO**2 else 1

    def grown(self, value: Value) -> list[int]:
        """Return the dimensions that follow the batch."""
        return [axis for axis in range(len(self.before.get(value) or ())) if self.power(value, axis)]

    def length(self, value: Value) -> tuple[int | None, int | None]:
        return self.lengths.get(value, (None, None))

    def _write(self, values: Iterable[Value], shapes: Mapping[Value, Shape]) -> None:
        for value in values:
            if not is_list(value):
                write_shape(value, shapes.get(value, value.last_shape))

    def _by_labels(self, node: Node, labels: Dimensions | None) -> Shape:
        """Return the new output shape of a node whose dimensions all come from its inputs; None if they disagree."""
        value = node.outputs[0] if len(node.outputs) == 1 else None
        if labels is None or value is None or is_list(value) or len(labels.output) != len(self.before[value] or ()):
            return None
        read = zip(labels.inputs, node.inputs, strict=True)
        sizes = {(label, d) for each, v in read for label, d in zip(each, self.after.get(v) or (), strict=False) if label is not None}
        shape = tuple(dict(sizes).get(label) for label in labels.output)
        return None if None in shape or len(dict(sizes)) < len(sizes) else shape

    def _inferred(self, node: Node, known: Mapping[Value, Shape]) -> list[Shape]:
        is_after, first = known is self.after, node.inputs[0]
        sources = {v: source for v in node.outputs if (source := self.forwarded(v)) is not None}
        self.lengths.update((v, self.lengths[source]) for v, source in sources.items() if source in self.lengths)
        if node.op_type in FORWARDS | RUNS_FUNCTIONS:
            values = [sources.get(v, v) if is_list(v) or node.op_type in FORWARDS else v for v in node.outputs]
            return [() if node.op_type in MERGES and k else known.get(v, v.last_shape) for k, v in enumerate(values)]
        if unstacks(node):
            self.lengths[node.outputs[0]] = self.size(first, 0), next(iter(self.after.get(first) or ()), None)
            return [(known.get(first) or ())[1:]]
        if reserves(node):
            counts = [self.array(node, 1, larger=larger) for larger in (False, True)]
            before, after = (None if count is None else int(count) for count in counts)
            self.lengths[node.outputs[0]] = before, after
        if any(map(is_list, (*node.inputs, *node.outputs))):
            result = node.outputs[-1]
            k = 0 if is_list(result) else len(node.inputs) - 1  # states the shape of the elements
            array = None if is_list(node.inputs[k]) else self.array(node, k, larger=is_after)
            stated: Shape = None if array is None or not array.ndim else tuple(None if d < 0 else int(d) for d in array)
            items = [stated, known.get(first) if is_list(first) else None, known.get(node.inputs[-1]) if keeps_length(node) else None]
            element = next((shape for shape in items if shape is not None), None)
            if element is not None and node.op_type == "TensorListStack":
                return [(self.length(first)[is_after], *element)]
            if is_list(result) or (element is not None and node.op_type in TAKES_OUT_OF_LIST):
                return [element] * len(node.outputs)
        shapes = self._trackers.get(node.graph)
        if shapes is None and not is_after:
            return [known[v] for v in node.outputs]
        if shapes is None:
            self.refuse(node, "has shapes that no rule of the graph infers", "the graph was not loaded by graphwright.load")
        self._write(node.inputs, known)
        try:
            return list(shapes.infer([node])[0])
        except GraphError as error:
            cause = f"at {RATIO} times the batch {first_line(error).removeprefix('TensorFlow refuses the graph: ')}"
            self.refuse(node, "holds a size of the batch that was not found", cause)

    def forwarded(self, value: Value) -> Value | None:
        """Return the input that a value is, or of a loop the one that it starts with; None for what is computed."""
        node = value.producer
        if node.op_type in MERGES:
            return next((v for v in node.inputs if not is_back_edge(v, node)), None)
        forwards = node.op_type in FORWARDS | LOOPS or (keeps_length(node) and is_list(value))
        return node.inputs[index_behind(value)] if forwards and node.inputs else None

    # Constants

    def source(self, node: Node, index: int) -> tuple[Node, int]:
        """Return who reads an input first, in this graph or around it, before it is forwarded unchanged in all rounds of a loop."""
        value, graph = node.inputs[index], node.graph
        producer = value.producer
        if graph in self.callers and value in graph.inputs:
            caller, offset = self.callers[graph]
            k = graph.inputs.index(value)
            body = graph.functions[called_functions(caller, "body")[0]].body if caller.op_type in LOOPS else None
            changes = body is not None and origin(body.outputs[k]) is not body.inputs[k]
            return (node, index) if changes else self.source(caller, offset + k)
        backs = [v.producer.inputs[0] for v in producer.inputs if is_back_edge(v, producer)]
        if producer.op_type in FORWARDS and producer.inputs and all(origin(v, IDENTITIES | SWITCHES).producer is producer for v in backs):
            return self.source(producer, next(k for k, v in enumerate(producer.inputs) if v is self.forwarded(value)))
        return node, index

    def array(self, node: Node, index: int, *, larger: bool = False) -> Array | None:
        """Return the numbers that an input holds in all runs, with the old batch or the larger one; None where they are not known."""
        reader, k = self.source(node, index)
        baked = self.baked.get(reader.inputs[k].producer)
        return self._constants(reader.inputs[k]) if baked is None else baked.at(RATIO) if larger else baked.old

    def scale(self, node: Node, index: int, element: int = 0, power: int = 1) -> None:
        """Let an element of a constant input, which is a size of the batch, follow it; of computed sizes, the constant part."""
        node, index = self.source(node, index)
        value, array = node.inputs[index], self.array(node, index)
        if array is None:
            producer = origin(value).producer
            if producer.op_type == "Pack":
                self.scale(producer, element, 0, power)
            for k, part in enumerate(producer.inputs[:-1] if producer.op_type == "ConcatV2" else ()):
                if 0 <= element < (count := self.size(part, 0) or 0):
                    self.scale(producer, k, element, power)
                element -= count
            return
        if array.reshape(-1)[element] == -1:
            return
        if value.producer not in self.baked:
            constant = self.add_constant(f"{node.name}/batch", array, value, value.dtype)
            self.baked[constant.producer] = Baked(array, node, index)
            self.dependent.add(constant)
            node.graph.replace_input(node, index, constant)
            remove_unread(node.graph, [value.producer])
        constant = node.inputs[index].producer
        if self.baked[constant].powers.setdefault(element, 0) != power:
            self.baked[constant].powers[element] = power
            node.graph.set_attr(constant, "value", tensor_attribute(self.baked[constant].at(RATIO), value.dtype))
            self._is_changed = True

    def add_constant(self, name: str, array: Any, beside: Value, dtype: DType | None = None) -> Value:
        """Add a constant that waits for what another value waits for, so that it is in the same loop."""
        constant = add_constant(beside.producer.graph, name, np.asarray(array), dtype=dtype, device=beside.producer.device)
        for node in beside.producer.control_inputs:
            node.graph.add_control_input(constant.producer, node)
        return constant

    # Growth

    def _agree(self, node: Node, labels: Dimensions) -> None:
        places = [(label, k, axis) for k, each in enumerate(labels.inputs) for axis, label in enumerate(each) if label is not None]
        powers = {label: power for label, k, axis in places if (power := self.power(node.inputs[k], axis))}
        repeats = LABELS.get(node.op_type) in (by_elements, matrix_product)
        for label, k, axis in places:
            value = node.inputs[k]
            if label in powers and not (repeats and self.size(value, axis) == 1):
                self.grow(node, k, axis)
            elif label in powers and self.old == 1 and value not in self.dependent and self._may_count_one(value):
                self.refuse(node, f"reads {value.name!r}, which may count the one example")
        for k, element in ((k, e) for k, each in labels.sizes.items() for e, label in enumerate(each) if label in powers):
            self.scale(node, k, element, powers[labels.sizes[k][element]])

    def _may_count_one(self, value: Value) -> bool:
        shape = self.before[value] or ()
        array = self._constants(value)
        if math.prod(d or 0 for d in shape) == 1 or (array is not None and _share(array) > 1):
            return True
        before = backward_reachable([value.producer])
        return any(node.op_type in ("Range", "RealDiv") or "Random" in node.op_type for node in before)

    def grow(self, node: Node, index: int, axis: int) -> None:
        """Let an input of a node follow the batch along an axis.

        Raises:
            GraphError: what makes the input cannot follow; the error names it.
        """
        value = node.inputs[index]
        size = self.size(value, axis)
        if size is None or self.power(value, axis):
            return
        if (node, index, axis) in self._asked:
            self.refuse(node, f"reads {value.name!r}, whose dimension {axis} of size {size} does not follow the batch")
        self._asked.add((node, index, axis))
        self._is_changed = True
        array = self.array(node, index)
        if array is not None:
            self._grow_constant(*self.source(node, index), axis, array)
        elif node.graph in self.callers and value in node.graph.inputs:
            caller, offset = self.callers[node.graph]
            self.grow(caller, offset + node.graph.inputs.index(value), axis)
        else:
            self._grow_computed(value, axis)
        value = node.inputs[index]
        self.before.setdefault(value, value.last_shape)
        if not self.power(value, axis):
            self.after[value] = self._scaled(self.after.get(value, self.before[value]), axis)
        self.dependent.add(value)

    def _scaled(self, shape: Shape, axis: int) -> Shape:
        return tuple(d * RATIO if k == axis and d is not None else d for k, d in enumerate(shape or ()))

    def _grow_result(self, body: Graph, k: int, axis: int) -> None:
        value = body.outputs[k]
        if value.producer.op_type not in IDENTITIES:
            same = add_op(body, "Identity", f"{value.producer.name}/batch", [value], value.dtype, self.before[value], T=value.dtype)
            body.outputs = [same if j == k else v for j, v in enumerate(body.outputs)]
        self.grow(body.outputs[k].producer, index_behind(body.outputs[k]), axis)

    def _grow_constant(self, node: Node, index: int, axis: int, array: Array) -> None:
        """Repeat rows that are all equal, continue rows that count the examples, or make a larger diagonal."""
        value, name, graph = node.inputs[index], f"{node.name}/batch", node.graph
        dtype, count = value.dtype, array.shape[axis]
        first = np.take(array, [0], axis)
        counts = count > 1 and dtype.name in _CAN_COUNT
        step: Any = np.diff(np.moveaxis(array, axis, 0).reshape(count, -1)[:2, 0])[0] if counts else np.int32(1)
        column = [-1 if k == axis else 1 for k in range(array.ndim)]
        line = np.reshape(step * np.arange(count, dtype=np.int64), column)

        def constant(key: str, numbers: Any, dtype: DType = INT) -> Value:
            return self.add_constant(f"{name}/{key}", numbers, value, dtype)

        def count_examples(step: Any, dtype: DType) -> Value:
            ends = {"start": step * 0, "limit": step * count, "delta": step}
            inputs = [constant(key, number, dtype) for key, number in ends.items()]
            numbers = add_op(graph, "Range", f"{name}/rows", inputs, dtype, (count,), Tidx=dtype)
            self.scale(numbers.producer, 1)
            return numbers

        if array.size == 1 and array.dtype.kind == "i" and not array.any():
            self.refuse(node, f"reads the constant {value.producer.name!r}, which is 0 or counts the one example")
        if (array == first).all():
            share = _share(array)
            if share and share % self.old == 0 and self.old > 1 and self.means is not False:
                self.refuse_mean(node, f"reads the constant {value.producer.name!r}, which is 1 / {share} for each example")
            larger = constant("element", first.reshape(-1)[0] if (array == array.flat[0]).all() else first, dtype)
        elif _is_diagonal(array):
            inputs = [count_examples(np.int32(1), INT), constant("depth", np.int32(count))]
            inputs += [constant(f"element/{k}", number, dtype) for k, number in enumerate(array[0, :2])]
            larger = add_op(graph, "OneHot", name, inputs, dtype, array.shape, T=dtype, TI=INT, axis=-1)
            self.scale(larger.producer, 1)
            self.after[larger] = (count * RATIO, count * RATIO)
        elif counts and (array == first + line).all():
            larger = count_examples(step, dtype)
            if array.ndim > 1:
                shape = constant("column", np.array(column, np.int32))
                larger = add_op(graph, "Reshape", f"{name}/rows", [larger, shape], dtype, line.shape, T=dtype, Tshape=INT)
            if first.any():
                larger = add_op(graph, "AddV2", f"{name}/rows", [larger, constant("first", first, dtype)], dtype, array.shape, T=dtype)
        else:
            why = f"reads the constant {value.producer.name!r}, which has a row of its own for each of {count} examples"
            self.refuse(node, why, "it was made for one batch, and other batches have no such rows")
        if larger.last_shape != array.shape:
            inputs = [larger, constant("size", np.array(array.shape, np.int32))]
            larger = add_op(graph, "BroadcastTo", name, inputs, dtype, array.shape, T=dtype, Tidx=INT)
            self.scale(larger.producer, 1, axis)
        graph.replace_input(node, index, larger)
        remove_unread(graph, [value.producer])

    def _grow_computed(self, value: Value, axis: int) -> None:
        """Let the inputs of the node that makes a value grow, or the sizes that it reads."""
        node, shape, labels = value.producer, self.before[value] or (), self.labels.get(value.producer)
        label = labels.output[axis] if labels is not None and axis < len(labels.output) else None
        arrays = [self.array(node, k) for k in range(len(node.inputs))]
        sizes = [k for k, array in enumerate(arrays) if array is not None and array.ndim == 1 and array.tolist() == list(shape)]
        source = self.forwarded(value)
        if source is not None:
            self.grow(node, node.inputs.index(source), axis)
        elif node.op_type in RUNS_FUNCTIONS:
            for name in called_functions(node):
                self._grow_result(node.graph.functions[name].body, value.index, axis)
        elif node.op_type in RESHAPES:
            place = place_of_batch(self.before[node.inputs[0]], math.prod(d or 0 for d in shape[:axis]), shape[axis], self.old, 0)
            if place is not None:
                self.grow(node, 0, place[0])
            if node.op_type == "Reshape":
                self.scale(node, 1, axis)
        elif labels is not None and label is not None:
            for k, other in ((k, a) for k, each in enumerate(labels.inputs) for a, its in enumerate(each) if its == label):
                self.grow(node, k, other)
            for k, element in ((k, e) for k, each in labels.sizes.items() for e, its in enumerate(each) if its == label):
                self.scale(node, k, element)
        elif sizes:
            self.scale(node, sizes[0], axis)
        elif node.inputs and self.before[node.inputs[0]] == shape:
            self.grow(node, 0, axis)
        else:
            cause = "a variable has the same shape for all batches" if node.op_type in READS_OF_VARIABLES else ""
            self.refuse(node, f"makes {value.name!r}, whose dimension {axis} of size {shape[axis]} has to follow the batch", cause)

    # Functions

    def _run(self, node: Node) -> None:
        offset, is_loop = int(node.op_type in BRANCHES), node.op_type in LOOPS
        bodies = {name: node.graph.functions[name].body for name in called_functions(node)}
        self._inferred(node, self.after)
        for name, body in bodies.items():
            pairs = list(zip(body.inputs, node.inputs[offset:], strict=False))  # a gradient reads more than the arguments
            is_shared = self.callers.setdefault(body, (node, offset))[0] is not node
            for argument, value in pairs:
                before, after = self.before[value], self.after.get(value, self.before[value])
                if is_shared and (self.before.get(argument), self.after.get(argument)) != (before, after):
                    self.refuse(node, f"runs the function {name!r}, which others run with other shapes")
                if argument not in self.before or is_list(value):
                    self.before[argument] = before
                self.after[argument] = after
                self.dependent.update([argument] if value in self.dependent else ())
                self.lengths.update({argument: self.lengths[value]} if value in self.lengths else {})
            if not any(n in self.labels for n in body.nodes):
                self._begin(body)
        for body in bodies.values():
            self._pass(body)
        if node.op_type == GRADIENT_OF_FUNCTION:
            self.after.update(zip(node.outputs, (self.after.get(v, self.before[v]) for v in node.inputs), strict=False))
            return
        ways = [body for name, body in bodies.items() if not is_loop or name in called_functions(node, "body")]
        if is_loop:
            self.depend_later(a for body in ways for a, v in zip(body.inputs, body.outputs, strict=False) if v in self.dependent)
        for k, value in enumerate(node.outputs):
            self.after[value] = self.after.get(node.inputs[k], self.before[value]) if is_loop else self.before[value]
            results = [v for body in ways for v in (body.outputs[k], *(body.inputs[k : k + 1] if is_loop else ()))]
            for axis in {axis for v in results for axis in self.grown(v)}:
                if is_loop:
                    self.grow(node, k, axis)
                for body in ways:
                    if not self.power(body.outputs[k], axis):
                        self._grow_result(body, k, axis)
                if not self.power(value, axis):
                    self.after[value] = self._scaled(self.after[value], axis)


def _share(array: Array) -> int:
    """Return n where all numbers are 1 / n, as in the gradient of a mean; 0 otherwise."""
    number = float(array.flat[0]) if array.size and array.dtype.kind == "f" and (array == array.flat[0]).all() else 0.0
    count = round(1 / number) if number and np.isfinite(number) else 0
    return count if count > 0 and abs(number * count - 1) <= 1e-5 else 0


def _is_diagonal(array: Array) -> bool:
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array[0, 0] == array[0, 1]:
        return False
    diagonal = np.full(array.shape, array[0, 1])
    np.fill_diagonal(diagonal, array[0, 0])
    return np.array_equal(array, diagonal)


def place_of_batch(shape: Shape, position: int | None, size: int | None, old: int, ones: int) -> tuple[int, int] | None:
    """Return the dimension of a shape that the batch is in, and how many elements of this dimension stand before it.

    Args:
        position: how many elements stand before the batch in the whole tensor.
        size: the size of the dimension that held the batch before.
        ones: with a batch of one example, how many other dimensions of one element stand before it.

    >>> place_of_batch((4, 5, 8), 4, 5, 5, 0), place_of_batch((20, 8), 4, 5, 5, 0), place_of_batch((1, 1, 8), 1, 1, 1, 1)
    ((1, 1), (0, 4), (1, 1))
    """
    shape = shape or ()
    if position is None or None in shape:
        same = [axis for axis, d in enumerate(shape) if d == size]
        is_front = position == 1 and shape and (shape[0] is None or (shape[0] % old == 0 and shape[0] > 1))
        return (0, 1) if is_front else (same[0], 1) if len(same) == 1 else None
    fronts = [math.prod(d or 1 for d in shape[:axis]) for axis in range(len(shape))]
    if old == 1 and 1 in shape:
        free = [axis for axis, d in enumerate(shape) if d == 1 and fronts[axis] == position]
        return (free[min(ones, len(free) - 1)], 1) if free else None
    inside = (axis for axis, d in enumerate(shape) if position % fronts[axis] == 0 and fronts[axis] <= position < fronts[axis] * (d or 0))
    place = next(((axis, position // fronts[axis]) for axis in inside), None)
    return None if old == 1 and place is not None and place[0] > 0 and place[1] == 1 else place  # or at the end of the dimension before
