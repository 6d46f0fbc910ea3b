"""Which nodes a graph executes, and how often: loops, branches and calls included.

Loops that are nodes with functions run on scalars and lists, as in `graphwright.analyze.loops`; loops and conditionals of TF1 are
found as frames (`graphwright.analyze.frames`). An unknown size is no error here.

A loop with a known trip count counts that often. If control flow in its body depends on the iteration, each iteration is followed, up to a
limit. If neither constants nor one call (`Graph.example`) give its trip count, the count is nan. The costlier branch counts, unless the
predicate is a constant. The functions of a data set in the graph (`for x in dataset`) count once per element.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan, nan

from graphwright.analyze.frames import choose_sides, count_frames, has_frames
from graphwright.analyze.loop_execution import Constant, Executor, InferBody
from graphwright.analyze.storages import Dense, Frame, Scalar, State, Storage, TensorList, number_of, without_number
from graphwright.analyze.trip_counts import TripCount
from graphwright.ir.edit.copying import copy_body
from graphwright.ir.graph import Function, Graph, Node, Value
from graphwright.ir.traits.control_flow import (
    FUNCTION_ATTRIBUTES,
    called_functions,
    is_back_edge,
    is_call,
    is_control_flow,
    runs_over_data,
)
from graphwright.ir.walk import topological_order
from graphwright.ops.flops import node_flops

_FOLLOWED = 20_000  # nodes executed to follow the iterations of one loop one by one
_LONGEST_LIST = 100_000


@dataclass(frozen=True, slots=True)
class Execution:
    """The nodes that one execution of a graph runs, and how often, by node of the graph: itself, or nodes of its functions.

    Attributes:
        trips: trip counts by name of the loop.
        branches: FLOPs of each branch, by name of the node or of the predicate.
        per_round: FLOPs of one round, by name of a loop with an unknown trip count.
    """

    times: Mapping[Node, Mapping[Node, float]]
    trips: Mapping[str, TripCount] = field(default_factory=dict[str, TripCount])
    branches: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    per_round: Mapping[str, float] = field(default_factory=dict[str, float])


def execute(graph: Graph, constant: Constant, *, infer_body: InferBody | None = None) -> Execution:
    """Follow one execution of all nodes of the graph."""
    if not any(is_control_flow(n) or is_call(n, graph) or runs_over_data(n) for n in graph.nodes) and not has_frames(graph.nodes):
        return Execution({node: {node: 1.0} for node in graph.nodes})
    return _Follower(graph, constant, infer_body, graph.example).run()


class _Follower(Executor):
    def __init__(self, graph: Graph, constant: Constant, infer_body: InferBody | None, example: Mapping[str, float]) -> None:
        super().__init__(graph, constant, infer_body, example)
        self.per_round: dict[str, float] = {}
        self.trips_by_name: dict[str, TripCount] = {}
        self.branches: dict[str, tuple[float, ...]] = {}
        self.calls: list[str] = []
        self.open_functions: dict[str, bool] = {}
        self.bodies: dict[tuple[object, ...], Function] = {}

    def run(self) -> Execution:
        order = topological_order(self.graph)
        states: dict[Value, State] = {}
        fed = {v.producer for v in self.graph.inputs}
        for value in self.graph.inputs:
            state = Dense(Storage(0, resident=True), value.shape, self.constant_number(value))
            states[value] = state
            if value in self.graph.variables:
                self.variables[state.storage] = self.graph.variables[value]
        runs = self._run_nodes([n for n in order if n not in fed], states)
        times: dict[Node, Mapping[Node, float]] = {node: {node: 1.0} for node in fed}
        times.update(runs)
        return Execution(times, self.trips_by_name, self.branches, self.per_round)

    def _run_nodes(self, order: Sequence[Node], states: dict[Value, State]) -> dict[Node, Mapping[Node, float]]:
        counts = count_frames(order, self.constant_number, self.example) if has_frames(order) else None
        done: dict[Node, Mapping[Node, float]] = {}
        for node in order:
            inner = Frame()
            arguments = [states.get(v) or Dense(Storage(0), v.shape) for v in node.inputs]
            if counts is not None and any(is_back_edge(v, node) for v in node.inputs):  # its number is that of the first round only
                outputs = _blank(node.outputs)
                inner.executed[node] = 1.0
            else:
                outputs = self.execute(node, arguments, inner)
            states.update((v, self.with_sizes(v, state)) for v, state in zip(node.outputs, outputs, strict=False))
            done[node] = inner.executed
        if counts is None:
            return done
        for node, often in counts.times.items():
            if often != 1:
                done[node] = {ran: k * often for ran, k in done[node].items()}
        self.trips_by_name.update(counts.trips)
        if counts.sides:
            dropped, costs = choose_sides(counts, lambda node: _known_flops(done[node]), self.constant_number)
            self.branches.update({predicate.name: both for predicate, both in costs.items()})
            for node, taken in counts.sides.items():
                if taken & dropped:
                    done[node] = {}
        return done

    # What the executor of memory does otherwise

    def execute(self, node: Node, arguments: Sequence[State], frame: Frame) -> list[State]:
        """Execute a node; the functions of a data set run once per element, whose number is unknown."""
        functions = [self.graph.functions.get(name) for name in called_functions(node)] if runs_over_data(node) else []
        if not functions:
            return super().execute(node, arguments, frame)
        is_known, inner = node.name in self.example, Frame()
        self._note(node, TripCount(int(self.example.get(node.name, 1)), "example" if is_known else "unknown"))
        for function in functions:
            if function is not None:
                self._call(function, _blank(function.body.inputs), inner)
        self._add_rounds(node, frame, inner)
        return _blank(node.outputs)

    def _size(self, value: Value, arguments: Sequence[State]) -> int:
        del arguments
        return value.nbytes or 0

    def _make(self, value: Value, arguments: Sequence[State], frame: Frame, number: Scalar | None = None) -> State:
        if value.dtype.name == "variant":
            return TensorList(())
        del arguments, frame
        return Dense(Storage(0), value.shape, number)

    def _call(self, function: Function, arguments: Sequence[State], frame: Frame) -> list[State]:
        if function.name in self.calls:  # it calls itself: what it does is not followed
            return _blank(function.body.outputs)
        body = self._with_shapes(function, arguments).body
        states: dict[Value, State] = dict(zip(body.inputs, arguments, strict=True))
        parameters = {v.producer for v in body.inputs}
        self.calls.append(function.name)
        needed = [n for n in (topological_order(body) if has_frames(body.nodes) else body.nodes) if n not in parameters]
        for runs in self._run_nodes(needed, states).values():
            frame.add_runs(runs)
        self.calls.pop()
        return [states.get(v) or Dense(Storage(0), v.shape) for v in body.outputs]

    def _with_shapes(self, function: Function, arguments: Sequence[State]) -> Function:
        """Return the function; if its shapes are open, a copy with those that follow from these arguments, since calls may differ."""
        name = function.name
        if name not in self.open_functions:
            values = (v for n in function.body.nodes for v in n.outputs)
            self.open_functions[name] = any(v.dtype.itemsize is not None and v.nbytes is None for v in values)
        if not self.open_functions[name]:
            return function
        key = (
            name,
            *(s.shape if isinstance(s, Dense) else next((i.shape for i in s.items if i is not None), "no item") for s in arguments),
        )
        if key not in self.bodies:
            fresh = f"{name}_{len(self.bodies)}"
            self.bodies[key] = Function(fresh, copy_body(function, fresh, self.graph.functions, {}).graph)
            self._ensure_shapes(self.bodies[key], arguments)
        return self.bodies[key]

    def _branches(self, node: Node, arguments: Sequence[State], frame: Frame) -> list[State]:
        functions = [self.graph.functions.get(name) for name in called_functions(node, *FUNCTION_ATTRIBUTES[node.op_type])]
        known = [f for f in functions if f is not None]
        predicate = number_of(arguments[0])
        if predicate is not None and known:
            chosen = (0 if predicate else 1) if "then_branch" in node.attrs else min(max(int(predicate), 0), len(known) - 1)
            known = known[chosen : chosen + 1]
        results: list[tuple[float, list[State], Frame]] = []
        for function in known:
            inner = Frame()
            outputs = self._call(function, arguments[1:], inner)
            results.append((_known_flops(inner.executed) if len(known) > 1 else 0.0, outputs, inner))
        if not results:
            frame.executed[node] += 1
            return _blank(node.outputs)
        _, outputs, costliest = max(results, key=lambda r: (isnan(r[0]), r[0]))
        frame.add_runs(costliest.executed)
        if len(results) > 1:
            self.branches[node.name] = tuple(cost for cost, _, _ in results)
            if len({tuple(number_of(s) for s in r[1]) for r in results}) > 1:
                outputs = [without_number(s) for s in outputs]
        return outputs

    def _loop(self, node: Node, arguments: Sequence[State], frame: Frame) -> list[State]:
        followed = self.follow(node, arguments)
        if followed is None:
            frame.executed[node] += 1
            return _blank(node.outputs)
        condition, body, trip, numbers = followed
        self._note(node, trip)
        has_control_flow = any(is_control_flow(n) or is_call(n, body.body) for n in body.body.nodes)
        one_by_one = trip.kind in ("exact", "example") and trip.count * len(body.body) <= _FOLLOWED and has_control_flow
        state: list[State] = [replace(s, sizes=None) if isinstance(s, Dense) else s for s in arguments]
        if one_by_one:
            for _ in range(trip.count):
                state = self._call(body, state, frame)
        elif trip.count:
            inner = Frame()
            unchanging = [v is o for v, o in zip(body.body.inputs, body.body.outputs, strict=True)]
            first = [s if kept else without_number(s) for s, kept in zip(state, unchanging, strict=True)]
            after = self._call(body, first, inner)
            self._add_rounds(node, frame, inner)
            state = [_grown(before, s, trip.count) for before, s in zip(first, after, strict=True)]
        check = Frame()
        self._call(condition, arguments, check)
        frame.add_runs(check.executed, nan if trip.kind == "unknown" else trip.count + 1)
        return [replace(s, number=number) if isinstance(s, Dense) else s for s, number in zip(state, numbers, strict=True)]

    def _add_rounds(self, node: Node, frame: Frame, inner: Frame) -> None:
        """Add what one round runs, times the number of rounds: nan if that is unknown, and then the FLOPs of one round are kept."""
        trip = self.trips_by_name[node.name]
        if trip.kind == "unknown":
            self.per_round[node.name] = _known_flops(inner.executed)
        frame.add_runs(inner.executed, nan if trip.kind == "unknown" else trip.count)

    def _note(self, node: Node, trip: TripCount) -> None:
        former = self.trips_by_name.get(node.name)
        if former is not None and former != trip:  # a loop in a loop, which runs otherwise each time
            kind = "unknown" if "unknown" in (former.kind, trip.kind) else "at most"
            trip = TripCount(max(former.count, trip.count), kind)
        self.trips_by_name[node.name] = trip


def _blank(values: Iterable[Value]) -> list[State]:
    return [Dense(Storage(0), v.shape) for v in values]


def _grown(before: State, after: State, count: int) -> State:
    """Return a list to which each of so many iterations adds as much as the first did."""
    if not isinstance(after, TensorList) or not isinstance(before, TensorList) or count < 2 or not after.items:
        return after
    length = len(before.items) + count * (len(after.items) - len(before.items))
    if length <= len(after.items) or length > _LONGEST_LIST:
        return after
    return TensorList((*after.items, *([after.items[-1]] * (length - len(after.items)))), after.dtype)


def _known_flops(runs: Mapping[Node, float]) -> float:
    return sum(often * flops for node, often in runs.items() if (flops := node_flops(node)))
