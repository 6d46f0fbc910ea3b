"""Resampling of images, and their colors."""

import math

from graphwright.ir.graph import Node
from graphwright.ops.dimensions import rows
from graphwright.ops.family import Family, per_input, per_output, zero
from graphwright.ops.sizes import output_dims, output_size, ranked, size_of, text_attribute

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
    return 11.0 * math.prod(shape[:3]) + (9.0 * math.prod(shape) if text_attribute(node, "interpolation") == "BILINEAR" else 0.0)


def _crop(node: Node) -> float:
    return 0.0 if text_attribute(node, "method") == "nearest" else 9.0 * output_size(node)


FAMILY = Family(
    flops={
        "image": [
            ("ResizeBilinear QuantizedResizeBilinear", "9 per output: three interpolations", per_output(9)),
            ("ResizeBilinearGrad", "8 per gradient", per_input(8)),
            ("ResizeBicubic", "35 per output: five sums of four products", per_output(35)),
            ("ResizeBicubicGrad", "32 per gradient", per_input(32)),
            ("ResizeArea", "2 per element of the larger image", lambda node: 2.0 * max(size_of(node), output_size(node))),
            ("ResizeNearestNeighbor", "0", zero),
            ("ResizeNearestNeighborGrad", "1 per gradient", per_input(1)),
            ("ScaleAndTranslate ScaleAndTranslateGrad", "2 per tap, along columns and rows", _scale_and_translate),
            ("CropAndResize", "9 per output, 0 for nearest", _crop),
            ("CropAndResizeGradImage", "8 per gradient", per_input(8)),
            ("CropAndResizeGradBoxes", "12 per gradient", per_input(12)),
            ("ImageProjectiveTransformV2 ImageProjectiveTransformV3", "11 per place + 9 per bilinear output", _project),
            ("AdjustContrast AdjustContrastv2", "3 per output", per_output(3)),
            ("RGBToHSV HSVToRGB", "5 per output", per_output(5)),
            ("AdjustHue AdjustSaturation", "11 per output: to HSV, change, back", per_output(11)),
        ]
    },
    splits={
        "ResizeBilinear ResizeNearestNeighbor ResizeNearestNeighborGrad ResizeBicubic": rows("n--c - -> n--c"),
        "ResizeBilinearGrad ResizeBicubicGrad": rows("n--c n--c -> n--c"),
    },
    rows_in_data={"NonMaxSuppression": "as many as boxes are kept", "CombinedNonMaxSuppression": "as many as boxes are kept"},
)
