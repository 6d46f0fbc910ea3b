"""Fold batch normalization into adjacent convolutions and matrix products.

At inference, a batch norm (Ioffe and Szegedy 2015, arXiv:1502.03167, algorithm 2) multiplies each channel by a constant and adds another;
adjacent weights can do the same.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Unpack

from graphwright.ir.edit.library import reached_functions
from graphwright.ir.graph import Graph, Node
from graphwright.ir.jobs import Written, edits_in_place, values_beside
from graphwright.ir.traits.arithmetic import ADDITIONS, ADDS_BIAS
from graphwright.ir.traits.control_flow import is_call
from graphwright.ir.traits.values import is_identity
from graphwright.plain import Result
from graphwright.transform.constant_values import Constants
from graphwright.transform.folding.before import fold_before
from graphwright.transform.folding.behind import Notes, fold_behind
from graphwright.transform.folding.steps import NORMS
from graphwright.transform.freeze_variables import freeze_variables
from graphwright.transform.inline_calls import inline_calls
from graphwright.transform.interface import put_in_order
from graphwright.transform.one_copy import leave_one_copy


@dataclass(frozen=True, slots=True)
class FoldedChain:
    """A folded chain of nodes.

    Attributes:
        name: the last node of the chain; if an offset is left, the name of a `BiasAdd` now.
        into: the present name of the convolution or matrix product, and `place`, whether the chain was `behind` or `before` it.
        function: the function whose body it is in; empty for the graph itself.
    """

    name: str
    into: str
    place: str
    function: str = ""


@dataclass(frozen=True, slots=True)
class LeftNorm:
    """A batch norm that was not folded.

    Attributes:
        name: the node of type `op_type`; for an unfused batch norm, the node that multiplies.
        reason: why it could not be folded into the nodes before or behind it.
        function: the function whose body it is in; empty for the graph itself.
    """

    name: str
    op_type: str
    reason: str
    function: str = ""


@dataclass(frozen=True, slots=True)
class BatchNormReport(Result):
    """The chains that `fold_batch_norms` folded, and the batch norms that it did not; prints one line each."""

    folded: tuple[FoldedChain, ...]
    left: tuple[LeftNorm, ...]

    def __str__(self) -> str:
        lines = [f"{len(self.folded)} chains folded, {len(self.left)} batch norms left"]
        lines += [f"  folded {item.name} into {item.into}, {item.place} which it stood" for item in self.folded]
        lines += [f"  left {item.name} ({item.op_type}): {item.reason}" for item in self.left]
        return "\n".join(lines)


@edits_in_place
def fold_batch_norms(graph: Graph, **written: Unpack[Written]) -> BatchNormReport:
    """Fold batch norms, and other constant factors per channel, into adjacent convolutions and matrix products.

    Folded are fused batch norms in inference mode, `BatchNormWithGlobalNormalization`, and chains of `Mul`, `RealDiv`, `Add`, `Sub` and
    `BiasAdd` with one constant per channel, as Keras and TF1 write batch norms. They are folded into a `Conv2D`, `Conv3D`,
    `DepthwiseConv2dNative`, transposed convolution or `MatMul` before them (also through a concatenation, a `Squeeze` or a
    `BatchToSpaceND`), or else behind them, where that is exact at the borders too.

    Weights and statistics must be constants: variables of a loaded model are frozen first, and the model then serves its signatures only.
    No other node may read the values in between. A chain behind a linear op becomes at most one `BiasAdd`, with the name of its last node.
    A chain before one is removed, and the linear op gets a `BiasAdd` of its name. Results agree to about 1e-5 in float32. Calls are inlined
    first; bodies of loops and branches are folded in place. If nothing can be folded, the graph does not change.

    Returns:
        The folded chains, and the batch norms that were not folded, with the reasons.

    >>> import numpy as np
    >>> from graphwright.ir.dtypes import DTYPES
    >>> from graphwright.ir.constants import add_constant, constant_array
    >>> f32 = DTYPES["float32"]
    >>> g = Graph()
    >>> x = g.add_node("Placeholder", "x", output_types=[(f32, (1, 2))]).outputs[0]
    >>> w = add_constant(g, "w", np.ones((2, 3), np.float32))
    >>> product = g.add_node("MatMul", "product", inputs=[x, w], output_types=[(f32, (1, 3))]).outputs[0]
    >>> s = add_constant(g, "s", np.array([1, 2, 3], np.float32))
    >>> g.outputs = g.add_node("Mul", "scaled", inputs=[product, s], output_types=[(f32, (1, 3))]).outputs
    >>> print(fold_batch_norms(g))
    1 chains folded, 0 batch norms left
      folded scaled into scaled, behind which it stood
    >>> g.nodes, constant_array(g["w"])
    ((<Node x = Placeholder()>, <Node w = Const()>, <Node scaled = MatMul(x:0, w:0)>), array([[1., 2., 3.],
           [1., 2., 3.]], dtype=float32))
    """
    try:
        with graph.restored_on_error():
            report = _folded(graph)
            if not report.folded:
                raise _NothingFoldedError(report)
            return report
    except _NothingFoldedError as error:
        return error.args[0]


class _NothingFoldedError(Exception):
    pass


def _folded(graph: Graph) -> BatchNormReport:
    if values := values_beside(graph):
        freeze_variables(graph, values)
    if any(is_call(node, graph) for node in graph.nodes):
        inline_calls(graph)
    folded: list[FoldedChain] = []
    left: list[LeftNorm] = []
    bodies = [("", graph), *((name, graph.functions[name].body) for name in reached_functions(graph, graph.nodes))]
    for function, body in bodies:
        constants, notes = Constants(), Notes()
        fold_behind(body, constants, notes)
        if fold_before(body, constants, notes):
            fold_behind(body, constants, notes)  # a linear op may stand between two batch norms
        if notes.folded:
            leave_one_copy(body)
            put_in_order(body)
        folded += [FoldedChain(name, into, place, function) for name, (into, place) in notes.folded.items()]
        norms = [n for n in body.nodes if n.op_type in NORMS or (n.op_type == "Mul" and _is_unfused_norm(n, constants))]
        left += [LeftNorm(n.name, n.op_type, _reason(n, notes, constants), function) for n in norms]
    return BatchNormReport(tuple(folded), tuple(left))


def _is_unfused_norm(node: Node, constants: Constants) -> bool:
    """Whether a product is `x * factor` in `x * factor + offset`, with constants or variables as parameters."""
    parameters = [constants.is_parameter(v) for v in node.inputs]
    if sum(parameters) != 1 or node.outputs[0].use_count != 1:
        return False
    factor = node.inputs[parameters.index(True)]
    reader = node.outputs[0].uses[0].node
    if reader.op_type not in ADDITIONS | {"Sub"} or factor.shape in (None, ()):
        return False
    other = next((v for v in reader.inputs if v is not node.outputs[0]), None)
    return other is not None and constants.is_parameter(other)


def _reason(node: Node, notes: Notes, constants: Constants) -> str:
    reasons = list(notes.refused.get(node, ()))
    data = next((v for v in node.inputs if not constants.is_parameter(v)), node.inputs[0])
    if not reasons:
        reasons.append(f"before it stands {data.producer.name!r}, a {data.producer.op_type}")
    behind = _next_other(node, constants)
    if behind is not None:
        reasons.append(f"behind it stands {behind.name!r}, a {behind.op_type}")
    return "; ".join(reasons)


def _next_other(node: Node, constants: Constants) -> Node | None:
    waiting = deque([node])
    while waiting:
        for reader in waiting.popleft().outputs[0].consumers:
            if reader.op_type not in ADDITIONS | ADDS_BIAS | {"Sub", "Identity"}:
                return reader
            if is_identity(reader) or any(constants.is_parameter(v) for v in reader.inputs):
                waiting.append(reader)
            else:
                return reader
    return None
