"""Build the planning model of a graph: which nodes are tasks, which values are buffers, and their lifetimes.

Terms
-----
small
    A node that touches less than `SMALL_BYTES` in inputs, outputs and workspace. Small nodes run when they are ready; the plan sees them
    only as dependencies between tasks. A collective is never small: its place in the order matters to other devices.
view
    A node whose output shares storage with its input (`ir.traits.is_view`). A view is no task: its readers read the buffer behind
    it, its *root*.
group
    Nodes that kernels fuse past control edges (Pad with Conv2D with BiasAdd, and each Conv2DBackpropFilter with one BiasAddGrad, by
    TensorFlow's oneDNN pass). A group is one task.

Counted are dense tensors by dtype and shape, lists of tensors by their elements, and as resident bytes variables, inputs, constants and
values that the runtime computes of constants (`analyze.runtime_constants`). TensorFlow copies a variable that is written while somebody
holds a value read from it. So readers before the write in the original order stay before it in every schedule (the write *kills* the
value), and for later readers the writing task makes a copy. A variable that is accessed by rows is copied by each read and each update of
the whole (`analyze.variable_access.copied_variables`): such a read is a task. Not counted are small tensors, code, and memory outside of
TensorFlow's allocators.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import isnan

from graphwright.analyze.backward import is_reference, updated_variables
from graphwright.analyze.batch_norms import is_gpu_scratch
from graphwright.analyze.loops import LoopCosts
from graphwright.analyze.runtime_constants import runtime_constants
from graphwright.analyze.storages import SMALL_BYTES
from graphwright.analyze.time_model import ASSUMED_ROOFS
from graphwright.analyze.unknown_shapes import blame_unknown_shapes, reason_of
from graphwright.analyze.variable_access import copied_bytes, copied_variables
from graphwright.errors import ErrorCode, UnknownShapeError
from graphwright.ir.dtypes import format_shape
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import ADDS_BIAS, CONVOLUTIONS, in_place_pairs
from graphwright.ir.traits.control_flow import is_control_flow, runs_over_data
from graphwright.ir.traits.effects import Purity, is_collective
from graphwright.ir.traits.merging import merge_partners
from graphwright.ir.traits.values import INPUTS, input_behind, is_constant, only_orders
from graphwright.ir.traits.variables import REFERENCE_VARIABLES, is_read, reads_resource, resource_of, written_resources
from graphwright.ir.traits.views import is_view
from graphwright.ir.walk import consumers_of, in_order, reached, topological_order
from graphwright.ops.pooling import hidden_output_bytes
from graphwright.ops.scratch import pads_by_itself, scratch_bytes
from graphwright.plan.model import Buffer, CostGraph, Task

_JUNCTION_SIZE = 8  # a small node with more task dependencies than this becomes a task without bytes, to keep the edges few

TimeOf = Callable[[tuple[Node, ...]], float]
WorkspaceOf = Callable[[Node], int]

_NO_MACHINE_HAS = 2**48  # bytes; sums of what is below stay in 64 bits


@dataclass(frozen=True)
class TaskMap:
    """A `CostGraph`, and the nodes and values of its tasks and buffers.

    Attributes:
        nodes: the nodes of each task in order, several for a group.
        values: the value of each buffer.
        task_of: the task of a node; views, constants, values computed of them once, and small nodes have none.
        buffer_of: the buffer of a root value.
        root_of: the value whose storage a value shares, mostly itself.
    """

    graph: Graph
    costs: CostGraph
    nodes: tuple[tuple[Node, ...], ...]
    values: tuple[Value, ...]
    task_of: Mapping[Node, int]
    buffer_of: Mapping[Value, int]
    root_of: Mapping[Value, Value]
    resident: Mapping[Value, int]  # bytes of variables (by resource input), inputs, constants and what is computed of them once


def build_cost_graph(
    graph: Graph,
    purity: Purity,
    time_of: TimeOf,
    *,
    workspace_of: WorkspaceOf = scratch_bytes,
    loops: LoopCosts | None = None,
    gated: bool = False,
) -> TaskMap:
    """Build the planning model of a flat graph with static shapes.

    Args:
        time_of: returns the seconds of one execution of a task, given its nodes.
        workspace_of: returns the bytes that a kernel allocates while it runs, beyond its outputs.
        loops: costs of control flow and lists (`graphwright.analyze.loops`); without it lists count as nothing.
        gated: whether large constants are read through gates (`graphwright.analyze.runtime_constants`).

    Raises:
        UnknownShapeError: a size or a number of rounds is unknown; the message names the node and the input to bind.
    """
    if loops is not None and loops.unknown is not None:
        raise unknown_rounds(loops.unknown)
    return _Builder(graph, purity, time_of, workspace_of, loops or LoopCosts(), gated=gated).build()


def unknown_rounds(loop: Node | str) -> UnknownShapeError:
    """Return the error for a loop over a data set, or one that keeps something of each of an unknown number of rounds.

    Args:
        loop: the node, or the name of a frame of TF1.
    """
    name = loop if isinstance(loop, str) else loop.name
    if not isinstance(loop, str) and runs_over_data(loop):
        return UnknownShapeError(
            f"the memory of the loop over a data set is not known: {name!r} ({loop.op_type})",
            where=f"node {name!r}",
            code=ErrorCode.UNKNOWN_ROUNDS,
            cause="the step iterates over a data set, whose elements are produced while it runs",
            remedy="pass one element to the step as an argument, and iterate outside the step",
        )
    return UnknownShapeError(
        f"the number of rounds of loop {name!r} is unknown, and its memory grows with each round",
        where=f"node {name!r}",
        code=ErrorCode.UNKNOWN_ROUNDS,
        cause="its end depends on data: an argument, a variable that the step changes, or a number of elements",
        remedy="give example inputs (inputs=...), or the number that it depends on (feeds={'n': 50}, --feed n==50)",
    )


class _Builder:
    def __init__(self, graph: Graph, purity: Purity, time_of: TimeOf, workspace_of: WorkspaceOf, loops: LoopCosts, *, gated: bool) -> None:
        self.graph = graph
        self.purity = purity
        self.kernel_time_of = time_of
        self.kernel_workspace_of = cache(workspace_of)
        self.loops = loops
        self.order = topological_order(graph)
        self.position = {node: k for k, node in enumerate(self.order)}
        self.inputs = {v.producer for v in (*graph.inputs, *graph.variables)}
        self.computed_once = runtime_constants(graph, purity, gated=gated)
        self.updated = _updated_references(graph)
        self.copying = copied_variables(graph)[1]
        self.roots: dict[Value, Value] = {}
        self.resident: dict[Value, int] = {}
        self.copies: dict[int, list[int]] = {}  # per task, the buffers of what the variables that it writes were before
        self.read_behind: dict[Value, tuple[set[int], int]] = {}  # per read, the tasks that need it behind the write, and such a buffer

    def build(self) -> TaskMap:
        self._find_roots()
        groups = self._find_groups()
        members = self._find_tasks(groups)
        task_of = {node: t for t, nodes in enumerate(members) for node in nodes}
        dependencies = self._small_dependencies(task_of)
        writes = self._find_writes(task_of)
        buffers, buffer_of, values = self._make_buffers(members, writes)
        reads, stale = self._add_direct_reads(task_of, buffers, values)
        tasks = [self._make_task(t, nodes, task_of, buffer_of, buffers, dependencies, reads.get(t, ())) for t, nodes in enumerate(members)]
        tasks = [replace(task, recomputable=False) if t in stale else task for t, task in enumerate(tasks)]
        order = self._task_order(tasks, buffers, members)
        renumber = {old: new for new, old in enumerate(order)}
        tasks, buffers = _renumbered([tasks[t] for t in order], buffers, renumber)
        members = [members[t] for t in order]
        costs = CostGraph(
            tuple(tasks), tuple(buffers), tuple(range(len(tasks))), resident_bytes=sum(self.resident.values()), name=self.graph.name
        )
        return TaskMap(
            self.graph,
            costs,
            tuple(members),
            tuple(values),
            {node: t for t, nodes in enumerate(members) for node in nodes},
            buffer_of,
            self.roots,
            self.resident,
        )

    # Storage

    def _find_roots(self) -> None:
        for value, variable in self.graph.variables.items():
            self.resident[value] = variable.nbytes or 0
        for node in self.order:
            for value in node.outputs:
                self.roots[value] = self._root(node, value)
            if node in self.inputs or is_constant(node) or self.computed_once.get(node):
                for value in node.outputs:
                    if value not in self.resident:
                        size = self._bytes(value)
                        if size >= SMALL_BYTES:
                            self.resident[value] = size

    def _root(self, node: Node, value: Value) -> Value:
        if value.dtype.name == "resource":
            return resource_of(value)
        if not is_view(node) or node in self.inputs or not node.inputs or is_read(node) or node in self.computed_once:
            return value
        return self.roots[input_behind(value)]

    def _bytes(self, value: Value) -> int:
        if value in self.loops.variant_bytes:
            return self.loops.variant_bytes[value]
        if value.dtype.itemsize is None:
            return 0
        size = value.nbytes
        if value in self.updated or (size is None and is_gpu_scratch(value)):
            return 0
        if size is None:
            raise UnknownShapeError(
                f"the size of {value.name} is not known: {value.dtype}{format_shape(value.shape)}",
                where=f"node {value.producer.name!r} ({value.producer.op_type})",
                code=ErrorCode.UNKNOWN_SIZE,
                cause=_cause_of_unknown(value),
                remedy="give the full shape of that input (feeds={name: shape}), or example inputs (inputs=...); for a size that "
                "depends on data, put tf.ensure_shape behind that node",
            )
        if size >= _NO_MACHINE_HAS:
            raise UnknownShapeError(
                f"{value.name} would take {size} bytes", where=f"node {value.producer.name!r}", cause="its shape is wrong"
            )
        return size + hidden_output_bytes(value)

    def _storage_bytes(self, value: Value) -> int:
        root = self.roots[value]
        if is_read(root.producer) and root.producer not in self.inputs:
            return self.resident.get(self.roots[root.producer.inputs[0]], 0)
        return self.resident.get(root) or self._bytes(root)

    # Tasks

    def time_of(self, nodes: tuple[Node, ...]) -> float:
        """Return the seconds of one execution; of a loop, the sum over all that it executes."""
        plain = tuple(n for n in nodes if n not in self.loops.inside)
        inside = (self.loops.inside[n] for n in nodes if n in self.loops.inside)
        once: dict[Node, float] = {}
        total = self.kernel_time_of(plain) if plain else 0.0
        for node, times in (item for items in inside for item in items):
            if node not in once:
                once[node] = self.kernel_time_of((node,))
            total += (1.0 if isnan(times) else times) * once[node]  # what runs nobody knows how often never runs again
        return total + sum(2 * copied_bytes(n) / ASSUMED_ROOFS.bytes_per_s for n in plain if n in self.copying)

    def workspace_of(self, node: Node) -> int:
        """Return the scratch bytes of a node; of a loop, of its iterations."""
        known = self.loops.workspace.get(node)
        copied = copied_bytes(node) if node in self.copying and not is_read(node) else 0
        return (self.kernel_workspace_of(node) if known is None else known) + copied

    def _find_groups(self) -> dict[Node, Node]:
        leader: dict[Node, Node] = {}
        outputs = {self.roots[v] for v in self.graph.outputs}
        for node in (node for node in self.order if node.inputs):
            index, partners = merge_partners(node)
            value, producer = node.inputs[index], node.inputs[index].producer
            adds_bias = node.op_type in ADDS_BIAS and producer.op_type in CONVOLUTIONS
            if adds_bias or (producer in partners and pads_by_itself(node)):
                if value.use_count == 1 and value not in outputs and (adds_bias or not producer.control_consumers):
                    leader[node] = leader.get(producer, producer)
                continue
            for other in partners if node not in leader else ():
                is_free = other not in leader and self._at(node) < self._at(other) and value in other.inputs
                if is_free and not _reaches(node, other, self.position):
                    leader[other] = leader[node] = node
                    break
        return leader

    def _at(self, node: Node) -> int:
        return self.position[node]

    def _find_tasks(self, leader: Mapping[Node, Node]) -> list[tuple[Node, ...]]:
        grouped: dict[Node, list[Node]] = {}
        pending: dict[Node, int] = {}
        leaders = set(leader.values())
        read_directly = {resource for node in self.order if not self._shares_variable(node) for resource in self._resources_read(node)}
        for node in self.order:
            is_given = node in self.inputs or is_constant(node) or node in self.computed_once
            if is_given or (is_view(node) and node not in self.copying):
                pending[node] = 0
                continue
            if node in leader:
                grouped.setdefault(leader[node], []).append(node)
                continue
            if (
                self._touched_bytes(node) >= SMALL_BYTES
                or node in leaders
                or is_control_flow(node)
                or is_collective(node)
                or (read_directly and not read_directly.isdisjoint(self._resources_written(node)))
            ):
                grouped.setdefault(node, []).append(node)
                continue
            before = {b for b in self._before(node) if b in grouped or b in leader}
            pending[node] = len(before) + max((pending.get(b, 0) for b in self._before(node)), default=0)
            if pending[node] > _JUNCTION_SIZE:
                grouped.setdefault(node, []).append(node)
        return [tuple(sorted(nodes, key=self._at)) for nodes in grouped.values()]

    def _before(self, node: Node) -> tuple[Node, ...]:
        return (*(v.producer for v in node.inputs), *node.control_inputs)

    def _touched_bytes(self, node: Node) -> int:
        touched = {self.roots[v]: self._storage_bytes(v) for v in (*node.inputs, *node.outputs)}
        touched |= {held: self._storage_bytes(held) for root in tuple(touched) for held in self.loops.holds.get(root, ())}
        return sum(touched.values()) + self.workspace_of(node)

    def _small_dependencies(self, task_of: Mapping[Node, int]) -> dict[Node, frozenset[int]]:
        """Return, for each node that is not a task, the tasks that it waits for through other such nodes."""
        dependencies: dict[Node, frozenset[int]] = {}
        for node in self.order:
            if node in task_of:
                continue
            sets = [frozenset((task_of[b],)) if b in task_of else dependencies[b] for b in self._before(node)]
            sets = [s for s in sets if s]
            dependencies[node] = sets[0] if len(set(sets)) == 1 else frozenset[int]().union(*sets)
        return dependencies

    def _find_writes(self, task_of: Mapping[Node, int]) -> dict[Value, tuple[int, set[int]]]:
        """Return, for each read of a variable, the next writing task and the tasks that need the value after it."""
        writes: dict[Value, tuple[int, set[int]]] = {}
        next_write: dict[Value, Node] = {}
        for node in reversed(self.order):
            if self._shares_variable(node) and (writer := next_write.get(self.roots[node.inputs[0]])) is not None and writer in task_of:
                behind = {n for n in _readers(node.outputs[0]) if n in task_of and self.position[n] > self.position[writer]}
                writes[node.outputs[0]] = (task_of[writer], {task_of[n] for n in behind} - {task_of[writer]})
            next_write.update(dict.fromkeys(self._certainly_written(node), node))
        return writes

    def _add_direct_reads(
        self, task_of: Mapping[Node, int], buffers: list[Buffer], values: list[Value]
    ) -> tuple[dict[int, list[int]], set[int]]:
        """Add buffers without bytes for the variables that a task reads from the resource itself, killed by the next write.

        A loop, a branch or a gather reads the variable each time it runs, so it must not run again after that write. Returns the buffers
        by task, and the tasks that must not run again because no such buffer can express this.
        """
        reads: dict[int, list[int]] = {}
        stale: set[int] = set()
        last_write: dict[Value, Node] = {}
        for node in reversed(self.order):
            if node in task_of and not self._shares_variable(node):
                for resource in self._resources_read(node):
                    writer = last_write.get(resource)
                    if writer is None:
                        continue
                    if writer not in task_of or task_of[writer] == task_of[node]:
                        stale.add(task_of[node])
                        continue
                    reads.setdefault(task_of[node], []).append(len(buffers))
                    values.append(resource)
                    buffers.append(Buffer(f"{resource.name} in {node.name}", 0, None, killed_by=task_of[writer]))
            last_write.update(dict.fromkeys(self._resources_written(node), node))
        return reads, stale

    def _shares_variable(self, node: Node) -> bool:
        return is_read(node) and node not in self.copying

    def _resources_read(self, node: Node) -> tuple[Value, ...]:
        if node in self.loops.reads:
            return tuple(dict.fromkeys(self.loops.reads[node]))
        if not reads_resource(node) or not self.purity.is_pure(node):
            return ()
        return tuple(dict.fromkeys(self.roots[v] for v in node.inputs if v.dtype.name == "resource"))

    def _resources_written(self, node: Node) -> tuple[Value, ...]:
        """Return the resources that a node may write; all of them if it is unknown."""
        if node not in self.loops.writes and not reads_resource(node):
            return ()
        written = self._certainly_written(node)
        if written or node in self.loops.writes or self.purity.is_pure(node):
            return written
        return tuple(self.roots[v] for v in node.inputs if v.dtype.name == "resource")

    def _certainly_written(self, node: Node) -> tuple[Value, ...]:
        return self.loops.writes[node] if node in self.loops.writes else tuple(self.roots[v] for v in written_resources(node))

    def _make_buffers(
        self, members: list[tuple[Node, ...]], writes: Mapping[Value, tuple[int, set[int]]]
    ) -> tuple[list[Buffer], dict[Value, int], list[Value]]:
        buffers: list[Buffer] = []
        values: list[Value] = []
        buffer_of: dict[Value, int] = {}
        kept = {self.roots[v] for v in self.graph.outputs}
        kept |= {held for value in tuple(kept) for held in self.loops.holds.get(value, ())}
        for value, (writer, behind) in writes.items():
            buffer_of[value] = len(buffers)
            values.append(value)
            buffers.append(Buffer(value.name, 0, None, killed_by=writer))
            if behind or value in kept:
                variable = self.roots[value.producer.inputs[0]]
                self.copies.setdefault(writer, []).append(len(buffers))
                self.read_behind[value] = (behind, len(buffers))
                values.append(variable)
                copy = f"{variable.name} before {members[writer][0].name}"
                buffers.append(Buffer(copy, self.resident.get(variable, 0), writer, kept=value in kept))
        for t, nodes in enumerate(members):
            inside = set(nodes)
            for node in nodes:
                for value in node.outputs:
                    if value.uses and all(use.node in inside for use in value.uses) and len(nodes) > 1 and value not in kept:
                        continue  # fused away inside the group
                    buffer_of[value] = len(buffers)
                    values.append(value)
                    buffers.append(Buffer(value.name, self._bytes(value), t, kept=value in kept))
        return buffers, buffer_of, values

    def _make_task(
        self,
        index: int,
        nodes: tuple[Node, ...],
        task_of: Mapping[Node, int],
        buffer_of: Mapping[Value, int],
        buffers: list[Buffer],
        dependencies: Mapping[Node, frozenset[int]],
        reads_inside: Sequence[int],
    ) -> Task:
        inputs: dict[int, None] = dict.fromkeys(reads_inside)
        after: set[int] = set()
        outputs = [buffer_of[v] for node in nodes for v in node.outputs if v in buffer_of] + self.copies.get(index, [])
        for node in nodes:
            for value in self._storages_read(node):
                behind, copy = self.read_behind.get(value, ((), -1))
                buffer = copy if index in behind else buffer_of.get(value)
                if buffer is not None and buffer not in outputs and buffers[buffer].producer != index:
                    inputs[buffer] = None
            for before in self._before(node):
                after |= {task_of[before]} if before in task_of else dependencies[before]
        after -= {index}
        after -= {producer for b in inputs if (producer := buffers[b].producer) is not None}
        pairs = [pair for node in nodes for pair in self._in_place(node, buffer_of, buffers, index, alone=len(nodes) == 1)]
        return Task(
            name=nodes[0].name,
            time=self.time_of(nodes),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            after=tuple(sorted(after)),
            workspace_bytes=sum(self.workspace_of(n) for n in nodes),
            recomputable=all(self.purity.is_pure(n) and not only_orders(n) and n not in self.loops.kept for n in nodes),
            in_place=tuple(pairs),
        )

    def _storages_read(self, node: Node) -> Iterator[Value]:
        """Yield the values whose storage the node's inputs are, or keep alive."""
        for value in node.inputs:
            root = self.roots[value]
            yield root
            yield from self.loops.holds.get(root, ())

    def _in_place(
        self, node: Node, buffer_of: Mapping[Value, int], buffers: list[Buffer], task: int, *, alone: bool
    ) -> Iterator[tuple[int, int]]:
        counts, of_loop = Counter(self.roots[v] for v in node.inputs), self.loops.in_place.get(node)
        for i, o in of_loop or (in_place_pairs(node) if alone else ()):
            before, after = node.inputs[i], node.outputs[o]
            source, target = buffer_of.get(self.roots[before]), buffer_of.get(after)
            if source is None or target is None or buffers[source].producer in (None, task):
                continue
            larger = buffers[source].nbytes - buffers[target].nbytes
            if larger >= 0 if of_loop else not larger and before.dtype == after.dtype and counts[self.roots[before]] == 1:
                yield source, target

    def _task_order(self, tasks: list[Task], buffers: list[Buffer], members: list[tuple[Node, ...]]) -> list[int]:
        """Return the original order of the tasks; a group takes the place of its last node, as far as dependencies allow."""
        needs: list[set[int]] = []
        for t, task in enumerate(tasks):
            before = {p for b in task.inputs if (p := buffers[b].producer) is not None} | set(task.after)
            needs.append(before - {t})
        readers: dict[int, list[int]] = {}
        for t, task in enumerate(tasks):
            for b in task.inputs:
                readers.setdefault(b, []).append(t)
        for b, buffer in enumerate(buffers):
            if buffer.killed_by is not None:
                needs[buffer.killed_by] |= {t for t in readers.get(b, []) if t != buffer.killed_by}
        order = in_order(sorted(range(len(tasks)), key=lambda t: self.position[members[t][0]]), needs.__getitem__)
        assert len(order) == len(tasks), "grouping made a cycle"
        return order


def _updated_references(graph: Graph) -> set[Value]:
    """Return the outputs of updates of TF1's variables without handle: the resident variable itself."""
    if not any(v.producer.op_type in REFERENCE_VARIABLES for v in graph.variables):
        return set()
    return {n.outputs[0] for n in graph.nodes if n.outputs and n.inputs and is_reference(n.inputs[0]) and updated_variables(n)}


def _renumbered(tasks: list[Task], buffers: list[Buffer], new: Mapping[int, int]) -> tuple[list[Task], list[Buffer]]:
    moved = [replace(task, after=tuple(sorted(new[t] for t in task.after))) for task in tasks]
    return moved, [
        replace(b, producer=None if b.producer is None else new[b.producer], killed_by=None if b.killed_by is None else new[b.killed_by])
        for b in buffers
    ]


def _readers(value: Value) -> list[Node]:
    behind_views = reached([value], lambda value: (v for node in value.consumers if is_view(node) for v in node.outputs))
    return [node for view in behind_views for node in view.consumers]


def _reaches(first: Node, last: Node, position: Mapping[Node, int]) -> bool:
    limit = position[last]
    between = reached([first], lambda node: (c for c in consumers_of(node) if position[c] < limit))
    return any(last in consumers_of(node) for node in between)


def _cause_of_unknown(value: Value) -> str:
    free: list[str] = []
    for node in reached([value.producer], lambda node: [v.producer for v in node.inputs]):
        if node.op_type in INPUTS and any(v.shape is None or None in v.shape for v in node.outputs):
            free += [f"{v.producer.name}{format_shape(v.shape)}" for v in node.outputs if v.dtype.name not in ("resource", "variant")]
    if free:
        return f"it depends on the input {', '.join(sorted(free))}, whose dimensions are not all given"
    node = blame_unknown_shapes(value.producer.graph).get(value, value.producer)
    return f"its shape depends on data, and nothing bounds it: {node.name!r} ({node.op_type}), {reason_of(node)}"
