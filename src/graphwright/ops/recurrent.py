"""Recurrent cells and layers in one op: matrix products, and so many per unit for the gates."""

import math

from graphwright.ir.graph import Node
from graphwright.ops.family import Count, Family
from graphwright.ops.sizes import UnknownSizeError, dims_of, ranked, text_attribute

_LSTM, _LSTM_GRADIENT = 14.0, 22.0  # per unit: 3 sigmoids, 2 tanh, 4 biases, forget bias, 4 products and sums
_PEEPHOLE, _PEEPHOLE_GRADIENT = 6.0, 9.0
_GRU, _GRU_GRADIENT = 12.0, 16.0
_GATES = {"lstm": 4, "gru": 3, "rnn_relu": 1, "rnn_tanh": 1}
_PER_UNIT = {"lstm": 14.0, "gru": 12.0, "rnn_relu": 3.0, "rnn_tanh": 3.0}


def _lstm_step(node: Node, x: tuple[int, ...], weight: tuple[int, ...], batch: int) -> float:
    """Count one step: [x, h] times the weights of four gates, and the gates."""
    if len(weight) != 2 or len(x) < 2:
        raise UnknownSizeError
    peephole = _PEEPHOLE if node.attrs.get("use_peephole") is True else 0.0
    return batch * (2.0 * math.prod(weight) + (_LSTM + peephole) * weight[1] / 4)


def _lstm_cell(node: Node) -> float:
    x = ranked(node, 0, 2)
    return _lstm_step(node, x, dims_of(node, 3, 2), x[0])


def _lstm_gates_gradient(node: Node) -> float:
    return _LSTM_GRADIENT + (_PEEPHOLE_GRADIENT if node.attrs.get("use_peephole") is True else 0.0)


def _lstm_block(node: Node) -> float:
    x = ranked(node, 1, 3)
    return x[0] * _lstm_step(node, x, dims_of(node, 4, 2), x[1])


def _lstm_block_gradient(node: Node) -> float:
    """Count twice the products of the forward pass, for the gradients of the inputs and of the weights."""
    x, weight = dims_of(node, 1, 3), dims_of(node, 4, 2)
    return x[0] * x[1] * (4.0 * math.prod(weight) + _lstm_gates_gradient(node) * weight[1] / 4)


def _gru_cell(per_unit: float) -> Count:
    """Return the rule of a cell, or of the gradients of x and h; gradients of the weights are separate nodes."""

    def count(node: Node) -> float:
        batch, units = ranked(node, 1, 2)
        return batch * (2.0 * (math.prod(dims_of(node, 2, 2)) + math.prod(dims_of(node, 3, 2))) + per_unit * units)

    return count


def _rnn(node: Node, of_products: float = 1.0, of_gates: float = 1.0) -> float:
    """Count all layers and directions of cuDNN's recurrent network, its products and its gates so many times."""
    first, second, inputs = ranked(node, 0, 3)
    state = ranked(node, 1, 3)
    mode = text_attribute(node, "rnn_mode", "lstm")
    directions = 2 if text_attribute(node, "direction") == "bidirectional" else 1
    # Time and batch come first in either order; states are [layers, batch, units], or with the batch first.
    layers, units = (state[1] if node.attrs.get("time_major") is False else state[0]) // directions, state[2]
    cell = dims_of(node, 2, 3)[2] if mode == "lstm" else units
    gates = _GATES.get(mode)
    if gates is None:
        raise UnknownSizeError
    products = work = 0.0
    for layer in range(layers):
        width = (0 if text_attribute(node, "input_mode") == "skip_input" else inputs) if layer == 0 else directions * units
        products += directions * 2.0 * gates * cell * (width + units)
        products += directions * 2.0 * cell * units if cell != units else 0.0  # the projection
        work += directions * _PER_UNIT[mode] * cell
    return first * second * (of_products * products + of_gates * work)


_CUDNN_GRADIENT = "CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3"
FAMILY = Family(
    flops={
        "recurrent": [
            ("LSTMBlockCell", "2 batch (inputs + units) 4 units + 14 per unit", _lstm_cell),
            ("LSTMBlockCellGrad", "22 per unit: the gates", lambda node: _lstm_gates_gradient(node) * math.prod(ranked(node, 1, 2))),
            ("BlockLSTM BlockLSTMV2", "as LSTMBlockCell, times the steps", _lstm_block),
            ("BlockLSTMGrad BlockLSTMGradV2", "twice the products of the forward pass + 22 per unit", _lstm_block_gradient),
            ("GRUBlockCell", "2 batch (inputs + units) 3 units + 12 per unit", _gru_cell(_GRU)),
            ("GRUBlockCellGrad", "2 batch (inputs + units) 3 units + 16 per unit", _gru_cell(_GRU_GRADIENT)),
            ("CudnnRNN CudnnRNNV2 CudnnRNNV3", "2 gates units (width + units) for each layer, direction, step and example, + gates", _rnn),
            (_CUDNN_GRADIENT, "twice the products of the forward pass", lambda node: _rnn(node, 2.0, 1.5)),
        ]
    },
    weights={"BlockLSTM BlockLSTMV2 LSTMBlockCell GRUBlockCell CudnnRNN CudnnRNNV3": ()},
)
