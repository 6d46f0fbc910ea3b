"""Numbers for what runs in parts of the batch, by the algebra of slices and sums. Nothing runs, and nobody says what rewrote the graph.

A copy says of which node of the original it is a part, and of which examples: that is a witness, which is checked. It must read, of each
input of that node, the slice that the rule of the op type asks for, or all of it, and have the same attributes. Then its outputs are
slices of the original's outputs, or a term of it, and

- a slice of a slice is a slice; slices that follow each other from the first to the last element, joined, are the value;
- terms of examples a to b and of b to c are, added, the term of a to c; that of all examples is the value. That is the only place where
  roundings come in: the numbers of the original are added in another order.

The rules (`split_rules/`) are facts about kernels, which tests hold against the kernels themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from graphwright.analyze.splitting import InParts, in_parts, part_of_size
from graphwright.ir.attributes import Attribute
from graphwright.ir.constants import Array, constant_array
from graphwright.ir.graph import Node, Value
from graphwright.ir.traits.arithmetic import ADDITIONS
from graphwright.ir.traits.values import PART, PART_OF, origin

Number = tuple[int, int]
"""Of a value: the number of what makes it, and which of its outputs it is."""


@dataclass(frozen=True, slots=True)
class _Slice:
    """Elements `start` to `stop`, of `size`, of a value."""

    base: Number
    axis: int
    start: int
    stop: int
    size: int


@dataclass(frozen=True, slots=True)
class _Term:
    """What examples `start` to `stop`, of `batch`, add to a value, before that is divided."""

    base: Number
    start: int
    stop: int
    batch: int
    divisor: int


@dataclass
class PartNumbers:
    """Numbers the copies in a rewritten graph.

    Args:
        number: the number of what a key describes.
        defaults: the attributes of an op type that nodes may leave out, with the values that they have then.

    Attributes:
        sums: the values that are added up part by part, in what was numbered last.
    """

    number: Callable[[object], int]
    defaults: Callable[[str], Mapping[str, Attribute]]
    sums: set[Number] = field(default_factory=set[Number])
    _nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    _values: Mapping[Value, Number] = field(default_factory=dict[Value, Number])
    _slices: dict[Number, _Slice] = field(default_factory=dict[Number, _Slice])
    _terms: dict[Number, _Term] = field(default_factory=dict[Number, _Term])

    def remember(self, nodes: Sequence[Node], values: Mapping[Value, Number]) -> None:
        """Keep the original: the nodes that copies may be parts of, and the numbers of its values."""
        self._nodes = {node.name: node for node in nodes}
        self._values = dict(values)

    def numbers(self, node: Node, numbers: Mapping[Value, Number]) -> list[Number] | None:
        """The numbers of a node's outputs, where it is a part of a node, or puts parts together; None where it is numbered as any other.

        Args:
            numbers: of what it reads.
        """
        if PART_OF in node.attrs:
            return self._of_copy(node, numbers)
        rule = _BY_STRUCTURE.get(node.op_type)
        found = rule(self, node, [numbers[value] for value in node.inputs]) if rule is not None else None
        return None if found is None else [found]

    # Copies

    def _of_copy(self, node: Node, numbers: Mapping[Value, Number]) -> list[Number] | None:
        name, part = node.attrs[PART_OF], node.attrs.get(PART)
        original = self._nodes.get(name.decode()) if isinstance(name, bytes) else None
        if original is None or not isinstance(part, tuple) or len(original.inputs) != len(node.inputs):
            return None
        start, stop, batch, axis = (k if isinstance(k, int) else 0 for k in part)
        read = [self._slices.get(numbers[value]) for value in node.inputs]
        split = [
            found.axis if found is not None and found.base == self._values.get(value) else None
            for found, value in zip(read, original.inputs, strict=True)
        ]
        is_made = all(k is None for k in split)
        how = in_parts(original, split, axis if is_made and axis >= 0 else None, batch) if 0 <= start < stop <= batch else None
        if how is None or (how.output is None) != (axis < 0) or not self._has_attributes(node, original, how):
            return None
        for k in range(len(node.inputs)):
            if not self._reads(node, original, k, how, (start, stop, batch), numbers):
                return None
        if how.output is None:
            return [self._term(_Term(self._values[original.outputs[0]], start, stop, batch, how.divisor))]
        made: list[Number] = []
        for value in original.outputs:
            if value not in how.split_outputs(original):  # nobody reads it there, so nothing can stand for it
                made.append((self.number(value), value.index))
                continue
            size = _size(value, how.output)
            made.append(self._slice(_Slice(self._values[value], how.output, size * start // batch, size * stop // batch, size)))
        return made

    def _reads(
        self, node: Node, original: Node, index: int, how: InParts, part: tuple[int, int, int], numbers: Mapping[Value, Number]
    ) -> bool:
        """Whether a copy reads at one input what its part asks for."""
        start, stop, batch = part
        given, value, axis = node.inputs[index], original.inputs[index], how.inputs[index]
        whole = self._values[value]
        if axis is not None:
            size = _size(value, axis)
            low, high = size * start // batch, size * stop // batch
            if self._slices.get(numbers[given]) == _Slice(whole, axis, low, high, size):
                return True
            return _same(given, _constant(value), lambda array: array[(slice(None),) * axis + (slice(low, high),)])
        sizes = [element for k, element in how.sizes if k == index]
        if sizes:
            return _same(given, _constant(value), lambda array: _scaled(array, sizes, start, stop, batch))
        if how.drawn and index == 2 and start:
            shape = original.outputs[0].shape or ()
            ahead = int(np.prod([size or 0 for size in shape])) * start // (batch * how.drawn)
            moved = origin(given).producer
            if moved.op_type not in ADDITIONS or numbers[moved.inputs[0]] != whole:
                return False
            return _same(moved.inputs[1], np.array([ahead, 0], np.uint64), lambda array: array)
        return numbers[given] == whole

    def _has_attributes(self, node: Node, original: Node, how: InParts) -> bool:
        ours, theirs = ({**self.defaults(n.op_type), **n.attrs} for n in (node, original))
        names = {name for name in (*ours, *theirs) if name[0] != "_"}
        return node.op_type == how.op_type and all(ours.get(name) == theirs.get(name) for name in names)

    # Algebra

    def _slice(self, found: _Slice) -> Number:
        if (found.start, found.stop) == (0, found.size):
            return found.base
        number = self.number(found), 0
        self._slices[number] = found
        return number

    def _term(self, found: _Term) -> Number:
        if (found.start, found.stop) == (0, found.batch) and found.divisor == 1:
            self.sums.add(found.base)
            return found.base
        number = self.number(found), 0
        self._terms[number] = found
        return number

    def _of_slice(self, node: Node, read: Sequence[Number]) -> Number | None:
        begin, count = (_constant(value) for value in node.inputs[1:3])
        shape = node.inputs[0].shape
        if begin is None or count is None or shape is None or None in shape:
            return None
        known = [size or 0 for size in shape]
        counts = [size - int(first) if taken < 0 else int(taken) for size, first, taken in zip(known, begin, count, strict=True)]
        cut = [axis for axis, size in enumerate(known) if (begin[axis], counts[axis]) != (0, size)]
        if len(cut) != 1:
            return None
        [axis] = cut
        size = known[axis]
        outer = self._slices.get(read[0], _Slice(read[0], axis, 0, size, size))
        if outer.axis != axis:
            return None
        start = outer.start + int(begin[axis])
        return self._slice(_Slice(outer.base, axis, start, start + counts[axis], outer.size))

    def _of_join(self, node: Node, read: Sequence[Number]) -> Number | None:
        axis, parts = _constant(node.inputs[-1]), [self._slices.get(number) for number in read[:-1]]
        at, base = 0, parts[0].base if parts[0] is not None else None
        for part in parts:
            if part is None or axis is None or (part.base, part.axis, part.start) != (base, int(axis), at):
                return None
            at = part.stop
        return base if parts[-1] is not None and at == parts[-1].size else None

    def _of_addition(self, node: Node, read: Sequence[Number]) -> Number | None:
        del node
        one, other = (self._terms.get(number) for number in read)
        if one is None or other is None or one.stop != other.start:
            return None
        joined = _Term(one.base, one.start, other.stop, one.batch, one.divisor)
        return self._term(joined) if (other.base, other.batch, other.divisor) == (one.base, one.batch, one.divisor) else None

    def _of_division(self, node: Node, read: Sequence[Number]) -> Number | None:
        term, divisor = self._terms.get(read[0]), _constant(node.inputs[1])
        if term is None or divisor is None or divisor.shape or (term.start, term.stop) != (0, term.batch):
            return None
        if divisor != np.array(term.divisor, divisor.dtype):
            return None
        self.sums.add(term.base)
        return term.base


_BY_STRUCTURE: Mapping[str, Callable[[PartNumbers, Node, Sequence[Number]], Number | None]] = {
    "Slice": PartNumbers._of_slice,  # pyright: ignore[reportPrivateUsage] - the table of the class's own rules
    "ConcatV2": PartNumbers._of_join,  # pyright: ignore[reportPrivateUsage]
    "AddV2": PartNumbers._of_addition,  # pyright: ignore[reportPrivateUsage]
    "RealDiv": PartNumbers._of_division,  # pyright: ignore[reportPrivateUsage]
}


def _size(value: Value, axis: int) -> int:
    shape = value.shape
    return (shape[axis] or 0) if shape is not None and axis < len(shape) else 0


def _constant(value: Value) -> Array | None:
    return constant_array(origin(value).producer)


def _same(given: Value, array: Array | None, change: Callable[[Array], Array]) -> bool:
    """Whether a value is a constant, and the one that is made of another one."""
    found = _constant(given)
    if found is None or array is None:
        return False
    expected = change(array)
    return found.dtype == expected.dtype and found.shape == expected.shape and found.tobytes() == expected.tobytes()


def _scaled(array: Array, elements: Sequence[int], start: int, stop: int, batch: int) -> Array:
    for element in elements:
        array = part_of_size(array, element, start, stop, batch)
    return array
