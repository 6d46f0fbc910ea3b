"""`explain_oom`: turn TensorFlow's out-of-memory error into the memory of the step and what would fit."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Sequence
from dataclasses import replace
from traceback import walk_stack, walk_tb
from types import FrameType, TracebackType
from typing import Any, Self

from graphwright.advice.advise import advise
from graphwright.errors import GraphwrightError, OutOfMemoryError, first_line
from graphwright.ir.dtypes import DTYPES, byte_count
from graphwright.memory.plan_step import unplanned
from graphwright.plan.budget import Budget
from graphwright.report.out_of_memory import OutOfMemory
from graphwright.report.progress import shown
from graphwright.report.units import format_bytes
from graphwright.run.free_memory import free_bytes
from graphwright.run.traced_step import Call
from graphwright.source.private_keras import training_in
from graphwright.source.private_tensorflow import call_in
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.step.targets import trace

keras: Any = importlib.import_module("keras")

_ASKED = re.compile(r"OOM when allocating tensor with shape\[([\d,]*)\] and type (\w+) on (\S+) by allocator (\S+)")
_NODE = re.compile(r"\{\{node (\S+?)\}\}")
_ROOM_BYTES = 2**28
"""Memory needed to look at a step; with less, TensorFlow may fail to start a thread, and end the process."""
_DTYPES = {"float": "float32", "double": "float64", "half": "float16"}


class explain_oom(keras.callbacks.Callback):  # noqa: N801 - it is called like a function
    """Explain what a step held, and what would fit, when TensorFlow runs out of memory.

    Around calls of steps, `with explain_oom(): ...`; and for `fit`, `model.fit(..., callbacks=[explain_oom()])`. The step, its shapes and
    its data are those of the failed call.

    Args:
        memory: memory for the step with its variables: bytes, or text such as "8GiB". By default the host memory that this process may
            still take, variables included; for a GPU give its memory.
        advice: whether to look for what would fit, which takes a minute or so.

    Raises:
        OutOfMemoryError: in place of `tf.errors.ResourceExhaustedError`, which is its cause; its `report` is an `OutOfMemory`.

    >>> import tensorflow as tf
    >>> step = tf.function(lambda x: 2 * x)
    >>> with explain_oom():
    ...     float(step(tf.constant(1.0)))
    2.0
    """

    def __init__(self, memory: int | str | None = None, *, advice: bool = True) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - Keras has no types
        self._memory_bytes = None if memory is None else Budget.read(memory, "memory").nbytes
        self._advice = advice

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, import_tensorflow().errors.ResourceExhaustedError):
            around = walk_stack(inspect.currentframe())  # fit may be among these
            report = self._explain(error, [frame for frame, _ in (*walk_tb(trace), *around)])
            fitting = [s.call for s in report.advice.suggestions if s.fits] if report.advice is not None else []
            remedy = fitting[0] if fitting else "a smaller batch; gw.advise(...) says what else can be done"
            raise OutOfMemoryError(str(report), remedy=remedy, report=report) from error

    def on_train_begin(self, _logs: Any = None) -> None:
        """Watch the steps of `fit`."""
        step = self.model.train_function

        def watched(iterator: Any) -> Any:
            try:
                with self:
                    return step(iterator)
            except OutOfMemoryError:
                self.model.train_function = step  # nobody says that training has ended
                raise

        self._step, self.model.train_function = step, watched

    def on_train_end(self, _logs: Any = None) -> None:
        """Restore the model."""
        self.model.train_function = self._step

    def _explain(self, error: Any, calls: Sequence[FrameType]) -> OutOfMemory:
        text = str(error)
        asked, node = _ASKED.search(text), _NODE.findall(text)
        shape, dtype, device, allocator = asked.groups() if asked else ("", "", "", "")
        dtype = _DTYPES.get(dtype, dtype)
        nbytes = byte_count(DTYPES[dtype], tuple(int(d) for d in shape.split(",") if d)) if dtype in DTYPES else None
        report = OutOfMemory(
            op=node[-1] if node else "",
            asked=f"{dtype}[{shape}]" if asked else "",
            asked_bytes=nbytes or 0,
            device=f"{device.rpartition('device:')[2]} by allocator {allocator}" if asked else "",
            memory_bytes=self._memory_bytes,
        )
        free = free_bytes()
        if free is not None and free < _ROOM_BYTES:
            what = f"{format_bytes(free)} are left to this process, because TensorFlow with oneDNN does not return memory"
            return replace(report, left_out=f"{what}; set TF_ENABLE_ONEDNN_OPTS=0, or ask before: gw.advise(step, memory)")
        with shown(title="out of memory"):
            try:
                return self._looked_at(report, calls)
            except GraphwrightError as trouble:
                return replace(report, left_out=first_line(trouble))

    def _looked_at(self, report: OutOfMemory, calls: Sequence[FrameType]) -> OutOfMemory:
        training = training_in(calls)
        call = call_in(calls) if training is None else None
        if training is not None:
            target, inputs = training
        elif call is not None:
            target, inputs = call[0], Call(call[1], call[2]) if call[2] else call[1]
        else:
            return replace(report, left_out="the operation ran outside of any tf.function, so there is no graph to look at")
        traced = trace(target, inputs=inputs)
        before = unplanned(traced)
        peak = before.executor.found
        memory = report.memory_bytes
        if memory is None:
            free = free_bytes()
            memory = None if free is None else free + before.tasks.costs.resident_bytes
        report = replace(report, peak=peak, memory_bytes=memory)
        if not self._advice or memory is None:
            return report
        return replace(report, advice=advise(target, memory, inputs=inputs))
