"""What a rule of splitting says, and what rules ask of a node.

Dimensions of inputs and outputs that carry the same *label* go together: a part of the node reads a slice of each input along the
dimension with that label, and makes the slice of the output along its dimension with that label. Where the output has none, and the op
sums over it, the part makes a term of the output's sum. None stands for a dimension that no part may cut.

So `("m", "k"), ("k", "n") -> ("m", "n")` says of a matrix product that it can be cut into rows, into columns, and into terms.
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
        output: of the first output; the others are cut along the dimension of the same number.
        alone: whether nobody reads the others, so that they need not be cut.
        same: whether each part makes the whole output where that does not have the label.
        sizes: of constant inputs that hold sizes: the labels of the dimensions whose sizes their elements are.
        sums: whether the output is a sum over the labels that it does not have.
        term: the op type that makes the term of a part, where it is another one.
        divisor: by what the sum of those terms is divided.
        drawn: how many numbers the op draws per step of its counter; 0 where it draws none.
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
    """As many labels, all different, that belong to a name."""
    return tuple((name, k) for k in range(rank))


def whole(rank: int) -> Labels:
    """Dimensions that no part may cut."""
    return (None,) * rank


def without(labels: Labels, axes: set[int], *, kept: bool = True) -> Labels:
    """Labels with None, or with nothing, at some axes."""
    return tuple(None if k in axes else label for k, label in enumerate(labels) if kept or k not in axes)


def constant(node: Node, index: int) -> Array:
    """The value of a constant input.

    Raises:
        UnknownSizeError: it is none.
    """
    found = constant_array(origin(node.inputs[index]).producer) if index < len(node.inputs) else None
    if found is None:
        raise UnknownSizeError
    return found


def axes(node: Node, index: int, rank: int) -> set[int]:
    """Axes that a constant input names, counted from the front."""
    return {int(axis) % max(rank, 1) for axis in np.atleast_1d(constant(node, index))}


def number(node: Node, name: str, default: int = 0) -> int:
    """An attribute that is a whole number."""
    found = node.attrs.get(name, default)
    return found if isinstance(found, int) else default
