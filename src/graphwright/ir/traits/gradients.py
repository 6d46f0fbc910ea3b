"""How TensorFlow marks the nodes of gradients: names of their scopes, and op types that exist for gradients alone.

A tape puts gradients under `gradient_tape/`, `tf.gradients` those of `x` under `x_grad/`. A name alone proves nothing: anybody may give it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from graphwright.ir.traits.arithmetic import COMBINES_TWO, COMMUTES, MATRIX_PRODUCTS, SCALES, SUMS_OF_MANY, TRANSPOSES
from graphwright.ir.traits.control_flow import callee, is_compiled_call
from graphwright.ir.traits.values import SAME_BUT_FOR_TYPE

if TYPE_CHECKING:  # a trait is of a node: nodes and graphs ask for traits, so these are types only
    from graphwright.ir.node import Node

ACCUMULATES = SUMS_OF_MANY | SAME_BUT_FOR_TYPE | {"ConcatV2"}
"""What a tape makes between the gradients of two operations, without a mark: a sum, or the rows of several sparse gradients."""
NOT_LINEAR_IN_BOTH = (COMBINES_TWO | COMMUTES) - SCALES
"""What is not the gradient of anything where one input is a constant: a gradient is linear in the gradient of the loss."""
_SCOPE = re.compile(r"(^|/)gradient_tape/|_grad(_\d+)?/")
_ADJOINTS = ("adj_x", "adj_y")


def is_in_gradient_scope(node: Node) -> bool:
    """Whether its name, or that of the function that it calls and XLA compiles, is one that TensorFlow gives to gradients."""
    return _SCOPE.search(node.name) is not None or _calls_gradient(node)


def is_gradient_kernel(node: Node) -> bool:
    """Whether its op type, or what it calls, exists for gradients alone; a transposed convolution may be forward too."""
    return _calls_gradient(node) or "Grad" in node.op_type[-6:] or ("Backprop" in node.op_type and "BackpropInput" not in node.op_type)


def _calls_gradient(node: Node) -> bool:
    return is_compiled_call(node) and "__backward_" in callee(node)


def factors(node: Node) -> list[tuple[int, bool]]:
    """The places of the factors of a matrix product, and whether it takes them transposed; none for anything else."""
    if node.op_type not in MATRIX_PRODUCTS:
        return []
    return [(k, True in (node.attrs.get(TRANSPOSES[k]), node.attrs.get(_ADJOINTS[k]))) for k in (0, 1)]
