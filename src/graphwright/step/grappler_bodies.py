"""Grappler's rewrite of a flat graph with loops and branches, or of a step whose batch was split.

TensorFlow lowers loops and branches to single nodes before Grappler rewrites a step, and a lowered graph cannot be planned. So Grappler
gets the flat graph itself, whose loops and branches are nodes that name functions, and rewrites the graph and each of these functions.
Rewrites that change the memory or the structure that plans rest on are off: no function is inlined, no sum becomes updates of a variable.

Some rewrites need shapes, which Grappler does not take from placeholders and arguments of functions. `EnsureShape` states them, and is
removed from the result.
"""

from collections.abc import Iterable
from typing import Any

from graphwright.errors import UnsupportedError, first_line
from graphwright.ir.attributes import ShapeAttribute
from graphwright.ir.edit.clone import copy_graph
from graphwright.ir.edit.insert import add_identity, insert_after
from graphwright.ir.edit.library import bodies, reached_functions
from graphwright.ir.edit.reroute import reroute_control
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.control_flow import FUNCTION_ATTRIBUTES, called_functions, is_compiled_call
from graphwright.ir.traits.values import INPUTS
from graphwright.ir.traits.variables import reads_resource
from graphwright.run.executed_graph import sort_like
from graphwright.source.concrete_function import drop_shape_attributes
from graphwright.source.graph_def import from_graph_def, nodes_of, to_graph_def
from graphwright.source.private_tensorflow import optimized_by_grappler
from graphwright.source.tensorflow_import import import_tensorflow

_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
_RESULT, _SHAPE = "graphwright_result", "graphwright_shape"


def grappler_graph(graph: Graph, keep: Iterable[Node] = (), *, static: bool = True) -> Graph:
    """Return the graph that Grappler makes of a flat graph for one CPU, with the same inputs, outputs and control outputs.

    Args:
        keep: nodes that stay as they are.
        static: whether the step was traced with the shapes that its inputs have in the graph.

    Raises:
        UnsupportedError: Grappler refuses the graph.
    """
    tf = import_tensorflow()
    graph_def, names = _with_shapes(graph, static)
    names = dict.fromkeys((*names, *(node.name for node in (*(value.producer for value in graph.inputs), *graph.control_outputs, *keep))))
    meta_graph = tf.compat.v1.MetaGraphDef(graph_def=graph_def)
    meta_graph.collection_def["train_op"].node_list.value.extend(names)
    try:
        optimized = optimized_by_grappler(meta_graph, _config())
    except (tf.errors.OpError, ValueError) as error:
        raise UnsupportedError(f"Grappler refuses it: {first_line(error)}", where=f"step {graph.name!r}") from error
    for node in nodes_of(optimized):
        node.device = ""
    _restore_compiled(optimized, graph_def, graph)
    new = from_graph_def(optimized, name=graph.name)
    for body in bodies(new):
        _remove_shapes(body)
    drop_shape_attributes(new)
    new.inputs = [new[value.producer.name].outputs[0] for value in graph.inputs]
    new.outputs = [new[f"{_RESULT}{k}"].inputs[0] for k in range(len(graph.outputs))]
    new.control_outputs = [new[node.name] for node in graph.control_outputs]
    new.variables.update((v, graph.variables[old]) for v, old in zip(new.inputs, graph.inputs, strict=True) if old in graph.variables)
    new.example = dict(graph.example)
    _follow(new, graph)
    return new


def _with_shapes(graph: Graph, static: bool) -> tuple[Any, list[str]]:
    """Return the `GraphDef` for Grappler, with an `EnsureShape` behind arguments and reads of variables; and the names of the results."""
    copy = copy_graph(graph).graph
    for body in bodies(copy):
        for node in body.nodes:
            for value in node.outputs if reads_resource(node) or (static and node.op_type in INPUTS) else ():
                shape, types = value.shape, [(value.dtype, value.shape)]
                if value.dtype.itemsize is not None and shape is not None and value.uses:
                    attrs = {"T": value.dtype, "shape": ShapeAttribute(shape)}
                    insert_after(value, "EnsureShape", f"{node.name}/{_SHAPE}", attrs=attrs, output_types=types)
    results = [add_identity(value, f"{_RESULT}{k}").name for k, value in enumerate(copy.outputs)]
    graph_def = to_graph_def(copy)
    for node in nodes_of(graph_def):
        node.device = _CPU
    return graph_def, results


def _remove_shapes(body: Graph) -> None:
    for node in body.nodes:
        if node.op_type == "EnsureShape" and f"/{_SHAPE}" in node.name:
            source = node.inputs[0].producer
            body.replace_uses(node.outputs[0], node.inputs[0])
            reroute_control(() if source.op_type in INPUTS else source, node)
            body.remove_node(node)


def _restore_compiled(optimized: Any, written: Any, graph: Graph) -> None:
    """Restore functions that XLA compiles: TensorFlow leaves them as they are when it runs the step."""
    compiled = set(reached_functions(graph, (node for body in bodies(graph) for node in body.nodes if is_compiled_call(node))))
    definitions = {function.signature.name: function for function in written.library.function}
    for function in optimized.library.function:
        if function.signature.name in compiled:
            function.CopyFrom(definitions[function.signature.name])


def _follow(new: Graph, old: Graph) -> None:
    """Give the nodes of a rewritten graph, and of the functions that it names, the order and the shapes of nodes of the same names."""
    sort_like(new, old)
    for node in new.nodes:
        if node.name not in old:
            continue
        before = old[node.name]
        for value, shaped in zip(node.outputs, before.outputs, strict=False):
            if value.dtype == shaped.dtype:
                value.shape = shaped.shape
                if shaped in old.at_most:
                    new.at_most[value] = old.at_most[shaped]
        for attribute in FUNCTION_ATTRIBUTES.get(node.op_type, ()):
            for name, known in zip(called_functions(node, attribute), called_functions(before, attribute), strict=False):
                if name in new.functions and known in old.functions:
                    _follow(new.functions[name].body, old.functions[known].body)


def _config() -> Any:
    config: Any = import_tensorflow().compat.v1.ConfigProto()
    rewrites = config.graph_options.rewrite_options
    rewrites.min_graph_nodes = -1
    rewrites.memory_optimization = rewrites.NO_MEM_OPT
    rewrites.disable_tfg_optimizer = True  # it renames functions of branches, and nodes in them
    for name in ("function_optimization", "scoped_allocator_optimization", "implementation_selector", "layout_optimizer"):
        setattr(rewrites, name, rewrites.OFF)
    return config
