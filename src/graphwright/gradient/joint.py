"""Forward and backward part of a live graph as one planning problem, in which the forward part is fixed.

- *forward*: operations from before the gradients were taken. They are never rerouted or delayed: their order is that of building.
- *early*: operations of the gradients that read shapes of the forward part (`Shape` and its like); they delay nothing.
- *backward*: all others that were added for the gradients. Their order is planned and fixed.
- *framed*: control flow of TF1 and what is inside, which runs never, once or often. No control edge may lead to it, so it is neither
  repeated nor ordered.
"""

from collections.abc import Generator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from graphwright.analyze.batch_norms import is_gpu_scratch
from graphwright.analyze.cost import TaskMap, build_cost_graph
from graphwright.analyze.loops import LoopCosts, loop_costs
from graphwright.analyze.time_model import estimated_time_s
from graphwright.errors import UnknownShapeError
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import ASKS_FOR_SHAPE
from graphwright.ir.traits.control_flow import ENTERS, EXITS, MERGES, SWITCHES, is_back_edge, is_control_flow_of_tf1
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.variables import REFERENCE_VARIABLES, reads_resource, resource_of
from graphwright.ir.traits.views import is_view
from graphwright.ir.walk import backward_reachable, producers_of, topological_order
from graphwright.source.attributes import constant_array
from graphwright.source.import_graph import infer_body_shapes
from graphwright.source.live_graph import handles_touched_elsewhere, read_live_graph
from graphwright.source.private_tensorflow import is_traced_for_xla
from graphwright.step.flatten import stateful_op_types
from graphwright.step.infer_shapes import infer_flat_shapes

_ASK_SHAPES = ASKS_FOR_SHAPE | {"BroadcastGradientArgs"}
BATCH = 32
"""Assumed size of an unknown dimension."""


@dataclass(frozen=True)
class Joint:
    """The planning problem of one call.

    Attributes:
        forward: number of tasks that are forward or early; they come first in the cost graph's order.
        behind: the producers of the ys and of their incoming gradients, for which the backward part waits.
        fixed: names of the operations that must not change.
        assumed: unknown sizes and the values assumed for them, in words.
    """

    tasks: TaskMap
    forward: int
    behind: tuple[Node, ...]
    framed: AbstractSet[Node]
    fixed: AbstractSet[str]
    assumed: str

    @property
    def graph(self) -> Graph:
        return self.tasks.graph

    @property
    def forward_time(self) -> float:
        return sum(task.time for task in self.tasks.costs.tasks[: self.forward])


def read_joint(
    live: Any,
    added: AbstractSet[str],
    ys: Sequence[Any],
    incoming: Sequence[Any],
    gradients: Sequence[Any],
    feeds: Mapping[str, tuple[int, ...]],
    xs: Sequence[Any],
) -> Joint:
    """Read a live graph in which gradients were just taken, which added the named operations.

    The xs are never repeated: a second derivative must reach these very tensors. `feeds` are shapes by name of a placeholder.
    """
    graph = read_live_graph(live, [tensor.op for tensor in ys], [*ys, *gradients])
    assumed = _bind_shapes(graph, feeds)
    framed = _framed_nodes(graph)
    fixed = _forward_nodes(graph, added)
    graph.sort_nodes(_forward_first(graph, fixed))
    purity = Purity(graph, stateful_op_types(graph))
    try:
        loops, unknown = loop_costs(graph, constant_array, infer_body=infer_body_shapes), ""
    except UnknownShapeError as error:  # without sizes inside, only inputs and outputs count
        loops, unknown = LoopCosts(), f"nothing for the inside of loops and branches, where {error.what}"
    with _loops_cut(graph):
        tasks = build_cost_graph(graph, purity, estimated_time_s, loops=loops, gated=not is_traced_for_xla())
    forward = sum(1 for nodes in tasks.nodes if any(node in fixed for node in nodes))
    tasks = _with_rules(
        tasks,
        fixed,
        framed | {graph[x.op.name] for x in xs if x.op.name in graph},
        purity,
        _written(graph, purity, handles_touched_elsewhere(live, graph)),
    )
    known = [graph[tensor.op.name] for tensor in (*ys, *incoming) if tensor.op.name in graph]
    behind = tuple(dict.fromkeys(node for node in known if node not in framed))
    return Joint(tasks, forward, behind, framed, {node.name for node in fixed}, "; ".join(filter(None, (assumed, unknown))))


@contextmanager
def _loops_cut(graph: Graph) -> Generator[None]:
    """Cut the loops of TF1 inside the context: `Merge` reads the loop's initial value in place of the last iteration's."""
    cut: list[tuple[Node, int, Value]] = []
    for node in graph.nodes:
        for k, value in enumerate(node.inputs):
            if is_back_edge(value, node):
                cut.append((node, k, value))
                graph.replace_input(node, k, next(v for v in node.inputs if not is_back_edge(v, node)))
    try:
        yield
    finally:
        for node, k, value in cut:
            graph.replace_input(node, k, value)


def _forward_nodes(graph: Graph, added: AbstractSet[str]) -> set[Node]:
    forward = backward_reachable(node for node in graph.nodes if node.name not in added)
    for node in topological_order(graph):
        if node in forward:
            continue
        before = {*(v.producer for v in node.inputs), *node.control_inputs}
        small = all((v.nbytes or 0) <= 64 * 8 for v in (*node.inputs, *node.outputs))
        about_shapes = small and bool(before) and all(v.dtype.name in ("int32", "int64") for v in node.inputs)
        if before <= forward and (about_shapes or node.op_type in _ASK_SHAPES):
            forward.add(node)
    return forward


def _forward_first(graph: Graph, fixed: AbstractSet[Node]) -> list[Node]:
    """Order the nodes: forward ones as they were built, early ones right after their inputs; then the others."""
    built = {node: k for k, node in enumerate(graph.nodes)}
    order = topological_order(graph)
    place: dict[Node, tuple[int, int, int]] = {}
    for node in order:
        if node not in fixed:
            place[node] = (1, 0, built[node])
            continue
        before = [place[b][1] for b in producers_of(node)]
        place[node] = (0, max([built[node] if node.op_type not in _ASK_SHAPES else 0, *before]), built[node])
    graph.sort_nodes(sorted(order, key=place.__getitem__))
    return topological_order(graph)


def _written(graph: Graph, purity: Purity, elsewhere: AbstractSet[str]) -> set[Value]:
    written = {value for node in graph.nodes for value in node.outputs if node.name in elsewhere}
    for node in graph.nodes:
        if reads_resource(node) and not purity.is_pure(node):
            written.update(resource_of(value) for value in node.inputs if value.dtype.name == "resource")
    return written


def _with_rules(tasks: TaskMap, fixed: AbstractSet[Node], kept: AbstractSet[Node], purity: Purity, written: AbstractSet[Value]) -> TaskMap:
    """Chain the forward tasks, and the tasks with effects; restrict repetition.

    A task that reads a variable itself, such as a loop, is repeated only if nothing in the graph writes that variable. A writer that is
    built later waits: in a `tf.function` for all earlier operations, in a graph of TF1 for the gradient of the variable.
    """
    costs = tasks.costs
    changed = list(costs.tasks)
    last_forward, last_effect = -1, -1
    for t in costs.order:
        task, nodes = changed[t], tasks.nodes[t]
        is_pure = all(purity.is_pure(node) for node in nodes)
        after = set(task.after)
        if last_forward >= 0:
            after.add(last_forward)
        if not is_pure and last_effect >= 0:
            after.add(last_effect)
        may = task.recomputable and not any(node in kept or _reads_what_changes(node, written) for node in nodes)
        changed[t] = replace(task, after=tuple(sorted(after)), recomputable=may)
        if any(node in fixed for node in nodes):
            last_forward = t
        if not is_pure:
            last_effect = t
    return replace(tasks, costs=replace(costs, tasks=tuple(changed)))


def _reads_what_changes(node: Node, written: AbstractSet[Value]) -> bool:
    """Return whether a node reads, when it runs, a variable that may change in between."""
    handles = [resource_of(v) for v in node.inputs if v.dtype.name == "resource"]
    if any(handle in written or handle not in node.graph.variables for handle in handles):
        return True
    return not is_view(node) and any(v.producer.op_type in REFERENCE_VARIABLES for v in node.inputs)


def _framed_nodes(graph: Graph) -> set[Node]:
    """Return the nodes of TF1's control flow, and the nodes inside."""
    depth: dict[Node, int] = {}
    framed: set[Node] = set()
    for node in topological_order(graph):
        around = [depth[v.producer] for v in node.inputs if not is_back_edge(v, node)]
        around += [depth[c] for c in node.control_inputs]
        deepest = max(around, default=0)
        kind = node.op_type
        if deepest > 0 or is_control_flow_of_tf1(node):
            framed.add(node)
        if kind in SWITCHES or kind in ENTERS:
            deepest += 1
        elif kind in MERGES and not any(is_back_edge(v, node) for v in node.inputs):
            deepest = max(0, deepest - 1)
        elif kind in EXITS:
            deepest = max(0, deepest - 2)
        depth[node] = deepest
    return framed


def _bind_shapes(graph: Graph, feeds: Mapping[str, tuple[int, ...]]) -> str:
    """Make every size known; return the assumptions in words."""
    open_inputs = {k: v for k, v in enumerate(graph.inputs) if v.dtype.itemsize is not None and (v.shape is None or None in v.shape)}
    shapes: dict[int, tuple[int | None, ...]] = {}
    assumed: list[str] = []
    for k, value in open_inputs.items():
        shape = feeds.get(value.producer.name)
        if shape is None and value.shape is not None:
            shape = tuple(BATCH if d is None else d for d in value.shape)
            assumed.append(value.producer.name)
        if shape is not None:
            shapes[k] = shape
    if shapes or any(v.dtype.itemsize is not None and v.nbytes is None for node in graph.nodes for v in node.outputs):
        infer_flat_shapes(graph, shapes)
    inside = 0
    for node in graph.nodes:
        for value in node.outputs:
            if value.shape is None and is_gpu_scratch(value):
                value.shape = (0,)
            elif node.op_type == "BroadcastGradientArgs" and value.nbytes is None:
                value.shape = (0,)  # axes: a few numbers
            elif value.dtype.itemsize is not None and value.nbytes is None:
                value.shape = (BATCH,) if value.shape is None else tuple(BATCH if d is None else d for d in value.shape)
                inside += 1
    words = [f"{BATCH} for the unknown dimensions of {', '.join(assumed)}"] if assumed else []
    words += [f"{BATCH} for unknown dimensions of {inside} tensors inside"] if inside else []
    return "; ".join(words)
