"""Which layer a node belongs to, told by its name scope."""

from __future__ import annotations

import re

_SCOPES_SKIPPED = frozenset({"gradient_tape", "recomputed", "gradients", "ConstantFolding", "ArithmeticOptimizer"})
_OPERATOR_SCOPE = re.compile(
    r"(Add|AddV2|AddN|Sub|sub|Mul|mul|Div|RealDiv|FloorMod|FloorDiv|Cast|Pow|pow|Sqrt|Rsqrt|Square|Neg|Abs|Sign|Exp|Log|Maximum|Minimum"
    r"|Less|Greater|Equal|SelectV2|truediv|floordiv|div_no_nan|Assign\w*VariableOp|ReadVariableOp|Identity)(_\d+)?"
)


_CALL = re.compile(r"(Stateful)?PartitionedCall(_\d+)?")


def layer_of(name: str) -> str:
    """The layer that a node belongs to, by its name scope: the first two scopes.

    Scopes of gradients, recomputations and of what Grappler makes are left out, and so are the call that a SavedModel wraps its
    signature in and the scopes that TensorFlow opens around the operands of one operator.

    >>> layer_of("gradient_tape/functional_1/conv2d_1/convolution/Conv2DBackpropInput")
    'functional_1/conv2d_1'
    >>> layer_of("ConstantFolding/gradient_tape/functional_1/norm_1/truediv_recip")
    'functional_1/norm_1'
    >>> layer_of("adam/Sub_79/ReadVariableOp")
    'adam'
    >>> layer_of("StatefulPartitionedCall/StatefulPartitionedCall/functional_1/conv2d_1/Relu")
    'functional_1/conv2d_1'
    """
    scopes = [part for part in name.split("/") if part not in _SCOPES_SKIPPED][:-1]
    calls = next((k for k, scope in enumerate(scopes) if not _CALL.fullmatch(scope)), len(scopes))
    scopes = scopes[calls : calls + 2]
    while scopes and _OPERATOR_SCOPE.fullmatch(scopes[-1]):
        scopes.pop()
    return "/".join(scopes)
