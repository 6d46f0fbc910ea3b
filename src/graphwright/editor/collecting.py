"""Collections and signatures of the IR as protobufs."""

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from graphwright.ir.graph import Graph
from graphwright.ir.signature import NamedRefs
from graphwright.source.meta_graph import read_meta_graph, write_meta_graph
from graphwright.source.named_refs import read_refs
from graphwright.source.private_tensorflow import message_class
from graphwright.source.tensorflow_import import import_tensorflow

_OWN = "graphwright:"  # collections in which the loader stores other data of the file


def keys(graph: Graph) -> list[str]:
    """Return the names of the collections."""
    return [name for name in graph.collections if not name.startswith(_OWN)]


def is_variable(item: object) -> bool:
    """Return whether an item of a collection represents a `VariableDef`."""
    return isinstance(item, NamedRefs) and "initializer_name" in item.refs


def variable_item(graph: Graph, variable_def: Any) -> NamedRefs:
    """Return the item for a `VariableDef`, serialized or not."""
    if isinstance(variable_def, bytes):
        variable_def = message_class("framework.variable", "VariableDef").FromString(variable_def)
    return read_refs(graph, variable_def)


def read(graph: Graph, *, collections: Mapping[str, Any] | None = None, signatures: Mapping[str, Any] | None = None) -> None:
    """Add collections (`CollectionDef` by name) and signatures (`SignatureDef` by name) to the graph."""
    meta_graph = import_tensorflow().compat.v1.MetaGraphDef()
    for name, definition in (collections or {}).items():
        meta_graph.collection_def[name].CopyFrom(definition)
    for name, definition in (signatures or {}).items():
        meta_graph.signature_def[name].CopyFrom(definition)
    read_meta_graph(graph, meta_graph)


def written(graph: Graph) -> Any:
    """Return a `MetaGraphDef` with the collections and signatures, without the graph."""
    meta_graph = import_tensorflow().compat.v1.MetaGraphDef()
    write_meta_graph(graph, meta_graph)
    return meta_graph


def load_variables(graph: Graph) -> None:
    """Make `tf.Variable` objects, in the default `tf.Graph`, of the variables of a graph whose nodes it contains."""
    names = [name for name in keys(graph) if any(map(is_variable, graph.collections[name].items))]
    if not names:
        return
    definitions = written(graph).collection_def
    meta_graph = import_tensorflow().compat.v1.MetaGraphDef()
    for name in names:
        meta_graph.collection_def[name].CopyFrom(definitions[name])
    # With a saver given, TensorFlow adds no nodes for one.
    meta_graph.saver_def.filename_tensor_name = "unused"
    meta_graph.saver_def.save_tensor_name = "unused"
    meta_graph.saver_def.restore_op_name = "unused"
    import_tensorflow().compat.v1.train.import_meta_graph(meta_graph)


class Signatures(MutableMapping[str, Any]):
    """The signatures of a graph as `SignatureDef` by name.

    Reading returns a copy with the current names; assign to change a signature. The tensors that it names must exist.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __getitem__(self, name: str) -> Any:
        return self._written()[name]

    def __setitem__(self, name: str, definition: Any) -> None:
        read(self._graph, signatures={name: definition})

    def __delitem__(self, name: str) -> None:
        del self._graph.signatures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._written())

    def __len__(self) -> int:
        return len(self._written())

    def _written(self) -> dict[str, Any]:
        definitions = written(self._graph).signature_def
        return {name: definitions[name] for name in sorted(definitions)}
