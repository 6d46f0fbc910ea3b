"""FLOP rules of all families against closed formulas, and the registry that users extend."""

from __future__ import annotations

import math

import pytest

from graphwright.errors import ArgumentError
from graphwright.ir.text import from_text
from graphwright.ops.flops import built_in_rules, flop_rule, node_flops, register_flops

LETTERS = "abcdefghij"


def flops(op_type: str, inputs: list[str], output: str, attrs: str = "") -> float | None:
    """FLOPs of one node whose inputs are constants of these types."""
    constants = "\n".join(f"%{name} = Const() : {kind}" for name, kind in zip(LETTERS, inputs, strict=False))
    arguments = ", ".join(f"%{name}:0" for name, _ in zip(LETTERS, inputs, strict=False))
    return node_flops(from_text(f'graph "g"\n{constants}\n%y = {op_type}({arguments}) {{{attrs}}} : {output}')["y"])


F, I32 = "float32", "int32"
LSTM_STEP = 2 * 8 * (5 + 7) * 4 * 7 + 14 * 8 * 7

CASES: list[tuple[str, list[str], str, str, float | None]] = [
    # integers and truth values are no floating-point arithmetic, comparisons of floats are
    ("AddV2", [f"{I32}[5,7]", f"{I32}[5,7]"], f"{I32}[5,7]", "", 0),
    ("Less", [f"{I32}[]", f"{I32}[]"], "bool[]", "", 0),
    ("Less", [f"{F}[5]", f"{F}[5]"], "bool[5]", "", 5),
    ("Cumsum", [f"{I32}[5]", f"{I32}[]"], f"{I32}[5]", "", 0),
    ("MatMul", ["int8[3,4]", "int8[4,5]"], f"{I32}[3,5]", "", 2 * 3 * 4 * 5),
    # complex numbers: four products and four sums
    ("MatMul", ["complex64[3,4]", "complex64[4,5]"], "complex64[3,5]", "", 8 * 3 * 4 * 5),
    # matrix products, flipped and in batches
    ("MatMul", [f"{F}[3,4]", f"{F}[4,5]"], f"{F}[3,5]", "", 2 * 3 * 4 * 5),
    ("MatMul", [f"{F}[4,3]", f"{F}[4,5]"], f"{F}[3,5]", "transpose_a = true", 2 * 3 * 4 * 5),
    ("BatchMatMulV2", [f"{F}[7,3,4]", f"{F}[4,5]"], f"{F}[7,3,5]", "adj_x = false", 7 * 2 * 3 * 4 * 5),
    ("BatchMatMulV2", [f"{F}[7,4,3]", f"{F}[7,4,5]"], f"{F}[7,3,5]", "adj_x = true", 7 * 2 * 3 * 4 * 5),
    # of a grouped convolution, the filter holds the input channels of one group
    ("Conv2D", [f"{F}[2,8,8,4]", f"{F}[3,3,2,8]"], f"{F}[2,6,6,8]", "", 2 * (2 * 6 * 6 * 8) * 3 * 3 * 2),
    ("Conv2DBackpropFilter", [f"{F}[2,8,8,3]", f"{I32}[4]", f"{F}[2,6,6,8]"], f"{F}[3,3,3,8]", "", 2 * (2 * 6 * 6 * 8) * 27),
    ("DepthwiseConv2dNative", [f"{F}[2,8,8,3]", f"{F}[3,3,3,2]"], f"{F}[2,6,6,6]", "", 2 * (2 * 6 * 6 * 6) * 9),
    ("MaxPool", [f"{F}[2,8,8,3]"], f"{F}[2,4,4,3]", "ksize = [1, 2, 2, 1]", 4 * 2 * 4 * 4 * 3),
    # element by element, with broadcasting
    ("AddV2", [f"{F}[5,7]", f"{F}[7]"], f"{F}[5,7]", "", 35),
    ("AddN", [f"{F}[5]"] * 3, f"{F}[5]", "", 10),
    ("BiasAddGrad", [f"{F}[5,7]"], f"{F}[7]", "", 28),
    ("Softmax", [f"{F}[5,7]"], f"{F}[5,7]", "", 5 * 35),
    ("Transpose", [f"{F}[5,7]", f"{I32}[2]"], f"{F}[7,5]", "", 0),
    # reductions
    ("Sum", [f"{F}[5,7]", f"{I32}[1]"], f"{F}[7]", "", 28),
    ("Mean", [f"{F}[5,7]", f"{I32}[1]"], f"{F}[7]", "", 35),
    ("Mean", [f"{F}[1,7]", f"{I32}[1]"], f"{F}[7]", "", 0),
    # convolutions: a transposed one is the gradient of the input; 1D is 2D; 3D; dilated as plain; depthwise
    ("Conv2DBackpropInput", [f"{I32}[4]", f"{F}[2,2,8,16]", f"{F}[1,4,4,16]"], f"{F}[1,8,8,8]", "", 2 * (4 * 4 * 16) * 2 * 2 * 8),
    ("Conv2D", [f"{F}[2,1,10,3]", f"{F}[1,3,3,8]"], f"{F}[2,1,8,8]", "", 2 * (2 * 8 * 8) * 3 * 3),
    ("Conv3D", [f"{F}[1,6,6,6,2]", f"{F}[3,3,3,2,4]"], f"{F}[1,4,4,4,4]", "", 2 * (64 * 4) * 27 * 2),
    ("Conv2D", [f"{F}[1,8,8,3]", f"{F}[3,3,3,4]"], f"{F}[1,4,4,4]", "dilations = [1, 2, 2, 1]", 2 * 64 * 27),
    ("Conv2D", [f"{F}[1,3,8,8]", f"{F}[3,3,3,4]"], f"{F}[1,4,6,6]", 'data_format = "NCHW"', 2 * 4 * 36 * 27),
    ("DepthwiseConv2dNativeBackpropFilter", [f"{F}[1,6,6,3]", f"{I32}[4]", f"{F}[1,4,4,6]"], f"{F}[3,3,3,2]", "", 2 * 96 * 9),
    ("_FusedConv2D", [f"{F}[1,8,8,3]", f"{F}[3,3,3,4]", f"{F}[4]"], f"{F}[1,6,6,4]", 'fused_ops = ["BiasAdd", "Relu"]', 144 * (2 * 27 + 2)),
    ("_FusedMatMul", [f"{F}[3,4]", f"{F}[4,5]", f"{F}[5]"], f"{F}[3,5]", 'fused_ops = ["BiasAdd"]', 15 * (2 * 4 + 1)),
    ("_MklNativeConv2D", [f"{F}[1,8,8,3]", f"{F}[3,3,3,4]"], f"{F}[1,6,6,4]", "", 144 * 54),
    ("_MklConv2D", [f"{F}[1,8,8,3]", f"{F}[3,3,3,4]", "uint8[8]", "uint8[8]"], f"{F}[1,6,6,4]", "", 144 * 54),
    ("QuantizedConv2DWithBiasAndRelu", ["quint8[1,8,8,3]", "qint8[3,3,3,4]"], "qint32[1,6,6,4]", "", 144 * (54 + 2)),
    # normalization
    ("FusedBatchNormV3", [f"{F}[2,4,4,3]", f"{F}[3]"], f"{F}[2,4,4,3]", "is_training = true", 7 * 96),
    ("FusedBatchNormV3", [f"{F}[2,4,4,3]", f"{F}[3]"], f"{F}[2,4,4,3]", "is_training = false", 3 * 96),
    ("_FusedBatchNormEx", [f"{F}[2,3]"], f"{F}[2,3]", 'is_training = false, activation_mode = "Relu"', 4 * 6),
    ("FusedBatchNormGradV3", [f"{F}[2,3]", f"{F}[2,3]"], f"{F}[2,3]", "is_training = true", 9 * 6),
    # einsum
    ("Einsum", [f"{F}[4,3,8]", f"{F}[8,5]"], f"{F}[4,3,5]", 'equation = "...i,ij->...j"', 2 * 4 * 3 * 8 * 5),
    ("Einsum", [f"{F}[3,3]"], f"{F}[]", 'equation = "ii->"', 3 - 1),
    ("Einsum", [f"{F}[3,3]"], f"{F}[3]", 'equation = "ii->i"', 0),
    ("Einsum", [f"{F}[5]", f"{F}[5]"], f"{F}[5]", 'equation = "i,i->i"', 5),
    ("Einsum", [f"{F}[3,4,5]", f"{F}[5,6]"], f"{F}[3,6]", 'equation = "ijk,kl->il"', (60 - 15) + 2 * 3 * 5 * 6),
    ("Einsum", [f"{F}[9,2]", f"{F}[2,9]", f"{F}[9,2]"], f"{F}[9,2]", 'equation = "ij,jk,kl->il"', 2 * (2 * 9 * 2 * 2)),
    ("Einsum", [f"{F}[2,3]", f"{F}[4,3]"], f"{F}[2,4]", 'equation = "bad"', None),
    # sparse: nonzeros from the shape of the values
    ("SparseTensorDenseMatMul", ["int64[9,2]", f"{F}[9]", "int64[2]", f"{F}[6,5]"], f"{F}[4,5]", "", 2 * 9 * 5),
    ("SparseSegmentSum", [f"{F}[100,8]", f"{I32}[12]", f"{I32}[12]"], f"{F}[3,8]", "", 12 * 8),
    # Fourier
    ("FFT", ["complex64[3,64]"], "complex64[3,64]", "", 3 * 5 * 64 * 6),
    ("FFT2D", ["complex64[3,8,8]"], "complex64[3,8,8]", "", 3 * 5 * 64 * 6),
    ("RFFT", [f"{F}[3,64]", f"{I32}[1]"], "complex64[3,33]", "", 3 * 2.5 * 64 * 6),
    ("IRFFT", ["complex64[3,33]", f"{I32}[1]"], f"{F}[3,64]", "", 3 * 2.5 * 64 * 6),
    # linear algebra
    ("Cholesky", [f"{F}[2,6,6]"], f"{F}[2,6,6]", "", 2 * 6**3 / 3),
    ("MatrixSolve", [f"{F}[6,6]", f"{F}[6,4]"], f"{F}[6,4]", "", 2 / 3 * 6**3 + 2 * 36 * 4),
    ("MatrixTriangularSolve", [f"{F}[2,6,6]", f"{F}[2,6,4]"], f"{F}[2,6,4]", "", 2 * 36 * 4),
    ("MatrixInverse", [f"{F}[6,6]"], f"{F}[6,6]", "", 2 * 6**3),
    ("Qr", [f"{F}[9,4]"], f"{F}[9,4]", "", 2 * (2 * 9 * 16 - 2 / 3 * 64)),
    ("Svd", [f"{F}[9,4]"], f"{F}[4]", "compute_uv = false", 4 * 9 * 16 - 4 / 3 * 64),
    # recurrent
    ("LSTMBlockCell", [f"{F}[8,5]", f"{F}[8,7]", f"{F}[8,7]", f"{F}[12,28]"], f"{F}[8,7]", "", LSTM_STEP),
    ("BlockLSTMV2", ["int64[]", f"{F}[6,8,5]", f"{F}[8,7]", f"{F}[8,7]", f"{F}[12,28]"], f"{F}[6,8,7]", "", 6 * LSTM_STEP),
    ("GRUBlockCell", [f"{F}[8,5]", f"{F}[8,7]", f"{F}[12,14]", f"{F}[12,7]"], f"{F}[8,7]", "", 8 * (2 * 12 * 21 + 12 * 7)),
    (
        "CudnnRNNV3",
        [f"{F}[6,8,5]", f"{F}[4,8,7]", f"{F}[4,8,7]"],
        f"{F}[6,8,14]",
        'rnn_mode = "lstm", direction = "bidirectional", time_major = true',
        6 * 8 * 2 * (2 * 4 * 7 * (5 + 7) + 14 * 7 + 2 * 4 * 7 * (14 + 7) + 14 * 7),
    ),
    # sorting, images, random numbers
    ("TopKV2", [f"{F}[3,100]", f"{I32}[]"], f"{F}[3,8]", "", 3 * 100 * 3),
    ("ResizeBilinear", [f"{F}[1,4,4,3]", f"{I32}[2]"], f"{F}[1,8,8,3]", "", 9 * 192),
    ("RandomUniform", [f"{I32}[1]"], f"{F}[10]", "", 20),
    ("RandomUniformInt", [f"{I32}[1]", f"{I32}[]", f"{I32}[]"], f"{I32}[10]", "", 0),
    # optimizers
    ("ResourceApplyAdam", [f"{F}[5,7]", f"{F}[]"], "resource[]", "", 12 * 35),
    ("ResourceApplyMomentum", [f"{F}[5,7]", f"{F}[]"], "resource[]", "use_nesterov = true", 7 * 35),
    ("SparseApplyAdagrad", [f"{F}[100,7]", f"{F}[100,7]", f"{F}[]", f"{F}[3,7]", f"{I32}[3]"], f"{F}[100,7]", "", 6 * 21),
    # nothing is computed
    ("DecodeJpeg", ["string[]"], "uint8[?,?,?]", "", 0),
    ("StringSplitV2", ["string[?]"], "string[?]", "", 0),
    ("TensorListPushBack", ["variant[]", f"{F}[?]"], "variant[]", "", 0),
    ("LookupTableFindV2", ["resource[]", "string[?]"], "int64[?]", "", 0),
    # unknown is never zero
    ("MyOp", [f"{F}[5]"], f"{F}[5]", "", None),
    ("MatMul", [f"{F}[?,4]", f"{F}[4,5]"], f"{F}[?,5]", "", None),
    ("Relu", [f"{F}[*]"], f"{F}[*]", "", None),
    ("Softmax", [f"{F}[?,7]"], f"{F}[?,7]", "", None),
    ("NonMaxSuppressionV3", [f"{F}[5,4]"], f"{I32}[?]", "", None),
]  # fmt: skip


@pytest.mark.parametrize(("op_type", "inputs", "output", "attrs", "expected"), CASES, ids=[f"{c[0]}-{k}" for k, c in enumerate(CASES)])
def test_closed_formulas(op_type, inputs, output, attrs, expected):
    counted = flops(op_type, inputs, output, attrs)
    assert counted == (expected if expected is None else pytest.approx(expected, rel=1e-12))


@pytest.mark.parametrize(
    "inputs", [[], [f"{F}[3,3]"], [f"{F}[*]"], [f"{F}[]"] * 3, ["string[2]"] * 4, [f"{F}[2,2,2,2,2]"] * 5, [f"{F}[2,2,2]"] * 5]
)
def test_no_rule_fails_whatever_the_node(inputs):
    """A count or None: an op may have other inputs in another version of TensorFlow."""
    for op_type in built_in_rules():
        counted = flops(op_type, inputs, f"{F}[3]")
        assert counted is None or (math.isfinite(counted) and counted >= 0), op_type


def test_rules_are_registered_and_taken_back():
    twice = register_flops("MyOp", lambda node: 2.0 * node.outputs[0].shape[0])
    assert flops("MyOp", [], f"{F}[5]") == 10
    with register_flops("MyOp", lambda node: 3.0, formula="3"):
        assert flops("MyOp", [], f"{F}[5]") == 3
        assert flop_rule("MyOp").formula == "3"
    assert flops("MyOp", [], f"{F}[5]") == 10
    twice.undo()
    twice.undo()
    assert flops("MyOp", [], f"{F}[5]") is None


def test_a_rule_of_the_user_comes_before_a_built_in_one():
    with register_flops("Relu", lambda node: None):
        assert flops("Relu", [f"{F}[5]"], f"{F}[5]") is None
    assert flops("Relu", [f"{F}[5]"], f"{F}[5]") == 5


@pytest.mark.parametrize(("op_type", "rule"), [("", lambda node: 1.0), ("MyOp", 3.0)])
def test_what_is_no_rule(op_type, rule):
    with pytest.raises(ArgumentError):
        register_flops(op_type, rule)
