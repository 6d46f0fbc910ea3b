"""Operations whose outputs share the storage of an input, in TensorFlow's kernels for the CPU."""

from __future__ import annotations

import math

from graphwright.ir.constants import constant_array
from graphwright.ir.node import Node
from graphwright.ir.traits.values import VIEWS, VIEWS_OF_ALL, input_behind

_ALIGNED_BYTES = 64
"""Eigen's alignment as TensorFlow is built: rows of such a size stay aligned wherever a slice begins."""


def is_view(node: Node) -> bool:
    """Return whether the outputs share the storage of the input that `input_behind` names: all of it, or rows of it."""
    if node.op_type in VIEWS:
        return True
    if _shares_rows(node):
        return True
    if node.op_type not in VIEWS_OF_ALL or not node.inputs:
        return False
    before, after = node.inputs[0], node.outputs[0]
    if after in node.graph.at_most:  # whether there is nothing to do is known when it runs
        return False
    same = before.dtype == after.dtype and before.nbytes is not None and before.nbytes == after.nbytes
    # As many outputs as inputs: a slice with negative strides would reverse them.
    reverses = node.op_type == "StridedSlice" and (before.shape != after.shape or bool(node.attrs.get("new_axis_mask")))
    return same and not reverses


def _shares_rows(node: Node) -> bool:
    """Return whether it takes consecutive whole rows of a tensor whose rows are aligned (`IsDim0SliceAligned` in ops_util.h). A vector is
    copied: the alignment of its slice depends on where it begins.
    """
    if node.op_type not in ("Slice", "StridedSlice", "Split", "SplitV", "Unpack") or not node.outputs:
        return False
    before, after = input_behind(node.outputs[0]), node.outputs[0]
    shape = before.shape or ()
    if len(shape) < 2 or None in shape or before.dtype.itemsize is None or after in node.graph.at_most:
        return False
    row = tuple(n for n in shape[1:] if n is not None)
    if math.prod(row) * before.dtype.itemsize % _ALIGNED_BYTES:
        return False
    if node.op_type == "Unpack":
        return node.attrs.get("axis", 0) == 0
    if node.op_type in ("Split", "SplitV"):
        axis = constant_array(node.inputs[0 if node.op_type == "Split" else 2].producer)
        return axis is not None and int(axis) % len(shape) == 0
    if after.shape is None or tuple(after.shape[-len(row) :]) != row or len(after.shape) < len(row):
        return False
    if node.op_type == "Slice":
        return len(after.shape) == len(shape)
    strides = constant_array(node.inputs[3].producer)
    masks = {name: node.attrs.get(name) for name in ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")}
    plain = not masks["ellipsis_mask"] and not masks["new_axis_mask"] and masks["shrink_axis_mask"] in (None, 0, 1)
    return plain and strides is not None and bool((strides == 1).all())
