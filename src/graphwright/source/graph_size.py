"""How large a graph will be when it is written, which must be known before TensorFlow tries."""

from __future__ import annotations

from heapq import nlargest

from graphwright.errors import UnsupportedError
from graphwright.ir.attributes import SerializedAttribute
from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph
from graphwright.source import protobuf_files


def check_size(graph: Graph) -> None:
    """Refuse constants that no protobuf holds, before they are copied into one.

    Raises:
        UnsupportedError: together they are larger; the message names the largest.
    """
    sizes = [
        (sum(len(a.data) for a in node.attrs.values() if isinstance(a, SerializedAttribute)), node.name)
        for body in bodies(graph)
        for node in body
    ]
    total = sum(nbytes for nbytes, _ in sizes)
    if total <= protobuf_files.PROTOBUF_LIMIT_BYTES:
        return
    named = ", ".join(f"{name} ({nbytes:,} bytes)" for nbytes, name in nlargest(3, sizes))
    raise UnsupportedError(
        f"the graph is larger than the {protobuf_files.PROTOBUF_LIMIT_BYTES} bytes that a protobuf can hold: "
        f"its constants have {total:,} bytes, the largest are {named}",
        where=f"graph {graph.name!r}",
        cause="variables were made constants; TensorFlow itself cannot read or write more",
        remedy="leave them variables, which a SavedModel holds outside of the graph; or freeze only some "
        "(freeze_variables with partial=True), or store them in 16 bits (convert_weights)",
    )
