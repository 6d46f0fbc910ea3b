"""What loops count their rounds with, and the lists that they push onto and pop from, one element per round."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a trait is of a node: nodes and graphs ask for traits, so these are types only
    from graphwright.ir.graph import Node


def is_empty_list(node: Node) -> bool:
    """Whether it makes a list without elements."""
    return node.op_type == "EmptyTensorList"


def pushes(node: Node) -> bool:
    """Whether it puts an element, its second input, at the end of a list, its first."""
    return node.op_type == "TensorListPushBack"


def pops(node: Node) -> bool:
    """Whether it takes the last element, its second output, out of a list; its first output is what is left."""
    return node.op_type == "TensorListPopBack"


def adds_two(node: Node) -> bool:
    """Whether it is the sum of its two inputs."""
    return node.op_type in ("Add", "AddV2")


def subtracts(node: Node) -> bool:
    """Whether it is its first input less its second."""
    return node.op_type == "Sub"


def is_less(node: Node) -> bool:
    """Whether it says if its first input is less than its second."""
    return node.op_type == "Less"


def is_both(node: Node) -> bool:
    """Whether it says if both of its inputs are true."""
    return node.op_type == "LogicalAnd"


def reads_variables(loop: Node) -> bool:
    """Whether a loop may read variables: what TensorFlow calls stateless may not."""
    return loop.op_type == "While"


def reserves(node: Node) -> bool:
    """Whether it makes a list of as many elements as its second input says."""
    return node.op_type == "TensorListReserve"


def unstacks(node: Node) -> bool:
    """Whether it makes a list of a tensor's rows."""
    return node.op_type == "TensorListFromTensor"


def keeps_length(node: Node) -> bool:
    """Whether its list has as many elements as that in its first input."""
    return node.op_type in ("AddN", "ZerosLike") or (
        node.op_type == "TensorListSetItem" and not node.attrs.get("resize_if_index_out_of_bounds")
    )
