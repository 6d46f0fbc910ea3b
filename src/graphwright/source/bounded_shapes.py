"""Shapes that depend on data: upper bounds where the number of rows is known only at run time.

TensorFlow's inference gives what is the same in every run. Open dimensions are computed again here, one node at a time, from the largest
possible shapes of the inputs. Shape rules give no less for larger inputs, so bounds pass through them. Numbers computed from an open size
are intervals (`n - tf.size(found)` is largest where nothing is found). A shape made from them is the largest at any end of the intervals,
for ops whose shapes are monotonic in each number.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphwright.ir.dtypes import Argument, Numbers, Shape, filled
from graphwright.ir.traits.arithmetic import ELEMENTWISE, TAKES_OUT_OF_LIST
from graphwright.ir.traits.control_flow import BRANCHES, ENTERS, EXITS, LOOPS, MERGES, NEXT_ITERATIONS, SWITCHES
from graphwright.ir.walk import in_order
from graphwright.source import private_tensorflow
from graphwright.source.attributes import shape_of
from graphwright.source.tensorflow_import import import_tensorflow

Outputs = Sequence[tuple[Shape, Numbers | None, bool]]
"""Of each output of a function the largest shape, the numbers, and whether it has this shape in every run."""
Functions = Callable[[str, Sequence[Argument]], Sequence[Outputs]]

_PREFIX = "graphwright"
_MOST_NUMBERS = 64
_IN_ITS_ELEMENTS = frozenset("AddV2 Add Sub Mul Minimum Maximum FloorDiv Neg Cast Identity".split())
_CHOOSES = frozenset("Pack ConcatV2 StridedSlice Slice GatherV2 Reshape ExpandDims Squeeze".split())
_ADDS_UP = frozenset("Prod Sum Max Min".split())
_PLACED = frozenset("Pad PadV2 MirrorPad Range Slice StridedSlice".split())
_COUNTED = frozenset(
    "Fill BroadcastTo Tile ScatterNd OneHot RandomUniform RandomUniformInt "
    "RandomStandardNormal TruncatedNormal StatelessRandomUniform StatelessRandomNormal StatelessTruncatedNormal "
    "StatelessRandomUniformV2 StatelessRandomNormalV2 StatelessTruncatedNormalV2 UnsortedSegmentSum UnsortedSegmentProd "
    "UnsortedSegmentMax UnsortedSegmentMin Conv2DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput "
    "ResizeBilinear ResizeNearestNeighbor ResizeBicubic ResizeArea StridedSliceGrad".split()
)
"""Op types whose outputs grow with each number that they read, which is never negative; placed ones grow or shrink with it."""
_FINDS = frozenset(
    "Where Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 ListDiff DynamicPartition SparseAdd SparseFillEmptyRows Slice StridedSlice "
    "DenseToDenseSetOperation NonMaxSuppression NonMaxSuppressionV2 NonMaxSuppressionV3 NonMaxSuppressionV4 NonMaxSuppressionV5".split()
)
_HANDS_ON = frozenset({"Identity"}) | ENTERS | MERGES | SWITCHES | EXITS | NEXT_ITERATIONS
_NOT_SEEN_THROUGH = frozenset({"TensorListFromTensor"}) | BRANCHES | LOOPS
_REDUCES = frozenset("Sum Mean Max Min Prod All Any".split())


@dataclass(frozen=True, slots=True)
class Bounded:
    """An imported graph with the largest shapes.

    Attributes:
        tensors, made: stand-ins of the largest size for the outputs of each node by name, and the outputs themselves.
        found: names of the nodes whose data determine a number of rows.
        at_most: for values whose shape may be smaller at run time, the dimensions that are the same in every run, by name.
        numbers: the least and largest values of a few whole numbers in a tensor, where they are known.
    """

    tensors: dict[str, list[Any]]
    made: dict[str, list[Any]]
    found: list[str]
    at_most: dict[str, Shape]
    numbers: Callable[[Any], Numbers | None]


def import_bounded(
    graph_def: Any,
    input_map: Mapping[str, Any],
    functions: Functions | None = None,
    arguments: Sequence[tuple[Any, Argument]] = (),
    sizes: Mapping[str, Sequence[Shape]] | None = None,
    bounds: bool = True,
) -> Bounded:
    """Import into the current graph, with upper bounds of the shapes that depend on data. Raise `ValueError` where TensorFlow refuses it.

    Args:
        functions: returns the results of each branch of a node, or of the body of a loop, by the node's name and its arguments.
        arguments: tensors of the map, with what is known of them.
        sizes: output shapes of nodes that are known from elsewhere, by name.
        bounds: whether to bound what depends on data; else only shapes behind branches, nested loops and lists are inferred.
    """
    tf = import_tensorflow()
    tf.graph_util.import_graph_def(graph_def, input_map=input_map, name=_PREFIX)
    operation = tf.compat.v1.get_default_graph().get_operation_by_name
    operations = {node.name: operation(f"{_PREFIX}/{node.name}") for node in graph_def.node}
    outputs_of = {name: list(op.outputs) for name, op in operations.items()}
    known = _Bounds(graph_def.versions.producer or tf.version.GRAPH_DEF_VERSION, functions, arguments)
    known.sizes, known.bounds = sizes or {}, bounds
    outputs = (t for tensors in outputs_of.values() for t in tensors)
    is_known = all(t.dtype != tf.variant and (not t.dtype.size or t.shape.is_fully_defined()) for t in outputs)
    if is_known or (not bounds and _NOT_SEEN_THROUGH.isdisjoint(node.op for node in graph_def.node)):
        return Bounded(outputs_of, outputs_of, [], {}, known.numbers_of)
    order = in_order(operations.values(), lambda op: [t.op for t in op.inputs if t.op.type not in NEXT_ITERATIONS])
    sources = [op.name.removeprefix(f"{_PREFIX}/") for op in order if known.bind(op)]
    tensors = {name: [known.known_size(t) for t in outputs] for name, outputs in outputs_of.items()}
    named = ((f"{name}:{k}", t) for name, outputs in outputs_of.items() for k, t in enumerate(outputs) if t.dtype.size)
    at_most = {name: shape_of(t) for name, t in named if known.known_size(t) is not t and t.ref() not in known.exact}
    return Bounded(tensors, outputs_of, sources, at_most, known.numbers_of)


class _Bounds:
    """The largest shapes of tensors that depend on data, as placeholders of these shapes, and the numbers computed from them."""

    def __init__(self, producer: int, functions: Functions | None, arguments: Sequence[tuple[Any, Argument]]) -> None:
        self.tf = import_tensorflow()
        self.producer = producer
        self.functions = functions
        self.sizes: Mapping[str, Sequence[Shape]] = {}
        self.bounds = True
        self.exact: set[Any] = set()  # tensors in `largest` with the same shape in every run
        self.largest: dict[Any, Any] = {}
        self.flat: dict[Any, Any] = {}  # as many elements, in a shape that is not known
        self.known: dict[Any, Numbers | None] = {}
        self.elements: dict[Any, Shape] = {}  # of lists
        for tensor, argument in arguments:
            if argument.exact is not None:
                self.largest[tensor.ref()] = self.tf.compat.v1.placeholder(tensor.dtype, argument.shape)
            if argument.element is not None:
                self.elements[tensor.ref()] = argument.element
            if argument.numbers is not None:
                self.known[tensor.ref()] = argument.numbers

    def known_size(self, tensor: Any) -> Any:
        return self.largest.get(tensor.ref(), self.flat.get(tensor.ref(), tensor))

    def bind(self, op: Any) -> bool:
        """Set the largest shapes of the outputs of a node; return whether its data determine a number of rows."""
        if op.inputs and (element := self.elements.get(op.inputs[0].ref())) is not None:
            self.elements.update((t.ref(), element) for t in op.outputs if t.dtype == self.tf.variant)
        lists = [t for t in op.outputs if t.dtype == self.tf.variant]
        open_ = [t for t in op.outputs if t.dtype.size and not t.shape.is_fully_defined()]
        if not open_ and not lists:
            return False
        inputs = [self.largest.get(t.ref(), t) for t in op.inputs]
        for tensor in lists:
            self._bind_list(op, inputs, tensor)
        is_flow = op.type in BRANCHES | LOOPS
        if not open_ or not (self.bounds or is_flow or any(t is not u for t, u in zip(inputs, op.inputs, strict=True))):
            return False
        is_exact = self._is_exact(op)
        shapes = self.sizes.get(op.name.removeprefix(f"{_PREFIX}/"))
        if shapes is not None and len(shapes) == len(op.outputs):
            is_exact = False
        elif (shapes := self._found(op, inputs)) is not None:
            is_exact = is_exact and op.type == "Reshape"
        elif is_flow:
            shapes, is_same = self._of_functions(op, inputs)
            is_exact = is_exact and is_same
        else:
            shapes = self._derived(op, inputs, widest=not is_exact)
            if is_exact and any(shapes[t.value_index] is None or None in shapes[t.value_index] for t in open_) and self.bounds:
                is_exact, shapes = False, self._derived(op, inputs)
        if not (is_exact or self.bounds):
            return False
        is_source = op.type in _FINDS | BRANCHES and (self.sizes or all(t.shape.is_fully_defined() for t in op.inputs if t.dtype.size))
        is_source = is_source and not (op.type in ("Slice", "StridedSlice") and all(t.op.type == "Const" for t in op.inputs[1:]))
        for tensor in open_:
            index: int = tensor.value_index
            shape = shapes[index]
            stated = [_known(c.outputs[0]) for c in tensor.consumers() if c.type == "EnsureShape"]
            if shape is None or None in shape:
                shape = next((s for s in stated if s is not None), None)
            if shape is not None and None not in shape:
                self.largest[tensor.ref()] = self.tf.compat.v1.placeholder(tensor.dtype, shape)
                self.exact |= {tensor.ref()} if is_exact else set()
            elif op.type in _REDUCES and (count := _count(self.known_size(op.inputs[0]))) is not None:
                self.flat[tensor.ref()] = self.tf.compat.v1.placeholder(tensor.dtype, (count,))
        return bool(is_source) and not is_exact and any(t.ref() in self.largest for t in open_)

    def _is_exact(self, op: Any) -> bool:
        numbers = map(self.numbers_of, op.inputs)
        same = all(n is None or np.array_equal(*n) for n in numbers)
        return same and all(t.ref() in self.exact or self.known_size(t) is t for t in op.inputs)

    def _bind_list(self, op: Any, inputs: Sequence[Any], tensor: Any) -> None:
        """Note the element shape of a list that is made of rows of known size or from a list with known elements."""
        known, rows = private_tensorflow.type_behind(tensor), _known(inputs[0]) if inputs else None
        type_ = private_tensorflow.type_behind(inputs[0]) if op.type in _HANDS_ON else known
        if type_ is None or (known is not None and known[1] is not None and None not in known[1]):
            return
        if op.type == "TensorListFromTensor" and rows:
            type_ = type_[0], rows[1:]
        elif op.type not in _HANDS_ON and any(t is not u and t.dtype == tensor.dtype for t, u in zip(inputs, op.inputs, strict=True)):
            type_ = private_tensorflow.type_behind(self._made(op, inputs)[tensor.value_index]) or type_
        if type_[1] is not None and None not in type_[1] and (self.bounds or self._is_exact(op)):
            self.largest[tensor.ref()] = stand_in = self.tf.compat.v1.placeholder(tensor.dtype, tensor.shape)
            private_tensorflow.set_handle_data(stand_in, *type_)
            self.exact |= {tensor.ref()} if self._is_exact(op) else set()

    def _derived(self, op: Any, inputs: Sequence[Any], *, widest: bool = True) -> list[Shape]:
        fixed = [self._fixed(op, k, tensor) for k, tensor in enumerate(inputs)]
        merged: list[Shape] = (_widest(op, inputs) if widest else None) or [None for _ in op.outputs]
        try:
            results = [self._made(op, ends) for ends in itertools.product(*fixed)]
        except ValueError:  # two bounds of one size differ, or an end that no run can have
            return merged
        shapes = [largest([shape_of(outputs[k]) for outputs in results]) for k in range(len(op.outputs))]
        return [filled(shape, other) for shape, other in zip(shapes, merged, strict=True)]

    def _fixed(self, op: Any, k: int, tensor: Any) -> list[Any]:
        numbers = self.numbers_of(op.inputs[k])
        if numbers is None or op.inputs[k].op.type == "Const":
            return [tensor]
        if np.array_equal(*numbers):
            return [numbers[0]]
        if op.type in _COUNTED:
            return [np.maximum(numbers[1], 0)]
        return list(numbers) if op.type in _PLACED else [tensor]

    def _made(self, op: Any, inputs: Sequence[Any]) -> list[Any]:
        tf = self.tf
        tensors = [t if tf.is_tensor(t) else tf.constant(t, source.dtype) for t, source in zip(inputs, op.inputs, strict=True)]
        one = tf.compat.v1.GraphDef()
        one.versions.producer = self.producer
        node = one.node.add()
        node.CopyFrom(op.node_def)
        node.name = "node"
        del node.input[:]
        node.input.extend(f"input_{k}:0" for k in range(len(tensors)))
        for key in ("_output_shapes", "_class"):
            node.attr.pop(key, None)
        returned = [f"node:{k}" for k in range(len(op.outputs))]
        feeds = {f"input_{k}:0": t for k, t in enumerate(tensors)}
        return tf.graph_util.import_graph_def(one, input_map=feeds, return_elements=returned, name="graphwright_bound")

    def _found(self, op: Any, inputs: Sequence[Any]) -> Sequence[Shape] | None:
        first = _known(inputs[0]) if inputs else None
        if op.type in TAKES_OUT_OF_LIST and (element := self.elements.get(op.inputs[0].ref())) is not None:
            return [element] * len(op.outputs)
        if op.type == "Merge":
            return [largest([shape_of(t) for t in inputs]), ()]
        if op.type == "Reshape":
            return [_reshaped(_count(self.known_size(op.inputs[0])), self.numbers_of(op.inputs[1]))]
        if first is None:
            return None
        match op.type:
            case "Where":
                return [(math.prod(first), len(first))]
            case "Unique" | "UniqueV2" | "UniqueWithCounts" | "UniqueWithCountsV2":
                return [first, *([(max(first, default=0),)] * 2)]
            case "ListDiff":
                return [first, first]
            case "BroadcastGradientArgs":
                return [(max(t.shape.num_elements() or 0 for t in inputs),)] * 2
            case "DynamicPartition" if (parts := _known(inputs[1])) is not None:
                return [(math.prod(parts), *first[len(parts) :])] * len(op.outputs)
            case "SparseAdd" | "DenseToDenseSetOperation" if (second := _known(inputs[3 if op.type == "SparseAdd" else 1])) is not None:
                entries = first[0] + second[0] if op.type == "SparseAdd" else math.prod(first) + math.prod(second)
                return [(entries, first[1] if op.type == "SparseAdd" else len(first)), (entries,), None]
            case "SparseFillEmptyRows" if (sizes := self.numbers_of(op.inputs[2])) is not None:
                rows = int(sizes[1][0])
                return [(first[0] + rows, first[1]), (first[0] + rows,), (rows,), first[:1]]
            case "NonMaxSuppression" | "NonMaxSuppressionV2" | "NonMaxSuppressionV3" | "NonMaxSuppressionV4" | "NonMaxSuppressionV5":
                limit = self.numbers_of(op.inputs[2])
                return [(first[0] if limit is None else min(first[0], max(int(limit[1]), 0)),)] * len(op.outputs)
            case _:
                return None

    def _of_functions(self, op: Any, inputs: Sequence[Any]) -> tuple[list[Shape], bool]:
        """Return the larger shapes of the branches, or a loop's initial shapes where no round exceeds them; and whether none differs."""
        nothing: list[Shape] = [None] * len(op.outputs)
        first = 1 if op.type in BRANCHES else 0
        arguments = [self._argument(*pair) for pair in zip(op.inputs[first:], inputs[first:], strict=True)]
        if op.type in LOOPS:
            arguments = [replace(argument, numbers=None) for argument in arguments]
        try:
            results = () if self.functions is None else self.functions(op.name.removeprefix(f"{_PREFIX}/"), arguments)
        except ValueError:
            return nothing, False
        if not results:
            return nothing, False
        shapes = [largest([outputs[k][0] for outputs in results]) for k in range(len(op.outputs))]
        sized = [k for k, t in enumerate(op.outputs) if t.dtype.size]
        is_same = all(outputs[k][2] and outputs[k][0] == shapes[k] for outputs in results for k in sized)
        if op.type in LOOPS:
            starts = [argument.shape for argument in arguments]
            is_same = is_same and all(starts[k] == shapes[k] for k in sized)
            return starts if all(largest([starts[k], shapes[k]]) == starts[k] for k in sized) else nothing, is_same
        for k, tensor in enumerate(op.outputs):
            self.known[tensor.ref()] = _either([outputs[k][1] for outputs in results])
        return shapes, is_same

    def _argument(self, tensor: Any, largest: Any) -> Argument:
        is_same = tensor is largest or tensor.ref() in self.exact
        exact = None if is_same else shape_of(tensor) or (None,) * len(largest.shape)
        return Argument(shape_of(largest), private_tensorflow.type_behind(largest), self.numbers_of(tensor), exact)

    # Numbers

    def numbers_of(self, tensor: Any) -> Numbers | None:
        if not tensor.dtype.is_integer:
            return None
        if tensor.ref() not in self.known:
            self.known[tensor.ref()] = None  # a loop finds nothing
            shape = shape_of(tensor)
            if shape is not None and None not in shape and math.prod(d or 0 for d in shape) <= _MOST_NUMBERS:
                self.known[tensor.ref()] = self._numbers(tensor)
        return self.known[tensor.ref()]

    def _numbers(self, tensor: Any) -> Numbers | None:
        op, k = tensor.op, tensor.value_index
        array = private_tensorflow.constant_of(tensor)
        if array is not None:
            return np.asarray(array), np.asarray(array)
        if op.type in ("Shape", "ShapeN", "Size"):
            largest = self.largest.get(op.inputs[k].ref())
            sizes = _sizes_of(largest if op.inputs[k].ref() in self.exact else op.inputs[k], largest)
            if sizes is not None and op.type == "Size":
                sizes = np.prod(sizes[0], dtype=np.int64), np.prod(sizes[1], dtype=np.int64)
            return sizes
        if op.type in ("Switch", "Merge"):
            taken = op.inputs[:1] if op.type == "Switch" else op.inputs
            return None if op.type == "Merge" and k else _either([self.numbers_of(t) for t in taken])
        if op.type in BRANCHES:
            self._of_functions(op, [self.largest.get(t.ref(), t) for t in op.inputs])
            return self.known[tensor.ref()]
        if op.type not in _IN_ITS_ELEMENTS | _CHOOSES | _ADDS_UP or len(op.inputs) > _MOST_NUMBERS:
            return None
        inputs = [n for n in map(self.numbers_of, op.inputs) if n is not None]
        return self._at_ends(op, inputs) if len(inputs) == len(op.inputs) else None

    def _at_ends(self, op: Any, inputs: list[Numbers]) -> Numbers | None:
        open_ = {k for k, n in enumerate(inputs) if not np.array_equal(*n)}
        ends: Iterable[Sequence[int]] = ((0,) * len(inputs), (1,) * len(inputs))
        if op.type in _CHOOSES:
            if open_ - {"Pack": set(range(len(inputs))), "ConcatV2": set(range(len(inputs) - 1))}.get(op.type, {0}):
                return None  # what it takes depends on data
        elif op.type in _ADDS_UP:
            if open_ - {0} or (inputs[0][0] < 0).any():
                return None
        else:
            ends = itertools.product((0, 1), repeat=len(inputs))
            if op.type == "FloorDiv":
                if (inputs[1][0] < 0).any():
                    return None
                inputs[1] = np.maximum(inputs[1][0], 1), np.maximum(inputs[1][1], 1)  # a division by zero fails
        try:
            results = [private_tensorflow.constant_of(self._made(op, [n[e] for n, e in zip(inputs, end, strict=True)])[0]) for end in ends]
        except ValueError:
            return None
        arrays = [np.asarray(a) for a in results if a is not None]
        return (np.min(arrays, axis=0), np.max(arrays, axis=0)) if len(arrays) == len(results) else None


def _reshaped(count: int | None, sizes: Numbers | None) -> Shape:
    """Return the shape of at most `count` elements where some sizes, or the size behind -1, are open."""
    if sizes is None or count is None:
        return None
    least, largest = sizes[0].tolist(), sizes[1].tolist()
    if any(low != high for low, high in zip(least, largest, strict=True) if low < 0):
        return None
    others = [math.prod(max(low, 1) for low in (*least[:k], *least[k + 1 :])) for k in range(len(least))]
    return tuple(
        high if 0 <= low == high else count // rest if high < 0 else min(high, count // rest)
        for low, high, rest in zip(least, largest, others, strict=True)
    )


def _either(ways: Sequence[Numbers | None]) -> Numbers | None:
    known = [n for n in ways if n is not None]
    if not known or len(known) < len(ways) or len({n[0].shape for n in known}) > 1:
        return None
    return np.min([n[0] for n in known], axis=0), np.max([n[1] for n in known], axis=0)


def _widest(op: Any, inputs: Sequence[Any]) -> list[Shape] | None:
    """Return the largest sizes of the inputs for slices and elementwise nodes, whose outputs are no larger."""
    shapes = [_known(t) for t in inputs]
    known = [shape for shape in shapes if shape is not None]
    if op.type in ("Slice", "StridedSlice") and shapes[0] is not None:
        masks = [op.node_def.attr[f"{name}_mask"].i for name in ("shrink_axis", "new_axis", "ellipsis")]
        return [tuple(d for k, d in enumerate(shapes[0]) if not masks[0] >> k & 1)] if not any(masks[1:]) else None
    if op.type not in ELEMENTWISE or len(op.outputs) > 1 or len(known) < len(shapes):
        return None
    rank = max(map(len, known))
    return [tuple(max(d) for d in zip(*((*[1] * (rank - len(s)), *s) for s in known), strict=True))]


def _count(tensor: Any) -> int | None:
    return None if not tensor.shape.is_fully_defined() else int(tensor.shape.num_elements())


def _known(tensor: Any) -> tuple[int, ...] | None:
    return tuple(tensor.shape.as_list()) if tensor.shape.is_fully_defined() else None


def _sizes_of(tensor: Any, largest: Any) -> Numbers | None:
    shape, most = shape_of(tensor), shape_of(tensor if largest is None else largest)
    if most is None or None in most:
        return None
    exact = shape if shape is not None else (None,) * len(most)
    return np.array([0 if d is None else d for d in exact], np.int64), np.array(most, np.int64)


def largest(shapes: Sequence[Shape]) -> Shape:
    known = [shape for shape in shapes if shape is not None]
    if not known or len(known) < len(shapes) or len(set(map(len, known))) > 1:
        return None
    return tuple(None if None in sizes else max(d for d in sizes if d is not None) for sizes in zip(*known, strict=True))
