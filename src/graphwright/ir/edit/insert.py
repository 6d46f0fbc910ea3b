"""Adds nodes, on edges and elsewhere."""

from collections.abc import Mapping, Sequence
from typing import Any

from graphwright.errors import GraphError
from graphwright.ir.attributes import Attribute, ShapeAttribute
from graphwright.ir.dtypes import DType, Shape, as_dtype, as_shape
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.subgraph import graph_of


def insert_before(
    graph: Graph,
    node: Node,
    index: int,
    op_type: str,
    name: str = "",
    *,
    more_inputs: Sequence[Value] = (),
    attrs: Mapping[str, Any] | None = None,
    output_types: Sequence[tuple[Any, Any]] | None = None,
) -> Node:
    """Insert a new node on the edge that ends in `node.inputs[index]`; return it.

    The new node is on the device of `node`. It reads the old input, then `more_inputs`; `node` reads its first output.

    Args:
        name: by default `<node>/<op_type>`; a suffix is added where it is taken.
        attrs, output_types: as for `Graph.add_node`; without a rule for ops, the default is one output like the input.
    """
    graph_of([node, *(v.producer for v in more_inputs)])
    if not 0 <= index < len(node.inputs):
        raise GraphError(f"{node.name!r} has {len(node.inputs)} inputs, got index {index}", where=f"node {node.name!r}")
    inserted = _add_reader(node.inputs[index], node, op_type, name, more_inputs, attrs or {}, output_types)
    graph.replace_input(node, index, inserted.outputs[0])
    graph.refresh_shapes([inserted])
    return inserted


def insert_after(
    value: Value,
    op_type: str,
    name: str = "",
    *,
    more_inputs: Sequence[Value] = (),
    attrs: Mapping[str, Any] | None = None,
    output_types: Sequence[tuple[Any, Any]] | None = None,
) -> Node:
    """Insert a new node between a value and its readers, borders included; return it. The arguments are those of `insert_before`.

    Producers of `more_inputs` still read the value itself.
    """
    others = [v.producer for v in more_inputs]
    graph = graph_of([value.producer, *others])
    inserted = _add_reader(value, value.producer, op_type, name, more_inputs, attrs or {}, output_types)
    graph.replace_uses(value, inserted.outputs[0], keep=(inserted, *others))
    graph.refresh_shapes([inserted])
    return inserted


def add_identity(value: Value, name: str, *, control_inputs: Sequence[Node] = ()) -> Node:
    """Add an Identity of a value, on its device; return it. A suffix is added to its name where it is taken."""
    node = value.producer
    graph = graph_of([node, *control_inputs])
    identity = add_op(
        graph, "Identity", name, [value], value.dtype, value.last_shape, T=value.dtype, control_inputs=control_inputs, device=node.device
    )
    graph.refresh_shapes([identity.producer])
    return identity.producer


def _add_reader(
    value: Value,
    beside: Node,
    op_type: str,
    name: str,
    more_inputs: Sequence[Value],
    attrs: Mapping[str, Any],
    output_types: Sequence[tuple[Any, Any]] | None,
) -> Node:
    graph, inputs = beside.graph, [value, *more_inputs]
    if output_types is None and graph.op_rule is None:
        output_types = [(value.dtype, value.last_shape)]
    name = graph.unique_name(name or f"{beside.name}/{op_type}")
    graph.check_new_name(name)
    attrs, types = graph.completed(op_type, name, inputs, attrs, output_types)
    if not types or types[0][0] != value.dtype:
        raise GraphError(
            f"the first output would be {types[0][0] if types else 'missing'} where {value.name} is {value.dtype}",
            where=f"node {name!r}",
            remedy="insert a Cast too, or reroute by hand",
        )
    return graph.append_node(op_type, name, inputs=inputs, attrs=attrs, output_types=types, device=beside.device)


def add_placeholder(graph: Graph, name: str, dtype: Any, shape: Any) -> Value:
    """Add a placeholder; a suffix is added to its name where it is taken. Dtype and shape in any usual form."""
    return add_op(graph, "Placeholder", name, (), dtype, shape, dtype=as_dtype(dtype), shape=ShapeAttribute(as_shape(shape)))


def add_op(
    graph: Graph,
    op_type: str,
    name: str,
    inputs: Sequence[Value],
    output_dtype: Any,
    output_shape: Any,
    /,
    *,
    control_inputs: Sequence[Node] = (),
    device: str = "",
    **attrs: Any,
) -> Value:
    """Add a node with one output and return the output; a suffix is added to its name where it is taken."""
    types = [(output_dtype, output_shape)]
    name = graph.unique_name(name)
    node = graph.add_node(op_type, name, inputs=inputs, control_inputs=control_inputs, attrs=attrs, output_types=types, device=device)
    return node.outputs[0]


def replace_argument(body: Graph, position: int, dtype: DType, shape: Shape) -> Value:
    """Replace an argument by one of another dtype or shape; the old node stays for its readers, and keeps its name."""
    old = body.inputs[position]
    attrs: dict[str, Attribute] = {**old.producer.attrs, "T": dtype}
    for key in ("_output_shapes", "_handle_dtypes", "_handle_shapes"):
        attrs.pop(key, None)
    name = body.unique_name(f"{old.producer.name}_value")
    new = body.append_node("_Arg", name, attrs=attrs, output_types=[(dtype, shape)]).outputs[0]
    body.inputs = [new if v is old else v for v in body.inputs]
    return new
