"""Classify a write of a variable by its arithmetic.

- *moving average*: the old value times a factor, plus something (`v -= (v - x) * c`, `v = v * m + x * (1 - m)`).
- *moving average of a variable*: the same, with a sum read from other variables, as averages of weights.
- *scaling*: the old value times a factor.
- *running total*: the old value plus something that depends on data, as in metrics.
- *counter*: the old value plus constants.
- *random state*: the state of a random number generator, or a counter that random numbers are made from.
- *assignment*: a value that does not depend on the old one.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from graphwright.analyze.variable_access import Access
from graphwright.ir.graph import Node, Value
from graphwright.ir.traits.arithmetic import ASKS_FOR_SHAPE, CHOOSES_ELEMENTS, SCALES, SUMS_AND_DIFFERENCES
from graphwright.ir.traits.values import SAME_BUT_FOR_TYPE, forwards_several, input_behind
from graphwright.ir.traits.variables import ASSIGNS_WHOLE_VALUE, DRAWS_FROM_VARIABLE, REFERENCE_VARIABLES, assigns, is_read, resource_of

_ADDS = SUMS_AND_DIFFERENCES | SAME_BUT_FOR_TYPE | CHOOSES_ELEMENTS | {"FloorMod", "Mod", "BroadcastTo"}
AVERAGE_OF_VARIABLE = "moving average of a variable"
STATE_OF = {"running total": "metric", "counter": "counter", "random state": "random state"}
"""Effects of what is neither a weight nor the optimizer's -> what such a variable is used for."""
INTEGERS = frozenset("int32 int64 uint32 uint64 bool".split())
_CONSTANTS = ASKS_FOR_SHAPE | {"Const"}
_INTEGERS = ("int", "uint")
_LIMIT = 32
"""Nodes that are looked at: the arithmetic of an update is short."""


def describe_update(access: Access) -> str:
    """Return one of the terms above, for an access that writes."""
    node = access.node
    if node.op_type in DRAWS_FROM_VARIABLE:
        return "random state"
    if len(node.inputs) < 2 or not assigns(node):
        return "assignment"
    own = resource_of(node.inputs[0])
    adds = node.op_type not in ASSIGNS_WHOLE_VALUE
    terms = _terms(node.inputs[1], own)
    if "scaled" in terms:
        return "moving average" if "data" in terms else AVERAGE_OF_VARIABLE if "variables" in terms else "scaling"
    if not adds and "own" not in terms:
        return "assignment"
    if node.inputs[1].dtype.name.startswith(_INTEGERS) and _makes_random_numbers(own):
        return "random state"
    return "running total" if terms & {"data", "variables"} else "counter"


def effects_outside(accesses: Iterable[Access], backward: AbstractSet[Node]) -> dict[str, str]:
    """Return the effect of writes outside of the backward pass, and of averages of weights, by key; the first of several."""
    effects: dict[str, str] = {}
    for access in accesses:
        effect = describe_update(access) if access.writes else ""
        if effect and (access.top not in backward or effect == AVERAGE_OF_VARIABLE):
            effects.setdefault(access.key, effect)
    return effects


def is_other_state(dtype: str, effect: str, is_read: bool) -> bool:
    """Return whether a variable that is neither trained nor optimizer state is no weight either: a metric, a counter, a random state.

    Args:
        dtype: its name.
        effect: see `effects_outside`; "" for none.
        is_read: whether the step reads it; an integer table that is only read is a weight.
    """
    return effect in STATE_OF or (dtype in INTEGERS and (bool(effect) or not is_read))


def _terms(value: Value, own: Value) -> set[str]:
    """Return the terms of a new value: the "own" old value, perhaps "scaled", other "variables", other "data"."""
    terms: set[str] = set()
    stack, seen = [(value, False)], 0
    while stack:
        value, is_scaled = stack.pop()
        node = value.producer
        seen += 1
        is_reference = node.op_type in REFERENCE_VARIABLES
        if node is own.producer if is_reference else is_read(node) and resource_of(node.inputs[0]) is own:
            terms.add("scaled" if is_scaled else "own")
        elif seen < _LIMIT and (node.op_type in _ADDS or node.op_type in SCALES) and node.inputs:
            inputs = (input_behind(value),) if forwards_several(node) else node.inputs
            stack += [(v, is_scaled or node.op_type in SCALES) for v in inputs]
        elif is_read(node) or is_reference:
            terms.add("variables")
        elif node.op_type not in _CONSTANTS:
            terms.add("data")
    return terms


def _makes_random_numbers(own: Value) -> bool:
    stack, seen = [own], 0
    while stack and seen < _LIMIT:
        for consumer in stack.pop().consumers:
            seen += 1
            if "Random" in consumer.op_type or "Rng" in consumer.op_type:
                return True
            if assigns(consumer):
                continue
            stack += [v for v in consumer.outputs if v.dtype.name == "resource" or v.dtype.name.startswith(_INTEGERS)]
    return False
