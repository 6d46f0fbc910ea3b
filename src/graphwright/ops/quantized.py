"""Quantized products, and steps between floats and quantized numbers.

A quantized product counts as the same product of floats: the field counts operations whatever their width.
"""

from collections.abc import Callable

from graphwright.ir.graph import Node
from graphwright.ops.contraction import matmul, with_fused
from graphwright.ops.convolution import convolution, depthwise
from graphwright.ops.family import Family, FlopRule, per_input, per_output

_SCALES = (
    "Quantize QuantizeV2 Dequantize Requantize RequantizePerChannel UniformQuantize UniformDequantize UniformRequantize "
    "QuantizeDownAndShrinkRange"
)
_ROUNDS = (
    "QuantizeAndDequantize QuantizeAndDequantizeV2 QuantizeAndDequantizeV3 QuantizeAndDequantizeV4 FakeQuantWithMinMaxArgs "
    "FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsPerChannel"
)
_ROUNDS_GRADIENT = (
    "QuantizeAndDequantizeV4Grad FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVarsGradient FakeQuantWithMinMaxVarsPerChannelGradient"
)
_AFTER_QUANTIZED = {"WithBias": 1, "Relu": 1, "Sum": 1, "Requantize": 2, "Dequantize": 1}
_QUANTIZED_PRODUCTS: tuple[tuple[str, Callable[[Node], float]], ...] = (
    ("QuantizedConv2D", convolution),
    ("QuantizedDepthwiseConv2D", depthwise),
    ("QuantizedMatMul", matmul),
)


def quantized_rule(op_type: str) -> FlopRule | None:
    """Return the rule of a quantized product, whose name has the ops that follow it: `QuantizedConv2DWithBiasAndRelu`."""
    name = op_type.lstrip("_").removeprefix("Mkl").removeprefix("Fused")
    for prefix, product in _QUANTIZED_PRODUCTS:
        if name.startswith(prefix):
            after = sum(count for word, count in _AFTER_QUANTIZED.items() if word in name[len(prefix) :])
            return FlopRule("quantized", f"as {prefix.removeprefix('Quantized')} + {after} per output", with_fused(product, after))
    return None


FAMILY = Family(
    flops={
        "quantized": [
            ("UniformQuantizedDot UniformQuantizedDotHybrid", "as MatMul", matmul),
            ("UniformQuantizedConvolution UniformQuantizedConvolutionHybrid", "as Conv2D", convolution),
            ("QuantizedAdd QuantizedMul QuantizedBiasAdd UniformQuantizedAdd", "1 per output", per_output(1)),
            ("QuantizedRelu QuantizedRelu6 QuantizedReluX", "1 per output", per_output(1)),
            ("QuantizedMaxPool QuantizedAvgPool", "1 per element of the input", per_input(1)),
            ("QuantizedInstanceNorm QuantizedBatchNormWithGlobalNormalization", "8 per element", per_input(8)),
            (_SCALES, "2 per output", per_output(2)),
            (_ROUNDS, "5 per output: clip, scale, round, scale back", per_output(5)),
            (_ROUNDS_GRADIENT, "3 per gradient", per_input(3)),
            ("RequantizationRange RequantizationRangePerChannel", "2 per element of the input", per_input(2)),
        ]
    },
    weight_passes=(
        "Dequantize QuantizeV2 FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsPerChannel FakeQuantWithMinMaxArgs UniformDequantize"
    ),
)
