"""Replace values that depend only on constants or on known shapes.

Backward passes compute the axes of broadcasts from shapes. As constants, these axes cost nothing at run time, shapes that depend on them
become known, and a tensor whose shape is asked for need not be kept.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np

from graphwright.ir.constants import add_constant, constant_array, shape_query_results
from graphwright.ir.dtypes import DTYPES
from graphwright.ir.edit.reroute import reroute_control
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.control_flow import called_functions, is_control_flow_of_tf1
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import INPUTS, is_constant

Evaluate = Callable[[Sequence[Value]], Sequence[np.ndarray[Any, Any]]]
_FLOATS = ("float", "bfloat", "complex")
LARGEST_FOLDED_BYTES = 4096  # bytes; a larger constant would stay in memory for good
_LONGEST_RANGE = LARGEST_FOLDED_BYTES // 8
_NO_LONGER = frozenset(
    "Add AddV2 BroadcastArgs BroadcastGradientArgs Cast ConcatV2 Equal ExpandDims FloorDiv FloorMod GatherV2 Greater Identity "
    "InvertPermutation Less ListDiff LogicalNot Maximum Minimum Mod Mul NotEqual Pack Reshape Reverse ReverseV2 SelectV2 Slice Squeeze "
    "StridedSlice Sub Transpose TruncateDiv Unique UniqueV2 Unpack Where".split()
)
"""Op types whose results are not longer than their inputs, so that short lists stay short."""


def fold_constants(graph: Graph, purity: Purity, evaluate: Evaluate, *, floats: bool = True, kept: Container[Node] = ()) -> int:
    """Replace small values that depend only on constants; returns how many nodes.

    A value of unknown size is folded if it is known to be short, such as a list of axes. Nodes with control inputs stay.

    Args:
        evaluate: computes the values with TensorFlow's kernels.
        floats: whether to fold floats too, not only integers (shapes and axes).
        kept: nodes that stay, such as those that are fetched by name.
    """
    constant: set[Node] = set()
    for node in graph.nodes:
        if node.control_inputs or called_functions(node) or node.op_type in ("NoOp", *INPUTS) or is_control_flow_of_tf1(node):
            continue
        if node in kept and not is_constant(node):
            continue
        computable = is_constant(node) or (node.inputs and purity.is_pure(node) and all(v.producer in constant for v in node.inputs))
        if computable and all(_is_foldable(v) and (floats or not v.dtype.name.startswith(_FLOATS)) for v in node.outputs):
            constant.add(node)
    computed = [node for node in graph.nodes if node in constant and not is_constant(node)]
    border = [node for node in computed if graph.is_border(node) or any(c not in constant for v in node.outputs for c in v.consumers)]
    if not border:
        return 0
    arrays = iter(evaluate([v for node in border for v in node.outputs]))
    return replace_by_constants(graph, {node: [next(arrays) for _ in node.outputs] for node in border})


def _is_foldable(value: Value) -> bool:
    dtype = DTYPES.get(value.dtype.name)
    if dtype is None or dtype.itemsize is None or dtype.name in ("bfloat16", "int4", "uint4") or dtype.name.startswith(("q", "float8")):
        return False
    size = value.nbytes
    if size is None:  # an axis list of unknown length is short, unless numbers in it can say otherwise
        is_list = value.shape is not None and len(value.shape) == 1 and dtype.name in ("int32", "int64")
        op_type = value.producer.op_type
        return op_type == "BroadcastGradientArgs" or (is_list and (op_type in _NO_LONGER or _is_short_range(value.producer)))
    return size <= LARGEST_FOLDED_BYTES


def _is_short_range(node: Node) -> bool:
    bounds = [constant_array(v.producer) for v in node.inputs] if node.op_type == "Range" else []
    return len(bounds) == 3 and all(b is not None and b.size == 1 and abs(int(b.item())) <= _LONGEST_RANGE for b in bounds)


def replace_by_constants(graph: Graph, arrays: Mapping[Node, Sequence[np.ndarray[Any, Any]]]) -> int:
    """Replace nodes by constants, one per output; returns how many nodes.

    Nodes that waited for a replaced node wait for its inputs and control inputs, which also replace it as a control output. Inputs of the
    graph stay.
    """
    constants: list[Node] = []
    constant_of: dict[Value, Value] = {}
    fed = {v.producer for v in graph.inputs}
    replaced = [node for node in arrays if node not in fed]
    for node in replaced:
        values = arrays[node]
        for output, array in zip(node.outputs, values, strict=True):
            constant_of[output] = add_constant(graph, f"{node.name}/folded", array, device=node.device)
            constants.append(constant_of[output].producer)
    graph.replace_many_uses(constant_of)
    for node in replaced:
        before = [*node.control_inputs, *(v.producer for v in node.inputs if not is_constant(v.producer) and v.producer not in fed)]
        reroute_control(before, node)
    graph.remove_nodes(replaced)
    new = set(constants)
    graph.sort_nodes([*constants, *(n for n in graph.nodes if n not in new)])
    return len(replaced)


def fold_shapes(graph: Graph) -> int:
    """Replace queries of static shapes (Shape, ShapeN, Size, Rank, VariableShape) by constants; returns how many nodes."""
    arrays = {node: array for node in graph.nodes if (array := shape_query_results(node)) is not None}
    return replace_by_constants(graph, arrays)
