"""The form of split rules.

Dimensions of inputs and outputs with the same *label* belong together: a part of the node reads a slice of each input along the dimension
with that label, and makes the slice of the output along its own. If the output lacks the label, and the op sums over it, the part makes a
term of the sum. None is a dimension that no part may cut.

So `("m", "k"), ("k", "n") -> ("m", "n")` says that a matrix product can be cut into rows, into columns, and into terms.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np

from graphwright.analyze.flop_rules.rule import UnknownSizeError
from graphwright.ir.constants import Array, constant_array
from graphwright.ir.graph import Node
from graphwright.ir.traits.values import origin

Labels = tuple[Hashable, ...]
"""A label per dimension; None where the dimension must stay whole."""


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The labels of one node.

    Attributes:
        inputs: per input.
        output: of the first output; the others are cut along the same dimension number.
        alone: whether nothing reads the others, so that they need not be cut.
        same: whether each part makes the whole output if it lacks the label.
        sizes: of constant inputs that hold sizes, the labels of their elements.
        sums: whether the output is a sum over the labels that it lacks.
        term: the op type that makes the term of a part, if another one.
        divisor: divides the sum of those terms.
        drawn: numbers drawn per step of the counter; 0 if none.
    """

    inputs: tuple[Labels, ...]
    output: Labels
    sizes: Mapping[int, Labels] = field(default_factory=dict[int, Labels])
    sums: bool = False
    term: str = ""
    divisor: int = 1
    drawn: int = 0
    alone: bool = False
    same: bool = False


Rule = Callable[[Node], Dimensions]
"""The labels of a node.

Raises:
    UnknownSizeError: a shape or an argument is not known, or the op is used in a way that the rule does not know.
"""


def labels_of(name: str, rank: int) -> Labels:
    return tuple((name, k) for k in range(rank))


def whole(rank: int) -> Labels:
    return (None,) * rank


def without(labels: Labels, axes: set[int], *, kept: bool = True) -> Labels:
    return tuple(None if k in axes else label for k, label in enumerate(labels) if kept or k not in axes)


def constant(node: Node, index: int) -> Array:
    """Return the value of a constant input; raises `UnknownSizeError` if it is none."""
    array = constant_array(origin(node.inputs[index]).producer) if index < len(node.inputs) else None
    if array is None:
        raise UnknownSizeError
    return array


def axes(node: Node, index: int, rank: int) -> set[int]:
    return {int(axis) % max(rank, 1) for axis in np.atleast_1d(constant(node, index))}


def number(node: Node, name: str, default: int = 0) -> int:
    attribute = node.attrs.get(name, default)
    return attribute if isinstance(attribute, int) else default
