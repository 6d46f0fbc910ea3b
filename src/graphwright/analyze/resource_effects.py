"""Which variables the functions of a control-flow or call node read and write."""

from __future__ import annotations

from typing import Any

from graphwright.ir.attributes import FunctionReference
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits import ASKS_FOR_SHAPE, BRANCHES, IDENTITIES, READS_OF_VARIABLES, resource_of, written_resources


def resource_effects(node: Node, graph: Graph) -> tuple[frozenset[int], frozenset[int]]:
    """Positions of the inputs of a control-flow or call node whose variables its functions read, and those they write.

    A resource that an op without a rule takes counts as both.
    """
    read: set[int] = set()
    written: set[int] = set()
    offset = 1 if node.op_type in BRANCHES else 0
    references = [a for attribute in node.attrs.values() for a in as_tuple(attribute) if isinstance(a, FunctionReference)]
    for name in dict.fromkeys(r.name for r in references):
        function = graph.functions.get(name)
        if function is None:
            continue
        position = {v: k + offset for k, v in enumerate(function.body.inputs) if v.dtype.name == "resource"}
        for inner in function.body.nodes:
            resources = {k: position[r] for k, v in enumerate(inner.inputs) if (r := _resource(v)) in position}
            if not resources or inner.op_type in IDENTITIES:
                continue
            if any(isinstance(a, FunctionReference) for attribute in inner.attrs.values() for a in as_tuple(attribute)):
                inner_read, inner_written = resource_effects(inner, graph)
                read |= {resources[k] for k in inner_read if k in resources}
                written |= {resources[k] for k in inner_written if k in resources}
                continue
            writes = written_resources(inner)
            if inner.op_type not in ASKS_FOR_SHAPE:
                read |= set(resources.values())
            if writes or not _only_reads(inner):
                written |= set(resources.values())
    return frozenset(read), frozenset(written)


def _only_reads(node: Node) -> bool:
    return node.op_type in READS_OF_VARIABLES


def _resource(value: Value) -> Value:
    return resource_of(value) if value.dtype.name == "resource" else value


def as_tuple(attribute: Any) -> tuple[Any, ...]:
    """An attribute as a tuple: a list as it is, one value alone, nothing as empty."""
    return attribute if isinstance(attribute, tuple) else () if attribute is None else (attribute,)  # pyright: ignore[reportUnknownVariableType]
