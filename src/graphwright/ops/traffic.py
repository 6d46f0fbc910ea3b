"""Count the bytes that one execution of a node moves to and from memory, for the arithmetic intensity of a roofline plot.

Each input is read once and each output written once: the compulsory traffic. Views, handles and lists move nothing. Nodes that read a part
of an input count that part. Text, handles and variants have no size and count zero.
"""

from collections.abc import Iterable

from graphwright.ir.graph import Node, Value
from graphwright.ir.traits.variables import written_resources
from graphwright.ir.traits.views import is_view
from graphwright.ops.catalog import TRAFFIC

_REFERENCE_UPDATES = ("Apply", "SparseApply", "AssignAdd", "AssignSub")


def bytes_moved(node: Node) -> int | None:
    """Return the bytes read and written by one execution, or None for an unknown shape."""
    kind = TRAFFIC.get(node.op_type)
    if kind == "nothing" or is_view(node):
        return 0
    if written := written_resources(node):
        return _update(node, len(written))
    inputs = _total(dict.fromkeys(node.inputs))
    if node.op_type.startswith(_REFERENCE_UPDATES):
        return None if inputs is None else inputs + (_bytes(node.inputs[0]) or 0)
    # What else a kernel may hand on (batch norms, for their gradient) is written where something reads it.
    outputs = _total(value for value in node.outputs if value is node.outputs[0] or value.consumers or _bytes(value) is not None)
    if outputs is None or kind == "outputs":
        return outputs
    if kind == "rows":
        return 2 * outputs + (_total(v for v in node.inputs[1:] if v.dtype.name in ("int32", "int64")) or 0)
    if inputs is None:
        return None
    return 2 * inputs if kind == "rows of inputs" else inputs + outputs


def _update(node: Node, variables: int) -> int | None:
    values = _total(v for v in node.inputs if v.dtype.name != "resource")
    if values is None:
        return None
    largest = max((_bytes(v) or 0 for v in node.inputs), default=0)
    reads_variable = node.op_type != "AssignVariableOp"
    return values + (1 + reads_variable) * variables * largest


def _bytes(value: Value) -> int | None:
    return 0 if value.dtype.itemsize is None else value.nbytes


def _total(values: Iterable[Value]) -> int | None:
    sizes = [_bytes(value) for value in values]
    return None if None in sizes else sum(size or 0 for size in sizes)
