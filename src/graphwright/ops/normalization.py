"""Batch normalization, local response normalization, losses: so many FLOPs per element, read off the kernels' arithmetic."""

from graphwright.ir.graph import Node
from graphwright.ir.traits.arithmetic import BATCH_NORMS
from graphwright.ops.dimensions import Dimensions, rows, whole
from graphwright.ops.family import Count, Family, ScratchRules, on_cpu, per_input
from graphwright.ops.sizes import UnknownSizeError, dims_of, item_bytes, size_of, text_attribute

_TRAINING, _INFERENCE = 7.0, 3.0
_TRAINING_GRADIENT, _INFERENCE_GRADIENT = 9.0, 6.0


def _batch_norm(node: Node) -> float:
    """Training: mean 1, variance 3, normalize 3 per element; inference: normalize only. What is per channel is left out."""
    return (_INFERENCE if node.attrs.get("is_training") is False else _TRAINING) * size_of(node)


def _batch_norm_gradient(node: Node) -> float:
    """Gradients of offset 1 and scale 4; of the input 4 in training, 1 in inference."""
    return (_INFERENCE_GRADIENT if node.attrs.get("is_training") is False else _TRAINING_GRADIENT) * size_of(node)


def _sparse_cross_entropy(node: Node) -> float:
    """Count 5 per element for the softmax, 1 for the gradient; a logarithm and a difference per row."""
    logits = dims_of(node, 0, 1)
    return 6.0 * size_of(node) + 2.0 * (size_of(node) // max(logits[-1], 1))


def _with_activation(batch_norm: Count) -> Count:

    def count(node: Node) -> float:
        active = text_attribute(node, "activation_mode", "Identity") != "Identity"
        added = node.attrs.get("num_side_inputs") == 1 and not node.op_type.endswith("GradEx")
        return (batch_norm(node) or 0.0) + (active + added) * size_of(node)

    return count


def _split_inference(node: Node) -> Dimensions:
    if node.attrs.get("is_training") is not False or any(value.uses for value in node.outputs[1:]):
        raise UnknownSizeError
    labels = ("n", *whole(len(dims_of(node, 0)) - 1))
    return Dimensions((labels, *[(None,)] * (len(node.inputs) - 1)), labels, alone=True)


def _half_in_float32(node: Node) -> int:
    return 4 * size_of(node) if item_bytes(node.inputs[0]) == 2 else 0


_NORM_GRADIENTS = "FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3"
_NORMS = " ".join(sorted(BATCH_NORMS))
FAMILY = Family(
    flops={
        "normalization": [
            (_NORMS, "7 per element in training, 3 in inference", _batch_norm),
            (_NORM_GRADIENTS, "9 per element in training, 6 in inference", _batch_norm_gradient),
            ("BatchNormWithGlobalNormalization", "4 per element", per_input(4)),
            ("BatchNormWithGlobalNormalizationGrad", "6 per element", per_input(6)),
            ("LRN", "6 per element", per_input(6)),  # 2 for a running sum of squares over the channels, scale, offset, power, product
            ("LRNGrad", "12 per element", per_input(12)),
        ],
        "fused": [
            ("_FusedBatchNormEx", "batch norm + 1 for the activation + 1 for the side input", _with_activation(_batch_norm)),
            ("_FusedBatchNormGradEx", "gradient of batch norm + 1 for the activation", _with_activation(_batch_norm_gradient)),
            ("_LayerNorm _FusedInstanceNorm", "8 per element", per_input(8)),
        ],
        "softmax and losses": [
            ("SoftmaxCrossEntropyWithLogits", "9 per element, with the gradient that it makes", per_input(9)),
            ("SparseSoftmaxCrossEntropyWithLogits", "6 per element + 2 per row, with the gradient that it makes", _sparse_cross_entropy),
        ],
    },
    splits={
        _NORMS: _split_inference,
        "LRN": rows("n--- -> n---"),
        "SparseSoftmaxCrossEntropyWithLogits": rows("n- n -> n"),
        "SoftmaxCrossEntropyWithLogits": rows("n- n- -> n"),
    },
    scratch={
        "SoftmaxCrossEntropyWithLogits": on_cpu(lambda node: node.outputs[1].nbytes or 0),  # the terms of each loss (`xent_op.h`)
        "LRN": on_cpu(lambda node: 2 * (node.outputs[0].nbytes or 0)),  # squares and their sums
        "FusedBatchNormGradV2 FusedBatchNormGradV3": ScratchRules(_half_in_float32),
    },
    weights={f"{_NORMS} _FusedBatchNormEx": (1, 2, 3, 4)},
    bytes_per_s={
        "SparseSoftmaxCrossEntropyWithLogits SoftmaxCrossEntropyWithLogits": 1.5e9,
        "FusedBatchNormV3 FusedBatchNormGradV3 _FusedBatchNormEx _FusedBatchNormGradEx": 1.2e10,
    },
)
