"""The graph that Grappler makes of a step, as a flat step to plan.

TensorFlow runs not the traced graph but Grappler's rewrite of it: constants are folded, operations merged, and a convolution or product
with its bias and activation is one kernel. Grappler would undo a plan, so planned steps run without it. Planning its result keeps both: the
graph is taken from TensorFlow's own preparation of the step, and not rewritten again, so results are bit for bit those of the unmodified
step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from graphwright.errors import GraphwrightError, UnsupportedError
from graphwright.ir.dtypes import DType, Known, Shape
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.control_flow import is_control_flow
from graphwright.ir.traits.effects import Purity, is_collective
from graphwright.ir.traits.values import OPTIMIZED
from graphwright.ir.traits.variables import MAKES_BY_REFERENCE
from graphwright.ops.flops import node_flops
from graphwright.report.obtained import Obtained
from graphwright.run.call_options import is_grappler_disabled
from graphwright.run.executed_graph import known_shapes, read_optimized_graph, record_on_one_cpu, recorded_graphs
from graphwright.run.traced_step import TracedStep
from graphwright.step.example_inputs import preparable
from graphwright.step.executor_peak import MOST_NODES
from graphwright.step.flatten import FlatStep, find_loop_costs, flatten_graph, stateful_op_types
from graphwright.step.grappler_bodies import grappler_graph

HOW_OPTIMIZED = (
    "of the graph that TensorFlow runs for the step: what Grappler made of it, taken from TensorFlow's own preparation of the step, so "
    "that the same kernels compute with the same values as in the step as it is"
)
HOW_BODIES = (
    "of the graph that Grappler makes of the step and of the bodies of its loops and branches, each rewritten as a function, so that the "
    "same kernels run as in the step as it is"
)
HOW_PARTS = "of the graph that Grappler makes of the split step, so that operations that it fuses in the step as it is stay fused"
HOW_ADDED = (
    f"{HOW_OPTIMIZED}, but for sums of three large gradients and more, which stay sums: Grappler's memory optimizer, which was left out, "
    "has them added to a temporary variable as they come"
)


def grappler_step(traced: TracedStep, flat: FlatStep, records: Sequence[bytes], *, memory_optimizer: bool = True) -> Obtained[FlatStep]:
    """Return Grappler's graph of a step with its shapes, inputs, outputs and effects, and how it was obtained.

    Grappler's memory optimizer turns sums of large tensors into updates of temporary variables; such a step is prepared again without it.

    Args:
        flat: the traced step.
        records: TensorFlow's records of preparing it (`graphwright.run.executed_graph`).
        memory_optimizer: whether Grappler's memory optimizer took part.

    Raises:
        UnsupportedError: the step runs without Grappler or not on one CPU; it has calls, collectives, or sizes that depend on data; or the
            result cannot replace the step or cannot be planned.
    """
    where = f"step {traced.name!r}"
    if traced.grappler_disabled or is_grappler_disabled():
        raise UnsupportedError("the step runs without Grappler", where=where)
    if any(is_collective(node) for node in flat.graph.nodes):
        raise UnsupportedError("it takes part in collectives", where=where)
    if any(is_control_flow(node) for node in flat.graph.nodes):
        record_on_one_cpu(records, like=flat.graph)  # grappler_graph places every node on CPU:0
        static = all(value.shape.is_fully_defined() for value in traced.function.inputs)
        return Obtained(_flat(grappler_graph(flat.graph, static=static), flat), HOW_BODIES)
    graph, how = read_optimized_graph(records, like=flat.graph), HOW_OPTIMIZED if memory_optimizer else HOW_ADDED
    if MAKES_BY_REFERENCE & ({node.op_type for node in graph.nodes} - {node.op_type for node in flat.graph.nodes}):
        records = recorded_graphs(preparable(traced), like=flat.graph, memory_optimizer=False)
        graph, how = read_optimized_graph(records, like=flat.graph), HOW_ADDED
    return Obtained(_flat(graph, flat), how)


def grappler_parts(flat: FlatStep, keep: Iterable[Node]) -> FlatStep | None:
    """Return a rewritten step as Grappler leaves it; None if Grappler refuses it, or the result cannot be planned.

    Args:
        keep: nodes that stay as they are.
    """
    if len(flat.graph) > MOST_NODES:
        return None
    try:
        return _flat(grappler_graph(flat.graph, keep), flat)
    except GraphwrightError:
        return None


def _flat(graph: Graph, flat: FlatStep) -> FlatStep:
    """Return the flat step of what Grappler made of one."""
    purity = Purity(graph, stateful_op_types(graph))
    graph.control_outputs = [node for node in graph.nodes if not purity.is_pure(node)]
    graph, purity = flatten_graph(graph, infer=True, compiled=False)
    costs = find_loop_costs(graph, Known(sizes=known_shapes(flat.graph)))
    loops = replace(costs, bounded=flat.loops.bounded, measured=flat.loops.measured)
    _check(graph, purity, flat)
    for node in (*graph.control_outputs, *(value.producer for value in graph.outputs)):
        graph.set_attr(node, OPTIMIZED, True)
    return FlatStep(graph, flat.binding, purity, loops)


def _check(graph: Graph, purity: Purity, flat: FlatStep) -> None:
    """Check that the graph has the step's inputs, outputs and effects, and only operations that can be planned."""
    where = f"step {flat.graph.name!r}"
    if _ends(graph) != _ends(flat.graph):
        raise UnsupportedError("Grappler's graph has other inputs or outputs", where=where)
    if _effects(graph, purity) != _effects(flat.graph, flat.purity):
        raise UnsupportedError("Grappler's graph has other effects", where=where)
    known = {node.op_type for node in flat.graph.nodes}
    new_nodes = [node for node in graph.nodes if node.op_type not in known]
    for node in new_nodes:
        if node.op_type.startswith("_") and node_flops(node) is None:
            raise UnsupportedError(f"the cost of {node.op_type} is unknown", where=f"node {node.name!r}")
        if node.op_type.startswith("_") and not graph.control_outputs:
            raise UnsupportedError(f"it changes nothing, so its gradient may be needed, and {node.op_type} has none", where=where)
    for node in graph.nodes:
        for value in node.outputs:
            if value.dtype.itemsize is not None and value.nbytes is None:
                raise UnsupportedError(f"the size of {value.name} is not known", where=where)


def _ends(graph: Graph) -> list[tuple[DType, Shape]]:
    return [(value.dtype, None if value.dtype.itemsize is None else value.shape) for value in (*graph.inputs, *graph.outputs)]


def _effects(graph: Graph, purity: Purity) -> Counter[tuple[str, str]]:
    """Return nodes with effects by op type and name, without inputs."""
    inputs = {value.producer for value in graph.inputs}
    return Counter((node.op_type, node.name) for node in graph.nodes if not purity.is_pure(node) and node not in inputs)
