"""The memory of a step that XLA compiles, by XLA's own buffer assignment; nothing runs. An absent GPU is `graphwright.run.xla_target`.

XLA assigns all buffers when it compiles, and allocates all of them when the program starts. So the peak is the sum of its allocations,
arguments and variables included; the workspace of libraries (cuDNN, oneDNN) is not among them.
"""

import importlib
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from graphwright.analyze.device_models import DeviceModel
from graphwright.analyze.xla_program import XlaBuffer, XlaMemory
from graphwright.errors import UnsupportedError, first_line
from graphwright.run.xla_target import compile_for
from graphwright.source.concrete_function import plain_name
from graphwright.source.private_tensorflow import compiled_by_xla, message_class

tf: Any = importlib.import_module("tensorflow")

_PATCHED_TERMS = 60  # the longest sums for which Eigen was seen to write patches of convolutions in groups


def xla_memory(
    function: Any, shapes: Sequence[tuple[int, ...]], device: DeviceModel | None = None, *, memory_bytes: int | None = None
) -> XlaMemory:
    """Compile a `ConcreteFunction` with XLA, marked `jit_compile` or not, and read the memory of its program.

    Args:
        shapes: shapes of its flat arguments, without captures.
        device: the GPU to compile for; None for this process's first device.
        memory_bytes: see `DeviceModel.description`.
    """
    specs = [tf.TensorSpec(shape, tensor.dtype) for shape, tensor in zip(shapes, function.inputs, strict=False)]
    try:
        serialized = compiled_by_xla(function, specs, *([] if device is None else ["stablehlo"]))
    except (tf.errors.OpError, TypeError, ValueError) as error:
        raise UnsupportedError(
            f"XLA cannot compile the step: {first_line(error)}",
            where=f"step {plain_name(str(function.name))!r}",
            remedy="call tf.function(step, jit_compile=True) to see XLA's own error",
        ) from error
    if device is not None:
        return compile_for(serialized, device, memory_bytes=memory_bytes)
    program: Any = message_class("xla.service.hlo", "HloProto", below="compiler").FromString(serialized)
    arguments = outputs = temporaries = constants = 0
    for allocation in program.buffer_assignment.buffer_allocations:
        if allocation.is_thread_local:
            continue  # scalars of what is computed per element
        if allocation.is_entry_computation_parameter:
            arguments += allocation.size
        elif allocation.is_constant:
            constants += allocation.size
        elif allocation.maybe_live_out:
            outputs += allocation.size
        else:
            temporaries += allocation.size
    peak_op, live = _live_at_peak(program)
    return XlaMemory(arguments, outputs, temporaries, constants, peak_op, live, library_bytes=_library_bytes(program))


def _library_bytes(program: Any) -> int:
    """Return an upper bound on the scratch that Eigen takes for one convolution in groups, read off measurements of TensorFlow 2.21."""
    instructions = {i.id: i for computation in program.hlo_module.computations for i in computation.instructions}
    sizes = {buffer.defined_at.instruction_id: buffer.size for buffer in program.buffer_assignment.logical_buffers}
    threads = int(tf.config.threading.get_intra_op_parallelism_threads()) or os.cpu_count() or 1
    most = 0
    for one in instructions.values():
        if one.opcode != "convolution" or one.feature_group_count <= 1:
            continue
        labels = one.convolution_dimension_numbers
        images, kernel = (instructions[operand].shape.dimensions for operand in one.operand_ids[:2])
        filters, channels = kernel[labels.kernel_output_feature_dimension], kernel[labels.kernel_input_feature_dimension]
        terms, result = math.prod(kernel) // filters, sizes.get(one.id, 0)
        image_bytes = result * math.prod(images) // max(math.prod(one.shape.dimensions), 1)
        patches = terms // channels * image_bytes if terms <= _PATCHED_TERMS else 0
        if filters == one.feature_group_count:
            patches = 2 * terms * result // 3
        most = max(most, result // 2 + patches // threads)
    return most


def _live_at_peak(program: Any) -> tuple[str, tuple[XlaBuffer, ...]]:
    """Replay XLA's record of its heap simulation: allocate, free, and share the place of another buffer."""
    instructions = {i.id: i for computation in program.hlo_module.computations for i in computation.instructions}
    by_name = {i.name: i for i in instructions.values()}
    buffers = {buffer.id: buffer for buffer in program.buffer_assignment.logical_buffers}
    peaks = [_peak_of(trace, buffers) for trace in program.buffer_assignment.heap_simulator_traces]
    _, peak_op, live_sizes = max(peaks, default=(0, "", dict[int, int]()), key=lambda peak: peak[0])
    named: list[XlaBuffer] = []
    for number, size in live_sizes.items():
        instruction = instructions.get(buffers[number].defined_at.instruction_id)
        if instruction is not None and size:
            named.append(XlaBuffer(_name_of(instruction), instruction.opcode, size))
    named.sort(key=lambda buffer: (-buffer.nbytes, buffer.name))
    return _name_of(by_name[peak_op]) if peak_op in by_name else peak_op, tuple(named)


def _peak_of(trace: Any, buffers: Mapping[int, Any]) -> tuple[int, str, dict[int, int]]:
    """Return the most bytes of one trace, the instruction at which they are live, and the live buffers by number."""
    total = most = last = 0
    live: dict[int, int] = {}
    for replay in (False, True):  # first to find the place, then to see what is live there
        total, live = 0, {}
        for k, event in enumerate(trace.events):
            if event.kind == event.FREE:
                total -= live.pop(event.buffer_id, 0)
                continue
            live[event.buffer_id] = buffers[event.buffer_id].size
            total += live[event.buffer_id]
            if replay and k == last:
                return most, str(event.instruction_name), live
            if total > most:
                most, last = total, k
    return most, "", live


def _name_of(instruction: Any) -> str:
    return str(instruction.metadata.op_name or instruction.name)
