"""Constants that are weights, told from axes, shapes and factors by their readers.

A constant of numbers is a weight if it reaches, maybe cast, transposed or dequantized, the weight operand of an operation (the filter of a
convolution, a side of a product, the rows of a lookup), or if it has several elements and is combined element by element with data (a
bias, a scale).
"""

from graphwright.analyze.parameters import Parameter, make_parameter
from graphwright.analyze.variable_access import function_arguments
from graphwright.ir.constants import constant_array
from graphwright.ir.dtypes import DType, element_count
from graphwright.ir.edit.library import bodies, reached_functions
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import COMBINES_TWO, LOOKUPS, is_batch_norm
from graphwright.ir.traits.values import forwards_several, is_constant
from graphwright.ops.catalog import WEIGHT_PASSES, WEIGHTS

_PACKED = frozenset({"RightShift", "BitwiseAnd"})
_NUMBERS = ("float", "bfloat", "complex", "qint", "quint", "int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2")
_LIMIT = 64
"""Nodes that are looked at behind one constant."""


def find_constant_weights(graph: Graph) -> list[Parameter]:
    """Return the weights among the constants of a graph and of its functions."""
    weights: list[Parameter] = []
    reached = set(reached_functions(graph, graph.nodes))
    functions = {id(function.body): name for name, function in graph.functions.items() if name in reached}
    for body in bodies(graph):
        if body is not graph and id(body) not in functions:
            continue
        for node in body.nodes:
            if not is_constant(node) or not node.outputs:
                continue
            array = constant_array(node)  # says its shape itself, where a large graph would have to be inferred
            shape = node.outputs[0].shape if array is None else tuple(array.shape)
            use = weight_use(node.outputs[0], graph, element_count(shape))
            if use is not None:
                name = node.name if body is graph else f"{functions[id(body)]}/{node.name}"
                weights.append(make_parameter(name, "constant", node.outputs[0].dtype, shape, use=use))
    return weights


def weight_use(value: Value, graph: Graph, elements: int | None = None) -> str | None:
    """Return the use of a value that is a weight ("" if it has no name), or None.

    Args:
        elements: their number if known; a large graph may have to be inferred for the shape.
    """
    if not value.dtype.name.startswith(_NUMBERS):
        return None
    if elements is None:
        elements = element_count(value.shape)
    if elements == 0:
        return None
    stack, seen = [value], 0
    is_many = (elements or 0) > 1
    notes: dict[str, None] = {}
    is_weight = False
    while stack and seen < _LIMIT:
        current = stack.pop()
        for use in current.uses:
            seen += 1
            node = use.node
            for name, position in function_arguments(node, use.index, graph):
                function = graph.functions.get(name)
                if function is not None and position < len(function.body.inputs):
                    stack.append(function.body.inputs[position])
            if _takes_weight(node, use.index, value.dtype, is_many=is_many):
                is_weight = True
                if node.op_type in LOOKUPS:
                    notes["embedding"] = None
                elif is_batch_norm(node) and use.index in (3, 4):
                    notes["moving average"] = None
            elif node.op_type in WEIGHT_PASSES and (use.index == 0 or node.op_type in ("IdentityN", "Pack", "ConcatV2")):
                if node.op_type in _PACKED:
                    notes["packed"] = None
                stack += node.outputs[use.index : use.index + 1] if forwards_several(node) else node.outputs
            elif node.op_type in COMBINES_TWO and is_many:  # with another constant: what a fold has left
                stack += node.outputs
    if not is_weight:
        return None
    if not value.dtype.name.startswith(("float", "bfloat", "complex")):
        notes["quantized"] = None
    return ", ".join(notes)


def _takes_weight(node: Node, index: int, dtype: DType, *, is_many: bool) -> bool:
    slots = WEIGHTS.get(node.op_type)
    if slots is not None:
        return index in slots or not slots
    if node.op_type.startswith("Quantized") and "Pool" not in node.op_type:
        return index == 1 or dtype.name.startswith("qint32")
    if node.op_type not in COMBINES_TWO or not is_many:
        return False
    return all(not is_constant(v.producer) for k, v in enumerate(node.inputs) if k != index)
