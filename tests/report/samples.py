"""Results as a real run gives them: the U-Net of Ronneberger et al. without padding, one step with Adam.

A small simulator of its own (liveness by last use), so that the figures of the samples
agree with one another: roles add up to totals, the peak is the largest total, and what
is live at the peak adds up to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphwright.analyze.measurement import Measurement
from graphwright.analyze.step_profile import OpRun, StepProfile
from graphwright.analyze.time_model import ASSUMED_ROOFS
from graphwright.analyze.update_checks import Finding
from graphwright.ir.graph import DTYPES, Graph, Node
from graphwright.report.advice import Advice, Suggestion
from graphwright.report.cost_rows import LayerCost, NodeCost, OpTypeCost
from graphwright.report.inspection import Inspection
from graphwright.report.memory_plan import BufferDecision, CurvePoint, MemoryPlan
from graphwright.report.parameter_table import ParameterCount
from graphwright.report.timeline import ROLES, BufferLifetime, LiveBuffer, Role, Timeline

EMPTY = Timeline((), dict.fromkeys(ROLES, ()), (), (), (), 0, 0, ())
FLOAT_BYTES = 4
ADAM_OPS = ("Mul", "Sub", "Mul_1", "AddV2", "Square", "Mul_2", "AddV2_1", "Sqrt", "AddV2_2", "RealDiv", "AssignSubVariableOp")


@dataclass(frozen=True)
class Op:
    """One node of the sample step and the one value that it makes."""

    name: str
    op_type: str
    layer: str
    nbytes: int
    inputs: tuple[str, ...]
    flops: float
    role: Role
    backward: bool
    block: str


def _made(op: Op) -> LiveBuffer:
    source = "" if op.backward else "net.py:7 call"
    return LiveBuffer(f"{op.name}:0", op.op_type, op.layer, op.role, op.nbytes, f"float32[{op.nbytes // 4}]", source)


def unet_ops(batch: int) -> tuple[list[Op], dict[str, int]]:
    """The nodes of a training step in execution order, and the elements of each weight."""
    forward: list[Op] = []
    weights: dict[str, int] = {}
    grads: list[list[Op]] = []

    def add(name: str, layer: str, elements: float, inputs: tuple[str, ...], flops: float) -> str:
        nbytes, op_type = int(elements) * FLOAT_BYTES, name.rpartition("/")[2]
        forward.append(Op(name, op_type, layer, nbytes, inputs, flops, "residuals", False, layer.partition("/")[0]))
        return name

    def grad(name: str, op_type: str, layer: str, elements: int, inputs: tuple[str, ...], flops: float) -> Op:
        return Op(name, op_type, layer, elements * FLOAT_BYTES, inputs, flops, "gradients", True, layer.partition("/")[0])

    def conv(layer: str, source: str, side: int, out_side: int, channels_in: int, channels: int, kernel: int, op_type: str) -> str:
        elements = batch * out_side**2 * channels
        flops = 2.0 * elements * kernel**2 * channels_in
        weights[f"{layer}/kernel"], weights[f"{layer}/bias"] = kernel**2 * channels_in * channels, channels
        product = add(f"unet/{layer}/{op_type}", layer, elements, (source,), flops)
        biased = add(f"unet/{layer}/BiasAdd", layer, elements, (product,), elements)
        out = add(f"unet/{layer}/Relu", layer, elements, (biased,), elements)
        prefix = f"gradient_tape/unet/{layer}"
        down = f"{prefix}/ReluGrad"
        filters, back = f"{prefix}/Conv2DBackpropFilter", f"grad:{source}"
        grads.append(
            [
                grad(down, "ReluGrad", layer, elements, (f"grad:{out}", out), elements),
                grad(f"{prefix}/BiasAddGrad", "BiasAddGrad", layer, channels, (down,), elements),
                grad(filters, "Conv2DBackpropFilter", layer, weights[f"{layer}/kernel"], (source, down), flops),
                grad(back, "Conv2DBackpropInput", layer, batch * side**2 * channels_in, (down,), flops),
            ]
        )
        return out

    source, side, channels, skips = "x", 572, 1, list[str]()
    for level in range(5):
        block, wide = f"encoder{level + 1}", 64 * 2**level
        for index in (1, 2):
            source = conv(f"{block}/conv{index}", source, side, side - 2, channels, wide, 3, "Conv2D")
            side, channels = side - 2, wide
        if level < 4:
            skips.append(source)
            pooled = add(f"unet/{block}/MaxPool", block, batch * (side // 2) ** 2 * wide, (source,), 0.0)
            elements = batch * side**2 * wide
            grads.append([grad(f"grad:{source}", "MaxPoolGrad", block, elements, (source, f"grad:{pooled}"), elements)])
            source, side = pooled, side // 2
    for level in range(3, -1, -1):
        block, wide = f"decoder{level + 1}", 64 * 2**level
        up = conv(f"{block}/up", source, side, 2 * side, channels, wide, 2, "Conv2DBackpropInput")
        side, channels, elements = 2 * side, 2 * wide, batch * (2 * side) ** 2 * wide
        source = add(f"unet/{block}/ConcatV2", block, 2 * elements, (up, skips[level]), 0.0)
        grads.append([grad(f"grad:{up}", "Slice", block, elements, (f"grad:{source}",), 0.0)])
        for index in (1, 2):
            source = conv(f"{block}/conv{index}", source, side, side - 2, channels, wide, 3, "Conv2D")
            side, channels = side - 2, wide
    source = conv("head/logits", source, side, side, channels, 2, 1, "Conv2D")
    elements = batch * side**2 * 2
    loss = add("unet/loss/SoftmaxCrossEntropyWithLogits", "loss", elements, (source,), elements)
    backward = [grad(f"grad:{source}", "Mul", "loss", elements, (loss,), elements)]
    made = {op.name for op in backward}
    for op in (op for ops in reversed(grads) for op in ops):
        # A value that is used twice has its gradients added; the sample lets the first one stand.
        name = op.name if op.name not in made else f"{op.name}/AddN"
        made.add(name)
        backward.append(replace(op, name=name))
        if op.op_type in {"Conv2DBackpropFilter", "BiasAddGrad"}:
            backward.extend(_adam(op))
    return forward + backward, weights


def _adam(gradient: Op) -> list[Op]:
    ops: list[Op] = []
    last = gradient.name
    for suffix in ADAM_OPS:
        name = f"adam/{gradient.layer}/{gradient.op_type}/{suffix}"
        nbytes = 0 if suffix.startswith("Assign") else gradient.nbytes
        ops.append(
            Op(name, suffix.split("_")[0], gradient.layer, nbytes, (last, gradient.name), nbytes / 4, "temporaries", True, gradient.block)
        )
        last = name
    return ops


def timeline(ops: Sequence[Op], schedule: Sequence[int], resident: dict[str, tuple[int, Role]]) -> Timeline:
    """Memory of a schedule of `ops` (a repeat is a recomputation)."""
    index_of = {op.name: index for index, op in enumerate(ops)}
    last_use: dict[int, int] = {}
    current: dict[int, int] = {}
    seen: set[int] = set()
    recomputed: list[bool] = []
    for step, index in enumerate(schedule):
        for name in ops[index].inputs:
            if name in index_of and index_of[name] in current:
                last_use[current[index_of[name]]] = step
        current[index] = step
        last_use[step] = step
        recomputed.append(index in seen)
        seen.add(index)
    count = len(schedule)
    lifetimes = [
        BufferLifetime(LiveBuffer(name, "VarHandleOp", "", role, nbytes), 0, count - 1) for name, (nbytes, role) in resident.items()
    ]
    for step, index in enumerate(schedule):
        op = ops[index]
        lifetimes.append(BufferLifetime(_made(op), step, last_use[step]))
    by_role = {role: [0] * count for role in ROLES}
    for life in lifetimes:
        for step in range(life.first_step, life.last_step + 1):
            by_role[life.buffer.role][step] += life.buffer.nbytes
    total = [sum(by_role[role][step] for role in ROLES) for step in range(count)]
    peak = max(range(count), key=lambda step: (total[step], -step))
    live = sorted(
        (life.buffer for life in lifetimes if life.first_step <= peak <= life.last_step and life.buffer.nbytes), key=lambda b: -b.nbytes
    )
    return Timeline(
        labels=tuple(("recomputed/" if again else "") + ops[index].name for index, again in zip(schedule, recomputed, strict=True)),
        bytes_by_role={role: tuple(by_role[role]) for role in ROLES},
        total_bytes=tuple(total),
        is_recomputation=tuple(recomputed),
        is_backward=tuple(ops[index].backward for index in schedule),
        peak_step=peak,
        peak_bytes=total[peak],
        live_at_peak=tuple(live),
        lifetimes=tuple(lifetimes),
    )


def _resident(weights: dict[str, int], batch: int) -> dict[str, tuple[int, Role]]:
    resident: dict[str, tuple[int, Role]] = {name: (count * 4, "weights") for name, count in weights.items()}
    resident["adam/m and v"] = (2 * 4 * sum(weights.values()), "optimizer state")
    resident["x"] = (batch * 572 * 572 * 4, "inputs")
    resident["y"] = (batch * 388 * 388 * 2 * 4, "inputs")
    return resident


MEASURED = "median of 5 steps in a fresh process"


def _layers(ops: Sequence[Op], weights: dict[str, int], when: Timeline) -> tuple[LayerCost, ...]:
    read_backward = {name for op in ops if op.backward for name in op.inputs}
    rows: list[LayerCost] = []
    for layer in dict.fromkeys(op.layer for op in ops):
        own = [op for op in ops if op.layer == layer]
        rows.append(
            LayerCost(
                layer=layer,
                op_count=len(own),
                parameter_count=sum(count for name, count in weights.items() if name.rpartition("/")[0] == layer),
                forward_flops=sum(op.flops for op in own if not op.backward),
                backward_flops=sum(op.flops for op in own if op.backward),
                residual_bytes=sum(op.nbytes for op in own if not op.backward and op.name in read_backward),
                peak_share_bytes=sum(buffer.nbytes for buffer in when.live_at_peak if buffer.layer == layer),
            )
        )
    return tuple(rows)


HOW = {
    "peak": "liveness over the inlined graph in the order TensorFlow would run it, output buffers only, 64-byte alignment",
    "resident": "bytes of the captured variables and of the feeds",
    "FLOPs": "rules per op type (two per multiply-add); element-wise ops count one per element",
    "lower bound": "the largest sum of inputs and outputs of one op, resident bytes included",
}


def sample_inspection(batch: int = 8, *, name: str = "train_step", measured: bool = False) -> Inspection:
    """What `graphwright.inspect` says of the U-Net step."""
    ops, weights = unet_ops(batch)
    resident = _resident(weights, batch)
    when = timeline(ops, range(len(ops)), resident)
    resident_bytes = sum(nbytes for nbytes, _ in resident.values())
    trainable = sum(weights.values())
    needs = max(ops, key=lambda op: op.nbytes)
    bound = resident_bytes + 2 * needs.nbytes
    return Inspection(
        name=name,
        feeds={"x": (batch, 572, 572, 1), "y": (batch, 388, 388, 2)},
        node_count=len(ops),
        parameters=ParameterCount(trainable, 0, 2 * trainable, 4 * trainable, 0, 8 * trainable),
        forward_flops=sum(op.flops for op in ops if not op.backward),
        backward_flops=sum(op.flops for op in ops if op.backward),
        unknown_flop_ops=("SoftmaxCrossEntropyWithLogits",),
        timeline=when,
        layers=_layers(ops, weights, when),
        peak_bytes=when.peak_bytes,
        resident_bytes=resident_bytes,
        lower_bound_bytes=bound,
        lower_bound_reason=f"op {needs.name} alone needs {100 * bound / when.peak_bytes:.0f} %",
        how=HOW,
        measured=Measurement(
            int(when.peak_bytes * 1.013),
            resident_bytes,
            1.74,
            "one step in a fresh process, malloc hook",
            (0.0, 0.5, 1.0, 1.7),
            (resident_bytes, int(when.peak_bytes * 1.02), int(when.peak_bytes * 0.7), resident_bytes),
        )
        if measured
        else None,
    )


def sample_plan(
    batch: int = 8, *, budget_share: float = 0.6, name: str = "train_step", measured: bool = True, curve: bool = True
) -> MemoryPlan:
    """A plan that recomputes the blocks of the U-Net, each from its first value, before the block's backward pass."""
    ops, weights = unet_ops(batch)
    resident = _resident(weights, batch)
    resident_bytes = sum(nbytes for nbytes, _ in resident.values())
    before = timeline(ops, range(len(ops)), resident)
    done: set[str] = set()
    schedule: list[int] = []
    cheap = {"Conv2D", "BiasAdd", "Relu", "ConcatV2", "Conv2DBackpropInput"}
    for index, op in enumerate(ops):
        if op.backward and op.block not in done and op.block not in ("head", "loss"):
            done.add(op.block)
            schedule += [i for i, f in enumerate(ops) if not f.backward and f.block == op.block and f.op_type in cheap]
        schedule.append(index)
    after = timeline(ops, schedule, resident)
    all_flops = sum(op.flops for op in ops)
    again = [ops[index] for step, index in enumerate(schedule) if after.is_recomputation[step]]
    share = sum(op.flops for op in again) / all_flops
    repeated = {op.name for op in again}
    read_backward = {used for op in ops if op.backward for used in op.inputs}
    residuals = [op for op in ops if not op.backward and op.name in read_backward]
    budget = int(budget_share * before.peak_bytes)
    bound = resident_bytes + 2 * max(op.nbytes for op in ops)
    points = tuple(
        CurvePoint(int(after.peak_bytes + (before.peak_bytes - after.peak_bytes) * k / 6), share * (1 - k / 6) ** 2)
        for k in range(6, -1, -1)
    )
    return MemoryPlan(
        name=name,
        status="feasible" if after.peak_bytes <= budget else "infeasible",
        budget_bytes=budget,
        peak_bytes=after.peak_bytes,
        resident_bytes=resident_bytes,
        original_peak_bytes=before.peak_bytes,
        lower_bound_bytes=bound,
        lower_bound_reason=f"op unet/decoder1/concat alone needs {100 * bound / before.peak_bytes:.0f} %",
        overhead=share,
        recomputed_flops=share,
        recomputed_count=len(again),
        planning_time_s=0.83,
        timeline_before=before,
        timeline_after=after,
        decisions=tuple(
            BufferDecision(f"{op.name}:0", op.op_type, op.layer, op.nbytes, "recompute" if op.name in repeated else "save",
                           op.flops if op.name in repeated else 0.0)
            for op in sorted(residuals, key=lambda op: -op.nbytes)
        ),
        layers=_layers(ops, weights, after),
        how=HOW | {"extra time": "FLOPs and bytes moved of the recomputed ops, by a model of this machine"},
        curve=points if curve else (),
        measured_before=Measurement(int(before.peak_bytes * 1.012), resident_bytes, 1.74, MEASURED) if measured else None,
        measured_after=Measurement(int(after.peak_bytes * 0.994), resident_bytes, 1.98, MEASURED) if measured else None,
        verification="loss and 139 variables equal bit for bit over one step" if measured else "",
        feeds={"x": (batch, 572, 572, 1), "y": (batch, 388, 388, 2)},
    )  # fmt: skip


def named_timeline(timeline: Timeline, name: str) -> Timeline:
    """The timeline with this name for all operations and a few live buffers, the largest of which lives all the time."""
    live = tuple(replace(buffer, name=name, layer=name, op_type=name) for buffer in timeline.live_at_peak[:8])
    lifetimes = (BufferLifetime(live[0], 0, len(timeline.labels) - 1),)
    return replace(timeline, labels=(name,) * len(timeline.labels), live_at_peak=live, lifetimes=lifetimes)


def named_plan(name: str) -> MemoryPlan:
    """The sample plan with this name for everything."""
    base = sample_plan()
    return replace(
        base,
        name=name,
        layers=tuple(replace(layer, layer=name) for layer in base.layers),
        decisions=tuple(replace(row, name=name, layer=name, op_type=name) for row in base.decisions),
        how={name: name},
        feeds={name: (1, 2)},
        lower_bound_reason=f"op {name} alone needs 83 %",
        verification=f"{name} equal",
        timeline_before=named_timeline(base.timeline_before, name),
        timeline_after=named_timeline(base.timeline_after, name),
    )


def long_timeline(steps: int) -> Timeline:
    """A saw-toothed climb and fall with one spike, at a place that no even sampling hits."""
    spike = (steps * 617) // 1000 | 1
    residuals = [int(1e6 * (1 + 500 * math.sin(math.pi * step / steps)) + 3e6 * (step % 7)) for step in range(steps)]
    residuals[spike] += 400_000_000
    weights = [50_000_000] * steps
    total = [first + second for first, second in zip(weights, residuals, strict=True)]
    peak = max(range(steps), key=total.__getitem__)
    zeros = (0,) * steps
    by_role: dict[Role, tuple[int, ...]] = dict.fromkeys(ROLES, zeros)
    by_role["weights"] = tuple(weights)
    by_role["residuals"] = tuple(residuals)
    live = LiveBuffer("layer/values:0", "MatMul", "layer", "residuals", residuals[peak])
    return Timeline(
        labels=tuple(f"layer_{step}/MatMul" for step in range(steps)),
        bytes_by_role=by_role,
        total_bytes=tuple(total),
        is_recomputation=tuple(step > steps // 2 and step % 3 == 0 for step in range(steps)),
        is_backward=tuple(step > steps // 2 and step % 3 != 0 for step in range(steps)),
        peak_step=peak,
        peak_bytes=total[peak],
        live_at_peak=(live, LiveBuffer("layer/kernel", "VarHandleOp", "layer", "weights", 50_000_000)),
    )


def full_inspection(*, profiled: bool = False) -> Inspection:
    """The sample with all that a page can show: costs of nodes, op types and layers, roofs, the graph, a measured step."""
    base = sample_inspection(measured=True)
    ops, _ = unet_ops(8)
    graph = Graph(base.name)
    made: dict[str, Node] = {}
    nodes: dict[str, NodeCost] = {}
    names: dict[str, str] = {}
    runs: list[OpRun] = []
    float32 = DTYPES["float32"]
    for k, op in enumerate(ops):
        names[op.name] = op.name.replace("grad:", "gradient_tape/").replace(":", "_") if op.name.startswith("grad:") else op.name
        if names[op.name] in graph:
            names[op.name] += f"_{k}"
        inputs = [made[name].outputs[0] for name in op.inputs if name in made]
        made[op.name] = graph.add_node(op.op_type, names[op.name], inputs=inputs, output_types=[(float32, (op.nbytes // 4,))])
        nodes[names[op.name]] = NodeCost(op.layer, op.flops, 2.0 * op.nbytes, op.flops / 1e11 + 1e-6)
        start = k * 40_000
        direction = "backward" if op.backward else "forward"
        runs.append(OpRun(names[op.name], op.op_type, "CPU:0", f"thread {1 + k % 2}", start, start + 30_000 + k, direction=direction,
                          flops=op.flops, bytes_moved=2.0 * op.nbytes, allocated_bytes=op.nbytes))  # fmt: skip
    costs = {row: [cost for cost in nodes.values() if cost.layer == row.layer] for row in base.layers}
    layers = tuple(
        replace(row, bytes_moved=sum(c.bytes_moved for c in own), estimated_time_s=sum(c.estimated_time_s for c in own))
        for row, own in costs.items()
    )
    op_types: list[OpTypeCost] = []
    for op_type in dict.fromkeys(op.op_type for op in ops):
        own = [op for op in ops if op.op_type == op_type]
        forward, backward = (sum(op.flops for op in own if op.backward == direction) for direction in (False, True))
        time_s = sum(op.flops / 1e11 + 1e-6 for op in own)
        op_types.append(OpTypeCost(op_type, len(own), forward, backward, 0.0, sum(2.0 * op.nbytes for op in own), 0, time_s))
    full = replace(base, layers=layers, op_types=tuple(op_types), nodes=nodes, roofs=ASSUMED_ROOFS, graph=graph, bytes_moved=1e9)
    return full.with_profile(StepProfile(base.name, tuple(runs), (), len(ops) * 40e-6)) if profiled else full


def sample_advice() -> Advice:
    """Three things that can be done about the U-Net step, one of which does not fit by itself."""
    plan = Suggestion(
        "plan", "run it with a plan", 3 << 30, 1.06, True, "the same", "gw.optimize_memory(step, 0.6)", "graphwright optimize t.keras"
    )
    batch = Suggestion("batch", "a batch of 4 instead of 8", 2 << 30, 0.98, True, "it trains otherwise", "model.fit(..., batch_size=4)")
    half = Suggestion("bfloat16", "compute in <bfloat16>", 4 << 30, math.nan, False, "rounded", "set_dtype_policy")
    lint = (Finding("no gradient", "conv/kernel gets no gradient", "use it", ("conv/kernel",)),)
    return Advice("train_step", {}, 7 << 29, 5 << 30, (batch, plan, half), lint, {"optimizer": "keeps little"}, {"time": "estimated"})
