"""Lists of tensors, arrays of tensors and optional values. Split rules cut the dimensions of the elements of a list."""

from graphwright.ir.graph import Node, Value
from graphwright.ir.traits.rounds import is_list
from graphwright.ops.dimensions import (
    MOST_DIMENSIONS,
    Dimensions,
    Labels,
    SplitRule,
    labels_like,
    labels_of,
    labels_of_output,
    whole_inputs,
)
from graphwright.ops.family import Family
from graphwright.ops.sizes import constant, dims, output_dims


def _list_of(item: int) -> SplitRule:
    def rule(node: Node) -> Dimensions:
        labels = _of_element(node.inputs[item])
        return Dimensions(tuple(labels if k in (0, item) else () for k in range(len(node.inputs))), labels)

    return rule


def _element_of(shape: int) -> SplitRule:
    def rule(node: Node) -> Dimensions:
        labels = _of_element(node.outputs[-1])
        return Dimensions((labels, *whole_inputs(node)), labels, _element_sizes(node, shape, labels))

    return rule


def _new_list(node: Node) -> Dimensions:
    labels = labels_of("d", MOST_DIMENSIONS)
    return Dimensions(whole_inputs(node, 0), labels, _element_sizes(node, 0, labels))


def _rows_to_list(node: Node) -> Dimensions:
    labels = labels_like(node)[1:]
    return Dimensions(((None, *labels), *whole_inputs(node)), labels, _element_sizes(node, 1, labels))


def _list_to_rows(node: Node) -> Dimensions:
    labels = labels_of_output(node)[1:]
    return Dimensions((labels, *whole_inputs(node)), (None, *labels), _element_sizes(node, 1, labels))


def _list_length(node: Node) -> Dimensions:
    return Dimensions((labels_of("d", MOST_DIMENSIONS),), output_dims(node), same=True)


def _of_element(value: Value) -> Labels:
    return labels_of("d", MOST_DIMENSIONS if is_list(value) else len(dims(value)))


def _element_sizes(node: Node, index: int, labels: Labels) -> dict[int, Labels]:
    """Return the labels of the elements of a shape; an unknown shape is -1."""
    known = constant(node, index)
    return {index: labels[: len(known)]} if known.ndim else {}


_BY_HANDLE = (
    "TensorListReserve EmptyTensorList TensorListLength TensorListElementShape TensorListPushBack TensorListPopBack TensorListSetItem "
    "TensorListGetItem TensorListResize OptionalFromValue OptionalGetValue OptionalNone StackPushV2 StackPopV2 StackV2 TensorArrayV3 "
    "TensorArrayReadV3 TensorArrayWriteV3 TensorArraySizeV3 TensorArrayGradV3 TensorArrayCloseV3"
)
FAMILY = Family(
    splits={
        "TensorListSetItem": _list_of(2),
        "TensorListPushBack": _list_of(1),
        "TensorListGetItem": _element_of(2),
        "TensorListPopBack": _element_of(1),
        "TensorListFromTensor": _rows_to_list,
        "TensorListStack": _list_to_rows,
        "TensorListReserve EmptyTensorList": _new_list,
        "TensorListLength": _list_length,
    },
    traffic={
        _BY_HANDLE: "nothing",
        "TensorListStack TensorListConcatV2 TensorListGather TensorArrayGatherV3 TensorArrayConcatV3": "rows",
        "TensorListFromTensor TensorArrayScatterV3 TensorArraySplitV3": "rows of inputs",
    },
)
