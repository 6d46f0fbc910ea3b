"""Sizes, attributes and constant inputs of a node, as rules ask for them.

Rules take sizes as known. An unknown one raises `UnknownSizeError`, and the answer is unknown.
"""

import math
from collections.abc import Sequence
from typing import cast

import numpy as np

from graphwright.ir.constants import Array, constant_array
from graphwright.ir.graph import Node, Value
from graphwright.ir.traits.values import origin


class UnknownSizeError(Exception):
    """A size or an argument is unknown, or a rule does not cover this use of the op; never leaves the callers of rules."""


def dims(value: Value) -> tuple[int, ...]:
    if value.shape is None or None in value.shape:
        raise UnknownSizeError
    return cast("tuple[int, ...]", value.shape)


def dims_of(node: Node, index: int, least_rank: int = 0) -> tuple[int, ...]:
    """Return the shape of an input of at least this rank."""
    return _dims_at(node.inputs, index, least_rank)


def output_dims(node: Node, index: int = 0, least_rank: int = 0) -> tuple[int, ...]:
    return _dims_at(node.outputs, index, least_rank)


def _dims_at(values: Sequence[Value], index: int, least_rank: int) -> tuple[int, ...]:
    if index >= len(values) or len(dims(values[index])) < least_rank:
        raise UnknownSizeError
    return dims(values[index])


def ranked(node: Node, index: int, rank: int) -> tuple[int, ...]:
    shape = dims_of(node, index, rank)
    if len(shape) != rank:
        raise UnknownSizeError
    return shape


def size(value: Value) -> int:
    return math.prod(dims(value))


def size_of(node: Node, index: int = 0) -> int:
    return math.prod(dims_of(node, index))


def output_size(node: Node) -> int:
    return math.prod(output_dims(node))


def item_bytes(value: Value) -> int:
    return int(value.dtype.itemsize or 1)


def is_floating(value: Value) -> bool:
    return value.dtype.name.startswith(("float", "bfloat", "complex"))


def touches_floats(node: Node) -> bool:
    """Return whether a node reads or makes floating-point numbers."""
    return any(is_floating(v) for v in (*node.inputs, *node.outputs))


def text_attribute(node: Node, name: str, default: str = "") -> str:
    value = node.attrs.get(name)
    return value.decode() if isinstance(value, bytes) else default


def number(node: Node, name: str, default: int = 0) -> int:
    attribute = node.attrs.get(name, default)
    return attribute if isinstance(attribute, int) else default


def constant(node: Node, index: int) -> Array:
    """Return the value of a constant input; raise `UnknownSizeError` for other inputs."""
    array = constant_array(origin(node.inputs[index]).producer) if index < len(node.inputs) else None
    if array is None:
        raise UnknownSizeError
    return array


def axes(node: Node, index: int, rank: int) -> set[int]:
    return {int(axis) % max(rank, 1) for axis in np.atleast_1d(constant(node, index))}
