"""Pooling."""

import math

from graphwright.ir.dtypes import element_count
from graphwright.ir.graph import Node, Value
from graphwright.ops.dimensions import rows
from graphwright.ops.family import Family, ScratchRules, per_input, zero
from graphwright.ops.machine import by_onednn
from graphwright.ops.sizes import output_size, size, size_of


def _window_size(node: Node) -> int:
    window = node.attrs.get("ksize")
    if isinstance(window, tuple):
        return math.prod(size for size in window if isinstance(size, int))
    return max(1, round(size_of(node) / max(output_size(node), 1)))  # an input of the V2 ops, whose numbers are not known here


def hidden_output_bytes(value: Value) -> int:
    """Return bytes that a kernel keeps for the gradient beside an output, for as long as the output lives.

    oneDNN's max pooling stores the position of each maximum, one byte per output element.
    """
    op_type = value.producer.op_type
    if op_type in ("MaxPool", "MaxPool3D") and by_onednn(value.dtype) and any(c.op_type == f"{op_type}Grad" for c in value.consumers):
        return element_count(value.shape) or 0
    return 0


def _pool_and_positions(node: Node) -> int:
    return (node.inputs[1].nbytes or 0) + 8 * size(node.inputs[1])


_POOLS = "MaxPool MaxPoolV2 MaxPool3D MaxPoolWithArgmax AvgPool AvgPool3D"
_MAX_POOL_GRADIENTS = "MaxPoolGrad MaxPoolGradV2 MaxPool3DGrad MaxPoolGradGrad MaxPoolGradGradV2 MaxPool3DGradGrad"
FAMILY = Family(
    flops={
        "pooling": [
            (_POOLS, "window per output", lambda node: float(_window_size(node) * output_size(node))),
            # The largest is sought again, but where its position is known; then one addition for each gradient.
            (_MAX_POOL_GRADIENTS, "(window + 1) per gradient", lambda node: float((_window_size(node) + 1) * size_of(node, 2))),
            ("MaxPoolGradWithArgmax", "1 per gradient", per_input(1, 1)),
            ("MaxPoolGradGradWithArgmax", "0", zero),
            ("AvgPoolGrad AvgPool3DGrad", "2 window per gradient", lambda node: 2.0 * _window_size(node) * size_of(node, 1)),
            ("FractionalMaxPool FractionalAvgPool", "1 per element of the input", per_input(1)),
            ("FractionalMaxPoolGrad", "1 per gradient", per_input(1, 2)),
            ("FractionalAvgPoolGrad", "2 per gradient", per_input(2, 1)),
        ]
    },
    splits={
        "MaxPool AvgPool": rows("n--c -> n--c"),
        "MaxPool3D AvgPool3D": rows("n---c -> n---c"),
        "MaxPoolGrad": rows("n--c n--c n--c -> n--c"),
        "MaxPool3DGrad": rows("n---c n---c n---c -> n---c"),
        "AvgPoolGrad": rows("- n--c -> n--c", of_0="n--c"),
        "AvgPool3DGrad": rows("- n---c -> n---c", of_0="n---c"),
    },
    scratch={"MaxPoolGrad": ScratchRules(_pool_and_positions)},
    bytes_per_s={"MaxPool": 1.6e10},
)
