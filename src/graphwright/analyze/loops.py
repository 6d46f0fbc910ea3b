"""Cost of While, If and Case nodes: trip counts, bytes behind lists of tensors, memory inside, FLOPs.

TensorFlow keeps loops as nodes with functions. A differentiated loop pushes residuals onto lists (dtype variant), one element per
iteration, and the gradient's loop pops them. Their bytes follow from the number of iterations and from shared storage: a list may hold the
tensor of another list, a variable or a loop state. So the loop is executed on *storages* in place of numbers: scalars that count are
computed, other values are only allocated, forwarded and dropped.

Terms
-----
storage
    Bytes that one node allocates in one iteration. Several lists may hold one storage.
owner
    The value of the outer graph that a storage is counted with: the first that holds it. Other values *hold* that owner: while they
    live, so do its bytes.
kept
    A node whose storages end up in the outputs of a loop (TensorListFromTensor, whose elements a loop pushes onto a list). It is never
    recomputed, or the loop's output would hold the former version.

Lists, trip counts of counted loops and FLOPs are exact. The memory inside one iteration is the worst of any order of its nodes.
Iterations are taken one at a time, which holds for `parallel_iterations=1` (`transform.loop_order` sets it); with more, temporaries of
several iterations may overlap, which is not counted. A condition that depends on data gives `kind="at most"` if a counter limits it as
well. Else one call's numbers are used (`Graph.example`); without them, memory is known if the lists do not grow, and time is not. An If
or Case counts as its largest branch; a branch in a fixed order (`transform.order_updates`) as that order needs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isnan
from operator import attrgetter

from graphwright.analyze.loop_execution import Constant, Executor, InferBody, flops_of
from graphwright.analyze.storages import Dense, Frame, State, Storage, storages_of, total_bytes
from graphwright.analyze.trip_counts import TripCount
from graphwright.analyze.variable_access import find_accesses
from graphwright.errors import UnknownShapeError
from graphwright.ir.dtypes import Shape
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import TAKES_OUT_OF_LIST
from graphwright.ir.traits.control_flow import LOOPS, is_control_flow, runs_over_data
from graphwright.ir.traits.values import is_constant
from graphwright.ir.traits.variables import is_read, resource_of
from graphwright.ir.traits.views import is_view
from graphwright.ir.walk import topological_order
from graphwright.ops.scratch import scratch_bytes

_MEASURED = "those that depend on data are as in the example inputs, and other data may need more"
_BOUNDED = "those that depend on data are upper bounds, with as many rows as there can be"
_MOST_NAMES = 8


@dataclass(frozen=True)
class LoopCosts:
    """The costs of control flow and lists for `build_cost_graph`.

    Attributes:
        variant_bytes: bytes of lists, and of all outputs of control-flow nodes.
        workspace: bytes that a control-flow node needs while it runs, beyond its inputs and outputs.
        flops: of a control-flow node with all its iterations; None if a node inside has no rule.
        trip_counts: by loop, also inside functions.
        inside: the nodes that a control-flow node executes, and how often.
        holds: by value, the other values whose bytes it keeps alive.
        kept: nodes that never run again, because another list holds elements of theirs.
        in_place: by loop, pairs (input, output) of a state that the loop replaces.
        reads, writes: by control-flow node, the variables (resource values of the graph) that it reads and writes.
        notes: inexact parts, in words.
        bounded: nodes that count rows in data, with upper bounds.
        measured: nodes whose sizes depend on data and are those of one call.
        unknown: a loop with an unknown number of rounds and growing lists.
    """

    variant_bytes: Mapping[Value, int] = field(default_factory=dict[Value, int])
    workspace: Mapping[Node, int] = field(default_factory=dict[Node, int])
    flops: Mapping[Node, float | None] = field(default_factory=dict[Node, float | None])
    trip_counts: Mapping[Node, TripCount] = field(default_factory=dict[Node, TripCount])
    inside: Mapping[Node, tuple[tuple[Node, float], ...]] = field(default_factory=dict[Node, tuple[tuple[Node, float], ...]])
    holds: Mapping[Value, tuple[Value, ...]] = field(default_factory=dict[Value, tuple[Value, ...]])
    kept: frozenset[Node] = frozenset()
    in_place: Mapping[Node, tuple[tuple[int, int], ...]] = field(default_factory=dict[Node, tuple[tuple[int, int], ...]])
    reads: Mapping[Node, tuple[Value, ...]] = field(default_factory=dict[Node, tuple[Value, ...]])
    writes: Mapping[Node, tuple[Value, ...]] = field(default_factory=dict[Node, tuple[Value, ...]])
    notes: tuple[str, ...] = ()
    bounded: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()
    unknown: Node | None = None

    @property
    def how(self) -> dict[str, str]:
        return ({"loops": "; ".join(self.notes)} if self.notes else {}) | self.sizes

    @property
    def sizes(self) -> dict[str, str]:
        named = ((_MEASURED, self.measured), (_BOUNDED, self.bounded))
        more = {names: f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else "" for _, names in named}
        said = [f"{words}: {', '.join(names[:_MOST_NAMES])}{more[names]}" for words, names in named if names]
        return {"sizes": "; ".join(said)} if said else {}


def loop_costs(
    graph: Graph, constant: Constant, *, infer_body: InferBody | None = None, compiled_bytes: Callable[[Node], int] = scratch_bytes
) -> LoopCosts:
    """Return the costs of the control-flow nodes and lists of a flat graph with static shapes.

    Args:
        constant: returns the array of a value whose producer is a `Const`, or None.
        infer_body: sets unknown shapes in a function's body, given its arguments.
        compiled_bytes: returns the scratch bytes of a call that XLA compiles.

    Raises:
        UnknownShapeError: the size of a tensor inside a loop is unknown.
    """
    if not any(is_control_flow(n) or runs_over_data(n) or any(v.dtype.name == "variant" for v in n.outputs) for n in graph.nodes):
        return LoopCosts()
    costs = _Accounts(graph, constant, infer_body, compiled_bytes=compiled_bytes).costs()
    if not graph.example or all(trip.kind != "unknown" for trip in costs.trip_counts.values()):
        return costs
    return _Accounts(graph, constant, infer_body, graph.example, costs.trip_counts, compiled_bytes).costs()


def stacked_shapes(graph: Graph, constant: Constant, infer_body: InferBody) -> dict[Value, Shape]:
    """Return shapes of tensors of unknown size that are made of lists of elements of known size; see `loop_costs`."""
    accounts = _Accounts(graph, constant, infer_body)
    with suppress(UnknownShapeError):
        accounts.costs()
    return accounts.stacked


class _Accounts(Executor):
    """Execute the outer graph, and count each storage with one of its values."""

    def __init__(
        self,
        graph: Graph,
        constant: Constant,
        infer_body: InferBody | None,
        example: Mapping[str, float] | None = None,
        without: Mapping[Node, TripCount] | None = None,
        compiled_bytes: Callable[[Node], int] = scratch_bytes,
    ) -> None:
        super().__init__(graph, constant, infer_body, example, without, compiled_bytes)
        self.states: dict[Value, State] = {}
        self.inside: dict[Node, tuple[tuple[Node, float], ...]] = {}
        self.arguments: dict[Node, list[State]] = {}
        self.kept: set[Node] = set()

    def costs(self) -> LoopCosts:
        inputs = {v.producer for v in self.graph.inputs}
        order = topological_order(self.graph)
        for node in order:
            self._execute_outer(node, node in inputs)
        counted = [v for node in order if _is_special(node) for v in node.outputs]
        self._assign_owners(counted)
        own: dict[Value, int] = {}
        holds: dict[Value, tuple[Value, ...]] = {}
        for value in counted:
            own[value], holds[value] = self._share(value)
        reads, writes = self._effects(order)
        return LoopCosts(
            variant_bytes=own,
            workspace={n: self._workspace(n, own) for n in order if n in self.peaks},
            flops={n: flops_of(dict(items)) for n, items in self.inside.items()},
            trip_counts=self.trips,
            inside=self.inside,
            holds={v: held for v, held in holds.items() if held},
            kept=frozenset(self.kept | {n for n, items in self.inside.items() if any(isnan(times) for _, times in items)}),
            in_place={n: pairs for n in order if n.op_type in LOOPS and (pairs := self._in_place(n, own))},
            reads=reads,
            writes=writes,
            notes=tuple(self.notes),
            unknown=self.growing,
        )

    def _execute_outer(self, node: Node, is_input: bool) -> None:
        if is_input or is_constant(node) or (is_read(node) and node not in self.copying):
            for value in node.outputs:
                self.states[value] = state = self._constant(value)
                if value in self.graph.variables:
                    self.variables[state.storage] = self.graph.variables[value]
            return
        frame = Frame()
        arguments = [self.states[v] for v in node.inputs]
        outputs = self.execute(node, arguments, frame)
        for value, state in zip(node.outputs, outputs, strict=True):
            self.states[value] = self.with_sizes(value, state)
        if not is_control_flow(node):
            for value in node.outputs:
                for storage in storages_of([self.states[value]]):
                    if storage in frame.created and storage.owner is None:
                        storage.owner = value
        else:
            self.inside[node] = tuple(frame.executed.items())
            self.arguments[node] = arguments
            self.peaks.setdefault(node, (0, frame.workspace))

    def _assign_owners(self, counted: Iterable[Value]) -> None:
        """Assign an owner to each storage: a dense output before a list, and a shorter list before a longer one.

        So a list that lives on keeps no list alive that lends it one element.
        """
        counted = list(counted)
        lists = [value for value in counted if not isinstance(self.states[value], Dense)]
        lists.sort(key=lambda value: total_bytes(storages_of([self.states[value]])))
        for dense in (True, False):
            for value in counted if dense else lists:
                state = self.states[value]
                if isinstance(state, Dense) is dense and not (dense and value.dtype.name in ("resource", "variant")):
                    for storage in storages_of([state]):
                        if storage.owner is None and not storage.resident:
                            storage.owner = value

    def _handed_on(self, value: Value) -> set[Storage]:
        """Return the former storages of a list that only one loop reads and changes."""
        if value.producer.op_type not in LOOPS or len((before := value.producer.inputs[value.index]).uses) > 1:
            return set()
        return storages_of([self.states[before]])

    def _share(self, value: Value) -> tuple[int, tuple[Value, ...]]:
        """Return the bytes counted with the value, and the owners of its other bytes."""
        own = 0
        held: dict[Value, None] = {}
        is_read, handed_on = bool(value.uses) or value in self.graph.outputs, self._handed_on(value)
        for storage in storages_of([self.states[value]]):
            if storage.resident:
                continue
            owner = storage.owner
            if owner is value or owner is None:
                own += storage.nbytes
            elif owner.producer is value.producer:
                held[owner] = None
            elif is_read and owner.dtype.name == "variant" and not is_control_flow(owner.producer) and storage not in handed_on:
                held[owner] = None
                self.kept.add(owner.producer)
            elif is_read:
                own += storage.nbytes  # also counted with its owner: which of the two lives longer is not known
        return own, tuple(held) if is_read else ()

    def _workspace(self, node: Node, own: Mapping[Value, int]) -> int:
        peak, extra = self.peaks[node]
        if node.op_type not in LOOPS:
            return extra
        inputs = total_bytes(storages_of(self.arguments[node]))
        outputs = sum(own[v] for v in node.outputs)
        saved = sum(own[node.outputs[o]] for _, o in self._in_place(node, own))
        return max(0, peak - (inputs + outputs - saved), extra)

    def _in_place(self, node: Node, own: Mapping[Value, int]) -> tuple[tuple[int, int], ...]:
        """Return the states that the loop replaces by one no larger: the old one goes as the new one comes.

        Elements of the old one in a list are counted with both (`_share`), so they go too.
        """
        pairs: list[tuple[int, int]] = []
        for k, (argument, output) in enumerate(zip(self.arguments[node], node.outputs, strict=True)):
            if (size := own[output]) and total_bytes(storages_of([argument])) >= size:
                pairs.append((k, k))
        return tuple(pairs)

    def _effects(self, order: Sequence[Node]) -> tuple[dict[Node, tuple[Value, ...]], dict[Node, tuple[Value, ...]]]:
        handles = {n: dict.fromkeys(resource_of(v) for v in n.inputs if v.dtype.name == "resource") for n in order if is_control_flow(n)}
        accesses = find_accesses(self.graph, {root: root.name for roots in handles.values() for root in roots})
        read, written = ({(a.top, a.key) for a in accesses if done(a)} for done in (attrgetter("reads"), attrgetter("writes")))
        reads = {n: tuple(root for root in roots if (n, root.name) in read) for n, roots in handles.items()}
        return reads, {n: tuple(root for root in roots if (n, root.name) in written) for n, roots in handles.items()}


def _is_special(node: Node) -> bool:
    """Return whether this module counts the outputs: control flow, lists, and elements taken out of lists."""
    if is_view(node):
        return False
    return is_control_flow(node) or any(v.dtype.name == "variant" for v in node.outputs) or node.op_type in TAKES_OUT_OF_LIST
