"""TensorFlow's private machinery, one use per function: the only file that names private modules of TensorFlow.

TensorFlow has no public way to make a `ConcreteFunction` of a `GraphDef`, nor to describe the variable behind a handle.
`tests/source/test_private_tensorflow.py` calls each of these functions, so that changes in TensorFlow are noticed at once.
"""

import importlib
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from types import FrameType
from typing import Any

from graphwright.ir.dtypes import DType, Shape, dtype_from_number
from graphwright.ir.traits.values import MAY_BE_FED
from graphwright.source.attributes import shape_from_proto, shape_to_proto
from graphwright.source.tensorflow_import import import_tensorflow


def _private(module: str) -> Any:
    return importlib.import_module(f"tensorflow.python.{module}")


def message_class(module: str, name: str, *, below: str = "core") -> Any:
    """Return a class of protobuf messages, such as `SaverDef` of `protobuf.saver`, most of which have no public name."""
    return getattr(importlib.import_module(f"tensorflow.{below}.{module}_pb2"), name)


def collection_message(key: str) -> Any:
    """Return the class of the messages in a collection of a graph, or None."""
    return _private("framework.ops").get_collection_proto_type(key)


def read_xspace(data: bytes) -> Any:
    """Parse an `XSpace`, the record of TensorFlow's profiler."""
    return message_class("profiler.protobuf.xplane", "XSpace", below="tsl").FromString(data)


def op_definition(op_type: str) -> Any:
    """Return the `OpDef` of a registered op type, or None; libraries may register more ops later."""
    return _op_registry().get(op_type)


@cache
def _op_registry() -> Any:
    return _private("framework.op_def_registry")


def registered_ops() -> tuple[str, ...]:
    """Return the names of all registered op types."""
    c_api = _private("client.pywrap_tf_session")
    listed = message_class("framework.op_def", "OpList").FromString(c_api.TF_GetBuffer(c_api.TF_GetAllOpList()))
    return tuple(definition.name for definition in listed.op)


def call_options() -> Any:
    """Return the options for functions that this thread calls now."""
    return _private("eager.context").context().function_call_options


def set_call_options(options: Any) -> None:
    """Set the options for functions that this thread calls from now on."""
    _private("eager.context").context().function_call_options = options


def new_call_options(config: Any, executor: str) -> Any:
    """Make options for `set_call_options`; an empty executor name is TensorFlow's default."""
    return _private("eager.context").FunctionCallOptions(executor_type=executor or None, config_proto=config)


_COLLECTION = threading.RLock()


def is_summary_traced() -> bool:
    """Return whether `tf.summary.trace_on` collects the graphs that this process calls."""
    return _private("ops.summary_ops_v2")._current_trace_context is not None


@contextmanager
def collected_graphs() -> Generator[list[bytes]]:
    """Collect TensorFlow's records (`RunMetadata.FunctionGraphs`) of functions that are first called in the block; filled at its end. The
    collection is global: blocks of several threads wait for each other, and a trace by `tf.summary` would lose its graphs.
    """
    context = _private("eager.context")
    graphs: list[bytes] = []
    with _COLLECTION:
        one = import_tensorflow().constant(1)
        _ = one + one  # what it needs is made before the collection starts
        context.enable_graph_collection()
        try:
            _ = one + one
            context.export_run_metadata()  # drops what a block left that raised before its records were fetched
            yield graphs
            _ = one + one  # the record is written when a call succeeds
            graphs += [graph.SerializeToString() for graph in _whole(context.export_run_metadata().function_graphs)]
        finally:
            context.disable_graph_collection()


def _whole(records: Iterable[Any]) -> list[Any]:
    """Merge the parts of records. A call that another thread ends meanwhile cuts a record in two."""
    whole: list[Any] = []
    for record in records:
        if whole and (not whole[-1].partition_graphs or not record.pre_optimization_graph.node):
            whole[-1].MergeFrom(record)
        else:
            whole.append(record)
    return whole


def call_cancelled(function: Any, arguments: Sequence[Any]) -> None:
    """Prepare a call of a `ConcreteFunction` with flat tensors, and cancel it before the first kernel. TensorFlow's own context for
    cancelled calls applies to all threads of the process.
    """
    context, called = _private("eager.context").context(), function._inference_function
    manager = _private("eager.cancellation").CancellationManager()
    manager.start_cancel()
    with suppress(import_tensorflow().errors.CancelledError):
        _private("eager.execute").execute_with_cancellation(
            called.name.decode(),
            num_outputs=len(called.function_type.flat_outputs),
            inputs=[*arguments, *function.captured_inputs],
            attrs=tuple(item for pair in context.function_call_options.as_attrs().items() for item in pair),
            ctx=context,
            cancellation_manager=manager,
        )


def compiled_by_xla(function: Any, specs: list[Any], stage: str = "optimized_hlo_proto_serialized") -> Any:
    """Return XLA's `HloProto` of a `ConcreteFunction` with its buffers, or an earlier stage such as "stablehlo", its input as text."""
    compiler_ir = _private("eager.polymorphic_function.compiler_ir")
    return compiler_ir.from_concrete_function(function, specs)(stage=stage)


def optimized_by_grappler(meta_graph: Any, config: Any) -> Any:
    """Return the `GraphDef` that Grappler makes of a `MetaGraphDef`, whose collection `train_op` names the nodes to keep."""
    return _private("grappler.tf_optimizer").OptimizeGraph(config, meta_graph, verbose=False)


def is_default_strategy(strategy: Any) -> bool:
    """Return whether a `tf.distribute.Strategy` is the default one, outside any scope."""
    return type(strategy).__name__ in ("_DefaultDistributionStrategy", "_DefaultDistributionStrategyV1")


def eager_mode() -> AbstractContextManager[None]:
    """Execute eagerly in this block and thread, also after `tf.compat.v1.disable_eager_execution`."""
    return _private("eager.context").eager_mode()


def call_flat(function: Any, arguments: Sequence[Any], captures: Sequence[Any] | None = None) -> Any:
    """Call a `ConcreteFunction` with flat tensors, by default with its captures; return its structured outputs."""
    return function._call_flat(list(arguments), function.captured_inputs if captures is None else list(captures))


def traces_of(function: Any) -> list[Any]:
    """Return the `ConcreteFunction`s of a `tf.function`, the last of each signature: a first call is traced twice."""
    traces: list[Any] = function._list_all_concrete_functions() if hasattr(function, "_list_all_concrete_functions") else []
    return list({repr(trace.structured_input_signature): trace for trace in traces}.values())


def bind_arguments(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Bind the arguments of a call of a `tf.function` or `ConcreteFunction`, with defaults; raise TypeError or ValueError."""
    kinds = _private("eager.polymorphic_function.function_type_utils")
    return kinds.canonicalize_function_inputs(args, kwargs, function.function_type, getattr(function, "_default_values", None))


def new_func_graph(name: str) -> Any:
    """Make an empty `FuncGraph`: the only graph that can become a `ConcreteFunction`, and that infers shapes behind handles."""
    return _private("framework.func_graph").FuncGraph(name)


def encoded_structure(structure: Any) -> Any:
    """Return the `StructuredValue` of nested tuples, mappings and specs."""
    return _private("saved_model.nested_structure_coder").encode_structure(structure)


def import_nodes(graph_def: Any) -> None:
    """Import into the current graph. Unlike in the public `import_graph_def`, colocation is a hint, as in functions."""
    _private("framework.importer").import_graph_def_for_function(graph_def, name="", propagate_device_spec=True)


def constant_of(tensor: Any) -> Any:
    """Return the array of a tensor that depends only on constants and known shapes, or None."""
    return _private("framework.tensor_util").try_evaluate_constant(tensor)


def handle_data_of(tensor: Any) -> Any:
    """Return the `HandleData` of a tensor, or None: dtypes and shapes behind it."""
    return _private("ops.handle_data_util").get_handle_data(tensor)


def type_behind(tensor: Any) -> tuple[DType, Shape] | None:
    """Return the dtype and shape behind a handle or a list, where TensorFlow knows one."""
    data = handle_data_of(tensor)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    return dtype_from_number(data.shape_and_type[0].dtype), shape_from_proto(data.shape_and_type[0].shape)


def set_handle_data(tensor: Any, dtype: DType, shape: Shape) -> None:
    """Set the dtype and shape behind a placeholder: of a variable's value, or of the elements of a list (a variant)."""
    data = message_class("framework.cpp_shape_inference", "CppShapeInferenceResult").HandleData(is_set=True)
    entry = data.shape_and_type.add()
    entry.dtype = dtype.number
    shape_to_proto(shape, entry.shape)
    if tensor.dtype == import_tensorflow().variant:
        entry.type.type_id = message_class("framework.full_type", "TFT_ARRAY")  # inference takes it for a list by this mark
    _private("ops.handle_data_util").set_handle_data(tensor, data)


def copy_handle_data(source: Any, target: Any) -> None:
    """Copy the dtypes and shapes behind a tensor to another one."""
    _private("ops.handle_data_util").copy_handle_data(source, target)


def captures_of(function: Any) -> list[Any]:
    """Return the captures of a `ConcreteFunction`: tensors, and closures that return one at each call, such as the keys of collectives,
    whose workers count the calls.
    """
    return list(function._captured_inputs)


def add_capture(func_graph: Any, external: Any, internal: Any) -> None:
    """Append an input for an outer tensor or a closure of `captures_of`; closures come last, as in TensorFlow."""
    # Not `FuncGraph.add_capture`: it keys by the identity of the tensor from outside, so a tensor captured by two
    # placeholders would lose one of them.
    captures = func_graph.function_captures
    if callable(external):
        key = ("call time", id(external))
        spec = getattr(external, "output_spec", None)
        captures.add_or_replace(key=key, external=external, internal=internal, tracetype=spec, is_by_ref=True)
        func_graph.inputs.append(internal)
        return
    key = id(external) if id(external) not in captures.by_val_external else (id(external), internal.name)
    captures.add_or_replace(key=key, external=external, internal=internal, is_by_ref=False)
    func_graph.inputs.append(internal)


def variable_without_value(name: str, dtype: DType, shape: Shape, trainable: bool) -> Any:
    """Make a variable that is never initialized and takes no memory. Its `path` is its name, which TensorFlow may not accept."""
    kind = _private("ops.resource_variable_ops").UninitializedVariable
    tf = import_tensorflow()
    variable = kind(trainable=trainable, dtype=tf.as_dtype(dtype.number), shape=tf.TensorShape(shape))
    variable.path = name
    return variable


def own_variable(value: Any) -> Any:
    """Make a variable that no `tf.distribute.Strategy` copies. TensorFlow does not know what is behind its handle, or it would make zeros
    of that dtype in gradients of loops; so it is read and written by raw operations.
    """
    kind = _private("ops.resource_variable_ops").ResourceVariable
    with import_tensorflow().init_scope():
        variable = kind(value, trainable=False)
        variable.handle._handle_data = None
        return variable


def set_input(operation: Any, index: int, tensor: Any) -> None:
    """Replace an input of an operation of a live graph."""
    operation._update_input(index, tensor)


def original_operation(operation: Any) -> Any:
    """Return the operation of a live graph that this one is the gradient of, or None."""
    return operation._original_op


def set_original_operation(operation: Any, original: Any) -> None:
    """Mark an operation of a live graph as the gradient of another one."""
    operation._original_op = original


def add_control_inputs(operation: Any, before: list[Any]) -> None:
    """Add control inputs to an operation of a live graph."""
    operation._add_control_inputs(before)


def remove_control_inputs(operation: Any) -> None:
    """Remove all control inputs of an operation of a live graph."""
    operation._remove_all_control_inputs()


def is_registered(name: str) -> bool:
    """Return whether this process has a function of this name."""
    return bool(_private("eager.context").context().has_function(name))


def register_function(function_def: Any) -> Any:
    """Register a function of the library; it is removed when the last owner of the result is collected."""
    atomic = _private("eager.polymorphic_function.atomic_function")
    function = atomic.from_function_def(function_def, _function_types().FunctionType([]))  # only called by name from nodes
    function.__class__ = _without_graph(atomic.AtomicFunction)
    return function


@cache
def _without_graph(kind: Any) -> Any:
    """Make a class of functions without a Python graph: saving a model asks for one, which TensorFlow would make from the type of the
    function.
    """

    def graph(_: Any) -> Any:
        raise AttributeError("graph")

    return type("RegisteredFunction", (kind,), {"graph": property(graph)})


def add_function(func_graph: Any, function: Any) -> None:
    """Make a graph an owner of a registered function."""
    func_graph._add_function(function)


def _function_types() -> Any:
    return importlib.import_module("tensorflow.core.function.polymorphism.function_type")


def function_type(func_graph: Any, input_count: int, like: Any) -> Any:
    """Return the `FunctionType` of `like` with the captures of the graph, or of the graph's signature, or of its first inputs."""
    kinds = _function_types()
    capture_types = func_graph.function_captures.capture_types
    if like is not None and like.function_type is not None:
        return kinds.FunctionType(like.function_type.parameters.values(), capture_types, return_annotation=like.function_type.output)
    signature = func_graph.structured_input_signature
    if signature is None:
        no_keywords: dict[str, Any] = {}
        signature = (tuple(import_tensorflow().TensorSpec.from_tensor(tensor) for tensor in func_graph.inputs[:input_count]), no_keywords)
    return kinds.from_structured_signature(signature, func_graph.structured_outputs, capture_types)


def concrete_function_from(func_graph: Any, function_type: Any, *, jit_compile: bool, noinline: bool) -> Any:
    """Make a `ConcreteFunction` that owns the graph."""
    kind = _private("eager.polymorphic_function.concrete_function").ConcreteFunction
    attributes = {name: True for name, wanted in (("_XlaMustCompile", jit_compile), ("_noinline", noinline)) if wanted}
    return kind.from_func_graph(func_graph, function_type, attrs=attributes, shared_func_graph=False)


def set_keywords(concrete_function: Any, keywords: list[str]) -> None:
    """Name the flat arguments, all of which may be given by position."""
    concrete_function._arg_keywords = keywords
    concrete_function._num_positional_args = len(keywords)


def not_recorded() -> Any:
    """Suspend all gradient tapes; the public context is a method of a single tape."""
    return _private("eager.record").stop_recording()


def is_recorded() -> bool:
    """Return whether some gradient tape records now."""
    return bool(_private("eager.record").could_possibly_record())


def is_watched(tensors: list[Any]) -> bool:
    """Return whether some gradient tape watches one of the tensors, or the variable behind a handle."""
    return bool(_private("eager.record").should_record_backprop(tensors))


def has_tangents(tensors: list[Any]) -> bool:
    """Return whether some `tf.autodiff.ForwardAccumulator` follows one of the tensors."""
    return any(_private("eager.forwardprop_util").pack_tangents(tensors).indices)


def is_traced_for_xla() -> bool:
    """Return whether the current trace is for XLA (`jit_compile=True`, or a TPU)."""
    if import_tensorflow().executing_eagerly():
        return False
    return bool(_private("ops.control_flow_util").GraphOrParentsInXlaContext(_private("framework.ops").get_default_graph()))


def is_gradient_of_loop() -> bool:
    """Return whether the gradient of a loop is being traced, which can only use variables that the loop has."""
    kind, graph = _private("ops.while_v2")._WhileBodyGradFuncGraph, import_tensorflow().compat.v1.get_default_graph()
    while graph is not None and not isinstance(graph, kind):
        graph = getattr(graph, "outer_graph", None)
    return graph is not None


def is_vectorized() -> bool:
    """Return whether the body of a `tf.vectorized_map` or of a Jacobian by `pfor` is being traced, which cannot write variables."""
    graph = None if import_tensorflow().executing_eagerly() else import_tensorflow().compat.v1.get_default_graph()
    while graph is not None:
        parts = graph.get_name_scope().split("/")
        scopes = ["/".join(parts[: k + 1]) for k, part in enumerate(parts) if part.startswith("loop_body")]
        for name in (f"{scope}/{op_type}" for scope in scopes for op_type in MAY_BE_FED):  # the counter of the loop
            with suppress(KeyError):
                return bool(graph.get_operation_by_name(name))
        graph = getattr(graph, "outer_graph", None)
    return False


def runtime_function(concrete_function: Any) -> Any:
    """Return a function of flat tensors that runs a `ConcreteFunction` eagerly, without gradients; its Python graph, five to ten KiB per
    operation, is freed when the caller drops the `ConcreteFunction`.
    """
    captures = list(concrete_function.captured_inputs)
    functions = [concrete_function._inference_function]
    dismantle = _private("framework.func_graph").dismantle_func_graph
    for function in functions:
        functions += function.children
        graph, function._cached_graph = function._cached_graph, None
        if graph is not None:  # its tensors hold it, so that it would stay until Python looks for reference cycles
            dismantle(graph)
            graph.inputs, graph.outputs, graph.structured_outputs = [], [], None
            list(graph.captures)  # makes it forget the last answer

    def run(tensors: list[Any]) -> list[Any]:
        return functions[0].call_flat(*tensors, *captures)

    return run


def call_in(frames: Iterable[FrameType]) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """Return the first `tf.function` that is called among these frames, with its arguments; None where there is none."""
    for frame in frames:
        held = frame.f_locals
        if frame.f_code.co_name == "error_handler" and getattr(held.get("fn"), "__qualname__", "") == "Function.__call__":
            function, *args = held["args"]
            return function, tuple(args), dict(held["kwargs"])
    return None
