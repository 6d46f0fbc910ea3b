"""Grappler's rewrite of a flat graph with loops and branches, or of a step whose batch was split.

TensorFlow lowers loops and branches to single nodes before Grappler rewrites a step, and a lowered graph cannot be planned. So Grappler
gets the flat graph itself, whose loops and branches are nodes that name functions, and rewrites the graph and each of these functions.
Rewrites that change the memory or the structure that plans rest on are off: no function is inlined, no sum becomes updates of a variable.
"""

from collections.abc import Iterable
from typing import Any

from graphwright.errors import UnsupportedError, first_line
from graphwright.ir.graph import Graph, Node
from graphwright.run.executed_graph import sort_like
from graphwright.source.concrete_function import drop_shape_attributes
from graphwright.source.graph_def import from_graph_def, nodes_of, to_graph_def
from graphwright.source.private_tensorflow import optimized_by_grappler
from graphwright.source.tensorflow_import import import_tensorflow

_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
_RESULT = "graphwright_result"


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
    for value, old in zip(new.inputs, graph.inputs, strict=True):
        value.shape = old.shape
        if old in graph.variables:
            new.variables[value] = graph.variables[old]
    new.example = dict(graph.example)
    sort_like(new, graph)
    for name, function in new.functions.items():
        sort_like(function.body, graph.functions[name].body)
    return new


def _config() -> Any:
    config: Any = import_tensorflow().compat.v1.ConfigProto()
    rewrites = config.graph_options.rewrite_options
    rewrites.min_graph_nodes = -1
    rewrites.memory_optimization = rewrites.NO_MEM_OPT
    for name in ("function_optimization", "scoped_allocator_optimization", "implementation_selector", "layout_optimizer"):
        setattr(rewrites, name, rewrites.OFF)
    return config
