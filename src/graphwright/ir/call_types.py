"""The attributes of calls, branches and loops that list the dtypes of inputs and outputs."""

from collections.abc import Sequence

from graphwright.ir.attributes import EMPTY_LIST, Attribute, SerializedAttribute
from graphwright.ir.node import Node, Value
from graphwright.ir.traits.control_flow import BRANCHES, CALL_TYPES, LOOPS
from graphwright.ir.traits.values import forwards_several


def lists_of_types(node: Node) -> dict[str, tuple[Value, ...]]:
    kind = node.op_type
    if kind in CALL_TYPES:
        return {"Tin": node.inputs, "Tout": node.outputs}
    if kind in BRANCHES:
        return {"Tin": node.inputs[1:], "Tout": node.outputs}
    return {"T": node.inputs} if kind in LOOPS or forwards_several(node) else {}


def types_attribute(values: Sequence[Value]) -> Attribute:
    return tuple(v.dtype for v in values) if values else SerializedAttribute(EMPTY_LIST)
