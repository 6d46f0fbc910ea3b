"""Bytes that kernels allocate beyond their outputs, as upper bounds. Observed on TensorFlow 2.21, on CPUs with AVX-512 and AVX2."""

from graphwright.ir.dtypes import element_count
from graphwright.ir.graph import Node
from graphwright.ir.traits.effects import is_collective
from graphwright.ir.traits.merging import can_pad
from graphwright.ops.catalog import SCRATCH
from graphwright.ops.machine import by_onednn
from graphwright.ops.sizes import UnknownSizeError

HOW_COMPILED = (
    "calls that XLA compiles are one operation each, which needs the temporaries and constants of XLA's own buffer assignment; for "
    "convolutions in groups also what Eigen was seen to take"
)


def scratch_bytes(node: Node, *, on_gpu: bool = False) -> int:
    """Return an upper bound on the scratch of a node's kernel; 0 for kernels that need little, and for unknown shapes.

    A collective holds chunks of the others, together at most its input.
    """
    if is_collective(node):
        return (node.inputs[0].nbytes or 0) if node.inputs else 0
    rules = SCRATCH.get(node.op_type)
    if rules is None or not node.outputs or any(element_count(v.shape) is None for v in (*node.inputs, node.outputs[0])):
        return 0
    rule = rules.gpu if on_gpu else rules.onednn if by_onednn(node.outputs[0].dtype) else rules.eigen
    try:
        return 0 if rule is None else rule(node)
    except UnknownSizeError:  # a use that the rule does not cover
        return 0


def pads_by_itself(node: Node) -> bool:
    """Return whether the kernel of a convolution includes the padding before it."""
    return can_pad(node) and by_onednn(node.outputs[0].dtype)
