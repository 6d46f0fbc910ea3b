"""Pairs of nodes that TensorFlow's graph pass for oneDNN merges into one kernel (`mkl_layout_pass.cc`), in float32 and bfloat16.

The pass merges two nodes of a pair with the same control inputs, the first partner that it meets. Where the order of a plan leads from
one of them over other nodes to the second, the merged kernel would wait for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a trait is of a node: nodes and graphs ask for traits, so these are types only
    from graphwright.ir.node import Node

_WITH_PRODUCER = {"BiasAdd": "Conv2D", "Conv2D": "Pad", "_FusedConv2D": "Pad"}
"""Merged with the producer of the first input -> its type."""
_WITH_OTHER_READER = {"BiasAddGrad": (0, "Conv2DBackpropFilter", 2), "Conv2DBackpropFilter": (2, "BiasAddGrad", 0)}
"""Merged with another reader of the same producer -> the input, the type of the other reader, and its input."""
_FUSED_BEHIND_PAD = frozenset(b"BiasAdd Add FusedBatchNorm Relu Relu6 Elu LeakyRelu _MklSwish".split())


def merge_partners(node: Node) -> tuple[int, list[Node]]:
    """Return the input through which the pass looks for a partner of a node, and the nodes that it may take.

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''
    ... graph "g"
    ... %x = Placeholder() : float32[1,8,8,4]
    ... %d = Placeholder() : float32[1,8,8,4]
    ... %s = Const() : int32[4]
    ... %kernel = Conv2DBackpropFilter(%x:0, %s:0, %d:0) : float32[3,3,4,4]
    ... %shortcut = Conv2DBackpropFilter(%x:0, %s:0, %d:0) : float32[1,1,4,4]
    ... %bias = BiasAddGrad(%d:0) : float32[4]
    ... ''')
    >>> [other.name for other in merge_partners(g["bias"])[1]], merge_partners(g["shortcut"])
    (['kernel', 'shortcut'], (2, [<Node bias = BiasAddGrad(d:0)>]))
    """
    if node.op_type in _WITH_PRODUCER:
        producer = node.inputs[0].producer
        return 0, [producer] if producer.op_type == _WITH_PRODUCER[node.op_type] else []
    if node.op_type not in _WITH_OTHER_READER:
        return 0, []
    index, op_type, at = _WITH_OTHER_READER[node.op_type]
    uses = (use for value in node.inputs[index].producer.outputs for use in value.uses)
    return index, [use.node for use in uses if use.index == at and use.node.op_type == op_type]


def can_pad(node: Node) -> bool:
    """Return whether a convolution can be merged with the padding before it, so that the padded tensor is never in memory."""
    fused = node.attrs.get("fused_ops", ())
    return node.attrs.get("padding") == b"VALID" and isinstance(fused, tuple) and _FUSED_BEHIND_PAD.issuperset(fused)
