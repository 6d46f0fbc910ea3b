"""A step in a TF1 session: the same graph, Grappler and executor as in a call, and access to TensorFlow's `StepStats`.

As of TensorFlow 2.21 only `tf.compat.v1.Session` collects `StepStats`. So the step's graph is copied, its captures become variables and
feeds of a session, and the session's runs are recorded. The caller's variables are read once and never written.
"""

import importlib
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from graphwright.errors import UnsupportedError
from graphwright.run.traced_step import TracedStep
from graphwright.source.rebuild import is_jit_compiled, variable_behind
from graphwright.source.step_file import check_needs_nothing

tf: Any = importlib.import_module("tensorflow")

_COPIED = frozenset({tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.bool})


class StepSession:
    """Run a step in its own session, with copies of its variables. A context manager."""

    def __init__(self, step: TracedStep, *, grappler: bool = True, inter_op_threads: int = 0, intra_op_threads: int = 0) -> None:
        check_recordable(step)
        graph_def = step.function.graph.as_graph_def()
        variables: dict[str, Any] = {}
        self._feeds: dict[str, Any] = {}
        for outer, inner in step.given:
            if variable_behind(outer) is not None:
                variables[inner.op.name] = outer
            else:
                self._feeds[inner.name] = outer.numpy()
        self._feeds |= {inner.name: closure()[0].numpy() for closure, inner in step.call_time_captures}
        values = _become_variables(graph_def, variables)
        self.graph: Any = tf.Graph()
        with self.graph.as_default():
            tf.graph_util.import_graph_def(graph_def, name="")
            assignments = [_assignment(self.graph, name, value) for name, value in values.items()]
        self._outputs = [tensor.name for tensor in step.function.outputs]
        self._effects = [self.graph.get_operation_by_name(operation.name) for operation in step.function.graph.control_outputs]
        config = tf.compat.v1.ConfigProto(
            allow_soft_placement=True,
            inter_op_parallelism_threads=inter_op_threads,
            intra_op_parallelism_threads=intra_op_threads,
            use_per_session_threads=True,
            device_count={"CPU": len(tf.config.list_logical_devices("CPU"))},
        )
        config.gpu_options.allow_growth = True
        config.graph_options.optimizer_options.do_function_inlining = True  # as in a call from eager code
        config.graph_options.rewrite_options.disable_meta_optimizer = not grappler
        self._session: Any = tf.compat.v1.Session(graph=self.graph, config=config)
        assigns, placeholders, arrays = zip(*assignments, strict=True) if assignments else ((), (), ())
        self._session.run(assigns, dict(zip(placeholders, arrays, strict=True)))  # at once: TensorFlow prunes the whole graph for each run

    def run(self, *, options: Any = None, metadata: Any = None) -> Any:
        return self._session.run([self._outputs, self._effects], self._feeds, options=options, run_metadata=metadata)[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._session.close()


def check_recordable(step: TracedStep) -> None:
    """Raise if a session cannot run the step, or records no single operations."""
    if is_jit_compiled(step.function):
        raise UnsupportedError(
            "the step is compiled by XLA, which runs it as one kernel: its operations have no separate times",
            where=f"step {step.name!r}",
            remedy="profile it without jit_compile",
        )
    check_needs_nothing(step.name, step.function.graph.as_graph_def(), step.given, "session")


def _become_variables(graph_def: Any, handles: Mapping[str, Any]) -> dict[str, Any]:
    owner: dict[int, str] = {}
    values: dict[str, Any] = {}
    for node in graph_def.node:
        handle = handles.get(node.name)
        if handle is None:
            continue
        known = variable_behind(handle)
        assert known is not None
        shape, dtype = known
        shared = owner.setdefault(id(handle), node.name)
        if shared == node.name:
            values[node.name] = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype).numpy()
        node.op = "VarHandleOp"
        place = tf.DeviceSpec.from_string(handle.device)
        node.device = f"/device:{place.device_type}:{place.device_index}"
        node.attr.clear()
        node.attr["dtype"].type = dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(shape.as_proto())
        node.attr["shared_name"].s = f"graphwright/{shared}".encode()
    return values


def _assignment(graph: Any, name: str, value: Any) -> tuple[Any, Any, Any]:
    handle = graph.get_tensor_by_name(f"{name}:0")
    with tf.device("/CPU:0"):
        placeholder = tf.compat.v1.placeholder(tf.as_dtype(value.dtype), value.shape)
        # A copy, or the variable would live in the memory of the feed, which no allocator knows of.
        copied = tf.raw_ops.DeepCopy(x=placeholder) if placeholder.dtype in _COPIED else placeholder
    return tf.raw_ops.AssignVariableOp(resource=handle, value=copied), placeholder, value


def trace_options(*, devices: bool) -> Any:
    """Return options of a run that records every operation, kernels of accelerators too if `devices`, with the graphs that ran."""
    options = tf.compat.v1.RunOptions
    return options(trace_level=options.FULL_TRACE if devices else options.SOFTWARE_TRACE, output_partition_graphs=True)


def executed_graph_def(partitions: Iterable[Any]) -> Any:
    """Join the graphs of all devices, which are connected by `_Send` and `_Recv`."""
    joined = tf.compat.v1.GraphDef()
    for partition in partitions:
        joined.versions.CopyFrom(partition.versions)
        joined.node.extend(partition.node)
        known = {function.signature.name for function in joined.library.function}
        joined.library.function.extend(f for f in partition.library.function if f.signature.name not in known)
    return joined
