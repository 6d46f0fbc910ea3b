"""How often a loop runs: the scalars that its condition depends on are computed, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from graphwright.analyze.storages import Scalar
from graphwright.ir.graph import Graph, Value

_LONGEST = 1_000_000  # iterations that are counted; a loop that counts further is taken as unknown

ConstantNumber = Callable[[Value], Scalar | None]


@dataclass(frozen=True, slots=True)
class TripCount:
    """How often a loop's body runs.

    Attributes:
        count: iterations; 1 when unknown.
        kind: `exact`; `at most`, when the loop may also end earlier, by a condition on data; or `unknown`.
    """

    count: int
    kind: Literal["exact", "at most", "unknown"]


def trip_count(condition: Graph, body: Graph, arguments: Sequence[Scalar | None], constant: ConstantNumber) -> TripCount:
    """Count by computing the scalars that the condition depends on.

    Args:
        arguments: numbers of the loop's values at the start, None where they are no scalar or not known.
        constant: the number of a value that is a constant, or None.
    """
    needed = _needed_positions(condition, body)
    numbers: list[Scalar | None] = [a if k in needed else None for k, a in enumerate(arguments)]
    certain = True
    for count in range(_LONGEST):
        goes_on = _evaluate(condition.outputs[0], dict(zip(condition.inputs, numbers, strict=True)), constant)
        if goes_on is not None and not goes_on:
            return TripCount(count, "exact" if certain else "at most")
        certain = certain and goes_on is not None
        known = dict(zip(body.inputs, numbers, strict=True))
        following = [_evaluate(v, known, constant) if k in needed else None for k, v in enumerate(body.outputs)]
        if following == numbers:
            break  # nothing that is known changes any more
        numbers = following
    return TripCount(1, "unknown")


def _evaluate(value: Value, known: dict[Value, Scalar | None], constant: ConstantNumber) -> Scalar | None:
    if value in known:
        return known[value]
    node = value.producer
    result = constant(value)
    if node.op_type == "Identity":
        result = _evaluate(node.inputs[0], known, constant)
    elif node.op_type in _SCALAR_OPERATIONS:
        result = _apply(node.op_type, [_evaluate(v, known, constant) for v in node.inputs])
    known[value] = result
    return result


def _needed_positions(condition: Graph, body: Graph) -> set[int]:
    """Positions of the loop's values that the condition depends on, over any number of iterations."""
    argument = {v: k for k, v in enumerate(body.inputs)}
    needed: set[int] = set()
    stack = [condition.inputs.index(v) for v in _scalar_sources(condition.outputs[0], set(condition.inputs))]
    while stack:
        k = stack.pop()
        if k not in needed:
            needed.add(k)
            stack += [argument[v] for v in _scalar_sources(body.outputs[k], set(body.inputs))]
    return needed


def _scalar_sources(value: Value, arguments: set[Value]) -> set[Value]:
    """The arguments that a value depends on through operations on scalars."""
    found: set[Value] = set()
    stack, seen = [value], {value}
    while stack:
        v = stack.pop()
        if v in arguments:
            found.add(v)
        elif v.producer.op_type == "Identity" or v.producer.op_type in _SCALAR_OPERATIONS:
            for source in v.producer.inputs:
                if source not in seen:
                    seen.add(source)
                    stack.append(source)
    return found


_SCALAR_OPERATIONS: Mapping[str, np.ufunc] = {
    "Add": np.add,
    "AddV2": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Neg": np.negative,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "LogicalNot": np.logical_not,
    "LogicalAnd": np.logical_and,
    "LogicalOr": np.logical_or,
}


def compute(op_type: str, numbers: Sequence[Scalar | None]) -> Scalar | None:
    """The scalar that an operation makes of scalars, or None for one that is not known."""
    return _apply(op_type, numbers) if op_type in _SCALAR_OPERATIONS else None


def _apply(op_type: str, numbers: Sequence[Scalar | None]) -> Scalar | None:
    """The result on numbers of which some may be unknown; False and anything is False."""
    if op_type in ("LogicalAnd", "LogicalOr"):
        decisive = op_type == "LogicalOr"
        if any(n is not None and bool(n) is decisive for n in numbers):
            return decisive
    known = [n for n in numbers if n is not None]
    if len(known) < len(numbers) or (op_type in ("FloorDiv", "FloorMod") and not known[1]):
        return None
    return _SCALAR_OPERATIONS[op_type](*known).item()
