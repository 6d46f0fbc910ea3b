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
pushes = of_type({"TensorListPushBack"})
"""Returns whether it appends its second input to a list, its first."""
pops = of_type({"TensorListPopBack"})
"""Returns whether it removes the last element of a list; its outputs are the remaining list and the element."""
puts_last_input = of_type({"TensorListPushBack", "TensorListSetItem"})
adds_two = of_type(ADDITIONS)
subtracts = of_type({"Sub"})
is_less = of_type({"Less"})
is_both = of_type({"LogicalAnd"})
reads_variables = of_type({"While"})
"""Returns whether a loop may read variables; stateless loops may not."""
reserves = of_type({"TensorListReserve"})
"""Returns whether it makes a list with as many elements as its second input states."""
unstacks = of_type({"TensorListFromTensor"})
"""Returns whether it makes a list of a tensor's rows."""


def asks_for_length(node: Node) -> bool:
    return node.op_type == "TensorListLength"


def asks_for_element_shape(node: Node) -> bool:
    return node.op_type == "TensorListElementShape"


def keeps_length(node: Node) -> bool:
    return node.op_type in ("AddN", "ZerosLike") or (
        node.op_type == "TensorListSetItem" and not node.attrs.get("resize_if_index_out_of_bounds")
    )
