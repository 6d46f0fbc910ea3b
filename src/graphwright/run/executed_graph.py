"""The graph that TensorFlow's executor runs for a step: after inlining, Grappler, placement and oneDNN's rewrites.

TensorFlow makes it at the first call of a function. The call is cancelled before it starts, so nothing runs: no variable changes, and
activations take no memory. The nodes have TensorFlow's numbering, which decides the order of execution (`analyze.executor_order`).
"""

import importlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from graphwright.errors import GraphError, UnsupportedError, first_line
from graphwright.ir.dtypes import Shape
from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.control_flow import (
    ENTERS,
    EXITS,
    FUNCTION_ATTRIBUTES,
    LOOP_CONDITIONS,
    MERGES,
    NEXT_ITERATIONS,
    SWITCHES,
    called_functions,
)
from graphwright.ir.traits.values import ARGUMENTS, RESULTS
from graphwright.ir.walk import consumers_of, order_of
from graphwright.run.call_options import grappler_disabled, optimized_anew
from graphwright.run.traced_step import TracedStep
from graphwright.source.bounded_shapes import import_bounded
from graphwright.source.concrete_function import drop_shape_attributes
from graphwright.source.graph_def import from_graph_def
from graphwright.source.private_tensorflow import call_cancelled, collected_graphs, is_summary_traced, op_definition
from graphwright.source.write_nodes import write_placeholder

tf: Any = importlib.import_module("tensorflow")

_ONEDNN_PREFIXES = ("_MklNative", "_Mkl")
_WITH_BIAS = "WithBias"
_LOWERED = SWITCHES | MERGES | ENTERS | EXITS
_PASSES_ON = ENTERS | MERGES | EXITS | NEXT_ITERATIONS
_NUMBER_OF_CALL = re.compile(r"/_\d+/")
_ATTEMPTS = 8


def executed_graph(step: TracedStep, *, like: Graph, grappler: bool = True, shapes: dict[str, Shape] | None = None) -> Graph:
    """Return the graph that a step executes, its nodes in TensorFlow's own order. The step does not run.

    TensorFlow's passes walk tables of pointers, so the order differs a little between preparations. The inputs are `_Arg` nodes, ops
    renamed by oneDNN's pass have their usual types (`_MklNativeConv2D` is `Conv2D`), and loops and branches have the form of TF1 (`Enter`,
    `Merge`, `Switch`).

    Args:
        step: with arguments of the right shapes; their values do not matter.
        like: the step as read by `graphwright.source`: shapes of the inputs, variables.
        shapes: known shapes by name of value; inferring them takes the most time.

    >>> import tensorflow as tf
    >>> from graphwright.run.traced_step import resolve
    >>> from graphwright.source.concrete_function import from_concrete_function
    >>> step = resolve(tf.function(lambda x, b: tf.nn.relu(tf.nn.bias_add(x @ x, b))), (tf.zeros([4, 4]), tf.zeros([4])))
    >>> graph = executed_graph(step, like=from_concrete_function(step.function)[0])
    >>> [node.op_type for node in graph.nodes if node.op_type.startswith("_Fused")]
    ['_FusedMatMul']
    """
    return read_executed_graph(recorded_graphs(step, like=like, grappler=grappler), like=like, shapes=shapes)


def recorded_graphs(step: TracedStep, *, like: Graph, grappler: bool = True, memory_optimizer: bool = True) -> list[bytes]:
    """Return TensorFlow's record of preparing a step: its graph before and after Grappler, and as executed. The step does not run.

    Args:
        memory_optimizer: whether Grappler's memory optimizer takes part, as it does by default.
    """
    if is_summary_traced():
        raise UnsupportedError(
            "TensorFlow is collecting graphs for your own trace, which would lose them",
            where=f"step {step.name!r}",
            remedy="call tf.summary.trace_export or tf.summary.trace_off first, or use order='traced'",
        )
    graphs: list[bytes] = []
    for _ in range(_ATTEMPTS):  # a function that another thread calls at the same time can take the place of the record
        with collected_graphs() as recorded:
            _prepare(step, grappler=grappler and not step.grappler_disabled, memory_optimizer=memory_optimizer)
        graphs += recorded
        if _records_like(graphs, like):
            break
    return graphs


def refusal(step: TracedStep) -> str:
    """Return the reason why TensorFlow refuses to run a step without Grappler, or "". The step does not run.

    TensorFlow builds all that it runs for the step, and the first call finds it ready.

    >>> import tensorflow as tf
    >>> from graphwright.run.traced_step import resolve
    >>> refusal(resolve(tf.function(lambda x: x + 1), tf.zeros([4])))
    ''
    """
    try:
        with grappler_disabled():
            call_cancelled(step.function, step.arguments)
    except tf.errors.OpError as error:
        return first_line(error)
    return ""


def read_executed_graph(graphs: Sequence[bytes], *, like: Graph, shapes: dict[str, Shape] | None = None) -> Graph:
    """Return the graph in TensorFlow's record of a call, of this process or another one; see `executed_graph`."""
    record = _record_of(graphs, like)
    partitions = [graph_def for graph_def in record.partition_graphs if graph_def.node]
    if len(partitions) != 1:
        raise UnsupportedError(
            f"the step runs as {len(partitions)} graphs", where=f"step {like.name!r}", cause="its operations are placed on several devices"
        )
    graph_def = _numbered_as_constructed(partitions[0])
    position = _positions_of_arguments(record)
    names: dict[int, str] = {position[n.name]: n.name for n in graph_def.node if n.op in ARGUMENTS and n.name in position}
    known: dict[str, Shape] = {name: like.inputs[k].shape for k, name in names.items() if like.inputs[k].dtype.name != "resource"}
    graph = from_graph_def(graph_def, name=like.name, file_order=True)
    inferred = {} if shapes is None else shapes
    for name in names.values():
        inferred.setdefault(f"{name}:0", known.get(name))
    _add_hidden_outputs(graph_def, inferred)
    if any(value.name not in inferred for node in graph.nodes for value in node.outputs):
        inferred.update(_infer(graph_def, known, known_shapes(like)))
    for node in graph.nodes:
        for value in node.outputs:
            value.shape = inferred.get(value.name)
        if node.op_type.startswith(_ONEDNN_PREFIXES):
            graph.set_op_type(node, plain_op_type(node.op_type))
    for k, name in names.items():
        if like.inputs[k] in like.variables:
            graph.variables[graph[name].outputs[0]] = like.variables[like.inputs[k]]
    graph.inputs = [graph[name].outputs[0] for _, name in sorted(names.items())]
    graph.functions.update({name: function for name, function in like.functions.items() if name in graph.functions})  # with shapes
    graph.example = dict(like.example)
    graph.example.update((name, like.example[key]) for k, name in names.items() if (key := like.inputs[k].producer.name) in like.example)
    graph.outputs = [node.inputs[0] for node in graph.nodes if node.op_type in RESULTS]
    return graph


def read_optimized_graph(graphs: Sequence[bytes], *, like: Graph) -> Graph:
    """Return the graph as Grappler leaves it, before oneDNN's rewrites: arguments are placeholders, results are outputs.

    Its nodes have no shapes and no devices, and an order that is the same in each preparation. Several devices, and lowered loops,
    branches or calls, are refused.

    Args:
        graphs: the result of `recorded_graphs`.
        like: the step as read by `graphwright.source`, whose inputs name those of the result.

    >>> import tensorflow as tf
    >>> from graphwright.run.traced_step import resolve
    >>> from graphwright.source.concrete_function import from_concrete_function
    >>> step = resolve(tf.function(lambda x, b: tf.nn.relu(tf.nn.bias_add(x @ x, b))), (tf.zeros([4, 4]), tf.zeros([4])))
    >>> like = from_concrete_function(step.function)[0]
    >>> [node.op_type for node in read_optimized_graph(recorded_graphs(step, like=like), like=like)]
    ['Placeholder', 'Placeholder', '_FusedMatMul']
    """
    record = record_on_one_cpu(graphs, like=like)
    read = record.post_optimization_graph
    if read.library.function or any(node.op in _LOWERED for node in read.node):
        raise UnsupportedError("it has loops, branches or calls", where=f"step {like.name!r}")
    position = _positions_of_arguments(record)
    arguments = {node.name: like.inputs[position[node.name]] for node in read.node if node.op in ARGUMENTS}
    graph_def = tf.compat.v1.GraphDef(versions=read.versions)
    results: dict[int, str] = {}

    def renamed(text: str) -> str:
        name, colon, index = text.partition(":")
        return (arguments[name].producer.name if name in arguments else name) + colon + index

    for node in read.node:
        if node.op in RESULTS:
            results[node.attr["index"].i] = renamed(node.input[0])
            continue
        copy = graph_def.node.add()
        copy.CopyFrom(node)
        copy.device = ""
        copy.input[:] = ["^" + renamed(text[1:]) if text.startswith("^") else renamed(text) for text in node.input]
        if node.op in ARGUMENTS:
            write_placeholder(arguments[node.name], arguments[node.name].producer.name, copy)
    graph = from_graph_def(graph_def, name=like.name)
    drop_shape_attributes(graph)
    graph.inputs = [graph[value.producer.name].outputs[0] for value in like.inputs]
    graph.outputs = [graph.value(text if ":" in text else f"{text}:0") for _, text in sorted(results.items())]
    graph.variables.update({graph.inputs[k]: like.variables[value] for k, value in enumerate(like.inputs) if value in like.variables})
    sort_like(graph, like)
    return graph


def sort_like(graph: Graph, like: Graph) -> None:
    """Sort the nodes as those with the same names in another graph, each after its inputs. New ones, and those that TensorFlow gave other
    readers, such as one of several equal constants, come before their first reader.
    """
    known, place = {node.name: k for k, node in enumerate(like.nodes)}, dict[Node, int]()
    for node in reversed(order_of(graph.nodes)):
        place[node] = min([known.get(node.name, len(known)), *(place[reader] for reader in consumers_of(node))])
    graph.sort_nodes(order_of(sorted(graph.nodes, key=lambda node: (place[node], node.name))))


def record_on_one_cpu(graphs: Sequence[bytes], *, like: Graph) -> Any:
    """Return the record of a step. Raise `UnsupportedError` if TensorFlow's placer gives operations to a device other than one CPU."""
    record = _record_of(graphs, like)
    devices = {node.device for node in record.post_optimization_graph.node if node.device}
    if len(devices) > 1 or not all(device.endswith("/device:CPU:0") for device in devices):
        raise UnsupportedError(f"it runs on {', '.join(sorted(devices))}", where=f"step {like.name!r}")
    return record


def _record_of(graphs: Sequence[bytes], like: Graph) -> Any:
    records = _records_like(graphs, like)
    if not records:
        raise UnsupportedError("TensorFlow returned no graph", where=f"step {like.name!r}", remedy="use order='traced'")
    return max(records, key=lambda r: len(r.pre_optimization_graph.node))


def _positions_of_arguments(record: Any) -> dict[str, int]:
    return {node.name: node.attr["index"].i for node in record.pre_optimization_graph.node if node.op in ARGUMENTS}


def _records_like(graphs: Sequence[bytes], like: Graph) -> list[Any]:
    """Return the records of this step; other threads, such as an input pipeline's, may have called functions meanwhile.

    A record of the step has as many arguments of the same types; unread arguments may be gone at the end. A record with an argument at its
    end that it lacks at its start mixes two functions.
    """
    wanted = [(k, value.dtype.number) for k, value in enumerate(like.inputs)]
    records: list[Any] = []
    for record in map(tf.compat.v1.RunMetadata.FunctionGraphs.FromString, graphs):
        arguments = [(n.attr["index"].i, n.attr["T"].type) for n in record.pre_optimization_graph.node if n.op in ARGUMENTS]
        ends = [node.name for graph_def in record.partition_graphs for node in graph_def.node if node.op in ARGUMENTS]
        if record.partition_graphs and sorted(arguments) == wanted and _positions_of_arguments(record).keys() >= set(ends):
            records.append(record)
    return records


def plain_op_type(op_type: str) -> str:
    """Return the op type without the marks of oneDNN's pass.

    >>> plain_op_type("_MklNativeConv2DBackpropFilterWithBias"), plain_op_type("_MklNativeFusedConv2D"), plain_op_type("Relu")
    ('Conv2DBackpropFilter', '_FusedConv2D', 'Relu')
    """
    for prefix in _ONEDNN_PREFIXES:
        if op_type.startswith(prefix):
            plain = op_type.removeprefix(prefix).removesuffix(_WITH_BIAS)
            return f"_{plain}" if plain.startswith("Fused") and "BatchNorm" not in plain else plain
    return op_type


def _numbered_as_constructed(graph_def: Any) -> Any:
    result = tf.compat.v1.GraphDef()
    result.versions.CopyFrom(graph_def.versions)
    result.library.CopyFrom(graph_def.library)

    def place(node: Any) -> tuple[int, int]:
        rank = 0 if node.op in ARGUMENTS else 2 if node.op in RESULTS else 1
        return rank, node.attr["index"].i if rank != 1 else 0

    result.node.extend(sorted(graph_def.node, key=place))
    return result


# Shapes


def known_shapes(graph: Graph) -> dict[str, list[Shape]]:
    """Return the shapes of outputs by name of the node, where all are known; the largest ones where they depend on data.

    Nodes in loops and branches have the names of the lowered graph without numbers: `while/body/Tanh`. Functions with several call sites
    are left out, since each may have its own shapes.
    """
    sites = Counter(name for body in bodies(graph) for node in body.nodes for name in called_functions(node))
    shapes: dict[str, list[Shape]] = {}

    def add(body: Graph, place: str) -> None:
        for node in body.nodes:
            of_outputs = [value.shape for value in node.outputs]
            if all(shape is not None and None not in shape for shape in of_outputs):
                shapes[place + node.name] = of_outputs
                shapes.setdefault(node.name, of_outputs)  # as the function itself names it
            for attribute in FUNCTION_ATTRIBUTES.get(node.op_type, ()):
                for k, name in enumerate(called_functions(node, attribute)):
                    role = f"branch{k}" if attribute == "branches" else attribute.removesuffix("_branch")
                    if sites[name] == 1 and name in graph.functions:
                        add(graph.functions[name].body, f"{place}{node.name}/{role}/")

    add(graph, "")
    return shapes


def _infer(graph_def: Any, arguments: Mapping[str, Shape], sizes: Mapping[str, Sequence[Shape]]) -> dict[str, Shape]:
    """Infer shapes by name of value. A tensor that goes round a loop keeps the shape with which it enters.

    Args:
        sizes: shapes that depend on data, by name of the node, as they are known before Grappler.
    """
    plain = tf.compat.v1.GraphDef()
    plain.versions.CopyFrom(graph_def.versions)
    plain.library.CopyFrom(graph_def.library)
    biases: list[str] = []
    around = _sides_of_conditionals(graph_def)
    rounds = {node.name for node in graph_def.node if node.op in NEXT_ITERATIONS}
    for node in graph_def.node:
        copy = plain.node.add()
        copy.CopyFrom(node)
        copy.device = ""
        inputs = [text for text in node.input if not text.startswith("^")]
        if node.op in _PASSES_ON and (node.op not in MERGES or inputs[-1] in rounds):
            inputs, dtype = inputs[:1], node.attr["T"].type
            copy.op = "Identity"
            copy.attr.clear()
            copy.attr["T"].type = dtype
        elif node.op.endswith("BackpropFilter" + _WITH_BIAS):
            biases.append(node.name)
        elif node.op in ARGUMENTS and node.name in arguments and arguments[node.name] is not None:
            del copy.attr["_output_shapes"].list.shape[:]
            shape = copy.attr["_output_shapes"].list.shape.add()
            for size in arguments[node.name] or ():
                shape.dim.add().size = -1 if size is None else size
        del copy.input[:]
        copy.input.extend(around.get(text.partition(":")[0], text) for text in inputs)
    _split_bias_gradients(plain, set(biases))
    graph: Any = tf.Graph()
    try:
        with graph.as_default():
            inside = {n.name: sizes[key] for n in plain.node if (key := _NUMBER_OF_CALL.sub("/", n.name)) in sizes}
            imported = import_bounded(plain, {}, sizes=inside).tensors
    except (ValueError, TypeError, tf.errors.OpError) as error:
        raise GraphError(f"TensorFlow refuses its own graph: {first_line(error)}", where="the graph after Grappler and oneDNN") from error
    named = ((f"{name}:{k}", tensor.shape) for name, tensors in imported.items() for k, tensor in enumerate(tensors))
    shapes: dict[str, Shape] = {name: None if shape.rank is None else tuple(shape.as_list()) for name, shape in named}
    shapes.update((f"{node.name}:1", ()) for node in graph_def.node if node.op in MERGES)  # which input came
    _add_hidden_outputs(graph_def, shapes)
    return shapes


def _add_hidden_outputs(graph_def: Any, shapes: dict[str, Shape]) -> None:
    """Add the shapes of outputs that only oneDNN's nodes have."""
    for node in graph_def.node:
        shape = shapes.get(f"{node.name}:0")
        if shape is None or node.op == (plain := plain_op_type(node.op)):
            continue
        if plain in ("MaxPool", "MaxPool3D"):  # where each maximum was, for the gradient
            shapes[f"{node.name}:1"] = shape if node.attr["workspace_enabled"].b else (0,)
        elif node.op.endswith("BackpropFilter" + _WITH_BIAS):  # the gradient of the bias, one for each filter
            shapes[f"{node.name}:1"] = shape[-1:]


def _sides_of_conditionals(graph_def: Any) -> dict[str, str]:
    """Return the input of each `Switch` of a conditional, so that inference sees constants behind it."""
    conditions = {node.name for node in graph_def.node if node.op in LOOP_CONDITIONS}
    switches = {n.name: n.input[0] for n in graph_def.node if n.op in SWITCHES and n.input[1].partition(":")[0] not in conditions}

    def source(text: str) -> str:
        while text.partition(":")[0] in switches:
            text = switches[text.partition(":")[0]]
        return text

    return {name: source(name) for name in switches}


def _split_bias_gradients(graph_def: Any, names: set[str]) -> None:
    """Split the fused gradient of filter and bias in two: TensorFlow's shape rule for its second output is wrong."""
    if not names:
        return
    for node in list(graph_def.node):
        for k, text in enumerate(node.input):
            if text.endswith(":1") and text[:-2] in names:
                node.input[k] = text[:-2] + _WITH_BIAS
        if node.name in names:
            bias = graph_def.node.add(name=node.name + _WITH_BIAS, op="BiasAddGrad", input=[node.input[2]])
            bias.attr["T"].CopyFrom(node.attr["T"])
            if "data_format" in node.attr:
                bias.attr["data_format"].CopyFrom(node.attr["data_format"])
            node.op = plain_op_type(node.op)
            known = {attr.name for attr in op_definition(node.op).attr}
            for key in [key for key in node.attr if key not in known and not key.startswith("_")]:
                del node.attr[key]


def _prepare(step: TracedStep, *, grappler: bool, memory_optimizer: bool) -> None:
    try:
        with optimized_anew(grappler=grappler, memory_optimizer=memory_optimizer):
            call_cancelled(step.function, step.arguments)
    except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError) as error:
        raise UnsupportedError(
            f"TensorFlow cannot prepare the step: {first_line(error)}",
            where=f"step {step.name!r}",
            cause="a kernel is missing on this machine, or the step comes from a file, whose operations may not access anything outside",
            remedy="use order='traced'",
        ) from error
