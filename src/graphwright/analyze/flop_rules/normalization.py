"""Batch normalization, softmax and losses, optimizers' kernels: so many per element, read off the kernels' arithmetic."""

from graphwright.analyze.flop_rules.rule import (
    FlopRule,
    Rule,
    UnknownSizeError,
    dims_of,
    is_floating,
    per_input,
    per_output,
    size,
    size_of,
    table,
)
from graphwright.ir.graph import Node

_TRAINING, _INFERENCE = 7.0, 3.0
_TRAINING_GRADIENT, _INFERENCE_GRADIENT = 9.0, 6.0


def batch_norm(node: Node) -> float:
    """Training: mean 1, variance 3, normalize 3 per element; inference: normalize only. What is per channel is left out."""
    return (_INFERENCE if node.attrs.get("is_training") is False else _TRAINING) * size_of(node)


def batch_norm_gradient(node: Node) -> float:
    """Gradients of offset 1 and scale 4; of the input 4 in training, 1 in inference."""
    return (_INFERENCE_GRADIENT if node.attrs.get("is_training") is False else _TRAINING_GRADIENT) * size_of(node)


def _sparse_cross_entropy(node: Node) -> float:
    """Count 5 per element for the softmax, 1 for the gradient; a logarithm and a difference per row."""
    logits = dims_of(node, 0, 1)
    return 6.0 * size_of(node) + 2.0 * (size_of(node) // max(logits[-1], 1))


def _gradient_size(node: Node) -> int:
    """Return the elements of an optimizer kernel's gradient: the input before the indices, else the largest input."""
    floats = [v for v in node.inputs if is_floating(v)]
    for before, value in zip(node.inputs, node.inputs[1:], strict=False):
        if "Sparse" in node.op_type and value.dtype.name in ("int32", "int64") and value.shape != () and is_floating(before):
            return size(before)
    if not floats:
        raise UnknownSizeError
    return max(size(v) for v in floats)


def _per_gradient(plain: float, nesterov: float = 0.0) -> Rule:
    """Return a rule: `plain` FLOPs per element of the gradient, plus `nesterov` with Nesterov's momentum."""
    return lambda node: (plain + (nesterov if node.attrs.get("use_nesterov") is True else 0.0)) * _gradient_size(node)


_OPTIMIZERS: tuple[tuple[str, float, float], ...] = (
    ("GradientDescent", 2, 0),
    ("Momentum", 4, 3),
    ("KerasMomentum", 4, 3),
    ("Adam", 12, 3),
    ("AdamWithAmsgrad", 13, 0),
    ("AdaMax", 10, 0),
    ("Adagrad", 6, 0),
    ("AdagradV2", 7, 0),
    ("AdagradDA", 11, 0),
    ("Adadelta", 16, 0),
    ("RMSProp", 11, 0),
    ("CenteredRMSProp", 16, 0),
    ("Ftrl", 17, 0),
    ("FtrlV2", 19, 0),
    ("AddSign", 11, 0),
    ("PowerSign", 12, 0),
    ("ProximalGradientDescent", 8, 0),
    ("ProximalAdagrad", 12, 0),
)
"""Kernel, operations per element of the gradient as the update is written in TensorFlow's documentation, and more with Nesterov."""


RULES: dict[str, FlopRule] = table(
    {
        "normalization": [
            ("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3", "7 per element in training, 3 in inference", batch_norm),
            (
                "FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3",
                "9 per element in training, 6 in inference",
                batch_norm_gradient,
            ),
            ("BatchNormWithGlobalNormalization", "4 per element", per_input(4)),
            ("BatchNormWithGlobalNormalizationGrad", "6 per element", per_input(6)),
            ("LRN", "6 per element", per_input(6)),  # 2 for a running sum of squares over the channels, scale, offset, power, product
            ("LRNGrad", "12 per element", per_input(12)),
        ],
        "softmax and losses": [
            ("Softmax LogSoftmax", "5 per element: largest, difference, exponential, sum, quotient", per_output(5)),
            ("SoftmaxCrossEntropyWithLogits", "9 per element, with the gradient that it makes", per_input(9)),
            ("SparseSoftmaxCrossEntropyWithLogits", "6 per element + 2 per row, with the gradient that it makes", _sparse_cross_entropy),
        ],
        "optimizer": [
            (
                " ".join(f"{prefix}{name}" for prefix in ("ResourceApply", "ResourceSparseApply", "Apply", "SparseApply")),
                f"{plain:g} per element of the gradient" + (f", {plain + nesterov:g} with Nesterov" if nesterov else ""),
                _per_gradient(plain, nesterov),
            )
            for name, plain, nesterov in _OPTIMIZERS
        ],
    }
)
