"""Apply a schedule to a graph: clone recomputed nodes, reroute their readers, fix the order by control edges.

Every execution order that the result allows runs the tasks in the order of the schedule, or overlaps them within its memory. Small nodes
and views stay free.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from graphwright.analyze.cost import TaskMap
from graphwright.ir.attributes import Attribute
from graphwright.ir.edit.prune import prune
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.values import EXECUTION, RECOMPUTED_FROM, forwards_several, index_behind, input_behind
from graphwright.ir.walk import topological_order
from graphwright.plan.model import Schedule, Waits
from graphwright.transform.keep_order import keep_order
from graphwright.transform.offload import Carrier


def apply_schedule(
    tasks: TaskMap,
    schedule: Schedule,
    *,
    fix_order: bool = True,
    ordered_from: int = 0,
    behind: Sequence[Node] = (),
    unordered: AbstractSet[Node] = frozenset(),
    lanes: Sequence[int] | None = None,
    waits: Sequence[Waits] | None = None,
    carrier: Carrier | None = None,
) -> dict[int, tuple[Node, ...]]:
    """Rewrite `tasks.graph` in place so that it runs `schedule`.

    A repeat becomes a clone named `recomputed/<name>` with the attribute `_graphwright_recomputed_from`; of a copied task, a read of the
    copy. Each execution reads the latest version of its inputs. Raises `GraphError` if the schedule contradicts the dependencies of the
    graph.

    Args:
        fix_order: chain the steps by control edges; otherwise the executor may run recomputations early.
        ordered_from: position of the first chained step.
        behind: nodes that the first chained step waits for.
        unordered: nodes without new control edges; their steps are left out of the chain.
        lanes: per task, the number of its device, if there are several; each device has its own chain.
        waits: per step, the groups of steps that it waits for (`plan.relaxed_order`), instead of the chain.
        carrier: adds the nodes that write copies and read them back.

    Returns:
        The nodes of each step, by its position in the schedule.
    """
    rewriter = _Rewriter(tasks)
    steps: dict[int, tuple[Node, ...]] = {}
    executed: set[int] = set()
    for k, t in enumerate(schedule.steps):
        again = tasks.costs.tasks[t].again
        copied = tasks.values[again.outputs[0]] if again is not None else None
        if t in executed:
            steps[k] = rewriter.clone(tasks.nodes[t]) if copied is None or carrier is None else (rewriter.read_back(copied, carrier),)
        else:
            executed.add(t)
            rewriter.reroute(tasks.nodes[t])
            steps[k] = tasks.nodes[t] if copied is None or carrier is None else (*tasks.nodes[t], carrier.write(copied))
    rewriter.reroute_outputs()
    if carrier is not None:
        carrier.finish()
    graph = tasks.graph
    if waits is not None:
        keep_order(graph, [steps[k] for k in range(len(steps))], waits)
    elif fix_order:
        chains: dict[int, list[tuple[Node, ...]]] = {}
        for k, t in enumerate(schedule.steps[ordered_from:], start=ordered_from):
            if unordered.isdisjoint(steps[k]):
                chains.setdefault(lanes[t] if lanes is not None else 0, [tuple(behind)] if behind else []).append(steps[k])
        for chain in chains.values():
            keep_order(graph, chain, [((k - 1,),) if k else () for k in range(len(chain))])
    prune(graph)  # views that everybody left for a clone's; they would hold the buffer
    graph.sort_nodes(topological_order(graph))
    return steps


class _Rewriter:
    def __init__(self, tasks: TaskMap) -> None:
        self.graph: Graph = tasks.graph
        self.roots: Mapping[Value, Value] = tasks.root_of
        self.current: dict[Value, Value] = {}  # root -> its latest version, where that is a clone's output
        self.views: dict[tuple[Value, Value], Value] = {}
        self.inputs: dict[Node, tuple[Value, ...]] = {}  # the original inputs of the nodes that were rerouted

    def reroute(self, nodes: tuple[Node, ...]) -> None:
        for node in nodes:
            self.inputs[node] = node.inputs
            self.graph.replace_inputs(node, [self._latest(value) for value in node.inputs])

    def reroute_outputs(self) -> None:
        self.graph.outputs = [self._latest(value) for value in self.graph.outputs]

    def clone(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        clones: list[Node] = []
        for node in nodes:
            name = self.graph.unique_name(f"recomputed/{node.name}")
            clone = self.graph.add_node(
                node.op_type,
                name,
                inputs=[self._latest(v) for v in self.inputs[node]],
                attrs={**node.attrs, RECOMPUTED_FROM: node.name.encode(), EXECUTION: name.encode()},
                output_types=[(v.dtype, v.shape) for v in node.outputs],
                device=node.device,
                extra=node.extra,
            )
            # At once: the next node of a group reads it, perhaps through a view.
            self.current.update(zip(node.outputs, clone.outputs, strict=True))
            clones.append(clone)
        return tuple(clones)

    def read_back(self, value: Value, carrier: Carrier) -> Node:
        node = carrier.read(value)
        self.current[value] = node.outputs[0]
        return node

    def _latest(self, value: Value) -> Value:
        root = self.roots.get(value, value)
        version = self.current.get(root)
        if version is None:
            return value
        return self._view(value, root, version)

    def _view(self, value: Value, root: Value, version: Value) -> Value:
        if value is root:
            return version
        view = self.views.get((value, version))
        if view is not None:
            return view
        node = value.producer
        several = forwards_several(node)
        source = self._view(input_behind(value), root, version)
        attrs: dict[str, Attribute] = {"T": value.dtype} if several else dict(node.attrs)
        clone = self.graph.add_node(
            "Identity" if several else node.op_type,
            self.graph.unique_name(f"recomputed/{node.name}"),
            inputs=[source] if several else [source if k == index_behind(value) else v for k, v in enumerate(node.inputs)],
            attrs={**attrs, RECOMPUTED_FROM: node.name.encode()},
            output_types=[(v.dtype, v.shape) for v in ([value] if several else node.outputs)],
            device=node.device,
        )
        self.views.update({(own, version): copy for own, copy in zip([value] if several else node.outputs, clone.outputs, strict=True)})
        return self.views[value, version]
