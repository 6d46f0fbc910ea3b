"""Collections and signatures of the IR: who is in which, and the protobufs that they are read from and written to."""

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from graphwright.ir.graph import Graph
from graphwright.ir.signature import NamedRefs
from graphwright.source.meta_graph import read_meta_graph, write_meta_graph
from graphwright.source.named_refs import read_refs
from graphwright.source.private_tensorflow import message_class
from graphwright.source.tensorflow_import import import_tensorflow

_OWN = "graphwright:"  # collections under which the loader keeps what is not a collection in the file


def keys(graph: Graph) -> list[str]:
    """The names of the collections."""
    return [name for name in graph.collections if not name.startswith(_OWN)]


def is_variable(item: object) -> bool:
    """Whether an item of a collection stands for a `VariableDef`."""
    return isinstance(item, NamedRefs) and "initializer_name" in item.refs


def variable_item(graph: Graph, variable_def: Any) -> NamedRefs:
    """The item that stands for a `VariableDef`, serialized or not."""
    if isinstance(variable_def, bytes):
        variable_def = message_class("framework.variable", "VariableDef").FromString(variable_def)
    return read_refs(graph, variable_def)


def read(graph: Graph, *, collections: Mapping[str, Any] | None = None, signatures: Mapping[str, Any] | None = None) -> None:
    """Add collections (`CollectionDef` by name) and signatures (`SignatureDef` by name) to the graph.

    Raises:
        FileFormatError: a signature names a tensor that does not exist.
    """
    meta_graph = import_tensorflow().compat.v1.MetaGraphDef()
    for name, definition in (collections or {}).items():
        meta_graph.collection_def[name].CopyFrom(definition)
    for name, definition in (signatures or {}).items():
        meta_graph.signature_def[name].CopyFrom(definition)
    read_meta_graph(graph, meta_graph)


def written(graph: Graph) -> Any:
    """A `MetaGraphDef` with the collections and signatures, and without the graph."""
    meta_graph = import_tensorflow().compat.v1.MetaGraphDef()
    write_meta_graph(graph, meta_graph)
    return meta_graph


class Signatures(MutableMapping[str, Any]):
    """The signatures of a graph as `SignatureDef` by name.

    What is read is a copy with the names of now; to change a signature, assign it.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __getitem__(self, name: str) -> Any:
        """A copy of the signature."""
        return self._written()[name]

    def __setitem__(self, name: str, definition: Any) -> None:
        """Add or replace a signature; the tensors it names must exist."""
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
