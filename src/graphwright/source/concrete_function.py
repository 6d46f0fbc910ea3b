"""`ConcreteFunction` <-> `ir.Graph`. The `Binding` holds what only TensorFlow can hold: captures and signature."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphwright.errors import UnknownShapeError, UnsupportedError
from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.dtypes import Shape, dtype_from_number, format_shape
from graphwright.ir.graph import Graph, Value, Variable
from graphwright.ir.walk import backward_reachable
from graphwright.source.attributes import shape_from_proto
from graphwright.source.graph_def import from_graph_def, to_graph_def
from graphwright.source.rebuild import is_jit_compiled
from graphwright.source.tensorflow_import import import_tensorflow

_HOST_CALLBACKS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
_LOOPS_OF_TF1 = frozenset({"NextIteration", "RefNextIteration"})


@dataclass(frozen=True, slots=True)
class Binding:
    """What is needed to make a callable of a graph again.

    Attributes:
        captures: external tensors (variable handles, constants), in the order of the graph's last inputs.
        argument_count: the graph's first inputs are arguments.
        structured_input_signature: as `ConcreteFunction.structured_input_signature`.
        structured_outputs: nested structure of the results.
        variables: by position in `captures`, the `tf.Variable` behind it.
        name: of the function.
    """

    captures: tuple[Any, ...]
    argument_count: int
    structured_input_signature: Any
    structured_outputs: Any
    variables: Mapping[int, Any]
    name: str
    function: Any


def from_concrete_function(function: Any) -> tuple[Graph, Binding]:
    """Read a `ConcreteFunction`; the graph's inputs are its arguments, then its captures.

    Raises:
        UnsupportedError: it calls back into Python, or must be compiled by XLA.
    """
    func_graph = function.graph
    name = str(getattr(function, "name", "") or func_graph.name)
    name = name.removeprefix("b'").rstrip("'")
    if is_jit_compiled(function):
        raise _compiled_by_xla("the step", f"step {name!r}")
    graph = from_graph_def(func_graph.as_graph_def(add_shapes=True), name=func_graph.name)
    _drop_shape_attributes(graph)
    graph.inputs = [graph.value(t.name) for t in func_graph.inputs]
    graph.outputs = [graph.value(t.name) for t in func_graph.outputs]
    graph.control_outputs = [graph[op.name] for op in func_graph.control_outputs]
    captures = tuple(function.captured_inputs)
    argument_count = len(graph.inputs) - len(captures)
    by_handle = {_handle_key(v.handle): v for v in func_graph.variables}
    variables: dict[int, Any] = {}
    for k, external in enumerate(captures):
        value = graph.inputs[argument_count + k]
        if value.dtype.name != "resource":
            continue
        variable = by_handle.get(_handle_key(external))
        if variable is not None:
            variables[k] = variable
            graph.variables[value] = Variable(
                str(getattr(variable, "path", None) or variable.name).removesuffix(":0"),
                dtype_from_number(variable.dtype.as_datatype_enum),
                tuple(variable.shape.as_list()) if variable.shape.rank is not None else None,
                bool(variable.trainable),
            )
            continue
        handle_data = getattr(external, "_handle_data", None)
        if handle_data is not None and handle_data.is_set and handle_data.shape_and_type:
            entry = handle_data.shape_and_type[0]
            graph.variables[value] = Variable(f"resource_{k}", dtype_from_number(entry.dtype), shape_from_proto(entry.shape), False)
    _refuse_unsupported(graph)
    return graph, Binding(
        captures, argument_count, function.structured_input_signature, func_graph.structured_outputs, variables, name, function
    )


def _handle_key(handle: Any) -> int:
    return id(handle)


def _drop_shape_attributes(graph: Graph) -> None:
    bodies = [graph, *(f.body for f in graph.functions.values())]
    for body in bodies:
        for node in body.nodes:
            if node.op_type != "_Arg":  # the shapes of arguments are what tracing a call starts from
                node.attrs.pop("_output_shapes", None)


def _refuse_unsupported(graph: Graph) -> None:
    bodies = [graph, *(f.body for f in graph.functions.values())]
    for body in bodies:
        for node in body.nodes:
            if node.op_type in _HOST_CALLBACKS:
                raise UnsupportedError(
                    f"the step calls back into Python ({node.op_type})",
                    where=f"node {node.name!r} of {body.name!r}",
                    cause="tf.py_function or tf.numpy_function is used inside the step; what it does cannot be proved safe to move",
                    remedy="do that work in the input pipeline, or rewrite it with TensorFlow operations",
                )
            if node.op_type in _LOOPS_OF_TF1:
                raise UnsupportedError(
                    f"the TF1 loop around {node.name!r} is not supported",
                    where=f"node {node.name!r} of {body.name!r}",
                    remedy="build the loop with control flow v2 (tf.compat.v1.enable_control_flow_v2)",
                )
            if node.attrs.get("_XlaMustCompile") is True:
                raise _compiled_by_xla("a function inside the step", f"node {node.name!r} of {body.name!r}")


def _compiled_by_xla(what: str, where: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} is compiled by XLA (jit_compile=True)",
        where=where,
        cause="XLA schedules and recomputes by its own rules, and undoes the planned order",
        remedy="use jit_compile=False for this step (for Keras: model.compile(..., jit_compile=False))",
    )


def import_graph(graph: Graph, feeds: Mapping[int, tuple[int | None, ...]] | None = None) -> Any:
    """Import a graph into a new `FuncGraph`, where TensorFlow infers its shapes.

    Args:
        feeds: shapes of inputs by their position; other inputs keep theirs.
    """
    tf = import_tensorflow()
    # Private modules: FuncGraph is the only graph that can become a ConcreteFunction.
    module: Any = importlib.import_module("tensorflow.python.framework.func_graph")
    handles: Any = importlib.import_module("tensorflow.python.ops.handle_data_util")
    func_graph = module.FuncGraph(graph.name or "graph")
    inputs = {value.producer for value in graph.inputs}
    with func_graph.as_default():
        placeholders: list[Any] = []
        input_map: dict[str, Any] = {}
        for k, value in enumerate(graph.inputs):
            shape = (feeds or {}).get(k, value.shape)
            # A name of its own: "a/b/resource" would claim the scope "a/b", and an imported node "a/b" would be renamed.
            tensor = tf.compat.v1.placeholder(tf.as_dtype(value.dtype.number), shape, name=f"graphwright_input_{k}")
            variable = graph.variables.get(value)
            if variable is not None:
                handles.set_handle_data(tensor, _handle_data(variable))
            placeholders.append(tensor)
            input_map[value.name] = tensor
        tf.graph_util.import_graph_def(to_graph_def(graph, keep=lambda node: node not in inputs), input_map=input_map, name="")
    func_graph.inputs = placeholders
    return func_graph


def _handle_data(variable: Variable) -> Any:
    # Private: HandleData has no public name.
    protos: Any = importlib.import_module("tensorflow.core.framework.cpp_shape_inference_pb2")
    data = protos.CppShapeInferenceResult.HandleData(is_set=True)
    entry = data.shape_and_type.add()
    entry.dtype = variable.dtype.number
    if variable.shape is None:
        entry.shape.unknown_rank = True
    else:
        for d in variable.shape:
            entry.shape.dim.add().size = -1 if d is None else d
    return data


def infer_shapes(graph: Graph, feeds: Mapping[int, tuple[int | None, ...]] | None = None) -> None:
    """Set the shape of every value of `graph` from the shapes of its inputs, by TensorFlow's own inference.

    Args:
        feeds: shapes of inputs by their position.

    Raises:
        UnknownShapeError: a feed does not fit the graph.
    """
    try:
        func_graph = import_graph(graph, feeds)
    except ValueError as error:
        shapes = ", ".join(f"{graph.inputs[k].name}={format_shape(s)}" for k, s in (feeds or {}).items())
        raise UnknownShapeError(
            f"the graph cannot take these shapes: {shapes}",
            cause=str(error).splitlines()[0],
            remedy="give the shapes the step is called with",
        ) from error
    for k, value in enumerate(graph.inputs):
        value.shape = (feeds or {}).get(k, value.shape)
        if k in (feeds or {}) and "shape" in value.producer.attrs:
            value.producer.attrs["shape"] = ShapeAttribute(value.shape)
    operations: Any = func_graph.get_operation_by_name
    inputs = {value.producer for value in graph.inputs}
    for node in graph.nodes:
        if node in inputs:
            continue
        tensors = operations(node.name).outputs
        for value, tensor in zip(node.outputs, tensors, strict=True):
            shape = tensor.shape
            value.shape = None if shape.rank is None else tuple(shape.as_list())


def evaluate_constants(graph: Graph) -> Callable[[Sequence[Value]], list[np.ndarray[Any, Any]]]:
    """A function that computes values of `graph` that depend on constants only, with TensorFlow's CPU kernels."""

    def evaluate(values: Sequence[Value]) -> list[np.ndarray[Any, Any]]:
        tf = import_tensorflow()
        needed = backward_reachable(v.producer for v in values)
        graph_def = to_graph_def(graph, keep=lambda node: node in needed, library=False)
        for node_def in graph_def.node:
            node_def.device = ""
        constants: Any = tf.Graph()
        with constants.as_default():
            tf.graph_util.import_graph_def(graph_def, name="")
        config: Any = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        with tf.compat.v1.Session(graph=constants, config=config) as session:
            return list(session.run([v.name for v in values]))

    return evaluate


def to_concrete_function(graph: Graph, binding: Binding, *, name: str = "", noinline: bool = True) -> Any:
    """Make a `ConcreteFunction` of a graph, with the captures and the signature of the binding.

    Args:
        noinline: keep TensorFlow from inlining it into a function that calls it, where the order would be lost.
    """
    from graphwright.source.rebuild import rebuild_concrete_function

    arguments = graph.inputs[: binding.argument_count]
    captured = graph.inputs[binding.argument_count :]
    return rebuild_concrete_function(
        to_graph_def(graph),
        inputs=[v.name for v in arguments],
        captures=[(external, value.name) for external, value in zip(binding.captures, captured, strict=True)],
        outputs=[v.name for v in graph.outputs],
        control_outputs=[n.name for n in graph.control_outputs],
        name=name or binding.name,
        like=binding.function,
        noinline=noinline,
    )


def argument_shapes(function: Any) -> list[Shape]:
    """Shapes of the flat arguments of a `ConcreteFunction`, captures left out."""
    count = len(function.inputs) - len(function.captured_inputs)
    return [None if t.shape.rank is None else tuple(t.shape.as_list()) for t in function.inputs[:count]]
