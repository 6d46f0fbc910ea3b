"""Value numbers for graphs that run in parts of the batch, by the algebra of slices and sums. Nothing runs.

A copy names the node of the original that it is a part of, and its examples; that claim is checked. The copy must read, of each input of
that node, the slice that the rule of the op type asks for, or all of it, and have the same attributes. Then its outputs are slices of the
original's outputs, or terms of them, and

- a slice of a slice is a slice; consecutive slices from the first to the last element, joined, are the value;
- terms of examples a to b and of b to c add up to the term of a to c; the term of all examples is the value. Only here roundings differ;
- a linear operation makes terms of terms;
- a loop runs in parts by induction: if each value of the copy is a slice, a term, or the same before an iteration, it is so after it, by
  the numbers of the two bodies, and the condition is the same.

The split rules (`ops/dimensions.py`) are facts about kernels, which tests check against the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from graphwright.analyze.in_parts import SAME, TERM, InParts, in_parts, part_of_size, size_along
from graphwright.ir.attributes import Attribute
from graphwright.ir.constants import Array, constant_array, is_zero
from graphwright.ir.dtypes import Shape
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import ADDITIONS
from graphwright.ir.traits.control_flow import LOOPS
from graphwright.ir.traits.values import PART, PART_OF, exact_shape, origin
from graphwright.ops.sizes import UnknownSizeError

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
    """The contribution of examples `start` to `stop`, of `batch`, to a value, before any division."""

    base: Number
    start: int
    stop: int
    batch: int
    divisor: int


@dataclass(frozen=True, slots=True)
class Known:
    """The original graph, or the body of one of its functions."""

    body: Graph
    nodes: Mapping[str, Node]
    numbers: Mapping[Value, Number]
    versions: Mapping[str, object]
    shapes: Mapping[Number, Shape]


@dataclass(frozen=True, slots=True)
class _Copy:
    """A node that claims to do a part of a node of the original."""

    node: Node
    original: Node
    start: int
    stop: int
    batch: int
    kinds: tuple[int, ...]
    numbers: Mapping[Value, Number]
    known: Known

    @classmethod
    def read(cls, node: Node, numbers: Mapping[Value, Number], known: Known) -> _Copy | None:
        name, part = node.attrs[PART_OF], node.attrs.get(PART)
        original = known.nodes.get(name.decode()) if isinstance(name, bytes) else None
        if original is None or not isinstance(part, tuple) or len(original.inputs) != len(node.inputs):
            return None
        start, stop, batch, *kinds = (k if isinstance(k, int) else -1 for k in part)
        if not 0 <= start < stop <= batch or len(kinds) != len(original.outputs) or len(node.outputs) != len(kinds):
            return None
        return cls(node, original, start, stop, batch, tuple(kinds), numbers, known)

    @property
    def numbers_before(self) -> Mapping[Value, Number]:
        return self.known.numbers

    def reads_whole(self, index: int) -> bool:
        return self.numbers[self.node.inputs[index]] == self.numbers_before[self.original.inputs[index]]

    def slice(self, base: Number, value: Value, axis: int) -> _Slice:
        size = size_along(value, axis, self.batch)
        return _Slice(base, axis, size * self.start // self.batch, size * self.stop // self.batch, size)

    def term(self, base: Number, divisor: int) -> _Term:
        return _Term(base, self.start, self.stop, self.batch, divisor)


ReadPart = Callable[[Node, Node, str, Callable[[Known], Sequence[Number]]], "tuple[Known, list[Number]] | None"]
"""Of a copy of a loop, that loop, the attribute of a function, and numbers for its arguments: what the loop's function has in the original,
and the numbers of the results of the copy's. None where that has effects, or one of the functions is not known."""


@dataclass
class PartNumbers:
    """Numbers the copies in a rewritten graph.

    Attributes:
        sums: the values that are added up part by part.
        known: the original: its graph, and the bodies of its functions.
    """

    number: Callable[[object], int]
    defaults: Callable[[str], Mapping[str, Attribute]]
    sums: set[Number] = field(default_factory=set[Number])
    known: dict[object, Known] = field(default_factory=dict[object, Known])
    _slices: dict[Number, _Slice] = field(default_factory=dict[Number, _Slice])
    _terms: dict[Number, _Term] = field(default_factory=dict[Number, _Term])
    _shapes: Mapping[Number, Shape] = field(default_factory=dict[Number, Shape])  # known in what is numbered now

    def numbers(
        self, node: Node, numbers: Mapping[Value, Number], original: Known | None, version: object, read_part: ReadPart
    ) -> list[Number] | None:
        """Return the numbers of a node's outputs if it is a part of a node, or joins parts; else None.

        Args:
            numbers: of its inputs.
            original: the counterpart of the graph that holds it; None for the original itself.
            version: of a loop, the earlier writes to what it reads.
        """
        if PART_OF in node.attrs and original is not None:
            copy = _Copy.read(node, numbers, original)
            if copy is None:
                return None
            try:
                return self._of_loop(copy, version, read_part) if node.op_type in LOOPS else self._of_copy(copy)
            except UnknownSizeError:  # of what is cut
                return None
        rule = _BY_STRUCTURE.get(node.op_type)
        self._shapes = {} if original is None else original.shapes
        number = rule(self, node, [numbers[value] for value in node.inputs]) if rule is not None else None
        return None if number is None else [number]

    # Copies

    def _of_copy(self, copy: _Copy) -> list[Number] | None:
        node, original = copy.node, copy.original
        kinds = [self._kind(copy, k) for k in range(len(node.inputs))]
        is_made = all(kind is None for kind in kinds)
        how = in_parts(original, kinds, copy.kinds[0] if is_made and copy.kinds[0] >= 0 else None, copy.batch)
        if how is None or how.outputs != copy.kinds or not self._has_attributes(node, original, how.op_type, ()):
            return None
        if not all(self._reads(copy, k, how) for k in range(len(node.inputs))):
            return None
        if how.divisor > 1:
            return [self._term(copy.term(copy.numbers_before[original.outputs[0]], how.divisor))]
        return [self._part(copy, value, kind) for value, kind in zip(original.outputs, copy.kinds, strict=True)]

    def _of_loop(self, copy: _Copy, version: object, read_part: ReadPart) -> list[Number] | None:
        node, original, kinds = copy.node, copy.original, copy.kinds
        if len(kinds) != len(node.inputs) or copy.known.versions.get(original.name) != version:
            return None
        if not self._has_attributes(node, original, original.op_type, ("cond", "body", "output_shapes")):
            return None
        for k, kind in enumerate(kinds):
            is_zero_before = kind == TERM and copy.reads_whole(k) and is_zero(original.inputs[k])
            if not (is_zero_before or (copy.reads_whole(k) if kind == SAME else self._is_part(copy, k, kind))):
                return None

        def arguments(known: Known) -> list[Number]:
            return [self._part(copy, value, kind, known.numbers) for value, kind in zip(known.body.inputs, kinds, strict=True)]

        condition, body = (read_part(node, original, attribute, arguments) for attribute in ("cond", "body"))
        if condition is None or body is None or condition[1] != [condition[0].numbers[value] for value in condition[0].body.outputs]:
            return None
        known, results = body
        inside = known.body
        for kind, before, argument, result, number in zip(kinds, original.inputs, inside.inputs, inside.outputs, results, strict=True):
            # The part is that of the value before the loop, of the one inside, and of the one of the next round.
            if kind >= 0 and len({size_along(value, kind, copy.batch) for value in (before, argument, result)}) > 1:
                return None
            if number != self._part(copy, result, kind, known.numbers):
                return None
        return [self._part(copy, value, kind) for value, kind in zip(original.outputs, kinds, strict=True)]

    def _part(self, copy: _Copy, value: Value, kind: int, numbers: Mapping[Value, Number] | None = None) -> Number:
        base = (copy.numbers_before if numbers is None else numbers)[value]
        if kind >= 0:
            return self._slice(copy.slice(base, value, kind))
        if kind == TERM:
            return self._term(copy.term(base, 1))
        return base if kind == SAME else (self.number(value), value.index)  # nobody reads it there, so nothing can stand for it

    def _kind(self, copy: _Copy, index: int) -> int | None:
        """Return the axis along which a copy reads a part of an input, or `TERM`; None otherwise."""
        number, base = copy.numbers[copy.node.inputs[index]], copy.numbers_before[copy.original.inputs[index]]
        piece, term = self._slices.get(number), self._terms.get(number)
        if piece is not None and piece.base == base:
            return piece.axis
        return TERM if term is not None and term.base == base else None

    def _is_part(self, copy: _Copy, index: int, kind: int) -> bool:
        read, value = copy.node.inputs[index], copy.original.inputs[index]
        base = copy.numbers_before[value]
        if kind == TERM:
            return self._terms.get(copy.numbers[read]) == copy.term(base, 1)
        asked = copy.slice(base, value, kind)
        if self._slices.get(copy.numbers[read]) == asked:
            return True
        return _same(read, _constant(value), lambda array: array[(slice(None),) * kind + (slice(asked.start, asked.stop),)])

    def _reads(self, copy: _Copy, index: int, how: InParts) -> bool:
        kind, read, value = how.inputs[index], copy.node.inputs[index], copy.original.inputs[index]
        if kind is not None:
            return self._is_part(copy, index, kind)
        sizes = [element for k, element in how.sizes if k == index]
        if sizes:
            return _same(read, _constant(value), lambda array: _scaled(array, sizes, copy.start, copy.stop, copy.batch))
        if how.drawn and index == 2 and copy.start:
            shape = copy.original.outputs[0].shape or ()
            ahead = int(np.prod([size or 0 for size in shape])) * copy.start // (copy.batch * how.drawn)
            moved = origin(read).producer
            if moved.op_type not in ADDITIONS or copy.numbers[moved.inputs[0]] != copy.numbers_before[value]:
                return False
            return _same(moved.inputs[1], np.array([ahead, 0], np.uint64), lambda array: array)
        return copy.reads_whole(index)

    def _has_attributes(self, node: Node, original: Node, op_type: str, but: Collection[str]) -> bool:
        ours, theirs = ({**self.defaults(n.op_type), **n.attrs} for n in (node, original))
        names = {name for name in (*ours, *theirs) if name[0] != "_" and name not in but}
        return node.op_type == op_type and all(ours.get(name) == theirs.get(name) for name in names)

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
        shape = exact_shape(node.inputs[0]) or self._shapes.get(read[0])
        if begin is None or count is None or shape is None:
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
        if term is None or divisor is None or divisor.shape or divisor != np.array(term.divisor, divisor.dtype):
            return None
        return self._term(replace(term, divisor=1))


_BY_STRUCTURE: Mapping[str, Callable[[PartNumbers, Node, Sequence[Number]], Number | None]] = {
    "Slice": PartNumbers._of_slice,  # pyright: ignore[reportPrivateUsage] - the table of the class's own rules
    "ConcatV2": PartNumbers._of_join,  # pyright: ignore[reportPrivateUsage]
    "AddV2": PartNumbers._of_addition,  # pyright: ignore[reportPrivateUsage]
    "RealDiv": PartNumbers._of_division,  # pyright: ignore[reportPrivateUsage]
}


def _constant(value: Value) -> Array | None:
    return constant_array(origin(value).producer)


def _same(given: Value, array: Array | None, change: Callable[[Array], Array]) -> bool:
    array_read = _constant(given)
    if array_read is None or array is None:
        return False
    expected = change(array)
    return array_read.dtype == expected.dtype and array_read.shape == expected.shape and array_read.tobytes() == expected.tobytes()


def _scaled(array: Array, elements: Sequence[int], start: int, stop: int, batch: int) -> Array:
    for element in elements:
        array = part_of_size(array, element, start, stop, batch)
    return array
