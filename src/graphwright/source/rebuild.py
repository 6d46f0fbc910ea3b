"""Makes a `GraphDef` callable again.

TensorFlow has no public way to do so, so this file does what loading a SavedModel does: it imports the nodes into a `FuncGraph`, marks
placeholders as arguments or captures, and registers the result. Functions of the library are registered under fresh names, because
TensorFlow has one global table. Registered custom gradients of nested functions are lost.
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from graphwright.errors import ArgumentError, GraphError
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.names import free_name
from graphwright.ir.traits.values import PLACEHOLDERS
from graphwright.source import private_tensorflow as private
from graphwright.source.graph_def import to_graph_def
from graphwright.source.tensorflow_import import import_tensorflow

tf: Any = import_tensorflow()

_SUFFIX = "__graphwright_"
_serial = itertools.count(1)
# Attributes of functions that name other functions in plain strings; everywhere else the name is a `func` attribute.
_FUNCTION_NAME_ATTRS = ("forward_function_name", "backward_function_name")


def rebuild_concrete_function(
    graph_def: Any,
    *,
    inputs: Sequence[str],
    captures: Sequence[tuple[Any, str]] = (),
    outputs: Sequence[str],
    control_outputs: Sequence[str] = (),
    structured_input_signature: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None,
    structured_outputs: Any = None,
    name: str = "step",
    like: Any = None,
    jit_compile: bool = False,
    noinline: bool = False,
) -> Any:
    """Make a `tf.types.experimental.ConcreteFunction` from the nodes of a `GraphDef`. Like TensorFlow's own, it does not keep variables
    alive.

    Args:
        inputs: names of the placeholder tensors of the arguments (`"x:0"`), flattened.
        captures: pairs of an outer eager tensor (such as `variable.handle`), or a closure of TensorFlow's that returns it at each call, and
            the name of its inner tensor.
        outputs: names of the output tensors, flattened.
        control_outputs: names of nodes that run although no output needs them.
        structured_input_signature: `(args, kwargs)` of `tf.TypeSpec`; by default positional tensors.
        structured_outputs: nested structure of the outputs; by default a tuple.
        like: a `ConcreteFunction` whose signature and output structure are copied.
        noinline: whether the function stays one node when another traced function calls it, so that Grappler does not change it.
    """
    if like is not None:
        structured_input_signature = like.structured_input_signature
        structured_outputs = like.structured_outputs
    _check_names(graph_def, [*inputs, *(inner for _, inner in captures)], [*outputs, *control_outputs])

    # init_scope: a function may be rebuilt while another is traced, and must not become a part of it.
    with tf.init_scope():
        nodes, library = _register_library(graph_def)
        func_graph = private.new_func_graph(_fresh_name(name))
        with func_graph.as_default(), tf.device(None), tf.control_dependencies(None):
            for function in library:
                private.add_function(func_graph, function)
            _state_shapes_of_reads(nodes.node, captures)
            _leave_handles_open(nodes.node)
            try:
                private.import_nodes(nodes)
            except (ValueError, tf.errors.OpError) as error:
                raise GraphError(
                    f"TensorFlow refuses the graph: {error}",
                    where=f"function {name!r}",
                    cause="a node, an attribute or an edge is not valid for TensorFlow " + str(tf.__version__),
                ) from error

        tensor_of = func_graph.get_tensor_by_name
        for operation in func_graph.get_operations():
            if operation.type in PLACEHOLDERS and operation.outputs[0].dtype == tf.resource:
                operation.outputs[0].set_shape([])
        func_graph.inputs = [tensor_of(tensor_name) for tensor_name in inputs]
        for external, tensor_name in captures:
            internal = tensor_of(tensor_name)
            if not callable(external):
                private.copy_handle_data(external, internal)
            private.add_capture(func_graph, external, internal)
        func_graph.outputs = [tensor_of(tensor_name) for tensor_name in outputs]
        func_graph.control_outputs = [func_graph.get_operation_by_name(node_name) for node_name in control_outputs]
        func_graph.structured_input_signature = structured_input_signature
        func_graph.structured_outputs = _pack_outputs(structured_outputs, func_graph.outputs, name)
        if like is not None:
            func_graph.variables = like.graph.variables

        function_type = private.function_type(func_graph, len(inputs), like)
        concrete_function = private.concrete_function_from(func_graph, function_type, jit_compile=jit_compile, noinline=noinline)
        keywords: list[str] = []  # it can be called with flat tensors too, by position and by name, as TensorFlow's own
        for tensor in func_graph.inputs[: len(inputs)]:
            keywords.append(free_name(given_name(tensor.op) or re.sub(r"\W", "_", tensor.op.name), keywords))
        private.set_keywords(concrete_function, keywords)
    return concrete_function


def function_of_values(
    graph: Graph,
    inputs: Iterable[Value],
    outputs: Iterable[Value],
    captures: Iterable[tuple[Any, Value]] = (),
    control_outputs: Iterable[Node] = (),
    keep: Callable[[Node], bool] | None = None,
    **options: Any,
) -> Any:
    return rebuild_concrete_function(
        to_graph_def(graph, keep=keep),
        inputs=[value.name for value in inputs],
        captures=[(external, value.name) for external, value in captures],
        outputs=[value.name for value in outputs],
        control_outputs=[node.name for node in control_outputs],
        **options,
    )


def _check_names(graph_def: Any, arguments: Sequence[str], others: Iterable[str]) -> None:
    known = {node.name for node in graph_def.node}
    missing = next((name for name in (*arguments, *others) if _node_of(name) not in known), None)
    if missing is not None:
        raise GraphError(f"{missing!r} names no node of the graph", cause="the node was removed or renamed")
    for tensor_name, count in Counter(arguments).items():
        if count > 1:
            raise GraphError(f"{tensor_name!r} is used for {count} arguments or captures", remedy="give every argument its own placeholder")


def _state_shapes_of_reads(nodes: Iterable[Any], captures: Sequence[tuple[Any, str]]) -> None:
    """Write on each read of a captured variable its output shape: the handle data of a placeholder can only be set when the node exists,
    and its consumers are inferred in the same import.
    """
    variables = {_node_of(tensor_name): variable_behind(external) for external, tensor_name in captures if not callable(external)}
    for node in nodes:
        if node.op == "ReadVariableOp" and "_output_shapes" not in node.attr:
            variable = variables.get(_node_of(node.input[0]))
            if variable is not None:
                node.attr["_output_shapes"].list.shape.add().CopyFrom(variable[0].as_proto())


def _leave_handles_open(nodes: Iterable[Any]) -> None:
    """Keep inference for `ResourceScatterNdAdd` and similar ops from taking a handle's shape for the variable's."""
    for node in nodes:
        if node.op in PLACEHOLDERS and node.attr["dtype"].type == tf.resource.as_datatype_enum:
            node.attr["shape"].shape.Clear()
            node.attr["shape"].shape.unknown_rank = True


def _node_of(edge: str) -> str:
    return edge.lstrip("^").partition(":")[0]


def _pack_outputs(structure: Any, outputs: Sequence[Any], name: str) -> Any:
    if structure is None:
        return tuple(outputs) if outputs else None
    leaves = tf.nest.flatten(structure, expand_composites=True)
    count = sum(leaf is not None for leaf in leaves)
    if count != len(outputs):
        raise ArgumentError(
            f"the structured outputs hold {count} tensors, but {len(outputs)} outputs were given",
            where=f"function {name!r}, structured_outputs",
        )
    remaining = iter(outputs)
    return tf.nest.pack_sequence_as(structure, [None if leaf is None else next(remaining) for leaf in leaves], expand_composites=True)


def _fresh_name(name: str) -> str:
    """Return a name that no function in this process has, without the suffix of an earlier rebuilding."""
    stem = re.sub(rf"({_SUFFIX}\d+)+$", "", name)
    while True:
        candidate = f"{stem}{_SUFFIX}{next(_serial)}"
        if not private.is_registered(candidate):
            return candidate


def _register_library(graph_def: Any) -> tuple[Any, list[Any]]:
    """Register the library under fresh names; return the nodes, which call those names, and the registered functions."""
    renamed = tf.compat.v1.GraphDef()
    renamed.CopyFrom(graph_def)
    fresh = {function.signature.name: _fresh_name(function.signature.name) for function in renamed.library.function}
    if fresh:
        _rename_calls(renamed.node, fresh)
        for function in renamed.library.function:
            function.signature.name = fresh[function.signature.name]
            _rename_calls(function.node_def, fresh)
            for key in _FUNCTION_NAME_ATTRS:
                if key in function.attr:
                    old = str(function.attr[key].s, "utf-8")
                    function.attr[key].s = bytes(fresh.get(old, old), "utf-8")
    functions = [private.register_function(function) for function in renamed.library.function]
    renamed.ClearField("library")
    return renamed, functions


def _rename_calls(nodes: Iterable[Any], fresh: Mapping[str, str]) -> None:
    for node in nodes:
        if node.op in fresh:  # the old calling convention: the function's name is the op type
            node.op = fresh[node.op]
        for call in _references(node.attr.values()):
            call.name = fresh.get(call.name, call.name)


def _references(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        kind = value.WhichOneof("value")
        references = [value.func] if kind == "func" else list(value.list.func) if kind == "list" else []
        for reference in references:
            yield reference
            yield from _references(reference.attr.values())


def given_name(operation: Any) -> str:
    try:
        return str(operation.get_attr("_user_specified_name").decode())
    except ValueError:
        return ""


def variable_behind(handle: Any) -> tuple[Any, Any] | None:
    """Return shape (`tf.TensorShape`) and dtype of the variable behind a handle; None for other tensors."""
    behind = private.type_behind(handle) if handle.dtype == tf.resource else None
    if behind is None:
        return None
    dtype, shape = behind
    return tf.TensorShape(shape), tf.dtypes.as_dtype(dtype.number)


def read_variable(handle: Any) -> Any:
    """Return the value of the variable behind a handle."""
    behind = variable_behind(handle)
    assert behind is not None
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=behind[1])


def value_of_variable(handle: Any) -> Any:
    """Return the value of a scalar variable whose handle can be read here; None for others."""
    behind = variable_behind(handle) if tf.is_tensor(handle) and not tf.is_symbolic_tensor(handle) else None
    if behind is None or behind[0].rank != 0:
        return None
    with tf.init_scope():
        return read_variable(handle) if tf.raw_ops.VarIsInitializedOp(resource=handle) else None


def is_jit_compiled(concrete_function: Any) -> bool:
    attrs = concrete_function.function_def.attr  # TensorFlow's own: to ask a protobuf's map for a key that is not there adds it
    return "_XlaMustCompile" in attrs and bool(attrs["_XlaMustCompile"].b)
