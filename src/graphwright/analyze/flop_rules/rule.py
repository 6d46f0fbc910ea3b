"""FLOP rules, and the questions that they ask of a node.

Rules take sizes as known. An unknown one raises `UnknownSizeError`, and the count of the node is unknown.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from graphwright.ir.graph import Node, Value

Rule = Callable[[Node], "float | None"]
"""FLOPs of one execution of a node, or None where they are not known."""


class UnknownSizeError(Exception):
    """A size that a rule asks for is not known; never leaves `node_flops`."""


@dataclass(frozen=True, slots=True)
class FlopRule:
    """How an op type is counted: its family, the count in words, and the rule."""

    family: str
    formula: str
    count: Rule


Entry = tuple[str, str, Rule]
"""Op types apart by spaces, the formula, the rule."""


def table(families: Mapping[str, Iterable[Entry]]) -> dict[str, FlopRule]:
    """The rules of families, by op type."""
    every = ((family, entry) for family, entries in families.items() for entry in entries)
    return {op_type: FlopRule(family, formula, count) for family, (names, formula, count) in every for op_type in names.split()}


def dims(value: Value) -> tuple[int, ...]:
    if value.shape is None or None in value.shape:
        raise UnknownSizeError
    return cast("tuple[int, ...]", value.shape)


def dims_of(node: Node, index: int, least_rank: int = 0) -> tuple[int, ...]:
    """Return the shape of an input with at least this rank; any other node is unknown to the rule."""
    return _dims_at(node.inputs, index, least_rank)


def ranked(node: Node, index: int, rank: int) -> tuple[int, ...]:
    shape = dims_of(node, index, rank)
    if len(shape) != rank:
        raise UnknownSizeError
    return shape


def size(value: Value) -> int:
    return math.prod(dims(value))


def size_of(node: Node, index: int = 0) -> int:
    return math.prod(dims_of(node, index))


def output_dims(node: Node, index: int = 0, least_rank: int = 0) -> tuple[int, ...]:
    return _dims_at(node.outputs, index, least_rank)


def _dims_at(values: Sequence[Value], index: int, least_rank: int) -> tuple[int, ...]:
    if index >= len(values) or len(dims(values[index])) < least_rank:
        raise UnknownSizeError
    return dims(values[index])


def output_size(node: Node) -> int:
    return math.prod(output_dims(node))


def largest_input(node: Node) -> int:
    """Return the elements of the largest input with elements of a fixed size."""
    sizes = [size(v) for v in node.inputs if v.dtype.itemsize is not None]
    if not sizes:
        raise UnknownSizeError
    return max(sizes)


def is_floating(value: Value) -> bool:
    return value.dtype.name.startswith(("float", "bfloat", "complex"))


def is_complex(value: Value) -> bool:
    return value.dtype.name.startswith("complex")


def touches_floats(node: Node) -> bool:
    """Whether it reads or makes floating-point numbers."""
    return any(is_floating(v) for v in (*node.inputs, *node.outputs))


def text_attribute(node: Node, name: str, default: str = "") -> str:
    value = node.attrs.get(name)
    return value.decode() if isinstance(value, bytes) else default


def numbers_attribute(node: Node, name: str) -> tuple[int, ...]:
    """Return an attribute that holds a list of whole numbers; () without it."""
    value = node.attrs.get(name)
    return tuple(v for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()


def per_output(factor: float) -> Rule:
    return lambda node: factor * output_size(node)


def per_input(factor: float, index: int = 0) -> Rule:
    return lambda node: factor * size_of(node, index)


def zero(node: Node) -> float:
    """Nothing is computed, whatever the shapes."""
    del node
    return 0.0
