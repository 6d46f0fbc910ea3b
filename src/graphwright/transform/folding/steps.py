"""Factor and offset of nodes that scale or shift the channels of a tensor."""

from dataclasses import dataclass, replace

import numpy as np

from graphwright.ir.constants import add_constant
from graphwright.ir.edit.insert import add_op
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import ADDITIONS, ADDS_BIAS, BATCH_NORMS
from graphwright.transform.constant_values import Array, Constants
from graphwright.transform.folding.linear import Layout

NORMS = BATCH_NORMS | {"BatchNormWithGlobalNormalization"}
_ARITHMETIC = ADDITIONS | ADDS_BIAS | {"Sub", "Mul", "RealDiv"}


@dataclass(frozen=True, slots=True)
class Step:
    """`output = input * scale + offset`, per channel and in double precision."""

    scale: Array
    offset: Array
    scales: bool


@dataclass(frozen=True, slots=True)
class Chain:
    """Steps before or after a linear op, as one `step`.

    Attributes:
        end: the value at the far end of the chain.
        nodes: the nodes of the chain, from the linear op on; nodes in `moved` only move numbers, and stay.
    """

    end: Value
    layout: Layout
    step: Step
    nodes: tuple[Node, ...] = ()
    moved: frozenset[Node] = frozenset()


def empty_chain(value: Value, layout: Layout, channels: int) -> Chain:
    return Chain(value, layout, Step(np.ones(channels), np.zeros(channels), scales=False))


def step_of(node: Node, index: int, layout: Layout, channels: int, constants: Constants) -> Step | str:
    """Return what a node does to the channels of its input `index`, or why that is not known."""
    if node.op_type in NORMS:
        step = _normalization(node, index, layout, channels, constants)
    elif node.op_type in _ARITHMETIC:
        step = _arithmetic(node, index, layout, channels, constants)
    else:
        return f"{node.name!r}, a {node.op_type}, stands between"
    if isinstance(step, Step) and not (np.isfinite(step.scale).all() and np.isfinite(step.offset).all()):
        return f"factors or offsets of {node.name!r} are not finite"
    return step


def _normalization(node: Node, index: int, layout: Layout, channels: int, constants: Constants) -> Step | str:
    if index != 0:
        return f"{node.name!r} reads it as a parameter"
    if node.op_type == "BatchNormWithGlobalNormalization":
        mean, variance, beta, gamma = (constants(v) for v in node.inputs[1:5])
        if gamma is not None and not node.attrs.get("scale_after_normalization", False):
            gamma = np.ones_like(gamma)
        epsilon = _number(node, "variance_epsilon", 1e-3)
        axis = layout.rank - 1
    else:
        if node.attrs.get("is_training", True):
            return f"{node.name!r} is in training mode: it takes the statistics of each batch"
        if any(v.uses for v in node.outputs[1:]) or any(is_returned(node.graph, v) for v in node.outputs[1:]):
            return f"the statistics that {node.name!r} hands on are read"
        gamma, beta, mean, variance = (constants(v) for v in node.inputs[1:5])
        epsilon = _number(node, "epsilon", 1e-4)
        axis = 1 if node.attrs.get("data_format", b"NHWC") == b"NCHW" else layout.rank - 1
    if gamma is None or beta is None or mean is None or variance is None:
        open_one = next(v.producer for v in node.inputs[1:5] if constants(v) is None)
        return f"a parameter of {node.name!r} is not a constant, but made by {open_one.name!r}, a {open_one.op_type}"
    if layout.rank != 4 or axis != layout.axis or any(a.shape != (channels,) for a in (gamma, beta, mean, variance)):
        return f"{node.name!r} does not have the {channels} channels of its neighbor, or has them elsewhere"
    scale = gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
    return Step(scale, beta.astype(np.float64) - mean.astype(np.float64) * scale, scales=True)


def _number(node: Node, key: str, default: float) -> float:
    stated = node.attrs.get(key, default)
    return stated if isinstance(stated, float) else default


def _arithmetic(node: Node, index: int, layout: Layout, channels: int, constants: Constants) -> Step | str:
    other = constants(node.inputs[1 - index])
    if other is None or node.inputs[0] is node.inputs[1]:
        return f"{node.name!r}, a {node.op_type}, reads no constant"
    if node.op_type in ADDS_BIAS:
        axis = 1 if node.attrs.get("data_format", b"NHWC") == b"NCHW" else layout.rank - 1
        vector = other.astype(np.float64) if index == 0 and axis == layout.axis and other.shape == (channels,) else None
    else:
        vector = _per_channel(other, layout, channels)
    if vector is None:
        return f"the constant of {node.name!r}, of shape {other.shape}, is not one number per channel"
    zeros, ones = np.zeros(channels), np.ones(channels)
    match node.op_type, index:
        case op_type, _ if op_type in ADDITIONS | ADDS_BIAS:
            return Step(ones, zeros + vector, scales=False)
        case "Sub", 0:
            return Step(ones, zeros - vector, scales=False)
        case "Sub", _:
            return Step(-ones, zeros + vector, scales=True)
        case "Mul", _:
            return Step(ones * vector, zeros, scales=True)
        case "RealDiv", 0:
            with np.errstate(divide="ignore"):
                return Step(ones / vector, zeros, scales=True)
        case _:
            return f"{node.name!r} divides by it"


def _per_channel(array: Array, layout: Layout, channels: int) -> Array | None:
    if array.ndim > layout.rank:
        return None
    shape = [1] * (layout.rank - array.ndim) + list(array.shape)
    if any(size != 1 for k, size in enumerate(shape) if k != layout.axis) or shape[layout.axis] not in (1, channels):
        return None
    return np.broadcast_to(array.reshape(-1).astype(np.float64), (channels,))


def layout_behind(node: Node, layout: Layout, channels: int, constants: Constants) -> Layout | None:
    """Return where the channels are after a node that only moves numbers along other axes; None for other nodes."""
    shape = node.outputs[0].shape if node.outputs else None
    match node.op_type:
        case "Identity":
            return layout
        case "Squeeze":
            axes = node.attrs.get("squeeze_dims")
            if not isinstance(axes, tuple) or not axes:
                return None
            gone = {axis % layout.rank for axis in axes if isinstance(axis, int)}
            if layout.axis in gone:
                return None
            return Layout(layout.axis - sum(axis < layout.axis for axis in gone), layout.rank - len(gone))
        case "Reshape":
            if layout.axis != layout.rank - 1 or not shape or shape[-1] != channels:
                return None
            return Layout(len(shape) - 1, len(shape))
        case "BatchToSpaceND":
            block = constants(node.inputs[1])
            return layout if block is not None and layout.axis > block.size else None
        case _:
            return None


def blocked(graph: Graph, value: Value, *, readers: int = 1) -> str:
    """Return who else sees a value, so that it must not change; empty if nobody does."""
    node = value.producer
    if graph.is_border(node):
        return f"{value.name} is returned, or fed"
    if value.use_count != readers or any(other.uses for other in node.outputs if other is not value):
        return f"{value.name} is read by {value.use_count} nodes"
    if node.control_consumers:
        return f"{node.control_consumers[0].name!r} waits for {node.name!r}"
    return ""


def is_returned(graph: Graph, value: Value) -> bool:
    return value in graph.outputs or any(value in s.outputs.values() for s in graph.signatures.values())


def add_bias(graph: Graph, value: Value, offset: Array, layout: Layout, like: Node) -> Value:
    """Add an offset per channel to a value, with the name and device of another node."""
    bias = add_constant(graph, f"{like.name}/offset", offset, dtype=value.dtype, device=like.device)
    layout_name = b"NCHW" if layout.axis == 1 and layout.rank > 2 else b"NHWC"
    inputs, name = [value, bias], f"{like.name}/bias"
    return add_op(graph, "BiasAdd", name, inputs, value.dtype, value.shape, device=like.device, T=value.dtype, data_format=layout_name)


def then(first: Step, second: Step) -> Step:
    offset = first.offset * second.scale + second.offset
    return replace(first, scale=first.scale * second.scale, offset=offset, scales=first.scales or second.scales)
