"""`ConcreteFunction` <-> `ir.Graph`. The `Binding` holds captures and signature, which only TensorFlow can hold."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphwright.errors import UnsupportedError
from graphwright.ir.dtypes import DType, Shape, dtype_from_number
from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph, Node, Value, Variable
from graphwright.ir.traits.arithmetic import ASKS_FOR_SHAPE, CONVOLUTIONS
from graphwright.ir.traits.control_flow import NEXT_ITERATIONS, callee, is_compiled_call
from graphwright.ir.traits.effects import CALLS_PYTHON
from graphwright.ir.traits.values import ARGUMENTS, IDENTITIES, is_constant, only_orders
from graphwright.ir.traits.variables import reads_resource
from graphwright.ir.walk import backward_reachable
from graphwright.source.attributes import shape_of
from graphwright.source.graph_def import from_graph_def, run_graph_def, to_graph_def
from graphwright.source.private_tensorflow import captures_of
from graphwright.source.rebuild import function_of_values, given_name, is_jit_compiled, variable_behind
from graphwright.source.tensorflow_import import import_tensorflow


@dataclass(frozen=True, slots=True)
class Binding:
    """The parts of a callable that its graph does not hold.

    Attributes:
        captures: tensors, and closures that return one at each call, in the order of the graph's last inputs; its first
            `argument_count` inputs are arguments.
        function: the `ConcreteFunction`, with its signature and variables.
    """

    captures: tuple[Any, ...]
    argument_count: int
    name: str
    function: Any


def from_concrete_function(function: Any, *, planned: bool = True, compiled: bool = False) -> tuple[Graph, Binding]:
    """Read a `ConcreteFunction`; the graph's inputs are its arguments, then its captures. With `planned`, raise `UnsupportedError` for
    what cannot be planned: calls into Python, and compilation as a whole unless the plan is for XLA (`compiled`).
    """
    func_graph = function.graph
    name = plain_name(str(getattr(function, "name", "") or func_graph.name))
    if planned and not compiled and is_jit_compiled(function):
        raise UnsupportedError(
            "the step is compiled by XLA (jit_compile=True)",
            where=f"step {name!r}",
            cause="XLA schedules and recomputes by its own rules, and undoes the planned order",
            remedy="use jit_compile=False for this step (for Keras: model.compile(..., jit_compile=False)); "
            "optimize_memory and predict_peak take both",
        )
    graph = from_graph_def(func_graph.as_graph_def(add_shapes=True), name=plain_name(str(func_graph.name)))
    drop_shape_attributes(graph)
    set_ends(graph, func_graph)
    captures = tuple(captures_of(function))
    argument_count = len(graph.inputs) - len(captures)
    set_variables(graph, func_graph, captures)
    if planned:
        _refuse_unsupported(graph)
    return graph, Binding(captures, argument_count, name, function)


def plain_name(name: str) -> str:
    """Return the name of a function without the parts that TensorFlow and this package add to make it unique.

    >>> plain_name("b'__inference_train_step_1883'"), plain_name("model__graphwright_2"), plain_name("step_1")
    ('train_step', 'model', 'step_1')
    """
    name = re.sub(r"__graphwright_\d+", "", re.sub(r"^b'(.*)'$", r"\1", name))
    return re.sub(r"^__(?:inference|forward|backward)_(.+?)_\d+$", r"\1", name)


def set_ends(graph: Graph, func_graph: Any) -> None:
    graph.inputs = [graph.value(t.name) for t in func_graph.inputs]
    graph.outputs = [graph.value(t.name) for t in func_graph.outputs]
    graph.control_outputs = [graph[op.name] for op in func_graph.control_outputs]


def set_variables(graph: Graph, func_graph: Any, captures: Sequence[Any]) -> None:
    by_handle = {id(v.handle): v for v in func_graph.variables}
    for k, (value, external) in enumerate(zip(graph.inputs[len(graph.inputs) - len(captures) :], captures, strict=True)):
        if value.dtype.name != "resource":
            continue
        variable = by_handle.get(id(external))
        behind = variable_behind(external)
        if variable is not None:
            graph.variables[value] = variable_of(variable)
        elif behind is not None:
            graph.variables[value] = Variable(f"resource_{k}", *types_of(*behind), False)


def variable_of(variable: Any) -> Variable:
    name = str(getattr(variable, "path", None) or variable.name).removesuffix(":0")
    return Variable(name, *types_of(variable.shape, variable.dtype), bool(variable.trainable))


def types_of(shape: Any, dtype: Any) -> tuple[DType, Shape]:
    return dtype_from_number(dtype.as_datatype_enum), tuple(shape.as_list()) if shape.rank is not None else None


def drop_shape_attributes(graph: Graph) -> None:
    """Drop the shapes that TensorFlow wrote as attributes, so that other shapes can be inferred."""
    for body in bodies(graph):
        for node in body.nodes:
            if node.op_type not in ARGUMENTS:  # the shapes of arguments are what tracing a call starts from
                body.set_attr(node, "_output_shapes", None)


def compiled_calls(graph: Graph) -> list[Node]:
    return [node for body in bodies(graph) for node in body.nodes if is_compiled_call(node)]


def convolution_calls(graph: Graph) -> list[Node]:
    """Return the compiled calls that compute only float32 convolutions of images without dilation, or their gradients. Keras has XLA
    compile grouped convolutions, which TensorFlow's CPU kernels could not compute. oneDNN's can.
    """
    return [call for call in compiled_calls(graph) if _only_convolves(call, graph)]


def _only_convolves(call: Node, graph: Graph) -> bool:
    function = graph.functions.get(callee(call))
    for node in function.body.nodes if function is not None else (call,):
        if node.op_type.startswith(tuple(CONVOLUTIONS)):  # or a gradient of one
            how = node.attrs.get("data_format", b"NHWC"), node.attrs.get("dilations", (1, 1, 1, 1)), node.outputs[0].dtype.name
            if how != (b"NHWC", (1, 1, 1, 1), "float32"):
                return False
        elif node.op_type not in IDENTITIES | ASKS_FOR_SHAPE | ARGUMENTS and not (
            is_constant(node) or only_orders(node) or reads_resource(node)
        ):
            return False
    return True


def _refuse_unsupported(graph: Graph) -> None:
    for body in bodies(graph):
        for node in body.nodes:
            if node.op_type in CALLS_PYTHON:
                raise UnsupportedError(
                    f"the step calls back into Python ({node.op_type})",
                    where=f"node {node.name!r} of {body.name!r}",
                    cause="tf.py_function or tf.numpy_function is used inside the step; what it does cannot be proved safe to move",
                    remedy="do that work in the input pipeline, or rewrite it with TensorFlow operations",
                )
            if node.op_type in NEXT_ITERATIONS:
                raise UnsupportedError(
                    f"the TF1 loop around {node.name!r} is not supported",
                    where=f"node {node.name!r} of {body.name!r}",
                    remedy="build the loop with control flow v2 (tf.compat.v1.enable_control_flow_v2); of a SavedModel freeze it with "
                    "`graphwright edit MODEL OUT freeze`, or with lower_control_flow=False",
                )


def evaluate_constants(graph: Graph) -> Callable[[Sequence[Value]], list[np.ndarray[Any, Any]]]:

    def evaluate(values: Sequence[Value]) -> list[np.ndarray[Any, Any]]:
        needed = backward_reachable(v.producer for v in values)
        graph_def = to_graph_def(graph, keep=lambda node: node in needed, library=False)
        return run_graph_def(graph_def, [v.name for v in values])

    return evaluate


def to_concrete_function(graph: Graph, binding: Binding, *, jit_compile: bool = False) -> Any:
    """Make a `ConcreteFunction` of a graph, with the captures and signature of the binding; TensorFlow does not inline it."""
    arguments = graph.inputs[: binding.argument_count]
    captured = graph.inputs[binding.argument_count :]
    captures = zip(binding.captures, captured, strict=True)
    own, name = binding.function, binding.name
    return function_of_values(
        graph, arguments, graph.outputs, captures, graph.control_outputs, name=name, like=own, jit_compile=jit_compile, noinline=True
    )


def meets_other_processes(function: Any) -> bool:
    return bool(process_among_others(function))


def process_among_others(function: Any) -> str:
    """Return the process that a `ConcreteFunction` was traced for, such as "worker 1"; "" where there is only one."""
    for op in function.graph.get_operations():
        if op.type.startswith("Collective"):
            place = re.search(r"/job:(\w+)/.*task:(\d+)", op.device)
            if place is not None and place[1] != "localhost":
                return f"{place[1]} {place[2]}"
    return ""


def traced_arguments(function: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and named arguments of the trace: specs of tensors, and other values."""
    if function.structured_input_signature is None:  # of a graph that was wrapped, which takes its inputs one by one
        tf = import_tensorflow()
        return tuple(tf.TensorSpec(t.shape, t.dtype) for t in arguments_of(function)), {}
    args, kwargs = function.structured_input_signature
    return tuple(args), dict(sorted(kwargs.items()))


def flat_arguments(function: Any) -> list[tuple[str, Any, int]]:
    """Return for each flat argument its name, the spec of its tensor, and its index among the tensor's parts."""
    tf = import_tensorflow()
    args, by_name = traced_arguments(function)
    named = [*zip(function.function_type.parameters, args, strict=False), *by_name.items()]
    leaves = [(name, leaf) for name, structure in named for leaf in tf.nest.flatten(structure) if isinstance(leaf, tf.TypeSpec)]
    return [(name, leaf, k) for name, leaf in leaves for k in range(len(tf.nest.flatten(leaf, expand_composites=True)))]


def sparse_sizes(function: Any) -> tuple[dict[int, tuple[int, ...]], dict[int, list[int]]]:
    """Return by position the largest shapes of indices and values of sparse arguments with a known dense shape, and the dense shapes."""
    kind = import_tensorflow().SparseTensorSpec
    sparse = [(k, s.shape, p) for k, (_, s, p) in enumerate(flat_arguments(function)) if isinstance(s, kind) and s.shape.is_fully_defined()]
    shapes = {k: (shape.num_elements(), *([shape.rank] if not part else [])) for k, shape, part in sparse if part < 2}  # indices, values
    return shapes, {k: shape.as_list() for k, shape, part in sparse if part == 2}


def argument_shapes(function: Any) -> list[Shape]:
    shapes = [shape_of(t) for t in arguments_of(function)]
    if None not in shapes:
        return shapes
    _, by_name = traced_arguments(function)  # TensorFlow forgets the shapes of a signature that it loads, and keeps their specs
    specs = [getattr(by_name.get(name), "shape", None) for name in argument_names(function)]
    return [
        types_of(spec, t.dtype)[1] if shape is None and spec is not None else shape
        for shape, spec, t in zip(shapes, specs, arguments_of(function), strict=True)
    ]


def argument_names(function: Any) -> tuple[str, ...]:
    tensors = arguments_of(function)
    names = [given_name(t.op) or t.name.split(":")[0] for t in tensors]
    return tuple(name if names.count(name) == 1 else t.name.split(":")[0] for name, t in zip(names, tensors, strict=True))


def arguments_of(function: Any) -> list[Any]:
    return function.inputs[: len(function.inputs) - len(captures_of(function))]
