"""Count how often each node of a graph with control flow of TF1 runs: frames of loops, and the sides of conditionals.

A loop of TF1 is a *frame*: values enter through `Enter`, go from `NextIteration` to `Merge`, pass `Switch` while `LoopCond` is true, and
leave through `Exit` (Yu et al., "Dynamic Control Flow in Large-Scale Machine Learning", EuroSys 2018). The nodes behind the true side of
such a `Switch` run once per iteration; the rest of the frame, the condition, runs once more. A `Switch` whose predicate is not a
`LoopCond` is a conditional, which a `Merge` ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan

from graphwright.analyze.storages import Scalar
from graphwright.analyze.trip_counts import ConstantNumber, CountedLoop, TripCount, follow_loop, scalar_value
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.arithmetic import ADDITIONS
from graphwright.ir.traits.control_flow import ENTERS, EXITS, MERGES, NEXT_ITERATIONS, SWITCHES, is_back_edge, is_loop_condition
from graphwright.ir.traits.values import IDENTITIES, origin
from graphwright.ir.walk import topological_order

Side = tuple[Value, int]
"""A predicate, and which output of its `Switch` nodes: 1 is the true side."""


@dataclass(eq=False, slots=True)
class _Frame:
    name: str
    parent: _Frame | None
    merges: list[Node] = field(default_factory=list[Node])
    condition: Node | None = None
    exits: list[Node] = field(default_factory=list[Node])
    trip: TripCount = field(default_factory=lambda: TripCount(1, "unknown"))


@dataclass(frozen=True, slots=True)
class FrameCounts:
    """How often nodes run.

    Attributes:
        times: by node; 1 outside of loops.
        trips: by name of the frame.
        sides: the sides of conditionals that a node belongs to, for nodes that belong to some.
    """

    times: Mapping[Node, float]
    trips: Mapping[str, TripCount]
    sides: Mapping[Node, frozenset[Side]]


def has_frames(nodes: Iterable[Node]) -> bool:
    """Return whether there is control flow of TF1 among the nodes."""
    return any(node.op_type in SWITCHES or node.op_type in ENTERS for node in nodes)


def frame_names(graph: Graph) -> dict[Node, tuple[str, ...]]:
    """Return the names of the frames around each node, outermost first; a node that reads nothing inside a loop counts as outside.

    Raises:
        GraphError: the graph has a cycle that is not a loop.
    """
    frames = _find_frames(topological_order(graph))
    names: dict[_Frame | None, tuple[str, ...]] = {None: ()}
    for frame in frames.values():  # each after the one around it
        if frame is not None:
            names[frame] = (*names[frame.parent], frame.name)
    return {node: names[frame] for node, frame in frames.items()}


def count_frames(order: Sequence[Node], constant: ConstantNumber, measured: Mapping[str, float] | None = None) -> FrameCounts:
    """Find the frames and how often they run, and the sides of conditionals.

    Args:
        order: nodes in topological order, a `Merge` before the `NextIteration` that it reads; arguments may be missing.
        constant: returns the number of a constant value, or None.
        measured: iterations of frames, by name, if they were measured.
    """
    frames = _find_frames(order)
    ends: dict[Value, Scalar | None] = {}
    loops = list(dict.fromkeys(frame for frame in frames.values() if frame is not None))
    waiting = sorted(loops, key=_depth, reverse=True)
    for _ in range(_depth(waiting[0]) + 1 if waiting else 0):  # a loop may need a number that another one gives, inside or before it
        for frame in waiting:
            if frame.name in (measured or {}):
                frame.trip = TripCount(int((measured or {})[frame.name]), "example")
            else:
                _count(frame, ends, constant)
        waiting = [frame for frame in waiting if frame.trip.kind == "unknown"]
    inside = _find_bodies(order, frames)
    times = {node: _times(frames[node], node in inside) for node in order}
    return FrameCounts(times, {frame.name: frame.trip for frame in loops}, _find_sides(order))


def counters_of_frames(order: Sequence[Node], constant: ConstantNumber) -> dict[str, tuple[Value, int]]:
    """Return, by outermost frame, an `Exit` of a counter and its start: the exit less the start is the number of iterations."""
    counters: dict[str, tuple[Value, int]] = {}
    frames = _find_frames(order)
    for frame in dict.fromkeys(f for f in frames.values() if f is not None and f.parent is None):
        for leave in frame.exits:
            merge = _through(leave.inputs[0]).producer
            start, following = _ends(merge) if merge in frame.merges else (None, None)
            number = None if start is None else scalar_value(start, {}, constant)
            if number is not None and following is not None and is_one_more(following, merge.outputs[0], constant):
                counters[frame.name] = (leave.outputs[0], int(number))
    return counters


def is_one_more(following: Value, before: Value, constant: ConstantNumber) -> bool:
    """Return whether `following` is `before` plus one."""
    node = _through(following).producer
    if node.op_type not in ADDITIONS or len(node.inputs) != 2:
        return False
    terms = [_through(v) for v in node.inputs]
    return any(a is before and scalar_value(b, {}, constant) == 1 for a, b in (terms, terms[::-1]))


def _through(value: Value) -> Value:
    return origin(value, IDENTITIES | SWITCHES)


def _find_frames(order: Sequence[Node]) -> dict[Node, _Frame | None]:
    frames: dict[Node, _Frame | None] = {}
    by_key: dict[tuple[_Frame | None, str], _Frame] = {}
    for node in order:
        around = [frames.get(v.producer) for v in node.inputs if not is_back_edge(v, node)]
        around += [frames.get(c) for c in node.control_inputs]
        frame = max(around, key=_depth, default=None)
        if node.op_type in ENTERS:
            attribute = node.attrs.get("frame_name")
            name = attribute.decode() if isinstance(attribute, bytes) else node.name
            frame = by_key.setdefault((frame, name), _Frame(name, frame))
        elif node.op_type in EXITS and frame is not None:
            frame.exits.append(node)
            frame = frame.parent
        elif frame is not None and node.op_type in MERGES and any(is_back_edge(v, node) for v in node.inputs):
            frame.merges.append(node)
        elif frame is not None and is_loop_condition(node):
            frame.condition = node
        frames[node] = frame
    return frames


def _depth(frame: _Frame | None) -> int:
    depth = 0
    while frame is not None:
        depth, frame = depth + 1, frame.parent
    return depth


def _ends(merge: Node) -> tuple[Value | None, Value | None]:
    before = {kinds: v.producer.inputs[0] for kinds in (ENTERS, NEXT_ITERATIONS) for v in merge.inputs if v.producer.op_type in kinds}
    return before.get(ENTERS), before.get(NEXT_ITERATIONS)


def _count(frame: _Frame, ends: dict[Value, Scalar | None], constant: ConstantNumber) -> None:
    if frame.condition is None:
        return
    turning = [(m.outputs[0], s, f) for m in frame.merges for s, f in [_ends(m)] if s is not None and f is not None]
    values = [value for value, _, _ in turning]
    loop = CountedLoop(frame.condition.inputs[0], values, values, [f for _, _, f in turning])

    def number(value: Value) -> Scalar | None:
        return ends[value] if value in ends else constant(value)

    frame.trip, numbers = follow_loop(loop, [scalar_value(s, {}, number) for _, s, _ in turning], number)
    last = dict(zip(values, numbers, strict=True))
    for leave in frame.exits:
        ends[leave.outputs[0]] = last.get(_through(leave.inputs[0]))


def _find_bodies(order: Sequence[Node], frames: Mapping[Node, _Frame | None]) -> set[Node]:
    """Return the nodes that run only while their loop continues: they depend on the true side of a `Switch` of its frame."""
    inside: set[Node] = set()
    for node in order:
        frame = frames[node]
        if frame is None or node.op_type in ENTERS:
            continue
        for value in node.inputs:
            source = value.producer
            goes_on = source.op_type in SWITCHES and value.index == 1 and is_loop_condition(source.inputs[1].producer)
            if not is_back_edge(value, node) and frames.get(source) is frame and (goes_on or source in inside):
                inside.add(node)
        if any(c in inside and frames.get(c) is frame for c in node.control_inputs):
            inside.add(node)
        if any(frames.get(v.producer) is not frame and v.producer.op_type in EXITS for v in node.inputs):
            inside.add(node)
    return inside


def _times(frame: _Frame | None, in_body: bool) -> float:
    times = 1.0
    while frame is not None:
        times *= nan if frame.trip.kind == "unknown" else frame.trip.count + (0 if in_body else 1)
        frame, in_body = frame.parent, True
    return times


def _find_sides(order: Sequence[Node]) -> dict[Node, frozenset[Side]]:
    sides: dict[Node, frozenset[Side]] = {}

    def of_value(value: Value) -> frozenset[Side]:
        node = value.producer
        own = sides.get(node, frozenset())
        if node.op_type in SWITCHES and not is_loop_condition(node.inputs[1].producer):
            return own | {(_through(node.inputs[1]), value.index)}
        return own

    for node in order:
        inherited = [of_value(v) for v in node.inputs if not is_back_edge(v, node)]
        if node.op_type in MERGES and len(inherited) > 1:
            common = frozenset[Side].intersection(*inherited)
        else:
            common = frozenset[Side]().union(*inherited, *(sides.get(c, frozenset()) for c in node.control_inputs))
        if common:
            sides[node] = common
    return sides


def choose_sides(
    counts: FrameCounts, cost_of: Callable[[Node], float], constant: ConstantNumber
) -> tuple[frozenset[Side], dict[Value, tuple[float, float]]]:
    """Choose, for each conditional, the side that costs more, or the side of a constant predicate.

    Args:
        cost_of: FLOPs of one node over all its runs.

    Returns:
        The sides that are not taken, and the costs (false, true) of both sides, by predicate that is not constant.
    """
    depth: dict[Value, int] = {}
    for taken in counts.sides.values():
        for predicate, _ in taken:
            depth[predicate] = max(depth.get(predicate, 0), len(taken))
    dropped: set[Side] = set()
    costs: dict[Value, tuple[float, float]] = {}
    by_side: dict[Side, list[Node]] = {}
    for node, taken in counts.sides.items():
        for side in taken:
            by_side.setdefault(side, []).append(node)
    for predicate in sorted(depth, key=lambda p: -depth[p]):  # inner ones first
        number = scalar_value(predicate, {}, constant)
        if number is not None:
            dropped.add((predicate, 0 if number else 1))
            continue
        both = [sum((cost_of(n) for n in by_side.get((predicate, k), ()) if not counts.sides[n] & dropped), 0.0) for k in (0, 1)]
        costs[predicate] = (both[0], both[1])
        dropped.add((predicate, 0 if both[1] >= both[0] else 1))
    return frozenset(dropped), costs
