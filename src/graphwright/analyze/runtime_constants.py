"""Find the values that TensorFlow's runtime computes once, when it prepares a graph, and keeps: those that depend on constants only.

`ConstantFold` (tensorflow/core/common_runtime/constant_folding.cc) runs on every graph, with or without Grappler. It replaces stateless
nodes whose tensors come from such nodes only by their values, whatever their control inputs. Of equal remaining nodes, `OptimizeCSE`
(tensorflow/core/graph/optimizer_cse.cc) keeps one. The values are held from the first call on, and no schedule can free them.
"""

from collections.abc import Iterable

from graphwright.analyze.storages import SMALL_BYTES
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.control_flow import called_functions, is_control_flow, is_control_flow_of_tf1
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import is_constant

LARGEST_KEPT_BYTES = 10 << 20  # `ConstantFoldingOptions.max_constant_size_in_bytes`; a larger value is computed in each step


def runtime_constants(graph: Graph, purity: Purity, *, gated: bool = False) -> dict[Node, bool]:
    """Return the nodes that are computed once, without constants, and whether each holds its value: of equal nodes, one does.

    Args:
        gated: whether large values are read through gates that hide constants from TensorFlow; their readers are computed in each step.

    >>> from graphwright.ir.graph import DTYPES
    >>> i32, f32 = DTYPES["int32"], DTYPES["float32"]
    >>> g = Graph()
    >>> shape = g.add_node("Const", "shape", output_types=[(i32, (2,))]).outputs[0]
    >>> one = g.add_node("Const", "one", output_types=[(f32, ())]).outputs[0]
    >>> fill = g.add_node("Fill", "fill", inputs=[shape, one], output_types=[(f32, (64, 64))])
    >>> g.outputs = [g.add_node("Neg", name, inputs=fill.outputs, output_types=[(f32, (64, 64))]).outputs[0] for name in ("neg", "same")]
    >>> {n.name: held for n, held in runtime_constants(g, Purity(g, {"Fill": False, "Neg": False})).items()}
    {'fill': False, 'neg': True, 'same': False}
    """
    folded: dict[Node, None] = {}  # each behind what it reads
    reached = [value for node in graph.nodes if is_constant(node) for value in node.outputs]
    while reached:
        for node in dict.fromkeys(reached.pop().consumers):
            if node in folded or any(not is_constant(v.producer) and v.producer not in folded for v in node.inputs):
                continue
            if is_control_flow(node) or is_control_flow_of_tf1(node) or called_functions(node) or not purity.is_pure(node):
                continue
            if gated and any((value.nbytes or 0) >= SMALL_BYTES for value in node.inputs):
                continue
            sizes = [value.nbytes if value.dtype.itemsize is not None else None for value in node.outputs]
            if all(size is not None and size <= LARGEST_KEPT_BYTES for size in sizes):
                folded[node] = None
                reached += node.outputs
    outputs = {value.producer for value in graph.outputs}
    read = {node: node in outputs or any(c not in folded for v in node.outputs for c in v.consumers) for node in folded}
    first = _first_alike(folded)
    holders = {first[node]: node for node in reversed(folded) if read[node]}
    return {node: read[node] and holders[first[node]] is node for node in folded}


def _first_alike(nodes: Iterable[Node]) -> dict[Node, Node]:
    """Return the first equal node for each node; nodes come after the nodes that they read."""
    by_key: dict[object, Node] = {}
    first: dict[Node, Node] = {}
    for node in nodes:
        for one in (*(v.producer for v in node.inputs), node):
            if one not in first:
                attrs = frozenset(item for item in one.attrs.items() if not item[0].startswith("_"))
                read = tuple((first[v.producer], v.index) for v in one.inputs)
                first[one] = by_key.setdefault((one.op_type, attrs, read, frozenset(one.control_inputs)), one)
    return first
