"""Evaluate values that depend only on constants, for the ops that compute shapes and parameters of batch norms."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from graphwright.ir.constants import constant_array
from graphwright.ir.dtypes import DType
from graphwright.ir.edit.prune import remove_unread as remove
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.values import is_constant
from graphwright.ir.traits.variables import VARIABLES

Array = np.ndarray[Any, Any]

_VARIABLES = VARIABLES | {"ReadVariableOp"}


class Constants:
    """The arrays of constant values, computed on demand; square roots in double precision.

    Args:
        but: nodes that do not count as constant.
    """

    def __init__(self, but: Callable[[Node], bool] = lambda _: False) -> None:
        self._but = but
        self._known: dict[Value, Array | None] = {}
        self._parameters: dict[Value, bool] = {}

    def __call__(self, value: Value) -> Array | None:
        """Return the array of a value; None if it does not depend only on constants."""
        for top in _inputs_first(value, self._known):
            self._known[top] = self._evaluate(top.producer)
        return self._known[value]

    def is_parameter(self, value: Value) -> bool:
        """Whether a value depends only on constants and variables."""
        for top in _inputs_first(value, self._parameters):
            node = top.producer
            known = node.op_type in _EVALUATED and bool(node.inputs) and all(self._parameters[v] for v in node.inputs)
            self._parameters[top] = known or is_constant(node) or node.op_type in _VARIABLES
        return self._parameters[value]

    def _evaluate(self, node: Node) -> Array | None:
        if self._but(node):
            return None
        if is_constant(node):
            return constant_array(node)
        if node.op_type not in _EVALUATED or len(node.outputs) != 1:
            return None
        inputs: list[Array] = []
        for value in node.inputs:
            array = self._known[value]
            if array is None:
                return None
            inputs.append(array)
        with np.errstate(all="ignore"):
            try:
                return np.asarray((_OF_ARRAYS.get(node.op_type) or partial(_OF_NODES[node.op_type], node))(*inputs))
            except (IndexError, TypeError, ValueError):
                return None


def _inputs_first(value: Value, known: dict[Value, Any]) -> Iterable[Value]:
    stack = [value]
    while stack:
        top = stack[-1]
        if top in known:
            stack.pop()
            continue
        pending = [v for v in top.producer.inputs if v not in known] if top.producer.op_type in _EVALUATED else []
        if pending:
            stack += pending
            continue
        stack.pop()
        yield top


def remove_unread(graph: Graph, nodes: Iterable[Node]) -> None:
    """Remove unread nodes that compute constants, and the nodes that only they read."""
    remove(graph, nodes, lambda node: is_constant(node) or node.op_type in _EVALUATED)


def _rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x, dtype=np.float64)


def _expand_dims(x: Array, axis: Array) -> Array:
    return np.expand_dims(x, int(axis))


def _concat(*parts: Array) -> Array:
    return np.concatenate(parts[:-1], int(parts[-1]))


def _squeeze(node: Node, x: Array) -> Array:
    axes = node.attrs.get("squeeze_dims")
    chosen = tuple(axis for axis in axes if isinstance(axis, int)) if isinstance(axes, tuple) else ()
    return np.squeeze(x, chosen or None)


def _cast(node: Node, x: Array) -> Array:
    target = node.attrs.get("DstT")
    name = target.name if isinstance(target, DType) else ""
    return x.astype("float32" if name == "bfloat16" else name)  # np.dtype("") is a TypeError


def _pack(node: Node, *parts: Array) -> Array:
    axis = node.attrs.get("axis", 0)
    return np.stack(parts, axis if isinstance(axis, int) else 0)


def _product(node: Node, x: Array, axes: Array) -> Array:
    return np.prod(x, tuple(axes.reshape(-1).tolist()), keepdims=node.attrs.get("keep_dims") is True)


def _strided_slice(node: Node, x: Array, begin: Array, end: Array, strides: Array) -> Array:
    if x.ndim != 1 or begin.size != 1 or node.attrs.get("ellipsis_mask") or node.attrs.get("new_axis_mask"):
        raise ValueError("not a plain slice of a vector")
    first, last, step = int(begin[0]), int(end[0]), int(strides[0])
    if node.attrs.get("shrink_axis_mask"):
        return x[first]
    return x[None if node.attrs.get("begin_mask") else first : None if node.attrs.get("end_mask") else last : step]


def _one_hot(node: Node, x: Array, depth: Array, on: Array, off: Array) -> Array:
    return np.moveaxis(np.where(x[..., None] == np.arange(int(depth)), on, off), -1, int(str(node.attrs.get("axis", -1))))


def _diagonal(x: Array, *rest: Array) -> Array:
    if x.ndim != 1 or any(np.any(part != k) for part, k in zip(rest, (0, -1, -1, 0), strict=False)):
        raise ValueError("not a plain diagonal matrix")
    return np.diag(x)


def _slice(x: Array, begin: Array, count: Array) -> Array:
    return x[tuple(slice(int(b), None if n < 0 else int(b + n)) for b, n in zip(begin, count, strict=True))]


def _fill(dims: Array, x: Array) -> Array:
    return np.broadcast_to(x, dims)


_OF_ARRAYS: dict[str, Callable[..., Any]] = {
    "Identity": np.asarray,
    "StopGradient": np.asarray,
    "Add": np.add,
    "AddV2": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "RealDiv": np.divide,
    "Maximum": np.maximum,
    "Neg": np.negative,
    "Square": np.square,
    "Sqrt": partial(np.sqrt, dtype=np.float64),
    "Rsqrt": _rsqrt,
    "Reshape": np.reshape,
    "ExpandDims": _expand_dims,
    "Transpose": np.transpose,
    "ConcatV2": _concat,
    "Range": np.arange,
    "Fill": _fill,
    "BroadcastTo": np.broadcast_to,
    "Tile": np.tile,
    "Slice": _slice,
    "MatrixDiagV3": _diagonal,
}
_OF_NODES: dict[str, Callable[..., Array]] = {
    "Squeeze": _squeeze,
    "Cast": _cast,
    "Pack": _pack,
    "StridedSlice": _strided_slice,
    "OneHot": _one_hot,
    "Prod": _product,
}
"""Functions that read attributes; their first argument is the node."""
_EVALUATED = _OF_ARRAYS.keys() | _OF_NODES.keys()
