"""Add up what an execution runs: FLOPs and bytes by direction, op type and layer, and what could not be counted."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from graphwright.analyze.directions import Direction, find_directions, is_split_known
from graphwright.analyze.flop_execution import Execution
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.control_flow import called_functions, is_call, is_control_flow
from graphwright.ir.traits.values import COMPUTES_NOTHING
from graphwright.ops.flops import flop_rule, node_flops
from graphwright.ops.traffic import bytes_moved

_KINDS: tuple[Direction | Literal["undivided"], ...] = ("forward", "backward", "optimizer", "undivided")
UNKNOWN_DIRECTIONS = "not known: operations have names of gradients, which dataflow neither confirms nor refutes; the total is known"


@dataclass(slots=True)
class Sums:
    """Figures of a group of nodes. FLOPs of unknown direction are undivided; those by direction are nan then."""

    ops: int = 0
    flops: dict[Direction | Literal["undivided"], float] = field(default_factory=lambda: dict.fromkeys(_KINDS, 0.0))
    bytes_moved: float = 0.0
    unknown: int = 0
    unknown_bytes: int = 0  # nodes whose bytes are not known

    @property
    def by_direction(self) -> dict[str, Any]:
        return {f"{direction}_flops": flops for direction, flops in self.flops.items()}

    @property
    def total(self) -> float:
        """FLOPs in all directions."""
        return self.flops["undivided"] or sum(self.flops.values())


@dataclass(frozen=True, slots=True)
class Tally:
    """The figures of a graph.

    Attributes:
        unknown_reason: the reason by op type that could not be counted.
        unknown_counts: by such an op type, the number of nodes, the bytes they move, and the number of nodes with unknown bytes.
    """

    whole: Sums
    per_op_type: Mapping[str, Sums]
    per_layer: Mapping[str, Sums]
    unknown_reason: Mapping[str, str]
    unknown_counts: Mapping[str, tuple[int, float, int]]


def tally(graph: Graph, execution: Execution, layer_of: Callable[[str], str], known: Mapping[Node, Direction] | None = None) -> Tally:
    """Add up an execution of a flat graph; nodes in a loop belong to the loop's layer."""
    whole = Sums()
    per_op_type: dict[str, Sums] = defaultdict(Sums)
    per_layer: dict[str, Sums] = defaultdict(Sums)
    reasons: dict[str, str] = {}
    counts: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0])
    directions = _Directions(graph, known)
    for outer, runs in execution.times.items():
        layer = per_layer[layer_of(outer.name)] if outer.op_type not in COMPUTES_NOTHING else None
        for node, times in runs.items():
            if node.op_type in COMPUTES_NOTHING or not times:
                continue
            groups = [whole, per_op_type[node.op_type], *([layer] if layer is not None else [])]
            flops, moved = node_flops(node), bytes_moved(node)
            if flops is None:
                reasons[node.op_type] = _reason(node)
                entry = counts[node.op_type]
                entry[0] += 1
                entry[1] += times * (moved or 0)
                entry[2] += moved is None
            direction = directions.of(node, outer)
            for group in groups:
                group.ops += 1
                group.flops[direction] += times * flops if flops else 0.0  # how often may be nan
                group.bytes_moved += times * moved if moved else 0.0
                group.unknown += flops is None
                group.unknown_bytes += moved is None
    for sums in () if directions.are_known else (whole, *per_op_type.values(), *per_layer.values()):
        if sums.total:
            sums.flops = {**dict.fromkeys(_KINDS, math.nan), "undivided": sums.total}
    return Tally(
        whole,
        dict(per_op_type),
        {name: sums for name, sums in per_layer.items() if sums.bytes_moved or sums.unknown or sums.total},
        reasons,
        {op_type: (int(count), moved, int(open_)) for op_type, (count, moved, open_) in counts.items()},
    )


def _reason(node: Node) -> str:
    if is_control_flow(node) or is_call(node, node.graph) or called_functions(node):
        return "calls a function"
    return "no rule" if flop_rule(node.op_type) is None else "unknown shape"


class _Directions:
    """Directions of nodes; nodes of a forward loop have their own, since it may hold a training step."""

    def __init__(self, graph: Graph, known: Mapping[Node, Direction] | None) -> None:
        self._graph = graph
        self._of: dict[Graph, Mapping[Node, Direction]] = {graph: find_directions(graph) if known is None else known}
        self.are_known = is_split_known(graph, self._of[graph])

    def of(self, node: Node, outer: Node) -> Direction:
        direction = self._of[self._graph][outer]
        if node.graph is self._graph or direction != "forward":
            return direction
        if node.graph not in self._of:
            self._of[node.graph] = find_directions(node.graph)
            self.are_known &= is_split_known(node.graph, self._of[node.graph])
        return self._of[node.graph][node]
