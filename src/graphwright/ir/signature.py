"""What stands around a graph in a SavedModel: signatures and collections.

Both hold values and nodes, never names, so that renames follow by themselves.

>>> from graphwright.ir.graph import DTYPES, Graph
>>> g = Graph()
>>> x = g.add_node("Placeholder", "x", output_types=[(DTYPES["float32"], (2,))])
>>> g.signatures["serve"] = Signature(inputs={"image": x.outputs[0]}, outputs={"same": x.outputs[0]})
>>> g.rename(x, "pixels")
>>> g.signatures["serve"].inputs["image"].name
'pixels:0'
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from graphwright.ir.graph import Node, Value

CollectionKind = Literal["nodes", "bytes", "ints", "floats", "any"]


@dataclass(slots=True, eq=False)
class Signature:
    """A named way to call the graph.

    Args:
        inputs: what is fed, by the name under which callers know it.
        outputs: what is fetched, by name.
        method_name: such as `tensorflow/serving/predict`.
        extra: the serialized fields of the `SignatureDef` that the IR does not model.
    """

    inputs: dict[str, Value]
    outputs: dict[str, Value]
    method_name: str = ""
    extra: bytes = b""


@dataclass(slots=True, eq=False)
class NamedRefs:
    """A serialized message that names nodes (`VariableDef`, `WhileContextDef`, `SaverDef`, ...).

    Args:
        serialized: the message as it was read; the names in it may be out of date.
        refs: field path -> the value or node that stands there now.
    """

    serialized: bytes
    refs: dict[str, Value | Node]


@dataclass(slots=True, eq=False)
class Collection:
    """A list that travels with the graph.

    Args:
        kind: what the items are, as in a `CollectionDef`. "nodes" holds values and nodes; the
            other kinds hold plain items, or `NamedRefs` where a message names nodes.
        items: in order.
    """

    kind: CollectionKind
    items: list[Any] = field(default_factory=list[Any])

    def references(self) -> Iterator[Value | Node]:
        """Every value and node that an item holds."""
        for item in self.items:
            yield from references_of(item)


def references_of(item: object) -> tuple[Value | Node, ...]:
    """The values and nodes that an item of a collection holds."""
    if isinstance(item, Value | Node):
        return (item,)
    return tuple(item.refs.values()) if isinstance(item, NamedRefs) else ()
