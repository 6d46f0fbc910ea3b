"""`GraphDef` <-> `ir.Graph`, with its library of functions. Parts that the IR does not model (debug info of nodes, signature and
attributes of functions) are kept serialized, so that an unedited graph is written as it was read.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from graphwright.ir.edit.library import reached_functions
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.ir.graph import Graph, Node
from graphwright.ir.nesting import check_nesting
from graphwright.source.function_def import read_function, write_function
from graphwright.source.op_types import OpTypes, damaged
from graphwright.source.read_nodes import NodeReader
from graphwright.source.tensorflow_import import import_tensorflow
from graphwright.source.write_nodes import write_node


def from_graph_def(graph_def: Any, *, name: str = "", file_order: bool = False) -> Graph:
    """Read a `GraphDef`. The caller sets the inputs and outputs of the graph. Without `file_order`, each node comes after its inputs."""
    with garbage_collection_paused():
        definitions: dict[str, Any] = {}
        for definition in graph_def.library.function:
            if definition.signature.name in definitions:
                raise damaged(f"two functions are named {definition.signature.name!r}", "the library")
            definitions[definition.signature.name] = definition
        types = OpTypes({key: definition.signature for key, definition in definitions.items()})
        functions = {key: read_function(definition, types, file_order=file_order) for key, definition in definitions.items()}
        graph = Graph(name=name, functions=functions, versions=(graph_def.versions.producer, graph_def.versions.min_consumer))
        NodeReader(graph, types, {}, in_function=False).read(graph_def.node, file_order=file_order)
        for function in functions.values():
            function.body.functions = graph.functions
        check_nesting(graph)
    return graph


def nodes_of(graph_def: Any) -> Iterator[Any]:
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def to_graph_def(
    graph: Graph, *, keep: Callable[[Node], bool] | None = None, library: bool = True, every_function: bool = False, into: Any = None
) -> Any:
    """Write a `GraphDef`, with the functions that its nodes reach.

    Args:
        keep: selects the nodes to write; by default all. Their inputs may name others.
        into: a `GraphDef` to fill, which may hold what the IR does not model; a new one by default.
    """
    tf = import_tensorflow()
    graph_def: Any = tf.compat.v1.GraphDef() if into is None else into
    producer, min_consumer = graph.versions or (tf.version.GRAPH_DEF_VERSION, 0)
    if producer or min_consumer:  # a file as old as the first TensorFlow has no versions
        graph_def.versions.producer, graph_def.versions.min_consumer = producer, min_consumer
    with garbage_collection_paused():
        for node in graph.nodes:
            if keep is None or keep(node):
                write_node(node, graph_def.node.add())
        if library:
            for name in graph.functions if every_function else reached_functions(graph, graph.nodes):
                write_function(graph.functions[name], graph_def.library.function.add())
    return graph_def


def run_graph_def(graph_def: Any, fetches: Sequence[str], feeds: Mapping[str, Any] = MappingProxyType({})) -> list[Any]:
    """Run nodes on the CPU without Grappler, whose recursion overflows the stack on long chains; return the arrays."""
    tf = import_tensorflow()
    for node in graph_def.node:
        node.device = ""
        node.attr.pop("_class", None)  # it may name a node that is not in the message
    imported: Any = tf.Graph()
    with imported.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    config: Any = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    with tf.compat.v1.Session(graph=imported, config=config) as session:
        return list(session.run(list(fetches), feeds))
