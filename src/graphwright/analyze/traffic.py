"""Count the bytes that one execution of a node moves to and from memory, for the arithmetic intensity of a roofline plot.

Each input is read once and each output written once: the compulsory traffic. Views, handles and lists move nothing. Nodes that read a part
of an input count that part. Text, handles and variants have no size and count zero.
"""

from collections.abc import Iterable

from graphwright.ir.graph import Node, Value
from graphwright.ir.traits.variables import written_resources
from graphwright.ir.traits.views import is_view

_NOTHING = frozenset(
    "Const Placeholder PlaceholderV2 PlaceholderWithDefault _Arg _Retval NoOp VarHandleOp VariableV2 Variable VarIsInitializedOp Shape "
    "ShapeN Size Rank VariableShape TensorListReserve EmptyTensorList TensorListLength TensorListElementShape TensorListPushBack "
    "TensorListPopBack TensorListSetItem TensorListGetItem TensorListResize OptionalFromValue OptionalGetValue OptionalNone Enter Exit "
    "Switch Merge NextIteration RefEnter RefExit RefSwitch RefMerge RefNextIteration LoopCond ControlTrigger Assert FakeParam "
    "BroadcastGradientArgs StackPushV2 StackPopV2 StackV2 TensorArrayV3 TensorArrayReadV3 TensorArrayWriteV3 TensorArraySizeV3 "
    "TensorArrayGradV3 TensorArrayCloseV3 GuaranteeConst".split()
)
_PARTS = frozenset(
    "Gather GatherV2 GatherNd ResourceGather ResourceGatherNd Slice StridedSlice Split SplitV Unpack TensorListStack TensorListConcatV2 "
    "TensorListGather TensorArrayGatherV3 TensorArrayConcatV3".split()
)
"""Read as much as they write."""

_OUTPUTS_ONLY = frozenset("Fill ZerosLike OnesLike Range LinSpace Empty OneHot BroadcastTo".split())
_REFERENCE_UPDATES = ("Apply", "SparseApply", "AssignAdd", "AssignSub")
_TABLES_OF_ROWS = ("SparseSegment",)


def bytes_moved(node: Node) -> int | None:
    """Return the bytes read and written by one execution, or None for an unknown shape.

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('graph "g"\\n%x = Const() : float32[256,4]\\n%y = Relu(%x:0) : float32[256,4]\\n%z = Identity(%y:0) : float32[256,4]')
    >>> bytes_moved(g["y"]), bytes_moved(g["z"])
    (8192, 0)
    """
    op = node.op_type
    if op in _NOTHING or is_view(node):
        return 0
    written = written_resources(node)
    if written:
        return _update(node, len(written))
    if op.startswith(_REFERENCE_UPDATES):
        inputs = _total(node.inputs)
        return None if inputs is None else inputs + (_bytes(node.inputs[0]) or 0)
    # What else a kernel may hand on (batch norms, for their gradient) is written where something reads it.
    outputs = _total(value for value in node.outputs if value is node.outputs[0] or value.consumers or _bytes(value) is not None)
    if outputs is None or op in _OUTPUTS_ONLY:
        return outputs
    if op in _PARTS or op.startswith(_TABLES_OF_ROWS):
        indices = _total(v for v in node.inputs[1:] if v.dtype.name in ("int32", "int64")) or 0
        return 2 * outputs + indices
    if op in ("TensorListFromTensor", "TensorArrayScatterV3", "TensorArraySplitV3"):
        inputs = _total(node.inputs)
        return None if inputs is None else 2 * inputs
    inputs = _total(dict.fromkeys(node.inputs))
    return None if inputs is None else inputs + outputs


def _update(node: Node, variables: int) -> int | None:
    """Return the bytes of an update: the new values or gradients, and the read and written parts of variables."""
    values = _total(v for v in node.inputs if v.dtype.name != "resource")
    if values is None:
        return None
    largest = max((_bytes(v) or 0 for v in node.inputs), default=0)
    reads_variable = node.op_type != "AssignVariableOp"
    return values + (1 + reads_variable) * variables * largest


def _bytes(value: Value) -> int | None:
    return 0 if value.dtype.itemsize is None else value.nbytes


def _total(values: Iterable[Value]) -> int | None:
    total = 0
    for value in values:
        nbytes = _bytes(value)
        if nbytes is None:
            return None
        total += nbytes
    return total
