"""Counters of loop rounds, and the lists that loops push onto and pop from, one element per round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphwright.ir.traits.arithmetic import ADDITIONS
from graphwright.ir.traits.of_type import of_type

if TYPE_CHECKING:  # a trait is of a node: nodes and graphs ask for traits, so these are types only
    from graphwright.ir.node import Node, Value


def is_list(value: Value) -> bool:
    """Return whether it is a list of tensors or another value without a shape, which can neither be sliced nor joined."""
    return value.dtype.name == "variant"


is_empty_list = of_type({"EmptyTensorList"})
"""Whether it makes a list without elements."""
pushes = of_type({"TensorListPushBack"})
"""Whether it puts an element, its second input, at the end of a list, its first."""
pops = of_type({"TensorListPopBack"})
"""Whether it takes the last element, its second output, out of a list; its first output is what is left."""
puts_last_input = of_type({"TensorListPushBack", "TensorListSetItem"})
"""Whether it puts its last input into a list, its first."""
adds_two = of_type(ADDITIONS)
"""Whether it is the sum of its two inputs."""
subtracts = of_type({"Sub"})
"""Whether it is its first input less its second."""
is_less = of_type({"Less"})
"""Whether it says if its first input is less than its second."""
is_both = of_type({"LogicalAnd"})
"""Whether it says if both of its inputs are true."""
reads_variables = of_type({"While"})
"""Whether a loop may read variables: what TensorFlow calls stateless may not."""
reserves = of_type({"TensorListReserve"})
"""Whether it makes a list of as many elements as its second input says."""
unstacks = of_type({"TensorListFromTensor"})
"""Whether it makes a list of a tensor's rows."""


def asks_for_length(node: Node) -> bool:
    return node.op_type == "TensorListLength"


def asks_for_element_shape(node: Node) -> bool:
    return node.op_type == "TensorListElementShape"


def keeps_length(node: Node) -> bool:
    """Return whether its list has as many elements as the list in its first input."""
    return node.op_type in ("AddN", "ZerosLike") or (
        node.op_type == "TensorListSetItem" and not node.attrs.get("resize_if_index_out_of_bounds")
    )
