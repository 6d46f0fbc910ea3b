"""Replace an op type everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Unpack

from graphwright.errors import ArgumentError
from graphwright.ir.attributes import Attribute
from graphwright.ir.edit.library import bodies
from graphwright.ir.graph import Graph, Node
from graphwright.ir.jobs import Written, edits_in_place


@edits_in_place
def replace_op_type(
    graph: Graph,
    old: str,
    new: str,
    *,
    attrs: Mapping[str, Attribute] | None = None,
    drop_attrs: Iterable[str] = (),
    where: Callable[[Node], bool] | None = None,
    functions: bool = True,
    **written: Unpack[Written],
) -> int:
    """Change the type of all nodes of type `old` to `new`; returns how many nodes.

    Names, inputs and outputs stay, so `new` must have as many inputs and outputs, of the same dtypes. TensorFlow checks this when it loads
    the graph.

    Args:
        attrs: attributes to set.
        drop_attrs: attributes that `new` does not have.
        where: which of the nodes to change.
        functions: whether to change bodies of functions too.

    Raises:
        ArgumentError: a type is empty, or `new` is a function with other arguments or results than a node has.

    >>> from graphwright.ir.graph import DTYPES
    >>> g = Graph()
    >>> x = g.add_node("Placeholder", "x", output_types=[(DTYPES["float32"], (2,))])
    >>> _ = g.add_node("Relu", "y", inputs=x.outputs, output_types=[(DTYPES["float32"], (2,))])
    >>> replace_op_type(g, "Relu", "Relu6"), g["y"]
    (1, <Node y = Relu6(x:0)>)
    """
    if not old or not new:
        raise ArgumentError("an op type cannot be empty", where="arguments 'old' and 'new'")
    places = bodies(graph) if functions else (graph,)
    matches = [(body, node) for body in places for node in body.nodes if node.op_type == old and (where is None or where(node))]
    function = graph.functions.get(new)
    if function is not None:
        wanted = [v.dtype for v in function.body.inputs], [v.dtype for v in function.body.outputs]
        for _, node in matches:
            if ([v.dtype for v in node.inputs], [v.dtype for v in node.outputs]) != wanted:
                raise ArgumentError(f"function {new!r} takes or gives other tensors than {node.name!r}", where=f"node {node.name!r}")
    dropped = tuple(drop_attrs)
    for body, node in matches:
        body.set_op_type(node, new)
        for key in dropped:
            body.set_attr(node, key, None)
        for key, attribute in (attrs or {}).items():
            body.set_attr(node, key, attribute)
    return len(matches)
