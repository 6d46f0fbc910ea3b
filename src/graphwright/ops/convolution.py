"""Convolutions of all kinds and their gradients.

A window at the border counts in full, padded zeros included, as in the TensorFlow profiler. Filters are [..., input channels of a group,
output channels] in any layout of the images, so a count needs only the filter and the smaller image. Dilation changes the elements of a
window, not their number; a stride shows in the size of the output.

Scratch: oneDNN copies the filter into blocks of 16 x 16 channels per group. In groups that is up to 256 times the filter; depthwise
convolutions of one output per channel are plain, their gradients up to a window of 3. Gradients in bfloat16 are added up in float32.
Without AVX-512 a single image is unfolded into a matrix, unless the filter is small (`gemm_convolution_utils.cpp`). Eigen unfolds images
for gradients (`conv_grad_filter_ops.cc`, `conv_grad_input_ops.cc`), and packs the operands of products.
"""

import math

from graphwright.ir.graph import Node, Value
from graphwright.ops.contraction import in_float32, multiply_add, packed_by_eigen, with_fused
from graphwright.ops.dimensions import rows
from graphwright.ops.family import Family, ScratchRules
from graphwright.ops.machine import AVX512, cpu_has, thread_count
from graphwright.ops.sizes import dims, dims_of, item_bytes, output_dims, output_size, size, size_of, text_attribute

_BLOCK = 16  # of channels
_DEPTHWISE_WINDOW = 3  # the widest for which oneDNN has a depthwise gradient
_SMALL_FILTER_BYTES = 256 << 10  # half of a common second-level cache
_COLUMNS_BYTES = 30 << 20  # that Eigen unfolds at once, or one image


def convolution(node: Node) -> float:
    return multiply_add(node) * output_size(node) * math.prod(dims_of(node, 1, 3)[:-1])


def _input_gradient(node: Node) -> float:
    return multiply_add(node) * size_of(node, 2) * math.prod(dims_of(node, 1, 3)[:-1])


def _filter_gradient(node: Node) -> float:
    return multiply_add(node) * size_of(node, 2) * math.prod(output_dims(node, 0, 3)[:-1])


def depthwise(node: Node) -> float:
    """2 * outputs * window; the filter is [height, width, channels, multiplier]."""
    return 2.0 * output_size(node) * math.prod(dims_of(node, 1, 4)[:2])


def _depthwise_gradient(node: Node) -> float:
    kernel = output_dims(node, 0, 4) if node.op_type.endswith("Filter") else dims_of(node, 1, 4)
    return 2.0 * size_of(node, 2) * math.prod(kernel[:2])


def _filter_and_bias_gradient(node: Node) -> float:
    return _filter_gradient(node) + size_of(node, 2)


def _dilation_gradient(node: Node) -> float:
    """Count the search for the largest element, then one addition per gradient."""
    return size_of(node, 2) * (2.0 * math.prod(dims_of(node, 1, 3)[:2]) + 1)


def _padded(node: Node) -> float:
    index = 3 if node.op_type == "FusedResizeAndPadConv2D" else 2
    return 2.0 * output_size(node) * math.prod(dims_of(node, index, 3)[:-1])


def _blocked_bytes(node: Node, kernel: Value, images: Value, widest_plain: int | None = None) -> int:
    """Return the bytes of a filter in oneDNN's layout; depthwise filters wider than `widest_plain` are in blocks, None for no limit."""
    *window, inputs, outputs = dims(kernel)
    channels = dims(images)[1 if text_attribute(node, "data_format").startswith("NC") else -1]
    if "Depthwise" in node.op_type:
        groups, inputs = inputs, 1
    else:
        groups = max(channels // max(inputs, 1), 1)
        outputs //= groups
    is_plain = inputs * outputs == 1 and (widest_plain is None or max(window) <= widest_plain)
    if groups == 1 or is_plain:
        return kernel.nbytes or 0
    blocks = math.prod(-(-part // _BLOCK) * _BLOCK for part in (inputs, outputs))
    return math.prod(window) * groups * blocks * item_bytes(kernel)


def _forward_scratch(node: Node) -> int:
    images, kernel = node.inputs[:2]
    *window, inputs, outputs = dims(kernel)
    is_single = images.dtype.name == "float32" and dims(images)[0] == 1
    if is_single and not cpu_has(AVX512) and (kernel.nbytes or 0) >= _SMALL_FILTER_BYTES and math.prod(window) > 1:
        return 4 * math.prod(window) * inputs * output_size(node) // max(outputs, 1)
    return _blocked_bytes(node, kernel, images)


def _input_scratch(node: Node) -> int:
    return _blocked_bytes(node, node.inputs[1], node.outputs[0])


def _filter_scratch(node: Node) -> int:
    kernel = node.outputs[0]
    return _blocked_bytes(node, kernel, node.inputs[0], _DEPTHWISE_WINDOW) * (3 if kernel.dtype.name == "bfloat16" else 1)


def _forward_by_eigen(node: Node) -> int:
    output, kernel = node.outputs[0], dims_of(node, 1)
    packed = packed_by_eigen(size(output) // max(kernel[-1], 1), math.prod(kernel[:-1]), kernel[-1], max(item_bytes(output), 4))
    return in_float32(output, packed) if item_bytes(output) == 2 else packed


def _gradient_by_eigen(node: Node) -> int:
    """Return the unfolded images, the packed operands of a product, and a filter that is added to another one."""
    is_of_filter, gradient, item = "BackpropFilter" in node.op_type, node.inputs[2], item_bytes(node.outputs[0])
    kernel = dims(node.outputs[0] if is_of_filter else node.inputs[1])
    positions, terms = size(gradient) // kernel[-1], math.prod(kernel[:-1])
    packed = packed_by_eigen(*((terms, positions, kernel[-1]) if is_of_filter else (positions, kernel[-1], terms)), item)
    if len(kernel) == 5:  # not unfolded; the gradient of a filter copies images and gradients
        return packed + ((2 * size(gradient) + size_of(node)) * item if is_of_filter else 0)
    unfolded = positions * terms * item
    columns = min(unfolded, _COLUMNS_BYTES + unfolded // max(dims(gradient)[0], 1))
    return columns + packed + (math.prod(kernel) * item if is_of_filter else 0)


def _filters_of_threads(node: Node) -> int:
    return (thread_count() + 1) * (node.inputs[1].nbytes or 0)


def _filters_of_examples(node: Node) -> int:
    return (dims_of(node, 2)[0] + 1) * (node.outputs[0].nbytes or 0)


_INPUT_GRADIENTS = "Conv2DBackpropInput Conv2DBackpropInputV2 Conv3DBackpropInput Conv3DBackpropInputV2"
_FILTER_GRADIENTS = "Conv2DBackpropFilter Conv2DBackpropFilterV2 Conv3DBackpropFilter Conv3DBackpropFilterV2"
_FORWARD = "Conv2D _FusedConv2D PadWithFusedConv2D Conv3D _FusedConv3D"
_DEPTHWISE = "DepthwiseConv2dNative _FusedDepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput"
FAMILY = Family(
    flops={
        "convolution": [
            ("Conv Conv2D Conv3D", "2 outputs window channels (of a group)", convolution),
            (_INPUT_GRADIENTS, "as the convolution forward; a transposed convolution too", _input_gradient),
            (_FILTER_GRADIENTS, "as the convolution forward", _filter_gradient),
            ("DepthwiseConv2dNative", "2 outputs window", depthwise),
            ("DepthwiseConv2dNativeBackpropInput DepthwiseConv2dNativeBackpropFilter", "as forward", _depthwise_gradient),
            ("Dilation2D", "2 outputs window", lambda node: 2.0 * output_size(node) * math.prod(dims_of(node, 1, 3)[:2])),
            ("Dilation2DBackpropInput Dilation2DBackpropFilter", "(2 window + 1) per gradient", _dilation_gradient),
            ("FusedPadConv2D FusedResizeAndPadConv2D", "2 outputs window channels", _padded),
        ],
        "fused": [
            ("_FusedConv2D _FusedConv3D", "the convolution + 1 per output for each fused op (3 for batch norm)", with_fused(convolution)),
            ("_FusedDepthwiseConv2dNative", "the convolution + 1 per output for each fused op", with_fused(depthwise)),
            ("_PadWithConv2D", "the convolution", convolution),
            ("_PadWithFusedConv2D", "the convolution + 1 per output for each fused op", with_fused(convolution)),
            ("_Conv2DWithBias", "the convolution + 1 per output", with_fused(convolution, 1)),
            ("_Conv2DBackpropFilterWithBias", "the gradient of the filter + 1 per gradient", _filter_and_bias_gradient),
            ("FusedConv2DBiasActivation", "the convolution + 2 per output", with_fused(convolution, 2)),
        ],
    },
    splits={
        "Conv2D": rows("n--k --kc -> n--c", sums=True),
        "Conv3D": rows("n---k ---kc -> n---c", sums=True),
        "Conv2DBackpropInput": rows("- --kc n--c -> n--k", of_0="n--k", sums=True),
        "Conv3DBackpropInputV2": rows("- ---kc n---c -> n---k", of_0="n---k", sums=True),
        "Conv2DBackpropFilter": rows("n--k - n--c -> --kc", of_1="--kc", sums=True),
        "Conv3DBackpropFilterV2": rows("n---k - n---c -> ---kc", of_1="---kc", sums=True),
        "DepthwiseConv2dNative": rows("n--c --c- -> n--c"),
        "DepthwiseConv2dNativeBackpropInput": rows("- --c- n--c -> n--c", of_0="n--c"),
        "DepthwiseConv2dNativeBackpropFilter": rows("n--c - n--c -> --c-", of_1="--c-", sums=True),
    },
    scratch={
        _FORWARD: ScratchRules(_forward_by_eigen, _forward_scratch, _forward_scratch),
        "Conv2DBackpropInput Conv3DBackpropInputV2": ScratchRules(_gradient_by_eigen, _input_scratch, _input_scratch),
        "Conv2DBackpropFilter Conv3DBackpropFilterV2": ScratchRules(_gradient_by_eigen, _filter_scratch, _filter_scratch),
        _DEPTHWISE: ScratchRules(_filters_of_threads, _input_scratch, _input_scratch),
        "DepthwiseConv2dNativeBackpropFilter": ScratchRules(_filters_of_examples, _filter_scratch, _filter_scratch),
    },
    weights={
        "Conv Conv2D Conv3D DepthwiseConv2dNative Dilation2D Conv2DBackpropInput Conv3DBackpropInputV2 "
        "DepthwiseConv2dNativeBackpropInput": (1,),
        "_FusedConv2D _FusedConv3D _FusedDepthwiseConv2dNative": tuple(range(1, 12)),
    },
    products=(
        "Conv2D Conv3D Conv2DBackpropInput Conv2DBackpropFilter Conv3DBackpropInputV2 Conv3DBackpropFilterV2 _FusedConv2D _FusedConv3D"
    ),
)
