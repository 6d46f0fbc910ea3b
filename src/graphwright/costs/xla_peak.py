"""Steps that XLA compiles: their predicted peak, by XLA's own buffer assignment, and the meaning of other figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from graphwright.analyze.device_models import DeviceModel
from graphwright.analyze.layers import Layers, layers_by_names
from graphwright.analyze.xla_program import XlaMemory
from graphwright.report.peak_prediction import PeakPrediction
from graphwright.report.timeline import ROLES, LiveBuffer, Role
from graphwright.report.units import format_time
from graphwright.run.traced_step import TracedStep
from graphwright.run.xla_memory import xla_memory

_HOW = (
    "XLA's own buffer assignment: arguments, results, temporaries and constants of the program that XLA compiled for this process's first "
    "device (nothing was run); without the workspace of libraries"
)
_HOW_ROLES = (
    "weights are all variables, the optimizer's too; all but these and arguments counts as temporaries: XLA does not tell residuals and "
    "gradients apart"
)
_BY_OPERATION = "of the graph, operation by operation; XLA, which compiles the step, fuses operations and chooses their order"


def xla_peak(traced: TracedStep, *, threads: int) -> PeakPrediction:
    """Predict the peak of a step compiled by XLA, whose order is part of the program."""
    memory = xla_memory(traced.function, traced.shapes, traced.device)
    variables = [str(getattr(v, "path", None) or v.name).removesuffix(":0") for v in traced.function.graph.variables]
    layers = layers_by_names((operation.name for operation in traced.function.graph.get_operations()), variables)
    live = _live(traced, memory, layers, variables)
    input_bytes = min(sum(buffer.nbytes for buffer in live if buffer.role == "inputs"), memory.argument_bytes)
    by_role: dict[Role, int] = dict.fromkeys(ROLES, 0)
    by_role |= {"inputs": input_bytes, "weights": memory.argument_bytes - input_bytes}
    by_role["temporaries"] = memory.peak_bytes - memory.argument_bytes
    return PeakPrediction(
        name=traced.name,
        feeds=traced.feeds,
        order="xla",
        threads=threads,
        peak_bytes=memory.peak_bytes,
        low_bytes=memory.peak_bytes,
        high_bytes=memory.peak_bytes,
        resident_bytes=memory.argument_bytes + memory.constant_bytes,
        peak_op=layers.words(memory.peak_op),
        live=live,
        by_role=by_role,
        how={**_how_of(memory, traced.device), "roles": _HOW_ROLES},
    )


def _how_of(memory: XlaMemory, device: DeviceModel | None) -> dict[str, str]:
    if device is None:
        return {"peak": _HOW}
    time = f"{format_time(memory.time_s)}, estimated from FLOPs and bytes moved by the compiled program (roofline), by {device.rates.how}"
    return {"peak": memory.how(device.full_name), "time": time}


def _live(traced: TracedStep, memory: XlaMemory, layers: Layers, variables: Sequence[str]) -> tuple[LiveBuffer, ...]:
    function = traced.function
    live = [LiveBuffer(buffer.name, buffer.opcode, layers.of(buffer.name), "temporaries", buffer.nbytes) for buffer in memory.live]
    for name, shape, tensor in zip(traced.names, traced.shapes, function.inputs, strict=False):
        live.append(LiveBuffer(name, "Placeholder", "", "inputs", math.prod(shape) * int(tensor.dtype.size or 0)))
    for variable, name in zip(function.graph.variables, variables, strict=True):
        size = int(variable.shape.num_elements() or 0) * int(variable.dtype.size or 0)
        live.append(LiveBuffer(name, "VarHandleOp", layers.of(name), "weights", size))
    return tuple(sorted(live, key=lambda buffer: (-buffer.nbytes, buffer.name)))


def by_operation(how: Mapping[str, str], traced: TracedStep, *keys: str) -> dict[str, str]:
    """Return how figures were obtained, with their meaning for a step that XLA compiles.

    Args:
        keys: the figures that XLA's fusions change.
    """
    if not traced.is_compiled:
        return dict(how)
    return {**how, **{key: f"{_BY_OPERATION}: {how[key]}" for key in keys}}
