"""Convolutions and matrix products: where their channels are, and how their weights take a factor per channel."""

from dataclasses import dataclass

import numpy as np

from graphwright.ir.constants import add_constant
from graphwright.ir.graph import Graph, Node, Value
from graphwright.transform.constant_values import Array, Constants, remove_unread

LINEAR = {"Conv2D": 4, "DepthwiseConv2dNative": 4, "Conv3D": 5, "MatMul": 2, "Conv2DBackpropInput": 4, "Conv3DBackpropInputV2": 5}
"""Op type -> rank of its input and output."""

_TRANSPOSED = ("Conv2DBackpropInput", "Conv3DBackpropInputV2")
_DTYPES = ("bfloat16", "float16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class Layout:
    """The axis of the channels of a tensor, and its rank."""

    axis: int
    rank: int


@dataclass(frozen=True, slots=True)
class Linear:
    """A convolution or matrix product with constant weights."""

    node: Node
    weights: Array
    layout: Layout

    @property
    def data(self) -> int:
        return 2 if self.node.op_type in _TRANSPOSED else 0

    @property
    def output(self) -> Value:
        return self.node.outputs[0]

    @property
    def _is_by_channel(self) -> bool:
        return self.node.op_type == "DepthwiseConv2dNative"

    def _in_order(self, weights: Array) -> Array:
        """Return the weights with input and output channels as last axes, in this order; applied twice, it restores the original order."""
        swapped = self.node.op_type in _TRANSPOSED or self.node.attrs.get("transpose_b") is True
        return weights.swapaxes(-1, -2) if swapped else weights

    @property
    def channels_out(self) -> int:
        inputs, outputs = self._in_order(self.weights).shape[-2:]
        return inputs * outputs if self._is_by_channel else outputs

    def channels_in(self) -> int:
        return self._in_order(self.weights).shape[-2]

    def with_outputs_scaled(self, scale: Array) -> Array:
        """Return weights that multiply each output channel by a factor."""
        factors = scale.reshape(self.weights.shape[-2:]) if self._is_by_channel else scale
        return self._in_order(self._in_order(self.weights).astype(np.float64) * factors)

    def with_inputs_scaled(self, scale: Array) -> Array:
        """Return weights that do to `x` what the present ones do to `x * scale`."""
        # Channel k of the input belongs to group k // inputs, and so do outputs in a row.
        inputs, outputs = self._in_order(self.weights).shape[-2:]
        groups = len(scale) // inputs
        factors = np.repeat(scale.reshape(groups, inputs).T, outputs // groups, axis=1)
        return self._in_order(self._in_order(self.weights).astype(np.float64) * factors)

    def answer_to(self, constant: Array) -> Array:
        """Return the output per channel for an input that is constant in each channel, without padding."""
        answered = self._in_order(self.with_inputs_scaled(constant))
        channel_axes = 2 if self._is_by_channel else 1
        return answered.sum(axis=tuple(range(answered.ndim - channel_axes))).reshape(-1)

    def sees_borders(self) -> bool:
        """Whether padding may hide a part of the window."""
        if self.node.op_type in _TRANSPOSED:
            return True
        padding = self.node.attrs.get("padding")
        if padding == b"EXPLICIT":
            widths = self.node.attrs.get("explicit_paddings")
            return not isinstance(widths, tuple) or any(widths)
        return padding != b"VALID" and any(size != 1 for size in self.weights.shape[:-2])


def linear_of(node: Node, constants: Constants) -> Linear | str:
    """Return the linear op that a node is, or why its weights cannot change."""
    if node.op_type not in LINEAR or len(node.inputs) != (3 if node.op_type in _TRANSPOSED else 2):
        return f"{node.name!r} is a {node.op_type}, no convolution or matrix product"
    weights = constants(node.inputs[1])
    if weights is None:
        producer = node.inputs[1].producer
        return f"the weights of {node.name!r} are no constants, but made by {producer.name!r}, a {producer.op_type}"
    if node.inputs[1].dtype.name not in _DTYPES or weights.ndim != LINEAR[node.op_type]:
        return f"the weights of {node.name!r} are {node.inputs[1].dtype} of {weights.ndim} dimensions"
    layout = node.attrs.get("data_format", b"N")
    if not isinstance(layout, bytes) or layout.startswith(b"NCHW_"):
        return f"{node.name!r} has the layout {layout!r}"
    rank = LINEAR[node.op_type]
    linear = Linear(node, weights, Layout(1 if layout.startswith(b"NC") else rank - 1, rank))
    shape = node.outputs[0].shape
    channels = shape[linear.layout.axis] if shape is not None and len(shape) == rank else None
    if channels not in (None, linear.channels_out):  # a transposed convolution in groups
        return f"{node.name!r} makes {channels} channels, its weights say {linear.channels_out}"
    return linear


def can_hold(array: Array, value: Value) -> bool:
    """Whether numbers in double precision are finite in the dtype of a value."""
    name = "float32" if value.dtype.name == "bfloat16" else value.dtype.name
    with np.errstate(over="ignore"):
        return bool(np.isfinite(array.astype(name)).all())


def set_weights(graph: Graph, linear: Linear, weights: Array) -> None:
    set_constant_input(graph, linear.node, 1, weights)


def set_constant_input(graph: Graph, node: Node, index: int, array: Array) -> None:
    """Let a node read a new constant, which takes the name of the old one if nothing else reads that."""
    old = node.inputs[index]
    name = old.producer.name
    new = add_constant(graph, f"{name}/folded", array, dtype=old.dtype, device=old.producer.device)
    graph.replace_input(node, index, new)
    remove_unread(graph, [old.producer])
    if name not in graph:
        graph.rename(new.producer, name)
