"""Ops for values from outside, and ops that forward a value.

A *view* shares the storage of its input: nothing is copied.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from graphwright.ir.traits.control_flow import LOOPS
from graphwright.ir.traits.of_type import of_type

if TYPE_CHECKING:  # a trait is of a node: nodes and graphs ask for traits, so these are types only
    from collections.abc import Callable

    from graphwright.ir.dtypes import Shape
    from graphwright.ir.graph import Graph
    from graphwright.ir.node import Value

_FEW_BYTES = 128
PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2"})
ARGUMENTS, RESULTS = frozenset({"_Arg", "_DeviceArg"}), frozenset({"_Retval", "_DeviceRetval"})
"""Arguments and results in the body of a function."""
INPUTS = PLACEHOLDERS | ARGUMENTS
MAY_BE_FED = INPUTS | {"PlaceholderWithDefault"}
"""Inputs, and nodes with a default value that a caller may replace."""
CONSTANTS = frozenset({"Const"})
NEVER_FOLDED = "GuaranteeConst"
"""An identity that counts as stateful, so that TensorFlow does not fold it."""
GIVEN = INPUTS | CONSTANTS
"""The value is known before anything runs."""
COMPUTES_NOTHING = GIVEN | RESULTS | {"NoOp"}
"""Inputs, constants, results, and points in the order."""
BARRIER = "XlaOptimizationBarrier"
"""Forwards values when all of them are computed, for XLA; TensorFlow has no kernel for it."""
SEVERAL = "IdentityN"
IDENTITIES = frozenset({"Identity", SEVERAL, BARRIER})
"""Forwards each input to the output of the same index."""
STOPS_GRADIENTS = frozenset({"StopGradient", "PreventGradient"})
"""Forwards its input, and affects only gradients."""
SAME_VALUE = IDENTITIES | STOPS_GRADIENTS | {"EnsureShape"}
"""Forwards its input unchanged."""
RESHAPES = frozenset({"Reshape", "Squeeze", "ExpandDims"})
SAME_NUMBERS = SAME_VALUE | RESHAPES
SAME_BUT_FOR_TYPE = SAME_NUMBERS | {"Cast"}
VIEWS = SAME_NUMBERS | {"ReadVariableOp", "PlaceholderWithDefault", "Bitcast", NEVER_FOLDED}
"""Always forwards the storage of its input."""
VIEWS_OF_ALL = frozenset("Sum Mean Max Min Prod Tile Cast Slice StridedSlice Pad PadV2 MirrorPad BroadcastTo ConcatV2".split())
"""Forwards input 0 where there is nothing to do: no axis of more than one element to reduce, a slice of everything."""
PART_OF, PART = "_graphwright_part_of", "_graphwright_part"
"""The attributes of a node that does a part of what another one did: the name of that one, as bytes, and which part
(`transform.split_batch`)."""
OPTIMIZED = "_graphwright_optimized"
"""Marks results and effects in a graph that Grappler made from another one."""
RECOMPUTED_FROM = "_graphwright_recomputed_from"
"""The attribute with the name of the original of a recomputed node, as bytes."""
EXECUTION = "_graphwright_execution"
"""The attribute that makes a recomputed node unique: Grappler merges equal nodes."""
OFFLOADED = "offloaded"
"""The first part of the names of nodes that copy values."""
forwards_several = of_type({SEVERAL, BARRIER})
makes_optional = of_type({"OptionalFromValue"})
"""Returns whether the node puts tensors into an `Optional`."""
is_constant = of_type(CONSTANTS)
is_identity = of_type({"Identity"})
only_orders = of_type({"NoOp"})
"""Returns whether it is only a point in the order, for others to wait for."""


def is_few_integers(value: Value) -> bool:
    return value.dtype.name in ("int32", "int64") and value.nbytes is not None and value.nbytes <= _FEW_BYTES


def index_behind(value: Value) -> int:
    if value.producer.op_type == "Split":
        return 1
    return value.index if forwards_several(value.producer) or value.producer.op_type in LOOPS else 0


def input_behind(value: Value) -> Value:
    return value.producer.inputs[index_behind(value)]


def origin(value: Value, through: AbstractSet[str] = IDENTITIES) -> Value:
    """Return the value behind a chain of nodes of some op types that forward it.

    >>> from graphwright.ir.graph import DTYPES, Graph
    >>> f32, f16 = (DTYPES["float32"], (2,)), (DTYPES["float16"], (2,))
    >>> g = Graph()
    >>> a = g.add_node("Split", "a", output_types=[f32, f32])
    >>> b = g.add_node("IdentityN", "b", inputs=a.outputs, output_types=[f32, f32])
    >>> c = g.add_node("Cast", "c", inputs=b.outputs[1:], output_types=[f16]).outputs[0]
    >>> origin(b.outputs[1]).name, origin(c).name, origin(c, SAME_BUT_FOR_TYPE).name
    ('a:1', 'c:0', 'a:1')
    """
    while value.producer.op_type in through and index_behind(value) < len(value.producer.inputs):
        value = input_behind(value)
    return value


def exact_shape(value: Value) -> Shape:
    """Return the shape that a value has in every run, or None where it is unknown or depends on data."""
    shape = value.shape
    return None if shape is None or None in shape or value in value.producer.graph.at_most else shape


def is_open(value: Value) -> bool:
    return value.dtype.itemsize is not None and exact_shape(value) is None


def before_reshapes(value: Value, shape_of: Callable[[Value], Shape] = exact_shape) -> Value:
    """Return the value of this shape that was brought into another shape and back; the value itself where there is none. Callers that
    know more shapes than the graph give `shape_of`.
    """
    if value.producer.op_type not in RESHAPES or (shape := shape_of(value)) is None:
        return value
    earliest = value
    while value.producer.op_type in RESHAPES or is_identity(value.producer):
        value = value.producer.inputs[0]
        earliest = value if shape_of(value) == shape else earliest
    return earliest


def returned_arguments(body: Graph) -> tuple[int | None, ...]:
    """Return for each result of a function's body the position of the argument that it forwards; None for computed results."""
    position = {value: k for k, value in enumerate(body.inputs)}
    return tuple(position.get(origin(value)) for value in body.outputs)
