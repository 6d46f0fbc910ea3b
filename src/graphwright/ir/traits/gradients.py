"""Marks of gradient nodes in TensorFlow: names of their scopes, and op types that exist only for gradients.

A tape puts gradients under `gradient_tape/`, `tf.gradients` the gradients of `x` under `x_grad/`. A name proves nothing: users may choose
it too.
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
"""Unmarked ops that a tape inserts between gradients: a sum, or the rows of several sparse gradients."""
NOT_LINEAR_IN_BOTH = (COMBINES_TWO | COMMUTES) - SCALES
"""No gradient where one input is a constant: a gradient is linear in the gradient of the loss."""
_SCOPE = re.compile(r"(^|/)gradient_tape/|_grad(_\d+)?/")
_ADJOINTS = ("adj_x", "adj_y")


def is_in_gradient_scope(node: Node) -> bool:
    """Return whether its name, or the name of a compiled function that it calls, is in a gradient scope."""
    return _SCOPE.search(node.name) is not None or _calls_gradient(node)


def is_gradient_kernel(node: Node) -> bool:
    """Return whether its op type, or its callee, exists only for gradients; a transposed convolution may be forward too."""
    return _calls_gradient(node) or "Grad" in node.op_type[-6:] or ("Backprop" in node.op_type and "BackpropInput" not in node.op_type)


def _calls_gradient(node: Node) -> bool:
    return is_compiled_call(node) and "__backward_" in callee(node)


def factors(node: Node) -> list[tuple[int, bool]]:
    """Return the input index and transposition of each factor of a matrix product; an empty list for other nodes."""
    if node.op_type not in MATRIX_PRODUCTS:
        return []
    return [(k, True in (node.attrs.get(TRANSPOSES[k]), node.attrs.get(_ADJOINTS[k]))) for k in (0, 1)]
