"""Batch normalization folded into the weights of the convolution or matrix product before it, or behind it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from graphwright.editor.graph import Graph
from graphwright.editor.making import make_const, make_simple_binary_op
from graphwright.editor.node import Node
from graphwright.editor.reroute import reroute_ts
from graphwright.editor.tree_expr import TreeExpr

Array = np.ndarray[Any, Any]
Found = dict[str, Node]

_LINEAR = "Conv2D|MatMul|DepthwiseConv2dNative"
_CONVOLUTION = "Conv2D|DepthwiseConv2dNative"
_FUSED = "FusedBatchNorm|FusedBatchNormV2|FusedBatchNormV3"
_NORM = f"BatchNormWithGlobalNormalization|{_FUSED}"
_CONST = TreeExpr(op="Const")


def fold_batch_norms(g: Graph) -> None:
    """Fold `Conv2D => Mul`, also with a `MatMul` or a `DepthwiseConv2dNative`, where weights and factors are constants.

    What others read, or signatures name, of the convolution is left alone; weights that others read are copied first. The
    convolution gets the name and the collections of the `Mul`.
    """
    pattern = TreeExpr(
        op="Mul",
        alias="mul",
        inputs=(
            TreeExpr(op=_LINEAR, alias="linear", inputs=(TreeExpr(), TreeExpr(op="Const", alias="weights"))),
            TreeExpr(op="Const", alias="factors"),
        ),
    )

    def fold(found: Found) -> bool:
        mul, linear, factors = found["mul"], found["linear"], found["factors"]
        weights = _array(found["weights"])
        scale = _per_channel(_array(factors), _channels_out(linear, weights), linear)
        if scale is None or not _is_only_reader(mul, linear):
            return False
        _set_weights(g, linear, _scaled_columns(linear, weights, scale))
        _take_place(g, linear, mul)
        _drop_unread(g, factors)
        return True

    _repeat(g, pattern, fold)


def fold_old_batch_norms(g: Graph) -> None:
    """Fold a fused batch normalization into the convolution before it; what remains is a `BiasAdd` under its name.

    Between the two there may be a `BatchToSpaceND`, or a concatenation of two convolutions. Normalizations in training are left alone.
    """
    norm_inputs = (_CONST, _CONST, _CONST, _CONST)
    convolution = TreeExpr(op=_CONVOLUTION, alias="conv", inputs=(TreeExpr(), TreeExpr(op="Const", alias="weights")))
    plain = TreeExpr(op=_NORM, alias="norm", inputs=(convolution, *norm_inputs))
    in_space = TreeExpr(op=_NORM, alias="norm", inputs=(TreeExpr(op="BatchToSpaceND", alias="space", inputs=convolution), *norm_inputs))

    def fold(found: Found) -> bool:
        norm, conv = found["norm"], found["conv"]
        path = [conv, found["space"], norm] if "space" in found else [conv, norm]
        parameters = _parameters(norm)
        if parameters is None or not all(_is_only_reader(b, a) for a, b in pairwise(path)):
            return False
        scale, offset = parameters
        weights = _array(found["weights"])
        if len(scale) != _channels_out(conv, weights) or not _has_channels_last(norm):
            return False
        _set_weights(g, conv, _scaled_columns(conv, weights, scale))
        _replace_by_bias(g, norm, offset)
        return True

    _repeat(g, plain, fold)
    _repeat(g, in_space, fold)
    _fold_concatenated(g)


def _fold_concatenated(g: Graph) -> None:
    def convolution(k: int) -> TreeExpr:
        return TreeExpr(op="Conv2D", alias=f"conv{k}", inputs=(TreeExpr(), TreeExpr(op="Const", alias=f"weights{k}")))

    concat = TreeExpr(op="ConcatV2", alias="concat", inputs=(convolution(0), convolution(1), TreeExpr(op="Const", alias="axis")))
    pattern = TreeExpr(op=_NORM, alias="norm", inputs=(concat, _CONST, _CONST, _CONST, _CONST))

    def fold(found: Found) -> bool:
        norm, concat, convs = found["norm"], found["concat"], [found["conv0"], found["conv1"]]
        parameters = _parameters(norm)
        if parameters is None or len(concat.inputs) != 3 or convs[0] == convs[1] or not _has_channels_last(norm):
            return False
        if not _is_only_reader(norm, concat) or not all(_is_only_reader(concat, conv) for conv in convs):
            return False
        scale, offset = parameters
        weights = [_array(found["weights0"]), _array(found["weights1"])]
        counts = [w.shape[3] for w in weights]
        along_channels = int(_array(found["axis"])) in (3, -1)
        scales = [scale[: counts[0]], scale[counts[0] :]] if along_channels else [scale, scale]
        if [len(s) for s in scales] != counts:
            return False
        for conv, w, s in zip(convs, weights, scales, strict=True):
            _set_weights(g, conv, _scaled_columns(conv, w, s))
        _replace_by_bias(g, norm, offset)
        return True

    _repeat(g, pattern, fold)


def fold_batch_norms_up(g: Graph) -> None:
    """Fold a normalization into the weights of what reads it: `Mul => Add`, or a fused batch normalization, then perhaps a ReLU.

    A `Relu6` becomes `Relu => Minimum`. Factors that are not positive are left alone where a ReLU stands between, since it would
    then cut at the other side; and so is padding with anything but what the addition leaves.
    """
    weights = TreeExpr(op="Const", alias="weights")
    spread = TreeExpr(
        op="Add|AddV2|BiasAdd",
        alias="add",
        inputs=(
            TreeExpr(op="Mul", alias="mul", inputs=(TreeExpr(), TreeExpr(op="Const", alias="factors"))),
            TreeExpr(op="Const", alias="offsets"),
        ),
    )
    fused = TreeExpr(op=_FUSED, alias="norm", inputs=(TreeExpr(), _CONST, _CONST, _CONST, _CONST))

    def pattern(norm: TreeExpr) -> TreeExpr:
        relu = TreeExpr(op="Relu|Relu6", alias="relu", optional=True, inputs=norm)
        return TreeExpr(op=_LINEAR, alias="linear", inputs=(relu, weights))

    def fold_spread(found: Found) -> bool:
        mul, add = found["mul"], found["add"]
        path = [mul, add, *([found["relu"]] if "relu" in found else []), found["linear"]]
        scale = _foldable_up(found, _array(found["factors"]), path)
        if scale is None or len(found["offsets"].output(0).consumers()) > 1:
            return False
        _scale_rows(g, found, scale)
        offsets = _array(found["offsets"])
        factors = _array(found["factors"]).astype(np.float64)
        found["offsets"].replace_attr("value", (offsets.astype(np.float64) / factors.reshape(-1)).astype(offsets.dtype).reshape(-1))
        found["offsets"].output(0).shape = [len(scale)]
        reroute_ts(mul.inputs[0], mul.output(0))
        constant = mul.inputs[1].node
        g.remove_node_by_name(mul.name)
        _drop_unread(g, constant)
        _finish_relu6(g, found, scale)
        return True

    def fold_fused(found: Found) -> bool:
        norm = found["norm"]
        parameters = _parameters(norm)
        path = [norm, *([found["relu"]] if "relu" in found else []), found["linear"]]
        if parameters is None or not _has_channels_last(norm):
            return False
        scale = _foldable_up(found, parameters[0], path)
        if scale is None:
            return False
        _scale_rows(g, found, scale)
        _replace_by_bias(g, norm, parameters[1] / scale)
        _finish_relu6(g, found, scale)
        return True

    _repeat(g, pattern(spread), fold_spread)
    _repeat(g, pattern(fused), fold_fused)


def _repeat(g: Graph, pattern: TreeExpr, action: Callable[[Found], bool]) -> None:
    """Apply the action to what the pattern finds until nothing changes any more."""
    changed = True
    while changed:
        changed = False
        for node in g.nodes:
            found = pattern.eval_from(node) if node.graph is not None else None
            if found is not None and action(found):
                changed = True


# Reading


def _array(constant: Node) -> Array:
    return np.asarray(constant.get_attr("value"))


def _is_only_reader(reader: Node, node: Node) -> bool:
    """Whether nothing but the reader, once, sees what the node makes."""
    uses = [use for t in node.outputs for use in t.ir.uses]
    borders = any(value.producer is node.ir for s in node.graph.ir.signatures.values() for value in s.outputs.values())
    return [use.node for use in uses] == [reader.ir] and not borders and node.ir not in {v.producer for v in node.graph.ir.outputs}


def _has_channels_last(node: Node) -> bool:
    return not node.has_attr("data_format") or node.get_attr("data_format") in ("NHWC", "")


def _channels_out(linear: Node, weights: Array) -> int:
    if linear.op_type == "DepthwiseConv2dNative":
        return weights.shape[2] * weights.shape[3]
    if linear.op_type == "MatMul" and linear.has_attr("transpose_b") and linear.get_attr("transpose_b"):
        return weights.shape[0]
    return weights.shape[-1]


def _per_channel(factors: Array, count: int, node: Node) -> Array | None:
    """The factors as one per channel, or None when they vary along something else."""
    last = _has_channels_last(node)
    if factors.size == 1 and factors.ndim <= 1:
        return np.full(count, float(factors.reshape(())), np.float64)
    place = factors.ndim - 1 if last else factors.ndim - 3
    if factors.size != count or place < 0 or factors.shape[place] != count or factors.ndim > (2 if node.op_type == "MatMul" else 4):
        return None
    return factors.astype(np.float64).reshape(-1)


def _parameters(norm: Node) -> tuple[Array, Array] | None:
    """Factor and offset per channel, or None when they are not to be known beforehand."""
    if norm.op_type != "BatchNormWithGlobalNormalization":
        training = norm.get_attr("is_training") if norm.has_attr("is_training") else True
        if training or any(t.ir.uses for t in norm.outputs[1:]):
            return None
        gamma, beta, mean, variance = (_array(t.node).astype(np.float64) for t in norm.inputs[1:5])
        epsilon = norm.get_attr("epsilon") if norm.has_attr("epsilon") else 0.0001
    else:
        mean, variance, beta, gamma = (_array(t.node).astype(np.float64) for t in norm.inputs[1:5])
        epsilon = norm.get_attr("variance_epsilon")
        if not norm.get_attr("scale_after_normalization"):
            gamma = np.ones_like(mean)
    if mean.ndim != 1 or not mean.shape == variance.shape == beta.shape == gamma.shape:
        raise ValueError(f"Shapes {mean.shape}, {variance.shape}, {beta.shape}, and {gamma.shape} of the parameters of {norm} don't match")
    scale = gamma / np.sqrt(variance + epsilon)
    return scale, beta - mean * scale


def _foldable_up(found: Found, factors: Array, path: list[Node]) -> Array | None:
    linear = found["linear"]
    weights = _array(found["weights"])
    transposed = any(linear.has_attr(key) and linear.get_attr(key) for key in ("transpose_a", "transpose_b"))
    count = weights.shape[0] if linear.op_type == "MatMul" else weights.shape[2]
    scale = _per_channel(factors, count, linear)
    if scale is None or transposed or not _has_channels_last(linear):
        return None
    if np.any(scale == 0) or ("relu" in found and np.any(scale < 0)):
        return None
    return scale if all(_is_only_reader(b, a) for a, b in pairwise(path)) else None


# Changing


def _scaled_columns(linear: Node, weights: Array, scale: Array) -> Array:
    if linear.op_type == "DepthwiseConv2dNative":
        scale = scale.reshape(weights.shape[2], weights.shape[3])
    elif linear.op_type == "MatMul" and linear.has_attr("transpose_b") and linear.get_attr("transpose_b"):
        scale = scale.reshape(-1, 1)
    return (weights.astype(np.float64) * scale).astype(weights.dtype)


def _scale_rows(g: Graph, found: Found, scale: Array) -> None:
    linear, weights = found["linear"], _array(found["weights"])
    shape = (-1, 1) if linear.op_type == "MatMul" else (1, 1, -1, 1)
    _set_weights(g, linear, (weights.astype(np.float64) * scale.reshape(shape)).astype(weights.dtype))


def _set_weights(g: Graph, linear: Node, weights: Array) -> None:
    """Give the node other weights; a constant that others read too is left to them."""
    constant = linear.inputs[1].node
    if len(constant.output(0).ir.uses) == 1:
        constant.replace_attr("value", weights)
        return
    linear.replace_input(1, make_const(g, f"{constant.name}_folded", weights, uniquify_name=True).output(0))


def _replace_by_bias(g: Graph, norm: Node, offset: Array) -> None:
    """Put a `BiasAdd` in the place of a normalization, and let go of the parameters that nothing reads any longer."""
    t = norm.output(0)
    dtype = t.dtype.as_numpy_dtype
    bias = make_const(g, f"{norm.name}_offset", offset.astype(dtype), uniquify_name=True)
    added = g.add_node(f"{norm.name}_bias_add", "BiasAdd", uniquify_name=True)
    added.add_attr("T", t.dtype)
    added.set_inputs([norm.inputs[0], bias.output(0)])
    added.set_outputs_from_pairs([(t.dtype, t.shape)])
    added.device = norm.device
    constants = [p.node for p in norm.inputs[1:5]]
    _take_place(g, added, norm)
    for constant in constants:
        _drop_unread(g, constant)


def _take_place(g: Graph, node: Node, gone: Node) -> None:
    """Let a node have the readers, the name, the control edges and the collections of another, which is removed."""
    name = gone.name
    g.ir.replace_uses(gone.output(0).ir, node.output(0).ir, keep=[node.ir])
    for waiting in gone.control_outputs:
        g.ir.add_control_input(waiting.ir, node.ir)
    for control in gone.control_inputs:
        if control != node:
            g.ir.add_control_input(node.ir, control.ir)
    node.remove_from_collections()
    for collection in sorted(gone.collection_names):
        node.add_to_collection(collection)
    g.remove_node_by_name(name)
    g.rename_node(node.name, name)


def _drop_unread(g: Graph, constant: Node) -> None:
    if (
        constant.graph is not None
        and not constant.output(0).ir.uses
        and not constant.ir.control_consumers
        and not g.ir.is_border(constant.ir)
    ):
        g.remove_node_by_name(constant.name)


def _finish_relu6(g: Graph, found: Found, scale: Array) -> None:
    relu = found.get("relu")
    if relu is None or relu.op_type != "Relu6":
        return
    t = relu.output(0)
    limits = make_const(g, f"{relu.name}/min/const", (6.0 / scale).astype(t.dtype.as_numpy_dtype), uniquify_name=True)
    least = make_simple_binary_op(g, f"{relu.name}/min", "Minimum", t, limits.output(0), uniquify_name=True)
    reroute_ts(least.output(0), t, cannot_modify=[least])
    relu.change_op_type("Relu")
