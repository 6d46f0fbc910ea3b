"""Convolutions of all kinds, their gradients, pooling, and resampling of images.

A window at the border counts in full, padded zeros included, as in the TensorFlow profiler. Filters are [..., input channels of a group,
output channels] in any layout of the images, so a count needs only the filter and the smaller image. Dilation changes the elements of a
window, not their number; a stride shows in the size of the output.
"""

import math

from graphwright.analyze.flop_rules.contraction import multiply_add
from graphwright.analyze.flop_rules.rule import (
    FlopRule,
    dims_of,
    numbers_attribute,
    output_dims,
    output_size,
    per_input,
    per_output,
    ranked,
    size_of,
    table,
    text_attribute,
    zero,
)
from graphwright.ir.graph import Node


def convolution(node: Node) -> float:
    return multiply_add(node) * output_size(node) * math.prod(dims_of(node, 1, 3)[:-1])


def convolution_input_gradient(node: Node) -> float:
    """The same products as forward, added up elsewhere: gradient of the output times the filter."""
    return multiply_add(node) * size_of(node, 2) * math.prod(dims_of(node, 1, 3)[:-1])


def convolution_filter_gradient(node: Node) -> float:
    """The same products as forward, added up into the filter."""
    return multiply_add(node) * size_of(node, 2) * math.prod(output_dims(node, 0, 3)[:-1])


def depthwise(node: Node) -> float:
    """2 * outputs * window; the filter is [height, width, channels, multiplier]."""
    return 2.0 * output_size(node) * math.prod(dims_of(node, 1, 4)[:2])


def _dilation_gradient(node: Node) -> float:
    """Count the search for the largest element, then one addition per gradient."""
    return size_of(node, 2) * (2.0 * math.prod(dims_of(node, 1, 3)[:2]) + 1)


def window_size(node: Node) -> int:
    window = numbers_attribute(node, "ksize")
    if not window and len(node.inputs) > 1:  # the V2 ops have it as an input, whose numbers are not known here
        return max(1, round(size_of(node) / max(output_size(node), 1)))
    return math.prod(window)


_POOLS = "MaxPool MaxPoolV2 MaxPool3D MaxPoolWithArgmax AvgPool AvgPool3D"
_MAX_POOL_GRADIENTS = "MaxPoolGrad MaxPoolGradV2 MaxPool3DGrad MaxPoolGradGrad MaxPoolGradGradV2 MaxPool3DGradGrad"
_KERNEL_RADIUS = {"lanczos1": 1.0, "lanczos3": 3.0, "lanczos5": 5.0, "gaussian": 1.5, "box": 0.5, "triangle": 1.0}


def _scale_and_translate(node: Node) -> float:
    """Count 2 per tap, along the columns, then along the rows. Antialiasing widens the kernel when the image shrinks."""
    is_gradient = node.op_type.endswith("Grad")  # its inputs: the gradient, then the image
    _, height, width, channels = ranked(node, 1 if is_gradient else 0, 4)
    batch, new_height, new_width = (ranked(node, 0, 4) if is_gradient else output_dims(node, 0, 4))[:3]
    radius = _KERNEL_RADIUS.get(text_attribute(node, "kernel_type", "lanczos3"), 2.0)
    antialias = node.attrs.get("antialias") is not False

    def taps(old: int, new: int) -> float:
        return math.ceil(2 * radius * (max(1.0, old / max(new, 1)) if antialias else 1.0))

    rows = new_height * width * taps(height, new_height)
    columns = new_height * new_width * taps(width, new_width)
    return 2.0 * batch * channels * (rows + columns)


def _project(node: Node) -> float:
    """Count 11 per place for two coordinates, and 9 per channel for interpolation."""
    shape = output_dims(node, 0, 4)
    places = math.prod(shape[:3])
    return 11.0 * places + (9.0 * math.prod(shape) if text_attribute(node, "interpolation") == "BILINEAR" else 0.0)


def _padded(node: Node) -> float:
    """Count a convolution behind a padding, whose filter stands behind sizes and paddings."""
    index = 3 if node.op_type == "FusedResizeAndPadConv2D" else 2
    return 2.0 * output_size(node) * math.prod(dims_of(node, index, 3)[:-1])


RULES: dict[str, FlopRule] = table(
    {
        "convolution": [
            ("Conv Conv2D Conv3D", "2 outputs window channels (of a group)", convolution),
            (
                "Conv2DBackpropInput Conv2DBackpropInputV2 Conv3DBackpropInput Conv3DBackpropInputV2",
                "as the convolution forward; a transposed convolution too",
                convolution_input_gradient,
            ),
            (
                "Conv2DBackpropFilter Conv2DBackpropFilterV2 Conv3DBackpropFilter Conv3DBackpropFilterV2",
                "as the convolution forward",
                convolution_filter_gradient,
            ),
            ("DepthwiseConv2dNative", "2 outputs window", depthwise),
            ("DepthwiseConv2dNativeBackpropInput", "as forward", lambda node: 2.0 * size_of(node, 2) * math.prod(dims_of(node, 1, 4)[:2])),
            (
                "DepthwiseConv2dNativeBackpropFilter",
                "as forward",
                lambda node: 2.0 * size_of(node, 2) * math.prod(output_dims(node, 0, 4)[:2]),
            ),
            ("Dilation2D", "2 outputs window", lambda node: 2.0 * output_size(node) * math.prod(dims_of(node, 1, 3)[:2])),
            ("Dilation2DBackpropInput Dilation2DBackpropFilter", "(2 window + 1) per gradient", _dilation_gradient),
            ("FusedPadConv2D FusedResizeAndPadConv2D", "2 outputs window channels", _padded),
        ],
        "pooling": [
            (_POOLS, "window per output", lambda node: float(window_size(node) * output_size(node))),
            # The largest is sought again, but where its position is known; then one addition for each gradient.
            (_MAX_POOL_GRADIENTS, "(window + 1) per gradient", lambda node: float((window_size(node) + 1) * size_of(node, 2))),
            ("MaxPoolGradWithArgmax", "1 per gradient", per_input(1, 1)),
            ("MaxPoolGradGradWithArgmax", "0", zero),
            ("AvgPoolGrad AvgPool3DGrad", "2 window per gradient", lambda node: 2.0 * window_size(node) * size_of(node, 1)),
            ("FractionalMaxPool FractionalAvgPool", "1 per element of the input", per_input(1)),
            ("FractionalMaxPoolGrad", "1 per gradient", per_input(1, 2)),
            ("FractionalAvgPoolGrad", "2 per gradient", per_input(2, 1)),
        ],
        "image": [
            ("ResizeBilinear QuantizedResizeBilinear", "9 per output: three interpolations", per_output(9)),
            ("ResizeBilinearGrad", "8 per gradient", per_input(8)),
            ("ResizeBicubic", "35 per output: five sums of four products", per_output(35)),
            ("ResizeBicubicGrad", "32 per gradient", per_input(32)),
            ("ResizeArea", "2 per element of the larger image", lambda node: 2.0 * max(size_of(node), output_size(node))),
            ("ResizeNearestNeighbor", "0", zero),
            ("ResizeNearestNeighborGrad", "1 per gradient", per_input(1)),
            ("ScaleAndTranslate ScaleAndTranslateGrad", "2 per tap, along columns and rows", _scale_and_translate),
            (
                "CropAndResize",
                "9 per output, 0 for nearest",
                lambda node: 0.0 if text_attribute(node, "method") == "nearest" else 9.0 * output_size(node),
            ),
            ("CropAndResizeGradImage", "8 per gradient", per_input(8)),
            ("CropAndResizeGradBoxes", "12 per gradient", per_input(12)),
            ("ImageProjectiveTransformV2 ImageProjectiveTransformV3", "11 per place + 9 per bilinear output", _project),
            ("AdjustContrast AdjustContrastv2", "3 per output", per_output(3)),
            ("RGBToHSV HSVToRGB", "5 per output", per_output(5)),
            ("AdjustHue AdjustSaturation", "11 per output: to HSV, change, back", per_output(11)),
        ],
    }
)
