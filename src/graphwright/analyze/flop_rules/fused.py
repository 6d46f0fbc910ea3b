"""Fused and quantized ops: what they are made of, added up.

A quantized product counts as the same product of floats: the field counts operations whatever their width.
"""

from collections.abc import Callable, Mapping

from graphwright.analyze.flop_rules.contraction import batch_matmul, matmul
from graphwright.analyze.flop_rules.convolution import convolution, convolution_filter_gradient, depthwise
from graphwright.analyze.flop_rules.normalization import batch_norm, batch_norm_gradient
from graphwright.analyze.flop_rules.rule import FlopRule, Rule, output_size, per_input, per_output, size_of, table, text_attribute
from graphwright.ir.graph import Node

_FUSED_COST: Mapping[str, float] = {"FusedBatchNorm": 3, "GeluApproximate": 8, "GeluExact": 5, "_MklSwish": 2, "Mish": 4, "_FusedSwish": 2}
"""Per element of the output; everything else (a bias, an addition, an activation) counts 1."""


def _with_fused(product: Rule, after: int = 0) -> Rule:
    """Count the product, and per output so many and those of the attribute `fused_ops`."""

    def count(node: Node) -> float | None:
        first = product(node)
        fused = node.attrs.get("fused_ops")
        names = [name.decode() for name in fused if isinstance(name, bytes)] if isinstance(fused, tuple) else []
        return None if first is None else first + (after + sum(_FUSED_COST.get(name, 1) for name in names)) * output_size(node)

    return count


def _with_activation(batch_norm: Callable[[Node], float]) -> Rule:
    """Count batch norm, or its gradient, with the ops that follow it in the same kernel."""

    def count(node: Node) -> float:
        active = text_attribute(node, "activation_mode", "Identity") != "Identity"
        added = node.attrs.get("num_side_inputs") == 1 and not node.op_type.endswith("GradEx")
        return batch_norm(node) + (active + added) * size_of(node)

    return count


def _composition(node: Node) -> float:
    """Count one per element for each op in the attribute `op_names`."""
    names = node.attrs.get("op_names")
    return (len(names) if isinstance(names, tuple) else 1) * output_size(node)


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
            return FlopRule("quantized", f"as {prefix.removeprefix('Quantized')} + {after} per output", _with_fused(product, after))
    return None


def base_of_mkl(op_type: str) -> tuple[str, ...]:
    """Return the op types that an op of oneDNN replaces: `_MklNativeConv2D` for `Conv2D`, `_MklFusedMatMul` for `_FusedMatMul`."""
    for prefix in ("_MklNative", "_Mkl"):
        if op_type.startswith(prefix):
            name = op_type.removeprefix(prefix)
            return (f"_{name}", name)
    return ()


RULES: dict[str, FlopRule] = table(
    {
        "fused": [
            ("_FusedConv2D _FusedConv3D", "the convolution + 1 per output for each fused op (3 for batch norm)", _with_fused(convolution)),
            ("_FusedDepthwiseConv2dNative", "the convolution + 1 per output for each fused op", _with_fused(depthwise)),
            ("_FusedMatMul", "the product + 1 per output for each fused op", _with_fused(matmul)),
            ("_FusedBatchMatMulV2", "the product + 1 per output for each fused op", _with_fused(batch_matmul)),
            ("_FusedBatchNormEx", "batch norm + 1 for the activation + 1 for the side input", _with_activation(batch_norm)),
            ("_FusedBatchNormGradEx", "gradient of batch norm + 1 for the activation", _with_activation(batch_norm_gradient)),
            ("_PadWithConv2D", "the convolution", convolution),
            ("_PadWithFusedConv2D", "the convolution + 1 per output for each fused op", _with_fused(convolution)),
            ("_Conv2DWithBias", "the convolution + 1 per output", _with_fused(convolution, 1)),
            (
                "_Conv2DBackpropFilterWithBias",
                "the gradient of the filter + 1 per gradient",
                lambda node: convolution_filter_gradient(node) + size_of(node, 2),
            ),
            ("FusedConv2DBiasActivation", "the convolution + 2 per output", _with_fused(convolution, 2)),
            ("_LayerNorm _FusedInstanceNorm", "8 per element", per_input(8)),
            ("_UnaryOpsComposition", "1 per output for each op that it is made of", _composition),
            ("_FusedMish", "4 per element", per_output(4)),
            ("_Swish", "2 per element", per_output(2)),
        ],
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
        ],
    }
)
