"""An inspection joined with a measured step: measured times beside what was counted."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

from graphwright.analyze.profile import StepProfile, by_layer, by_op_type
from graphwright.analyze.time_model import Roofs
from graphwright.report.results import Inspection

_HOW = (
    "op runs of one recorded step, kernel times without the executor's waiting, added up: threads work side by side. Operations that "
    "TensorFlow rewrote or added have no row of their own among the op types of the graph"
)


def join_profile(inspection: Inspection, profile: StepProfile, roofs: Roofs | None = None) -> Inspection:
    """The inspection with measured times of nodes, layers and op types; what did not run under its name has none.

    Args:
        inspection: of the same step.
        profile: what was measured.
        roofs: limits of the machine that it ran on; None keeps those of the inspection.
    """
    node_time_s: dict[str, float] = defaultdict(float)
    for run in profile.runs:
        node_time_s[run.name] += run.time_s
    layers, op_types = by_layer(profile), by_op_type(profile)
    layer_time_s = {name: row.time_s for name, row in layers.items()}
    op_type_time_s = {name: row.time_s for name, row in op_types.items()}
    return replace(
        inspection,
        profile=profile,
        roofs=roofs or inspection.roofs,
        layers=tuple(replace(row, measured_time_s=layer_time_s.get(row.layer, math.nan)) for row in inspection.layers),
        op_types=tuple(replace(row, measured_time_s=op_type_time_s.get(row.op_type, math.nan)) for row in inspection.op_types),
        nodes={name: replace(cost, measured_time_s=node_time_s.get(name, math.nan)) for name, cost in inspection.nodes.items()},
        how={**inspection.how, "measured time": _HOW},
    )
