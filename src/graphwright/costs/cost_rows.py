"""The rows of an inspection: costs per node, per layer and per op type, from what one execution runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from graphwright.analyze.flop_execution import Execution
from graphwright.analyze.flop_tally import Sums, Tally
from graphwright.analyze.layers import Layers
from graphwright.analyze.time_model import estimated_time_s
from graphwright.ir.traits.values import COMPUTES_NOTHING
from graphwright.ir.traits.variables import VARIABLES, WHOLE_READS
from graphwright.ops.flops import node_flops
from graphwright.ops.traffic import bytes_moved
from graphwright.report.cost_rows import LayerCost, NodeCost, OpTypeCost

_FREE = COMPUTES_NOTHING | VARIABLES | WHOLE_READS


def node_costs(execution: Execution, layers: Layers) -> tuple[dict[str, NodeCost], dict[str, float]]:
    """Return costs by node, and estimated seconds by op type; nodes in a loop count for the loop, and for their own op type."""
    nodes: dict[str, NodeCost] = {}
    time_by_op_type: dict[str, float] = defaultdict(float)
    for outer, runs in execution.times.items():
        flops = moved = time_s = 0.0
        for node, times in runs.items():
            flops += times * (node_flops(node) or 0.0)
            moved += times * (bytes_moved(node) or 0)
            if times and node.op_type not in _FREE:
                seconds = times * estimated_time_s((node,))
                time_s += seconds
                time_by_op_type[node.op_type] += seconds
        nodes[outer.name] = NodeCost(layers.of(outer.name), flops, moved, time_s)
    return nodes, dict(time_by_op_type)


def complete_layers(layers: Sequence[LayerCost], per_layer: Mapping[str, Sums], nodes: Mapping[str, NodeCost]) -> tuple[LayerCost, ...]:
    time_s: dict[str, float] = defaultdict(float)
    for node in nodes.values():
        time_s[node.layer] += node.estimated_time_s
    rows = ((row, per_layer.get(row.layer, Sums())) for row in layers)
    return tuple(replace(row, bytes_moved=sums.bytes_moved, estimated_time_s=time_s[row.layer], **sums.by_direction) for row, sums in rows)


def op_type_rows(counted: Tally, time_by_op_type: Mapping[str, float]) -> tuple[OpTypeCost, ...]:
    """Return one row per op type, the longest estimated time first."""
    rows = [
        OpTypeCost(
            op_type,
            sums.ops,
            bytes_moved=sums.bytes_moved,
            unknown_count=sums.unknown,
            estimated_time_s=time_by_op_type.get(op_type, 0.0),
            **sums.by_direction,
        )
        for op_type, sums in counted.per_op_type.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.estimated_time_s, row.op_type)))
