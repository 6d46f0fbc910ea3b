"""Ops that stand for values from outside, and ops that forward a value.

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
"""What has no value unless a caller feeds one."""
ARGUMENTS, RESULTS = frozenset({"_Arg", "_DeviceArg"}), frozenset({"_Retval", "_DeviceRetval"})
"""What stands for the arguments and for the results in the body of a function."""
INPUTS = PLACEHOLDERS | ARGUMENTS
"""What stands for a value from outside: a placeholder, or the argument of a function."""
MAY_BE_FED = INPUTS | {"PlaceholderWithDefault"}
"""What a caller may give a value: inputs, and what has a value of its own until it is fed."""
CONSTANTS = frozenset({"Const"})
"""What has its value in an attribute."""
NEVER_FOLDED = "GuaranteeConst"
"""An identity that counts as stateful, so TensorFlow computes nothing behind it in advance."""
GIVEN = INPUTS | CONSTANTS
"""What has its value before anything runs."""
STANDS_FOR_SOMETHING = GIVEN | RESULTS | {"NoOp"}
"""What computes nothing: inputs, constants, results, and points in the order."""
BARRIER = "XlaOptimizationBarrier"
"""What hands on values when all of them are there, as far as XLA knows; no kernel of TensorFlow runs it."""
SEVERAL = "IdentityN"
"""What hands on several values by a kernel of TensorFlow."""
IDENTITIES = frozenset({"Identity", SEVERAL, BARRIER})
"""What hands on each of its inputs, unchanged, at the output of the same number."""
STOPS_GRADIENTS = frozenset({"StopGradient", "PreventGradient"})
"""What hands on its input and is seen by gradients alone."""
SAME_VALUE = IDENTITIES | STOPS_GRADIENTS | {"EnsureShape"}
"""What hands on its input unchanged."""
RESHAPES = frozenset({"Reshape", "Squeeze", "ExpandDims"})
"""What hands on the numbers of its input in another shape."""
SAME_NUMBERS = SAME_VALUE | RESHAPES
"""What hands on the numbers of its input, perhaps in another shape."""
SAME_BUT_FOR_TYPE = SAME_NUMBERS | {"Cast"}
"""What hands on the numbers of its input, perhaps in another shape or as another type."""
VIEWS = SAME_NUMBERS | {"ReadVariableOp", "PlaceholderWithDefault", "Bitcast", NEVER_FOLDED}
"""What always hands on the storage of its input."""
VIEWS_OF_ALL = frozenset("Sum Mean Max Min Prod Tile Cast Slice StridedSlice Pad PadV2 MirrorPad BroadcastTo ConcatV2".split())
"""Their kernels hand on input 0 where there is nothing to do: no axis of more than one element to reduce, a slice of everything."""
PART_OF, PART = "_graphwright_part_of", "_graphwright_part"
"""The attributes of a node that does a part of what another one did: the name of that one, as bytes, and which part
(`transform.split_batch`)."""
OPTIMIZED = "_graphwright_optimized"
"""Marks what a function returns and does where its graph is what Grappler made of another."""
RECOMPUTED_FROM = "_graphwright_recomputed_from"
"""The attribute of a recomputed node that names the one that it repeats, as bytes."""
EXECUTION = "_graphwright_execution"
"""The attribute that tells a recomputed node from all others: Grappler merges nodes that are equal."""
OFFLOADED = "offloaded"
"""The first part of the names of all nodes that carry copies."""
hands_on_several = of_type({SEVERAL, BARRIER})
"""Whether it hands on several values at once, each at the output of the same number."""
makes_optional = of_type({"OptionalFromValue"})
"""Whether the node puts tensors into an `Optional`."""
is_constant = of_type(CONSTANTS)
"""Whether its value stands in the graph."""
is_identity = of_type({"Identity"})
"""Whether it hands on one value."""
only_orders = of_type({"NoOp"})
"""Whether it is nothing but a point in the order, for which others wait."""


def is_few_integers(value: Value) -> bool:
    """Return whether it may be a shape, or a size in one."""
    return value.dtype.name in ("int32", "int64") and value.nbytes is not None and value.nbytes <= _FEW_BYTES


def index_behind(value: Value) -> int:
    if value.producer.op_type == "Split":
        return 1
    return value.index if hands_on_several(value.producer) or value.producer.op_type in LOOPS else 0


def input_behind(value: Value) -> Value:
    """Return the input that is forwarded as this output."""
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
    found = value
    while value.producer.op_type in RESHAPES or is_identity(value.producer):
        value = value.producer.inputs[0]
        found = value if shape_of(value) == shape else found
    return found


def returned_arguments(body: Graph) -> tuple[int | None, ...]:
    """Return for each result of a function's body the position of the argument that it forwards; None for computed results."""
    position = {value: k for k, value in enumerate(body.inputs)}
    return tuple(position.get(origin(value)) for value in body.outputs)
