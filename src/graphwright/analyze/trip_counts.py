"""Count how often a loop runs: only the scalars that its condition depends on are computed."""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from graphwright.analyze.storages import Scalar
from graphwright.ir.graph import Node, Value
from graphwright.ir.traits.control_flow import ENTERS, EXITS, LOOP_CONDITIONS, LOOPS, SWITCHES, function_at
from graphwright.ir.traits.values import SAME_VALUE, input_behind, is_constant, origin
from graphwright.ir.traits.variables import WHOLE_READS, is_read
from graphwright.ir.walk import reached
from graphwright.ops.elementwise import DECISIVE, SCALARS

_LONGEST = 1_000_000  # iterations that are counted; a loop that counts further is taken as unknown

ConstantNumber = Callable[[Value], Scalar | None]
Constant = Callable[[Value], "np.ndarray[Any, Any] | None"]


@dataclass(frozen=True, slots=True)
class TripCount:
    """The number of iterations of a loop.

    Attributes:
        count: iterations; 1 if unknown.
        kind: `exact`; `at most`, if data may end the loop earlier; `example`, the count of one call (`Graph.example`); or `unknown`.
    """

    count: int
    kind: Literal["exact", "at most", "example", "unknown"]


@dataclass(frozen=True, slots=True)
class CountedLoop:
    """The values of a loop that decide how often it runs.

    Attributes:
        condition: whether the loop continues.
        condition_inputs, body_inputs: the loop's values as the condition and the body read them.
        body_outputs: their next values.
    """

    condition: Value
    condition_inputs: Sequence[Value]
    body_inputs: Sequence[Value]
    body_outputs: Sequence[Value]


def follow_loop(
    loop: CountedLoop, arguments: Sequence[Scalar | None], constant: ConstantNumber
) -> tuple[TripCount, tuple[Scalar | None, ...]]:
    """Return the trip count, and the numbers of the loop's values at its end, None for unknown ones.

    Args:
        arguments: numbers of the loop's values at the start; None if they are unknown or no scalars.
        constant: returns the number of a constant value, or None.
    """
    trip, numbers = _follow(loop, arguments, constant)
    return trip, numbers if trip.kind == "exact" else _unchanging(loop, arguments)


def _follow(loop: CountedLoop, arguments: Sequence[Scalar | None], constant: ConstantNumber) -> tuple[TripCount, tuple[Scalar | None, ...]]:
    asked = {v: k for k, v in enumerate(loop.condition_inputs)}
    argument = {v: k for k, v in enumerate(loop.body_inputs)}
    seeds = [asked[v] for v in _scalar_sources(loop.condition, asked.keys())]
    # The positions of what the condition depends on, over any number of iterations.
    needed = set(reached(seeds, lambda k: [argument[v] for v in _scalar_sources(loop.body_outputs[k], argument.keys())]))
    followed = needed | {k for k, a in enumerate(arguments) if a is not None}
    numbers: list[Scalar | None] = [a if k in followed else None for k, a in enumerate(arguments)]
    guesses: list[Node] = []
    known_at_start = {v: n is not None for v, n in zip(loop.condition_inputs, numbers, strict=True)}
    longest = _LONGEST if _can_be_decided(loop.condition, known_at_start, constant) else 0
    for count in range(longest):
        goes_on = scalar_value(loop.condition, dict(zip(loop.condition_inputs, numbers, strict=True)), constant, guesses)
        if goes_on is not None and not goes_on:
            return TripCount(count, "at most" if guesses else "exact"), tuple(numbers)
        if goes_on is None:
            guesses.append(loop.condition.producer)
        known = dict(zip(loop.body_inputs, numbers, strict=True))
        following = [scalar_value(v, known, constant, guesses) if k in followed else None for k, v in enumerate(loop.body_outputs)]
        if all(following[k] == numbers[k] for k in needed):
            break  # nothing that the condition knows changes any more
        numbers = following
    return TripCount(1, "unknown"), _unchanging(loop, arguments)


def _can_be_decided(value: Value, known: dict[Value, bool], constant: ConstantNumber) -> bool:
    if value not in known:
        node = value.producer
        known[value] = constant(value) is not None
        if not known[value] and node.op_type in _HANDED_ON:
            known[value] = _can_be_decided(input_behind(value), known, constant)
        elif node.op_type in SCALARS or node.op_type in LOOPS:
            decided = [_can_be_decided(v, known, constant) for v in node.inputs]
            known[value] = any(decided) if node.op_type in DECISIVE or node.op_type in LOOPS else all(decided)
    return known[value]


def _unchanging(loop: CountedLoop, arguments: Sequence[Scalar | None]) -> tuple[Scalar | None, ...]:
    pairs = zip(loop.body_inputs, loop.body_outputs, arguments, strict=True)
    return tuple(number if before is origin(after) else None for before, after, number in pairs)


def scalar_value(
    value: Value, known: dict[Value, Scalar | None], constant: ConstantNumber, guesses: list[Node] | None = None
) -> Scalar | None:
    """Return the number of a value that follows from constants and known numbers by scalar operations, or None.

    Args:
        guesses: if given, collects inner loops that may end earlier, which are followed for as long as they may last.
    """
    if value in known:
        return known[value]
    node = value.producer
    result = constant(value)
    if result is None and node.op_type in _HANDED_ON:
        result = scalar_value(input_behind(value), known, constant, guesses)
    elif result is None and node.op_type in LOOPS:
        known.update(_numbers_behind(node, known, constant, guesses))
        return known[value]
    elif result is None and node.op_type in SCALARS:
        result = _held(compute(node.op_type, [scalar_value(v, known, constant, guesses) for v in node.inputs]), value.dtype.name)
    known[value] = result
    return result


def _held(number: Scalar | None, dtype: str) -> Scalar | None:
    """Return the number rounded to the dtype; None if it does not fit, or NumPy lacks the dtype."""
    if isinstance(number, float):
        return np.dtype(dtype).type(number).item() if dtype in ("float16", "float32", "float64") else None
    if number is None or dtype.lstrip("u") not in ("int8", "int16", "int32", "int64"):
        return number
    return number if np.iinfo(dtype).min <= number <= np.iinfo(dtype).max else None


def number_behind(value: Value, constant: Constant, example: Mapping[str, Scalar]) -> Scalar | None:
    """Return the number of a constant scalar or of an input in the example call; None if unknown."""
    if is_read(value.producer):
        return number_behind(value.producer.inputs[0], constant, example)
    if not is_constant(value.producer):
        return None if value.producer.inputs else example.get(value.producer.name)
    array = constant(value) if (value.nbytes or 9) <= 8 else None
    return array.item() if array is not None and array.size == 1 and array.dtype.kind in "iufb" else None


def counted_loop(node: Node) -> CountedLoop | None:
    """Return the values of a While that decide how often it runs; None if its functions are not in the library."""
    condition, body = (function_at(node, name, node.graph) for name in ("cond", "body"))
    if condition is None or body is None:
        return None
    return CountedLoop(condition.body.outputs[0], condition.body.inputs, body.body.inputs, body.body.outputs)


def _numbers_behind(
    node: Node, known: dict[Value, Scalar | None], constant: ConstantNumber, guesses: list[Node] | None
) -> dict[Value, Scalar | None]:
    loop = counted_loop(node)
    numbers: Sequence[Scalar | None] = [None] * len(node.outputs)
    if loop is not None:
        arguments = [scalar_value(v, known, constant, guesses) for v in node.inputs]
        trip, followed = _follow(loop, arguments, constant)
        if trip.kind == "exact" or (trip.kind == "at most" and guesses is not None):
            numbers = followed
        if trip.kind != "exact" and guesses is not None:
            guesses.append(node)
    return dict(zip(node.outputs, numbers, strict=True))


def _scalar_sources(value: Value, arguments: AbstractSet[Value]) -> set[Value]:
    def sources(v: Value) -> Sequence[Value]:
        op_type = "" if v in arguments else v.producer.op_type
        if op_type in _HANDED_ON:
            return (input_behind(v),)
        return v.producer.inputs if op_type in SCALARS or op_type in LOOPS else ()

    return {v for v in reached([value], sources) if v in arguments}


_HANDED_ON = WHOLE_READS | SAME_VALUE | SWITCHES | ENTERS | EXITS | LOOP_CONDITIONS


def compute(op_type: str, numbers: Sequence[Scalar | None]) -> Scalar | None:
    """Return the scalar result of an operation on scalars, some unknown (False and anything is False), or None."""
    decisive, operation = DECISIVE.get(op_type), SCALARS.get(op_type)
    if decisive is not None and any(n is not None and bool(n) is decisive for n in numbers):
        return decisive
    known = [n for n in numbers if n is not None]
    if operation is None or len(known) < len(numbers) or (operation in (np.floor_divide, np.mod) and not known[1]):
        return None
    return operation(*known).item()
