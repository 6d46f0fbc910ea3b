"""Split rules: which dimensions of inputs and outputs belong together.

Dimensions with the same *label* belong together: a part of the node reads a slice of each input along the dimension with that label, and
makes the slice of the output along its own. If the output lacks the label, and the op sums over it, the part makes a term of the sum.
None is a dimension that no part may cut. So `("m", "k"), ("k", "n") -> ("m", "n")` says that a matrix product can be cut into rows, into
columns, and into terms.

An op type without a rule runs whole: that costs memory, never correctness. A rule is a fact about a kernel, which
`tests/ops/test_split_rules.py` checks against TensorFlow's kernels.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from graphwright.ir.graph import Node
from graphwright.ops.sizes import UnknownSizeError, axes, dims, dims_of, output_dims, text_attribute

Labels = tuple[Hashable, ...]
"""A label per dimension; None where the dimension must stay whole."""

MOST_DIMENSIONS = 8
"""Dimensions of the elements of a list, at most."""


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The labels of one node.

    Attributes:
        inputs: per input.
        output: of the first output; the others are cut along the same dimension number.
        sizes: of constant inputs that hold sizes, the labels of their elements.
        sums: whether the output is a sum over the labels that it lacks.
        term: the op type that makes the term of a part, if another one.
        divisor: divides the sum of those terms.
        drawn: numbers drawn per step of the counter; 0 if none.
        alone: whether nothing reads the other outputs, so that they need not be cut.
        same: whether each part makes the whole output if it lacks the label.
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


SplitRule = Callable[[Node], Dimensions]
"""The labels of a node; raises `UnknownSizeError` for a use of the op that the rule does not cover."""


def labels_of(name: str, rank: int) -> Labels:
    return tuple((name, k) for k in range(rank))


def labels_like(node: Node, index: int = 0) -> Labels:
    """Return a label per dimension of an input."""
    return labels_of("d", len(dims_of(node, index)))


def labels_of_output(node: Node) -> Labels:
    return labels_of("d", len(output_dims(node)))


def whole(rank: int) -> Labels:
    return (None,) * rank


def whole_inputs(node: Node, first: int = 1) -> tuple[Labels, ...]:
    """Return the labels of inputs of which each part reads everything."""
    return tuple(whole(len(dims(value))) for value in node.inputs[first:])


def without(labels: Labels, gone: Collection[int], *, kept: bool = True) -> Labels:
    """Return the labels with None for some dimensions, or without these dimensions."""
    return tuple(None if k in gone else label for k, label in enumerate(labels) if kept or k not in gone)


def broadcast_labels(labels: Labels, sizes: Sequence[int], shape: Sequence[int]) -> Labels:
    """Return the labels of an operand of this shape, which is broadcast to `sizes`."""
    front = len(sizes) - len(shape)
    if front < 0:
        raise UnknownSizeError
    return tuple(label if size == other else None for label, size, other in zip(labels[front:], shape, sizes[front:], strict=True))


def along_axis(node: Node) -> Dimensions:
    """Elements depend on each other along the axes in the second input only."""
    labels = labels_like(node)
    labels = without(labels, axes(node, 1, len(labels)))
    return Dimensions((labels, *whole_inputs(node)), labels)


def along_last_axis(node: Node) -> Dimensions:
    labels = (*labels_like(node)[:-1], None)
    return Dimensions((labels, *whole_inputs(node)), labels)


def rows(pattern: str, *, sums: bool = False, **sizes: str) -> SplitRule:
    """Return a rule for fixed ranks: `"n-- -- -> n--"` names each dimension of inputs and output by a letter, "-" if it stays whole.

    Letters other than "n" are of channels in last place; they do not hold for NCHW, nor for grouped convolutions.

    Args:
        sizes: labels of the elements of constant inputs, as `of_<input>="n--"`.
    """
    left, right = pattern.split("->")
    read, result = [_letters(word) for word in left.split()], _letters(right.strip())
    held = {int(name.removeprefix("of_")): _letters(word) for name, word in sizes.items()}

    def rule(node: Node) -> Dimensions:
        shapes = [*(dims(value) for value in node.inputs), output_dims(node)]
        if [len(labels) for labels in read] != [len(shape) for shape in shapes[:-1]]:
            raise UnknownSizeError
        sizes = {pair for labels, shape in zip((*read, result), shapes, strict=True) for pair in zip(labels, shape, strict=True) if pair[0]}
        if len(sizes) == len(dict(sizes)) and not text_attribute(node, "data_format").startswith("NC"):
            return Dimensions(tuple(read), result, held, sums=sums)
        return Dimensions(tuple(map(_of_batch, read)), _of_batch(result), {k: _of_batch(labels) for k, labels in held.items()}, sums=sums)

    return rule


def _letters(word: str) -> Labels:
    return tuple(None if letter == "-" else letter for letter in word if letter != "_")


def _of_batch(labels: Labels) -> Labels:
    return tuple(label if label == "n" else None for label in labels)
