"""Grappler's rewrite of a flat graph with loops and branches, or of a step whose batch was split.

TensorFlow lowers loops and branches to single nodes before Grappler rewrites a step, and a lowered graph cannot be planned. So Grappler
gets the flat graph itself, whose loops and branches are nodes that name functions, and rewrites the graph and each of these functions.
Rewrites that change the memory or the structure that plans rest on are off: no function is inlined, no sum becomes updates of a variable.
"""

from collections.abc import Iterable
from typing import Any

from graphwright.errors import UnsupportedError, first_line
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.control_flow import FUNCTION_ATTRIBUTES, called_functions
from graphwright.run.executed_graph import sort_like
from graphwright.source.concrete_function import drop_shape_attributes
from graphwright.source.graph_def import from_graph_def, nodes_of, to_graph_def
from graphwright.source.private_tensorflow import optimized_by_grappler
from graphwright.source.tensorflow_import import import_tensorflow

_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
_RESULT = "graphwright_result"
_IN_BRANCH = "_tfg_inlined_"  # what Grappler adds to the names of nodes in branches


def grappler_graph(graph: Graph, keep: Iterable[Node] = ()) -> Graph:
    """Return the graph that Grappler makes of a flat graph for one CPU, with the same inputs, outputs and control outputs.

    Args:
        keep: nodes that stay as they are.

    Raises:
        UnsupportedError: Grappler refuses the graph.
    """
    tf = import_tensorflow()
    graph_def = to_graph_def(graph)
    for k, value in enumerate(graph.outputs):
        result = graph_def.node.add(name=f"{_RESULT}{k}", op="Identity", input=[value.name])
        result.attr["T"].type = value.dtype.number
    for node in nodes_of(graph_def):
        node.device = _CPU
    meta_graph = tf.compat.v1.MetaGraphDef(graph_def=graph_def)
    names = dict.fromkeys(node.name for node in (*(value.producer for value in graph.inputs), *graph.control_outputs, *keep))
    meta_graph.collection_def["train_op"].node_list.value.extend([*names, *(f"{_RESULT}{k}" for k in range(len(graph.outputs)))])
    try:
        optimized = optimized_by_grappler(meta_graph, _config())
    except (tf.errors.OpError, ValueError) as error:
        raise UnsupportedError(f"Grappler refuses it: {first_line(error)}", where=f"step {graph.name!r}") from error
    for node in nodes_of(optimized):
        node.device = ""
    new = from_graph_def(optimized, name=graph.name)
    drop_shape_attributes(new)
    new.inputs = [new[value.producer.name].outputs[0] for value in graph.inputs]
    new.outputs = [new[f"{_RESULT}{k}"].inputs[0] for k in range(len(graph.outputs))]
    new.control_outputs = [new[node.name] for node in graph.control_outputs]
    new.variables.update((v, graph.variables[old]) for v, old in zip(new.inputs, graph.inputs, strict=True) if old in graph.variables)
    new.example = dict(graph.example)
    _follow(new, graph)
    return new


def _follow(new: Graph, old: Graph) -> None:
    """Give the nodes of a rewritten graph, and of the functions that it names, the order and the shapes of nodes of the same names."""
    for node in new.nodes:
        name = node.name.partition(_IN_BRANCH)[0]
        if name != node.name and name not in new:
            new.rename(node, name)
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
    for name in ("function_optimization", "scoped_allocator_optimization", "implementation_selector", "layout_optimizer"):
        setattr(rewrites, name, rewrites.OFF)
    return config
