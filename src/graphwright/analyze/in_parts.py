"""How one node runs in parts of the batch: what each part reads of its inputs and makes of its outputs.

Terms are those of `splitting.py`. The *kind* of an output is the axis along which it is split, or one of the constants here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from graphwright.ir.constants import Array, constant_array
from graphwright.ir.graph import Node, Value
from graphwright.ir.traits.arithmetic import LINEAR_IN, LINEAR_IN_ALL
from graphwright.ir.traits.effects import makes_counter
from graphwright.ir.traits.rounds import is_list
from graphwright.ir.traits.values import origin
from graphwright.ops.catalog import SPLITS
from graphwright.ops.dimensions import Dimensions
from graphwright.ops.sizes import UnknownSizeError, dims, output_size

TERM = -1
"""Each part makes a term of a sum."""
SAME = -2
"""Each part makes all of it, the same as the whole does."""
UNREAD = -3
"""Nobody reads it, so nobody asks what a part makes."""
_REAL = frozenset({"bfloat16", "float16", "float32", "float64"})


@dataclass(frozen=True, slots=True)
class InParts:
    """How a node runs in parts.

    Attributes:
        inputs: per input, the axis of the slice that a part reads; `TERM` for a term (only inside loops); None for all of it.
        outputs: per output, the axis along which it is split, or `TERM`, `SAME` or `UNREAD`.
        sizes: the elements of constant inputs that are sizes along the split dimensions, as (input, element).
        op_type: of the parts.
        divisor: divides the sum of all parts.
        drawn: numbers drawn per step of the counter at input 2; 0 if none.
        body: of a loop, how the nodes of its body run, by name.
    """

    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    op_type: str
    sizes: tuple[tuple[int, int], ...] = ()
    divisor: int = 1
    drawn: int = 0
    body: Mapping[str, InParts] = field(default_factory=dict[str, "InParts"])

    def kind(self, value: Value) -> int:
        return self.outputs[value.index]

    @property
    def makes_terms(self) -> bool:
        return self.outputs[0] == TERM


def in_parts(node: Node, split: Sequence[int | None], wanted: int | None, batch: int) -> InParts | None:
    """Return how a node runs in parts if some inputs are split; None if it must run whole. For loops see `splitting.py`.

    If inputs are split along incompatible dimensions, as in attention scores, the one that gathers the fewest bytes is chosen.

    Args:
        split: per input, the axis along which it is split, or `TERM`.
        wanted: the axis along which the result is split, for a node without split inputs.
    """
    rule = SPLITS.get(node.op_type)
    if not node.outputs:
        return None
    if TERM in split:
        return _of_terms(node, split)
    if rule is None:
        return None
    try:
        known = rule(node)
        if wanted is not None:
            asked = [known.output[wanted]]
        else:
            asked = [labels[axis] for labels, axis in zip(known.inputs, split, strict=True) if axis is not None]
        ways = [_along(node, known, label, batch) for label in dict.fromkeys(asked) if label is not None]
        return min((way for way in ways if way is not None), key=lambda way: _gathered_bytes(node, split, way), default=None)
    except (UnknownSizeError, IndexError, ValueError):  # a use that the rule does not know
        return None


def _of_terms(node: Node, split: Sequence[int | None]) -> InParts | None:
    """Return how a linear operation makes a term of terms: f(a + b) = f(a) + f(b)."""
    sums = [k for k, kind in enumerate(split) if kind is not None]
    values = [*(node.inputs[k] for k in sums), *node.outputs]
    if any(value.dtype.name not in _REAL for value in values) or any(split[k] != TERM for k in sums):
        return None
    # The axis of a concatenation is no term.
    everything = node.op_type in LINEAR_IN_ALL and all(k in sums for k, v in enumerate(node.inputs) if v.dtype.name in _REAL)
    one = len(sums) == 1 and sums[0] in LINEAR_IN.get(node.op_type, ())
    return InParts(tuple(split), (TERM,) * len(node.outputs), node.op_type) if one or everything else None


def _gathered_bytes(node: Node, split: Sequence[int | None], how: InParts) -> int:
    gathered = {value for value, has, asks in zip(node.inputs, split, how.inputs, strict=True) if has is not None and has != asks}
    return sum(value.nbytes or 0 for value in (*gathered, *(node.outputs if how.makes_terms else ())))


def _along(node: Node, known: Dimensions, label: object, batch: int) -> InParts | None:
    inputs = tuple(labels.index(label) if label in labels else None for labels in known.inputs)
    output = known.output.index(label) if label in known.output else None
    if output is None and not (known.sums or known.same):
        return None
    cut = [size_along(value, axis, batch) for value, axis in zip(node.inputs, inputs, strict=True) if axis is not None]
    if output is not None:
        cut += [size_along(value, output, batch) for value in node.outputs[: 1 if known.alone else None]]
    if any(size % batch or not size for size in cut):
        return None
    if any(labels.count(label) > 1 for labels in (*known.inputs, known.output)):
        return None
    sizes = tuple((k, element) for k, labels in known.sizes.items() for element, other in enumerate(labels) if other == label)
    for k, element in sizes:
        array = constant_array(origin(node.inputs[k]).producer)
        if array is None or (array[element] != -1 and array[element] % batch):
            return None
    if known.drawn and (output_size(node) // batch % known.drawn or not makes_counter(origin(node.inputs[2]).producer)):
        return None
    if output is not None:
        kinds = tuple(UNREAD if known.alone and k else output for k in range(len(node.outputs)))
        return InParts(inputs, kinds, node.op_type, sizes, drawn=known.drawn)
    return InParts(inputs, (SAME if known.same else TERM,), known.term or node.op_type, sizes, known.divisor)


def size_along(value: Value, axis: int, batch: int) -> int:
    """Return the size of a dimension; of a list, the units of the batch."""
    return batch if is_list(value) else dims(value)[axis]


def part_of_size(array: Array, element: int, start: int, stop: int, batch: int) -> Array:
    """Return sizes for the examples from `start` to `stop`, given sizes for the whole batch; -1 stays."""
    changed = array.copy()
    if changed[element] != -1:
        changed[element] = int(changed[element]) * (stop - start) // batch
    return changed
