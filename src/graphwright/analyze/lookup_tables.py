"""Find lookup tables of a graph, which hold keys and values beside the parameters."""

from dataclasses import dataclass

from graphwright.ir.dtypes import DType
from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph, Node
from graphwright.ops.data import FILLS_TABLE, FILLS_TABLE_FROM_FILE, FINDS_IN_TABLE


@dataclass(frozen=True, slots=True)
class LookupTable:
    """A lookup table.

    Attributes:
        entries: the number of entries, if the graph states it.
    """

    name: str
    op_type: str
    key_dtype: str
    value_dtype: str
    entries: int | None


def find_tables(graph: Graph) -> tuple[LookupTable, ...]:
    """Return the tables that a graph and its functions create or capture."""
    tables: dict[str, LookupTable] = {}
    for body in bodies(graph):
        for node in body.nodes:
            if "HashTable" in node.op_type and "key_dtype" in node.attrs and node.outputs:
                shared = node.attrs.get("shared_name")
                name = shared.decode("utf-8", "replace") if isinstance(shared, bytes) and shared else node.name
                tables.setdefault(name, _table(node, name))
    for value in graph.inputs:
        if value.dtype.name != "resource":
            continue
        lookup = next((c for c in value.consumers if c.op_type in FINDS_IN_TABLE), None)
        if lookup is not None and len(lookup.inputs) > 1 and lookup.outputs:
            keys, values = lookup.inputs[1].dtype.name, lookup.outputs[0].dtype.name
            tables.setdefault(value.producer.name, LookupTable(value.producer.name, "captured table", keys, values, None))
    return tuple(tables.values())


def _table(node: Node, name: str) -> LookupTable:
    kinds = (node.attrs.get("key_dtype"), node.attrs.get("value_dtype"))
    entries: int | None = None
    for consumer in node.outputs[0].consumers:
        shape = consumer.inputs[1].shape if consumer.op_type in FILLS_TABLE and len(consumer.inputs) > 1 else None
        if shape and shape[0] is not None:
            entries = shape[0]
        size = consumer.attrs.get("vocab_size") if consumer.op_type in FILLS_TABLE_FROM_FILE else None
        if isinstance(size, int) and size > 0:
            entries = size
    keys, values = (kind.name if isinstance(kind, DType) else "not known" for kind in kinds)
    return LookupTable(name, node.op_type, keys, values, entries)
