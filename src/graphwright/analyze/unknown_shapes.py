"""Find the nodes that cause shapes to be unknown before a step runs."""

from graphwright.analyze.batch_norms import is_gpu_scratch
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.control_flow import is_control_flow
from graphwright.ir.traits.effects import CALLS_PYTHON
from graphwright.ir.traits.values import is_constant
from graphwright.ir.walk import topological_order
from graphwright.ops.catalog import ROWS_IN_DATA

_INTEGERS = frozenset({"int32", "int64"})
_DENSE = ("SparseSoftmax", "SparseMatMul", "SparseTensorDense")
"""Prefixes of op types that read sparse tensors or labels, and whose outputs are as large as their inputs say."""


def blame_unknown_shapes(graph: Graph) -> dict[Value, Node]:
    """Return the node that causes each value with an unknown dimension.

    It is the first node on the way whose inputs have known shapes; if it reads a number computed from a tensor of unknown shape
    (`Fill(Shape(Where(x)))`), it is the node behind that tensor.
    """
    blamed: dict[Value, Node] = {}
    behind: dict[Node, Node] = {}  # per node that computes whole numbers, the node to blame for what it read
    for node in topological_order(graph):
        before = next((blamed[v] for v in node.inputs if v in blamed), None)
        if before is None:
            before = next((behind[v.producer] for v in node.inputs if v.producer in behind and v.dtype.name in _INTEGERS), None)
        if before is not None and any(v.dtype.name in _INTEGERS for v in node.outputs):
            behind[node] = before
        for value in node.outputs:
            if value.dtype.itemsize is not None and (value.shape is None or None in value.shape) and not is_gpu_scratch(value):
                blamed[value] = before or node
    return blamed


def is_counted_in_data(node: Node) -> bool:
    """Return whether the op determines its number of rows from data."""
    return node.op_type.startswith(tuple(ROWS_IN_DATA)) and not node.op_type.startswith(_DENSE)


def reason_of(node: Node) -> str:
    """Return the reason for a node's unknown shape, in words."""
    if node.op_type in CALLS_PYTHON:
        return "a Python function with results unknown to TensorFlow; state their shape with tf.ensure_shape"
    if is_control_flow(node):
        return "another shape in each branch, or from one iteration to the next"
    for prefix, reason in ROWS_IN_DATA.items():
        if node.op_type.startswith(prefix) and is_counted_in_data(node):
            return reason
    if any(v.dtype.name in _INTEGERS and not is_constant(v.producer) for v in node.inputs):
        return "its size is a number that the step computes"
    return "TensorFlow's shape inference does not know it"
