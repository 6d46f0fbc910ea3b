"""The batch, followed through a graph: which sizes were written down for it, and which dimensions follow.

The graph is looked at in two sizes: as it is, and with a batch that is `RATIO` times as large. Each dimension is then the same in both, or
that many times as large. Where a node cannot take what it reads at the larger size, a size was written down for the batch: dimensions that
go together (`analyze/split_rules`) say which one. A constant that holds such a size, or a row for each example where all rows are alike or
count the examples, is made to follow. Whatever is left is refused by name. The last pass over the graph changes nothing: it is the proof
that all shapes fit together at the larger size.

A number that no shape contradicts follows the batch in these places alone: what ends a slice of all examples; how often a loop runs that
reads or writes a row for each example; where rows are picked by numbers that count the examples; what divides a sum over the batch, or what
was repeated for it, by as many terms as there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, NoReturn

import numpy as np

from graphwright.analyze.flop_rules.rule import UnknownSizeError
from graphwright.analyze.frames import frame_names
from graphwright.analyze.split_rules.rule import Dimensions, number, whole
from graphwright.analyze.split_rules.table import RULES, by_elements, matrix_product, rows
from graphwright.errors import GraphError, first_line
from graphwright.ir.attributes import ShapeAttribute
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
    ENTERS,
    HANDS_ON_IN_TF1,
    LOOPS,
    MERGES,
    NEXT_ITERATIONS,
    SWITCHES,
    called_functions,
    is_back_edge,
    is_loop_condition,
)
from graphwright.ir.traits.rounds import is_both, is_less, is_list, keeps_length, reserves, unstacks
from graphwright.ir.traits.values import IDENTITIES, RESHAPES, index_behind, is_constant, origin
from graphwright.ir.walk import backward_reachable, topological_order
from graphwright.transform.batch_rows import map_rows
from graphwright.transform.constant_values import Constants, remove_unread
from graphwright.transform.interface import output_values

RATIO = 13
"""How many times as large the other batch is: a prime, of which hardly a size is a multiple by chance."""
_PASSES = 40
_HANDS_ON = HANDS_ON_IN_TF1 | IDENTITIES
_FUNCTIONS = BRANCHES | LOOPS | CALL_TYPES
_RULES = {**RULES, "CropAndResize": rows("---- n- n - -> n---")}
_COUNTS_ON = frozenset("Range Tile BroadcastTo Transpose Pack ConcatV2".split()) | RESHAPES | IDENTITIES
_SCATTERS = frozenset(f"TensorScatter{kind}" for kind in ("Update", "Add", "Sub", "Min", "Max"))
_PICKS = dict.fromkeys(["Gather", "GatherV2", "GatherNd", *_SCATTERS], (0, 1)) | {"CropAndResize": (0, 2)}
"""Which input has rows that are read or written by the numbers in which other one."""
_PLACES = {"OneHot": (1, 0), "ScatterNd": (2, 0)} | {f"UnsortedSegment{kind}": (2, 1) for kind in ("Sum", "Max", "Min", "Prod")}
"""Which input says first how many rows there are, that are placed by the numbers in which other one."""
_MASKS = ("shrink_axis", "begin", "end", "new_axis", "ellipsis")
_REDUCES = frozenset({"Sum", "Mean"})
_IN_RANGES = frozenset({"int32", "int64", "float32", "float64"})
_INT = DTYPES["int32"]


@dataclass
class _Baked:
    """Numbers of a constant, which one input of a node reads, and by element the power of the batch that they follow."""

    old: Array
    reader: Node
    index: int
    powers: dict[int, int] = field(default_factory=dict[int, int])

    def at(self, ratio: float) -> Array:
        """The numbers where the batch is so many times as large."""
        factors = [float(ratio) ** self.powers.get(k, 0) for k in range(self.old.size)]
        found = self.old * np.reshape(factors, self.old.shape)
        if self.old.dtype.kind == "i" and (found != np.round(found)).any():
            where, remedy = f"node {self.reader.name!r}", "give a batch size of which the old one is a divisor"
            raise GraphError(f"{self.reader.name!r} takes a part of the batch, which would be {found.tolist()}", where=where, remedy=remedy)
        return found.astype(self.old.dtype)


class _ChangedError(Exception):
    """Nodes were replaced, so that the pass begins again."""


class BatchTrace:
    """A graph and the bodies of its functions, at two batch sizes.

    Args:
        rules: the rule for shapes of each of them.
        old: the batch size of the graph.
    """

    def __init__(self, graph: Graph, rules: Mapping[Graph, ShapeTracker | None], old: int) -> None:
        self.graph, self.rules, self.old = graph, rules, old
        self.then: dict[Value, Shape] = {}  # of a list, the shape of its elements
        self.now: dict[Value, Shape] = {}  # where the batch is larger
        self._lengths: dict[Value, tuple[int | None, int | None]] = {}  # of a list, then and now
        self._baked: dict[Node, _Baked] = {}
        self._behind: set[Value] = set()  # what depends on the batch
        self._counting: set[Value] = set()  # numbers that count examples
        self._digits: dict[tuple[Value, int], tuple[int, ...]] = {}  # how many elements of a dimension stand before each batch in it
        self._terms: dict[Value, tuple[tuple[int, ...], int]] = {}  # of a sum over the batch, its sizes, and the power of the batch
        self._labels: dict[Node, Dimensions] = {}
        self._callers: dict[Graph, tuple[Node, int]] = {}
        self._frames: dict[Graph, dict[Node, tuple[str, ...]]] = {}
        self._asked: set[tuple[Node, int, int]] = set()
        self._fed: Mapping[Value, Shape] = {}
        self._later: set[Value] = set()  # what loops make depend on the batch in the second round
        self._is_changed = False
        self._constants = Constants(lambda node: node in self._baked or (node.op_type in SCALES and node.outputs[0].last_shape != ()))

    def follow(self, larger: Mapping[Value, Shape], defaults: bool) -> None:
        """Let all that was written down for the batch follow it, where these inputs have other shapes.

        Args:
            defaults: whether the values that inputs have when nobody feeds them follow too.

        Raises:
            GraphError: of a node it is not known how it would follow the batch.
        """
        self._begin(self.graph)
        for node in self.graph.nodes:
            if node.op_type.startswith("TensorArray"):
                self.refuse(node, "is of an array of TF1, whose sizes are not followed")
        self.now, self._fed = dict(larger), larger
        for value, axis in ((v, a) for v in larger for a in self._grown(v) if defaults and v.producer.inputs):
            self._grow(value.producer, 0, axis)
        for _ in range(_PASSES):
            self._is_changed = False
            self.now, self._lengths, self._digits, self._terms, self._counting = dict(larger), {}, {}, {}, set()
            self._behind = {*larger, *self._later, *(node.outputs[0] for node in self._baked)}
            with suppress(_ChangedError):
                self._pass(self.graph)
                if not self._is_changed:
                    self._check_outputs()
                    return
        raise GraphError("the sizes that follow the batch come to no end", where=f"graph {self.graph.name!r}")

    def _check_outputs(self) -> None:
        for value in output_values(self.graph):
            if value in self._behind and self.size(value, 0) == self.old and not self._grown(value):
                self.refuse(value.producer, f"makes an output whose first dimension is {self.old}, and does not follow the batch")

    def _begin(self, graph: Graph) -> None:
        """Note the shapes of a graph as it is, and which dimensions go together."""
        for node in topological_order(graph):
            self.then.update((value, value.last_shape) for value in node.outputs if value not in self.then)
            if node.inputs and any(is_list(v) or None in (self.then[v] or (None,)) for v in node.outputs):
                shapes = zip(node.outputs, self._inferred(node, self.then), strict=True)
                self.then.update((value, shape if is_list(value) else filled(self.then[value], shape)) for value, shape in shapes)
            self._write(node, self.then)
        for node in graph.nodes:
            rule = None if node.op_type in RESHAPES or not node.outputs else _RULES.get(node.op_type)
            for k, value in enumerate(node.inputs if rule is not None and rule is not by_elements else ()):
                array = self._constants(value) if value.dtype == _INT and not is_constant(value.producer) else None
                if array is not None:
                    graph.replace_input(node, k, self._constant(f"{node.name}/value", array.astype(np.int32), value))
            with suppress(UnknownSizeError, IndexError, ValueError):
                self._labels.update({node: rule(node)} if rule is not None else {})

    def _pass(self, graph: Graph) -> None:
        """The larger shapes of all nodes, and what has to follow for them."""
        for node in topological_order(graph):
            self.then.update((value, value.last_shape) for value in node.outputs if value not in self.then)
            is_behind = any(value in self._behind for value in node.inputs if not is_back_edge(value, node))
            self._behind.update(node.outputs if is_behind else ())
            is_read = is_behind or (node.inputs and any(map(is_list, (*node.inputs, *node.outputs))))
            if is_read and self._fed.keys().isdisjoint(node.outputs):
                self._visit(node)
            self.now.update((value, self.then[value]) for value in node.outputs if value not in self.now)
            self._write(node, self.now)

    def _visit(self, node: Node) -> None:
        for op_types, work in self._work():
            if node.op_type in op_types:
                work(node)
        labels = self._labels.get(node)
        if labels is not None:
            self._agree(node, labels)
        if node.op_type not in _FUNCTIONS:
            found = self._by_labels(node, labels)
            self.now.update(zip(node.outputs, self._inferred(node, self.now) if found is None else [found], strict=True))
        for value in node.outputs:
            then, now = self.then[value], self.now[value]
            if then is not None and now is not None and len(now) != len(then):
                self.refuse(node, f"makes {len(then)} dimensions of the batch of {self.old}, and {len(now)} of a larger one")
        if self.old == 1 and node.op_type not in RESHAPES | _HANDS_ON | _FUNCTIONS:
            self._check_apart(node, labels)
        self._note_digits(node, labels)
        self._note_terms(node, labels)
        goes_on = node.op_type in _COUNTS_ON or _RULES.get(node.op_type) is by_elements
        if goes_on and (node.inputs[0] in self._counting or (node.op_type == "Range" and self._grown(node.outputs[0]))):
            self._counting.add(node.outputs[0])

    def _work(self) -> Sequence[tuple[frozenset[str], Callable[[Node], None]]]:
        """What looks at nodes of some types, beside the shapes."""
        return (
            (RESHAPES, self._reshape),
            (frozenset({"StridedSlice", "Slice"}), self._cut),
            (frozenset({"Unpack", "Split", "SplitV"}), self._split),
            (frozenset(_PICKS), self._pick),
            (frozenset(_PLACES), self._place),
            (frozenset({"TensorListGetItem", "TensorListSetItem"}), lambda node: self._count_rounds(node, *self._length(node.inputs[0]))),
            (_FUNCTIONS, self._run),
            (MERGES | NEXT_ITERATIONS, self._meet),
            (SCALES, self._divide),
            (frozenset({"TopKV2"}), self._order),
            (frozenset({"EnsureShape", "TensorListStack"}), self._forget),
        )

    def refuse(self, node: Node, why: str, cause: str = "") -> NoReturn:
        """Raise an error that names the node."""
        where = f"node {node.name!r}" + ("" if node.graph is self.graph else f" of function {node.graph.name!r}")
        remedy = "build the model with sizes from tf.shape, or for the other batch; or replace this node before"
        raise GraphError(f"{node.op_type} {node.name!r} {why}", where=where, cause=cause, remedy=remedy)

    # Shapes

    def _power(self, value: Value, axis: int) -> int:
        """With which power of the batch a dimension grows."""
        then, now = self.size(value, axis), (self.now.get(value) or ())[axis : axis + 1]
        return 0 if then is None or now in ((), (then,), (None,)) else 2 if now == (then * RATIO**2,) else 1

    def size(self, value: Value, axis: int) -> int | None:
        """The size of a dimension in the graph as it is."""
        return next(iter((self.then.get(value) or ())[axis:][:1]), None)

    def _grown(self, value: Value) -> list[int]:
        return [axis for axis in range(len(self.then.get(value) or ())) if self._power(value, axis)]

    def _multiples(self, value: Value) -> list[tuple[Value, int]]:
        """The dimensions of a value that are so many batches."""
        then, now = self.then.get(value) or (), self.now.get(value) or ()
        pairs = enumerate(zip(then, now, strict=False))
        return [(value, axis) for axis, (a, b) in pairs if a and a % self.old == 0 and b == a * RATIO]

    def _length(self, value: Value) -> tuple[int | None, int | None]:
        return self._lengths.get(value, (None, None))

    def _write(self, node: Node, known: Mapping[Value, Shape]) -> None:
        for value in node.outputs:
            if not is_list(value):
                write_shape(value, known[value])

    def _by_labels(self, node: Node, labels: Dimensions | None) -> Shape:
        """The larger shape, where each dimension is one of an input."""
        value = node.outputs[0] if len(node.outputs) == 1 else None
        if labels is None or value is None or is_list(value) or len(labels.output) != len(self.then[value] or ()):
            return None
        read = zip(labels.inputs, node.inputs, strict=True)
        sizes = {(label, now) for each, v in read for label, now in zip(each, self.now.get(v) or (), strict=False) if label is not None}
        found = tuple(dict(sizes).get(label) for label in labels.output)
        return None if None in found or len(dict(sizes)) < len(sizes) else found

    def _inferred(self, node: Node, known: Mapping[Value, Shape]) -> list[Shape]:
        is_now, first = known is self.now, node.inputs[0]
        handed = {v: w for v in node.outputs if (w := self._handed_on(v)) is not None}
        self._lengths.update((v, self._lengths[w]) for v, w in handed.items() if w in self._lengths)
        if node.op_type in _HANDS_ON | _FUNCTIONS:
            given = [handed.get(v, v) if is_list(v) or node.op_type in _HANDS_ON else v for v in node.outputs]
            return [() if node.op_type in MERGES and k else known.get(v, v.last_shape) for k, v in enumerate(given)]
        if unstacks(node):
            self._lengths[node.outputs[0]] = self.size(first, 0), next(iter(self.now.get(first) or ()), None)
            return [(known.get(first) or ())[1:]]
        if reserves(node):
            then, now = (self._array(node, 1, now=now) for now in (False, True))
            self._lengths[node.outputs[0]] = None if then is None else int(then), None if now is None else int(now)
        if any(map(is_list, (*node.inputs, *node.outputs))) and len(node.outputs) == 1:
            k = 0 if is_list(node.outputs[0]) else len(node.inputs) - 1  # says the shape of the elements
            array = None if is_list(node.inputs[k]) else self._array(node, k, now=is_now)
            stated: Shape = None if array is None or not array.ndim else tuple(None if d < 0 else int(d) for d in array)
            items = [stated, known.get(first) if is_list(first) else None, known.get(node.inputs[-1]) if keeps_length(node) else None]
            element = next((shape for shape in items if shape is not None), None)
            if element is not None and node.op_type == "TensorListStack":
                return [(self._length(first)[is_now], *element)]
            if is_list(node.outputs[0]) or (element is not None and node.op_type in TAKES_OUT_OF_LIST):
                return [element]
        shapes = self.rules.get(node.graph)
        if shapes is None:
            if known is self.then:
                return [known[v] for v in node.outputs]
            self.refuse(node, "has shapes that no rule of the graph infers", "the graph was not loaded by graphwright.load")
        for value in node.inputs:
            self._write(value.producer, {**{v: v.last_shape for v in value.producer.outputs}, value: known.get(value, value.last_shape)})
        try:
            return list(shapes.infer([node])[0])
        except GraphError as error:
            cause = f"at {RATIO} times the batch {first_line(error).removeprefix('TensorFlow refuses the graph: ')}"
            self.refuse(node, "holds a size of the batch that was not found", cause)

    def _handed_on(self, value: Value) -> Value | None:
        """The input that a value is, or of a loop the one that it begins with."""
        node = value.producer
        if node.op_type in MERGES:
            return next((v for v in node.inputs if not is_back_edge(v, node)), None)
        is_handed = node.op_type in _HANDS_ON | LOOPS or (keeps_length(node) and is_list(value))
        return node.inputs[index_behind(value)] if is_handed and node.inputs else None

    def _scaled(self, shape: Shape, axis: int) -> Shape:
        return tuple(d * RATIO if k == axis and d is not None else d for k, d in enumerate(shape or ()))

    # Constants

    def _source(self, node: Node, index: int) -> tuple[Node, int]:
        """Who reads an input first, in this graph or around it, before it is handed on unchanged in all rounds of a loop."""
        value, graph = node.inputs[index], node.graph
        made = value.producer
        if graph in self._callers and value in graph.inputs:
            caller, offset = self._callers[graph]
            k = graph.inputs.index(value)
            body = graph.functions[called_functions(caller, "body")[0]].body if caller.op_type in LOOPS else None
            return (node, index) if body and origin(body.outputs[k]) is not body.inputs[k] else self._source(caller, offset + k)
        backs = [v.producer.inputs[0] for v in made.inputs if is_back_edge(v, made)]
        if made.op_type in _HANDS_ON and made.inputs and all(origin(v, IDENTITIES | SWITCHES).producer is made for v in backs):
            return self._source(made, next(k for k, v in enumerate(made.inputs) if v is self._handed_on(value)))
        return node, index

    def _array(self, node: Node, index: int, *, now: bool = False) -> Array | None:
        """The numbers that an input holds in all runs, in the graph as it is or at the larger batch."""
        reader, k = self._source(node, index)
        baked = self._baked.get(reader.inputs[k].producer)
        return self._constants(reader.inputs[k]) if baked is None else baked.at(RATIO) if now else baked.old

    def _scale(self, node: Node, index: int, element: int = 0, power: int = 1) -> None:
        """Let an element of a constant input, which is a size of the batch, follow it; of what is computed, the constant part."""
        node, index = self._source(node, index)
        value, array = node.inputs[index], self._array(node, index)
        if array is None:
            made = origin(value).producer
            if made.op_type == "Pack":
                self._scale(made, element, 0, power)
            for k, part in enumerate(made.inputs[:-1] if made.op_type == "ConcatV2" else ()):
                if 0 <= element < (count := self.size(part, 0) or 0):
                    self._scale(made, k, element, power)
                element -= count
            return
        if array.reshape(-1)[element] == -1:
            return
        if value.producer not in self._baked:
            made = self._constant(f"{node.name}/batch", array, value, value.dtype)
            self._baked[made.producer] = _Baked(array, node, index)
            node.graph.replace_input(node, index, made)
            remove_unread(node.graph, [value.producer])
        const = node.inputs[index].producer
        if self._baked[const].powers.setdefault(element, 0) != power:
            self._baked[const].powers[element] = power
            node.graph.set_attr(const, "value", tensor_attribute(self._baked[const].at(RATIO), value.dtype))
            self._is_changed = True

    def _constant(self, name: str, array: Array, beside: Value, dtype: DType | None = None) -> Value:
        """A constant that waits for what another value waits for, so that it is in the same loop."""
        made = add_constant(beside.producer.graph, name, np.asarray(array), dtype=dtype, device=beside.producer.device)
        for node in beside.producer.control_inputs:
            node.graph.add_control_input(made.producer, node)
        return made

    # What has to grow

    def _agree(self, node: Node, labels: Dimensions) -> None:
        """Let dimensions that go together grow together, and the sizes of them that constants hold."""
        places = [(label, k, axis) for k, each in enumerate(labels.inputs) for axis, label in enumerate(each) if label is not None]
        grown = {label: power for label, k, axis in places if (power := self._power(node.inputs[k], axis))}
        repeats = _RULES.get(node.op_type) in (by_elements, matrix_product)
        for label, k, axis in places:
            value = node.inputs[k]
            if label in grown and not (repeats and self.size(value, axis) == 1):
                self._grow(node, k, axis)
            elif label in grown and self.old == 1 and value not in self._behind and self._counts_one(value):
                self.refuse(node, f"reads {value.name!r}, which may count the one example")
        for k, element in ((k, e) for k, each in labels.sizes.items() for e, label in enumerate(each) if label in grown):
            self._scale(node, k, element, grown[labels.sizes[k][element]])

    def _counts_one(self, value: Value) -> bool:
        """Whether a batch of one example may have made a value: its number, or a mean over it."""
        before = backward_reachable([value.producer])
        divided = any(node.op_type in SCALES and (array := self._array(node, 1)) is not None and (array == 1).all() for node in before)
        return divided or any(node.op_type == "Range" and self.size(node.outputs[0], 0) == 1 for node in before)

    def _check_apart(self, node: Node, labels: Dimensions | None) -> None:
        """With a batch of one example, what is computed along a dimension that holds it and more was not meant for several examples."""
        for k, axis in ((k, a) for k, v in enumerate(node.inputs) for a in self._grown(v) if (self.size(v, a) or 1) > 1):
            label = None if labels is None else labels.inputs[k][axis]
            is_product = labels is not None and labels.sums and len(node.inputs) > 1 and node.op_type not in _REDUCES
            if label is None or labels is None or not (label in labels.output or is_product):
                self.refuse(node, f"computes along dimension {axis} of {node.inputs[k].name!r}, which holds the example and more")

    def _grow(self, node: Node, index: int, axis: int) -> None:
        """Let an input of a node follow the batch along an axis.

        Raises:
            GraphError: what the input is made of cannot follow; the error names it.
        """
        value = node.inputs[index]
        size = self.size(value, axis)
        if size is None or self._power(value, axis):
            return
        if (node, index, axis) in self._asked:
            self.refuse(node, f"reads {value.name!r}, whose dimension {axis} of size {size} does not follow the batch")
        self._asked.add((node, index, axis))
        self._is_changed = True
        array = self._array(node, index)
        if array is not None:
            self._grow_constant(*self._source(node, index), axis, array)
        elif node.graph in self._callers and value in node.graph.inputs:
            caller, offset = self._callers[node.graph]
            self._grow(caller, offset + node.graph.inputs.index(value), axis)
        else:
            self._grow_made(value, axis)
        value = node.inputs[index]
        self.then.setdefault(value, value.last_shape)
        if not self._power(value, axis):
            self.now[value] = self._scaled(self.now.get(value, self.then[value]), axis)
        self._behind.add(value)

    def _grow_result(self, body: Graph, k: int, axis: int) -> None:
        value = body.outputs[k]
        if value.producer.op_type not in IDENTITIES:
            same = add_op(body, "Identity", f"{value.producer.name}/batch", [value], value.dtype, self.then[value], T=value.dtype)
            body.outputs = [same if j == k else v for j, v in enumerate(body.outputs)]
        self._grow(body.outputs[k].producer, index_behind(body.outputs[k]), axis)

    def _grow_constant(self, node: Node, index: int, axis: int, array: Array) -> None:
        """Repeat rows that are all alike, count examples on, or make a larger diagonal."""
        value, name, graph = node.inputs[index], f"{node.name}/batch", node.graph
        dtype, count = value.dtype, array.shape[axis]
        is_counted = count > 1 and dtype.name in _IN_RANGES
        step: Any = np.diff(np.moveaxis(array, axis, 0).reshape(count, -1)[:2, 0]) if is_counted else np.ones(1, np.int32)
        line = np.reshape(step * np.arange(count, dtype=np.int64), [-1 if k == axis else 1 for k in range(array.ndim)])
        first = np.take(array, [0], axis)

        def constant(key: str, array: Any, dtype: DType = _INT) -> Value:
            return self._constant(f"{name}/{key}", array, value, dtype)

        def count_to(size: Any, step: Any, dtype: DType) -> Value:
            ends = [constant(key, number, dtype) for key, number in (("start", step * 0), ("limit", size), ("delta", step))]
            made = add_op(graph, "Range", f"{name}/rows", ends, dtype, (count,), Tidx=dtype)
            self._scale(made.producer, 1)
            return made

        if array.size == 1 and array.dtype.kind == "i" and not array.any():
            self.refuse(node, f"reads the constant {value.producer.name!r}, which is 0 or counts the one example")
        if (array == first).all():
            made = constant("element", first.reshape(-1)[0] if (array == array.flat[0]).all() else first, dtype)
        elif _is_diagonal(array):
            inputs = [count_to(np.int32(count), np.int32(1), _INT), constant("depth", np.int32(count))]
            inputs += [constant(f"element/{k}", k, dtype) for k in array[0, :2]]
            made = add_op(graph, "OneHot", name, inputs, dtype, array.shape, T=dtype, TI=_INT, axis=-1)
            self._scale(made.producer, 1)
            self.now[made] = (count * RATIO, count * RATIO)
        elif is_counted and (array == first + line).all():
            made = count_to(count * step[0], step[0], dtype)
            if array.ndim > 1:
                shape = constant("column", np.array([-1 if k == axis else 1 for k in range(array.ndim)], np.int32))
                made = add_op(graph, "Reshape", f"{name}/rows", [made, shape], dtype, line.shape, T=dtype, Tshape=_INT)
            if first.any():
                made = add_op(graph, "AddV2", f"{name}/rows", [made, constant("first", first, dtype)], dtype, array.shape, T=dtype)
        else:
            why = f"reads the constant {value.producer.name!r}, which has a row of its own for each of {count} examples"
            self.refuse(node, why, "it was made for one batch, and other batches have no such rows")
        if made.last_shape != array.shape:
            inputs = [made, constant("size", np.array(array.shape, np.int32))]
            made = add_op(graph, "BroadcastTo", name, inputs, dtype, array.shape, T=dtype, Tidx=_INT)
            self._scale(made.producer, 1, axis)
        graph.replace_input(node, index, made)
        remove_unread(graph, [value.producer])

    def _grow_made(self, value: Value, axis: int) -> None:
        """Let the inputs of what makes a value grow, or sizes that it reads."""
        node, then, labels = value.producer, self.then[value] or (), self._labels.get(value.producer)
        label = labels.output[axis] if labels is not None and axis < len(labels.output) else None
        arrays = [self._array(node, k) for k in range(len(node.inputs))]
        sizes = [k for k, array in enumerate(arrays) if array is not None and array.ndim == 1 and array.tolist() == list(then)]
        if node.op_type in MERGES:
            self._grow(node, next(k for k, v in enumerate(node.inputs) if not is_back_edge(v, node)), axis)
        elif node.op_type in _HANDS_ON | LOOPS:
            self._grow(node, index_behind(value), axis)
        elif node.op_type in _FUNCTIONS:
            for name in called_functions(node):
                self._grow_result(node.graph.functions[name].body, value.index, axis)
        elif node.op_type in RESHAPES:
            found = _place(self.then[node.inputs[0]], math.prod(d or 0 for d in then[:axis]), self.size(value, axis), self.old, 0)
            if found is not None:
                self._grow(node, 0, found[0])
            if node.op_type == "Reshape":
                self._scale(node, 1, axis)
        elif labels is not None and label is not None:
            for k, other in ((k, a) for k, each in enumerate(labels.inputs) for a, its in enumerate(each) if its == label):
                self._grow(node, k, other)
            for k, element in ((k, e) for k, each in labels.sizes.items() for e, its in enumerate(each) if its == label):
                self._scale(node, k, element)
        elif sizes:
            self._scale(node, sizes[0], axis)
        elif node.inputs and self.then[node.inputs[0]] == then:
            self._grow(node, 0, axis)
        else:
            self.refuse(node, f"makes {value.name!r}, whose dimension {axis} of size {then[axis]} has to follow the batch")

    # What shapes do not contradict

    def _reshape(self, node: Node) -> None:
        value, made = node.inputs[0], node.outputs[0]
        before, after, grown = self.then[value], self.then[made], self._grown(value)
        sizes = self._array(node, 1) if node.op_type == "Reshape" else None
        if not grown and None in (before or (None,)) and sizes is not None and self.old > 1 and (sizes == self.old).any():
            self.refuse(node, f"brings an unknown number of elements into {sizes.tolist()}; whether {self.old} is the batch is not known")
        digits: dict[int, tuple[int, ...]] = {}
        for axis in grown:
            sizes_before = (before or ())[:axis]
            front = None if None in sizes_before else math.prod(d or 0 for d in sizes_before)
            ones = sizes_before.count(1) if front == 1 else 0
            for digit in self._digits.get((value, axis), (1,) * self._power(value, axis)):
                found = _place(after, None if front is None else front * digit, self.size(value, axis), self.old, ones)
                if found is None:
                    self.refuse(node, f"brings {before} into {after}; which of these sizes is the batch is not known")
                digits[found[0]] = (*digits.get(found[0], ()), found[1])
        self._digits.update(((made, axis), places) for axis, places in digits.items())
        for axis, places in digits.items() if node.op_type == "Reshape" else ():
            self._scale(node, 1, axis, len(places))

    def _note_digits(self, node: Node, labels: Dimensions | None) -> None:
        """Where the batch stands in dimensions that are more than the batch."""
        for value, axis in ((v, a) for v in node.outputs for a in self._grown(v) if node.op_type not in RESHAPES):
            for k, (source, other) in ((k, (v, a)) for k, v in enumerate(node.inputs) for a in self._grown(v) if (v, a) in self._digits):
                same = labels is None or labels.inputs[k][other : other + 1] == labels.output[axis : axis + 1]
                if same and self.size(source, other) == self.size(value, axis):
                    self._digits[value, axis] = self._digits[source, other]

    def _cut(self, node: Node) -> None:
        """Slices of the batch: all of it, or what does not depend on its size."""
        value, is_strided = node.inputs[0], node.op_type == "StridedSlice"
        begins, ends = (None if (array := self._array(node, k)) is None else array.tolist() for k in (1, 2))
        shrinks, *masks = (number(node, f"{name}_mask") for name in _MASKS)
        axis, places = 0, (self.size(node.inputs[1], 0) or 0) if is_strided else len(self.then[value] or ())
        for k in range(places):
            is_begin, is_end, is_new, is_rest = (mask >> k & 1 for mask in masks)
            if is_rest:
                axis = len(self.then[value] or ()) - sum(not masks[2] >> j & 1 for j in range(k + 1, places))
            if is_rest or is_new:
                continue
            size, begin = self.size(value, axis) or 0, 0 if is_begin else None if begins is None else begins[k]
            axis += 1
            if not self._power(value, axis - 1):
                continue
            if shrinks >> k & 1:
                if begin is None:
                    self._count_rounds(node, size, size * RATIO, axis - 1)
                elif self.old == 1 or begin not in (0, -1):
                    self._map_rows(node, f"reads example {begin} of {size} alone")
            elif begin is not None and ends is not None:
                end = ends[k] if is_strided or ends[k] < 0 else begin + ends[k]
                is_open = is_end or end < 0 or (is_strided and end >= 2**31 - 1)
                fits = begin <= 0 or begin % self.old == 0 or ((is_open or end == size) and self.old > 1)
                if not fits or not (is_open or end % self.old == 0 or (begin == 0 and end == 1)):
                    self.refuse(node, f"takes examples {begin} to {end} of {size}", "how many of another batch that is, is not known")
                if begin > 0 and begin % self.old == 0:
                    self._scale(node, 1, k)
                if not is_open and ends[k] % self.old == 0:
                    self._scale(node, 2, k)

    def _split(self, node: Node) -> None:
        """Pieces of the batch, as many whatever its size is."""
        value = node.inputs[node.op_type == "Split"]
        along = number(node, "axis") if node.op_type == "Unpack" else self._array(node, 0 if node.op_type == "Split" else 2)
        if along is None or not self._power(value, int(along)):
            return
        sizes = self._array(node, 1) if node.op_type == "SplitV" else None
        if sizes is not None and not (sizes % self.old).any():
            for element in range(sizes.size):
                self._scale(node, 1, element)
        elif node.op_type != "Split" or len(node.outputs) % self.old == 0:
            self._map_rows(node, f"takes the {self.size(value, int(along))} examples apart into {len(node.outputs)} values")

    def _map_rows(self, node: Node, why: str) -> None:
        """Let the same be done to as many examples as there are, where it is done to each of them alone."""
        rows: dict[Value, tuple[Value, int]] = {}
        for each in node.graph.nodes:
            if each.op_type in ("Unpack", "Split", "StridedSlice"):
                value = each.inputs[each.op_type == "Split"]
                begin = self._array(each, 1) if each.op_type == "StridedSlice" else None
                axis = self._array(each, 0) if each.op_type == "Split" else number(each, "axis")
                if begin is not None and begin.size == number(each, "shrink_axis_mask") == 1 and self.size(value, 0) == self.old:
                    rows[each.outputs[0]] = value, int(begin[0]) % self.old
                elif begin is None and axis == 0 and self.size(value, 0) == len(each.outputs) == self.old:
                    rows.update((v, (value, k)) for k, v in enumerate(each.outputs))
        for made, own in map_rows(node.graph, rows, self.old, self.then):
            each = tuple(("n", *whole(len(v.last_shape or ()) - 1)) if k < own else () for k, v in enumerate(made.inputs))
            self._labels[made] = Dimensions(each, ("n", *whole(len(made.outputs[0].last_shape or ()) - 1)))
        if node.graph.owns(node) and any(v.uses for v in node.outputs):
            self.refuse(node, why, "not the same is done to each, or the results are not joined in their order")
        raise _ChangedError

    def _pick(self, node: Node) -> None:
        """Rows of the batch that are picked by number."""
        data, index = _PICKS[node.op_type]
        along, numbers = self._array(node, 2) if node.op_type == "GatherV2" else np.array(0), self._array(node, index)
        axis = 0 if along is None else int(along)
        size = self.size(node.inputs[data], axis)
        if node.op_type in _SCATTERS and self._power(node.inputs[2], 0):
            self._grow(node, index, 0)
        power = self._power(node.inputs[data], axis)
        if numbers is None and size is not None and math.prod(d or 0 for d in self.then[node.inputs[index]] or ()) == 1:
            self._count_rounds(node, size, size * RATIO**power, axis)
        elif not power:
            if node.inputs[index] in self._counting and size == self.old:
                self._grow(node, data, axis)
        elif numbers is not None:
            picked = (numbers[..., 0] if node.op_type in {"GatherNd", *_SCATTERS} else numbers).reshape(-1)
            if numbers.ndim and np.array_equal(picked, np.arange(size or 0)):
                self._grow(node, index, 0)
            elif picked.any() or self.old == 1:
                self.refuse(node, f"picks examples {picked[:8].tolist()} by number", "which these are of another batch is not known")

    def _order(self, node: Node) -> None:
        """All examples, in another order."""
        value = node.inputs[0]
        last, count = len(self.then[value] or ()) - 1, self._array(node, 1)
        if self._power(value, last) and count is not None and int(count) == self.size(value, last):
            self._scale(node, 1)

    def _place(self, node: Node) -> None:
        """As many rows as a number says, which are counted by examples."""
        sized, index = _PLACES[node.op_type]
        array = self._array(node, sized)
        if node.inputs[index] in self._counting and array is not None and array.reshape(-1)[0] == self.old:
            self._scale(node, sized)

    def _divide(self, node: Node) -> None:
        """A mean over the batch that was written as a sum, divided by a number."""
        is_product = node.op_type.startswith("Mul")
        for k in (0, 1) if is_product else (1,):
            sizes, degree = self._terms.get(node.inputs[1 - k], ((), 0))
            array = self._array(node, k)
            if not degree or array is None or array.size != 1 or not array.any():
                continue
            by = float(array.reshape(())) ** (-1 if is_product else 1)
            parts = {math.prod(part): len(part) for n in range(len(sizes) + 1) for part in combinations(sizes, n)}
            whole_number = round(by) if abs(by - round(by)) <= 1e-5 * abs(by) else 0
            if (self.old > 1 or whole_number == 1) and parts.get(whole_number) == len(sizes):
                self._scale(node, k, 0, -degree if is_product else degree)
            elif self.old > 1 and whole_number and whole_number % self.old == 0 and whole_number // self.old in parts:
                self._scale(node, k, 0, -1 if is_product else 1)
            elif whole_number > 1 and (whole_number in parts if is_product else whole_number % self.old == 0):
                self.refuse(node, f"divides a sum over the batch by {whole_number}; whether that is for a mean over the batch is not known")

    def _note_terms(self, node: Node, labels: Dimensions | None) -> None:
        own = [value for value in node.inputs if value.producer in self._baked]
        if not node.outputs or (own and node.op_type in SCALES):
            return
        made, count = node.outputs[0], math.prod(d or 0 for d in self.then[node.outputs[0]] or ())
        if labels is not None and labels.sums and labels.divisor == 1 and not labels.term:
            gone = {label: (v, a) for each, v in zip(labels.inputs, node.inputs, strict=True) for a, label in enumerate(each)}
            summed = [place for label, place in gone.items() if label is not None and label not in labels.output]
            degree = sum(self._power(*place) for place in summed)
            if degree:
                self._terms[made] = tuple(self.size(*place) or 0 for place in summed), degree
        elif own and node.op_type in ("Tile", "BroadcastTo", "Fill"):
            read = max((math.prod(d or 0 for d in self.then[v] or ()) for v in node.inputs if v not in own), default=1)
            self._terms[made] = (count // max(read, 1),), 1
        elif node.op_type in RESHAPES | _HANDS_ON or _RULES.get(node.op_type) is by_elements:
            found = {self._terms[v] for v in node.inputs if v in self._terms}
            self._terms.update({made: found.pop()} if len(found) == 1 else {})

    def _forget(self, node: Node) -> None:
        """Sizes that are only asserted."""
        shape, (then, now) = node.attrs.get("shape"), self._length(node.inputs[0])
        if then != now:
            node.graph.set_attr(node, "num_elements", -1)
        if isinstance(shape, ShapeAttribute) and shape.shape is not None:
            grown = self._grown(node.inputs[0])
            node.graph.set_attr(node, "shape", ShapeAttribute(tuple(None if k in grown else d for k, d in enumerate(shape.shape))))

    # Loops and functions

    def _count_rounds(self, node: Node, then: int | None, now: int | None, axis: int = 0) -> None:
        """Let a loop that reads or writes one of so many rows in each round make as many rounds."""
        known = [(n, k, array) for n, k in self._bounds(node) if (array := self._array(n, k)) is not None]
        same = [(n, k) for n, k, array in known if array == then]
        if then is None or not known:
            return
        if now != then:
            if not same and len(known) == len(list(self._bounds(node))):
                self.refuse(node, f"reads one of {then} examples in each round of a loop that makes {known[0][2]} rounds")
            for n, k in same:
                self._scale(n, k)
        elif any(self._array(n, k, now=True) != then for n, k in same) and not is_list(node.inputs[0]):
            self._grow(node, 0, axis)
        elif any(self._array(n, k, now=True) != then for n, k in same):
            value, made = node.inputs[0], node.inputs[0].producer
            while (before := self._handed_on(value)) is not None or (made.graph in self._callers and value in made.graph.inputs):
                if before is None:
                    caller, offset = self._callers[made.graph]
                    before = caller.inputs[offset + made.graph.inputs.index(value)]
                value, made = before, before.producer
            if unstacks(made):
                self._grow(made, 0, 0)
            elif reserves(made):
                self._scale(made, 1)
            else:
                self.refuse(node, f"reads or writes one of {then} rows in each round of a loop over the batch")

    def _bounds(self, node: Node) -> Iterator[tuple[Node, int]]:
        """The inputs that the condition of the loop around a node compares with its counters."""
        graph = node.graph
        frames = self._frames_of(graph)
        waiting = [n for n in graph.nodes if is_loop_condition(n) and frames.get(node) == frames.get(n)]
        while not waiting and graph in self._callers:
            caller, _ = self._callers[graph]
            graph = caller.graph
            if caller.op_type in LOOPS:
                waiting = [graph.functions[called_functions(caller, "cond")[0]].body.outputs[0].producer]
        while waiting:
            made = waiting.pop()
            if is_less(made):
                yield made, 1
            elif is_both(made) or made.op_type in _HANDS_ON:
                waiting += [v.producer for v in made.inputs]

    def _run(self, node: Node) -> None:
        """The functions of a loop or a branch."""
        offset, is_loop = int(node.op_type in BRANCHES), node.op_type in LOOPS
        bodies = {name: node.graph.functions[name].body for name in called_functions(node)}
        self._inferred(node, self.now)
        for name, body in bodies.items():
            given = [(a, self.then[v], self.now.get(v, self.then[v])) for a, v in zip(body.inputs, node.inputs[offset:], strict=True)]
            is_other = self._callers.setdefault(body, (node, offset))[0] is not node
            if is_other and any((self.then.get(a), self.now.get(a)) != (then, now) for a, then, now in given):
                self.refuse(node, f"runs the function {name!r}, which others run with other shapes")
            for argument, value in zip(body.inputs, node.inputs[offset:], strict=True):
                if argument not in self.then or is_list(value):
                    self.then[argument] = self.then[value]
                self._behind.update([argument] if value in self._behind else ())
                self._lengths.update({argument: self._lengths[value]} if value in self._lengths else {})
            if not any(n in self._labels for n in body.nodes):
                self._begin(body)
            self.now.update((a, now) for a, _, now in given)
        for body in bodies.values():
            self._pass(body)
        ways = [body for name, body in bodies.items() if not is_loop or name in called_functions(node, "body")]
        self._come_later(a for body in ways for a, v in zip(body.inputs, body.outputs, strict=False) if is_loop and v in self._behind)
        for k, value in enumerate(node.outputs):
            self.now[value] = self.now.get(node.inputs[k], self.then[value]) if is_loop else self.then[value]
            results = [v for body in ways for v in (body.outputs[k], *(body.inputs[k : k + 1] if is_loop else ()))]
            for axis in {axis for v in results for axis in self._grown(v)}:
                if is_loop:
                    self._grow(node, k, axis)
                for body in ways:
                    if not self._power(body.outputs[k], axis):
                        self._grow_result(body, k, axis)
                self.now[value] = self._scaled(self.now[value], axis) if not self._power(value, axis) else self.now[value]

    def _come_later(self, values: Iterable[Value]) -> None:
        found = {value for value in values if value not in self._behind}
        self._is_changed |= bool(found)
        self._later |= found

    def _meet(self, node: Node) -> None:
        """Let the ways by which a value comes have the same shape: branches, and of a loop the value before it and that of a round."""
        merges = [node] if node.op_type in MERGES else [n for n in node.outputs[0].consumers if n.op_type in MERGES]
        ways = [(n, k) for n in merges for k, v in enumerate(n.inputs) if not is_back_edge(v, n)]
        if node.op_type not in MERGES:
            ways.append((node, 0))
            self._come_later(n.outputs[0] for n in merges)
        for axis in {axis for n, k in ways for axis in self._grown(n.inputs[k])}:
            for n, k in ways:
                self._grow(n, k, axis)

    # The new size

    def finish(self, size: int | None, source: tuple[Value, int]) -> int:
        """Give what was baked in the numbers of a batch size; for a free one, let it be computed. Returns how many nodes read them.

        Args:
            source: an input of the graph, and its dimension that is the batch.
        """
        self._frames, numbers = {}, dict[tuple[Graph, tuple[str, ...]], Value]()
        for const, baked in self._baked.items():
            graph, reader, dtype = const.graph, baked.reader, const.outputs[0].dtype
            if not graph.owns(const):
                continue
            if size is not None:
                graph.set_attr(const, "value", tensor_attribute(baked.at(size / self.old), dtype))
            elif reader.op_type == "Reshape" and len(baked.powers) == 1 and baked.old.all():
                known = zip(baked.old.tolist(), self.then[reader.outputs[0]] or (), strict=True)
                sizes = np.array([-1 if k in baked.powers else d or n for k, (n, d) in enumerate(known)], baked.old.dtype)
                graph.set_attr(const, "value", tensor_attribute(sizes, dtype))
            else:
                frame = self._frames_of(graph).get(reader, ())
                batch = self._number(graph, frame[:-1] if reader.op_type in ENTERS else frame, numbers, source)
                graph.replace_input(reader, baked.index, self._computed(baked, batch, dtype))
                remove_unread(graph, [const])
        for value, now in self.now.items():
            pairs = zip(now or (), self.then[value] or (), strict=False)
            if now is not None and value.producer.graph.owns(value.producer) and not is_list(value):
                write_shape(value, tuple(a if a == b else None if size is None or b is None else b * size // self.old for a, b in pairs))
        return len({baked.reader for baked in self._baked.values()})

    def _frames_of(self, graph: Graph) -> dict[Node, tuple[str, ...]]:
        if graph not in self._frames:
            self._frames[graph] = frame_names(graph)
        return self._frames[graph]

    def _number(
        self, graph: Graph, frame: tuple[str, ...], known: dict[tuple[Graph, tuple[str, ...]], Value], source: tuple[Value, int]
    ) -> Value:
        """The batch size when a graph runs, in a loop of TF1 or outside of all."""
        if (graph, frame) not in known and frame:
            outer = self._number(graph, frame[:-1], known, source)
            enter = next(n for n, its in self._frames[graph].items() if its == frame and n.op_type in ENTERS)
            attrs: dict[str, Any] = {name: enter.attrs[name] for name in ("frame_name", "parallel_iterations") if name in enter.attrs}
            known[graph, frame] = add_op(graph, "Enter", f"{enter.name}/batch", [outer], _INT, (), T=_INT, is_constant=True, **attrs)
        elif (graph, frame) not in known:
            places = [source] if graph is self.graph else [p for v in graph.inputs for p in self._multiples(v) if not is_list(v)]
            places += [(v, -1) for v in graph.inputs if len(set(self._length(v))) > 1]
            if not places:
                self.refuse(graph.nodes[0], "is in a function that needs the batch size, and reads nothing that has it")
            value, axis = places[0]
            name = f"{value.producer.name}/batch"
            if axis < 0:
                found = add_op(graph, "TensorListLength", name, [value], _INT, ())
            else:
                shape = add_op(graph, "Shape", name, [value], _INT, (len(self.then[value] or ()),), T=value.dtype, out_type=_INT)
                ends = [add_constant(graph, f"{name}/{k}", np.array([n], np.int32)) for k, n in enumerate((axis, axis + 1, 1))]
                found = add_op(graph, "StridedSlice", name, [shape, *ends], _INT, (), T=_INT, Index=_INT, shrink_axis_mask=1)
            times = ((self._length(value)[0] if axis < 0 else self.size(value, axis)) or self.old) // self.old
            known[graph, frame] = found if times == 1 else self._with("FloorDiv", found, times)
        return known[graph, frame]

    def _with(self, op_type: str, value: Value, number: Any, *, turned: bool = False) -> Value:
        """The result of a value and a number, or of the number and the value."""
        graph, name = value.producer.graph, f"{value.producer.name}/{op_type.lower()}"
        other = add_constant(graph, f"{name}/by", np.array(number), dtype=value.dtype)
        graph.add_control_input(other.producer, value.producer)  # so that it is in the same loop
        return add_op(graph, op_type, name, [other, value] if turned else [value, other], value.dtype, (), T=value.dtype)

    def _computed(self, baked: _Baked, batch: Value, dtype: DType) -> Value:
        """The numbers of a constant, computed from the batch size."""
        graph, name, items = batch.producer.graph, f"{baked.reader.name}/batch", list[Value]()
        for element, old in enumerate(baked.old.reshape(-1)):
            power = baked.powers.get(element, 0)
            value, unit = batch, self.old ** abs(power)
            if abs(power) == 2:
                value = add_op(graph, "Mul", f"{name}/square", [batch, batch], _INT, (), T=_INT)
            if dtype != _INT:
                value = add_op(graph, "Cast", f"{name}/cast", [value], dtype, (), SrcT=_INT, DstT=dtype, Truncate=False)
            if power < 0:
                value = self._with("RealDiv", value, old * unit, turned=True)
            elif not power:
                value = add_constant(graph, f"{name}/{element}", np.array(old), dtype=dtype)
                graph.add_control_input(value.producer, batch.producer)
            elif old != unit:
                value = self._with("FloorDiv" if dtype.name in ("int32", "int64") else "RealDiv", self._with("Mul", value, old), unit)
            items.append(value)
        return items[0] if not baked.old.ndim else add_op(graph, "Pack", name, items, dtype, baked.old.shape, N=len(items), T=dtype, axis=0)


def _is_diagonal(array: Array) -> bool:
    """Whether a square matrix has one number on its diagonal, and another one everywhere else."""
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array[0, 0] == array[0, 1]:
        return False
    wanted = np.full(array.shape, array[0, 1])
    np.fill_diagonal(wanted, array[0, 0])
    return np.array_equal(array, wanted)


def _place(shape: Shape, position: int | None, size: int | None, old: int, ones: int) -> tuple[int, int] | None:
    """The dimension that the batch is in, with so many elements in front of it, and how many of these are in the same dimension.

    Args:
        size: of the dimension that it was in before.
        ones: with a batch of one example, how many other dimensions of one element stand before it.

    >>> _place((4, 5, 8), 4, 5, 5, 0), _place((20, 8), 4, 5, 5, 0), _place((1, 1, 8), 1, 1, 1, 1)
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
    return next(((axis, position // fronts[axis]) for axis in inside), None)
