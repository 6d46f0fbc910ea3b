"""Map operations on each example of an unstacked batch over the batch, by one function."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphwright.ir.attributes import FunctionReference, ShapeAttribute
from graphwright.ir.call_types import types_attribute
from graphwright.ir.constants import add_constant
from graphwright.ir.dtypes import DTYPES, Shape
from graphwright.ir.edit.clone import clone
from graphwright.ir.edit.insert import add_op
from graphwright.ir.edit.library import unique_function_name
from graphwright.ir.edit.prune import remove_unread
from graphwright.ir.graph import Function, Graph, Node, Value
from graphwright.ir.subgraph import boundary
from graphwright.ir.traits.control_flow import is_control_flow_of_tf1
from graphwright.ir.traits.effects import has_known_effects
from graphwright.ir.traits.values import is_constant
from graphwright.ir.walk import backward_reachable, forward_reachable, order_of
from graphwright.transform.constant_values import Constants


def map_rows(graph: Graph, rows: Mapping[Value, tuple[Value, int]], count: int, shapes: Mapping[Value, Shape]) -> list[tuple[Node, int]]:
    """Replace equal operations on all examples, whose results are joined in order, by a function mapped over the batch.

    `rows` maps each example to its batch and its number in it. Return the nodes that map functions, each with the number of batches that it
    reads.
    """
    constants, sources = Constants(), {value.producer for value in rows}
    of = {value: frozenset([k]) for value, (_, k) in rows.items()}
    joins: list[Node] = []
    for node in order_of(forward_reachable([n for value in rows for n in value.consumers], control=False) - sources):
        numbers = [of.get(value, frozenset[int]()) for value in node.inputs]
        if numbers[:count] == [frozenset([k]) for k in range(count)] and not any(numbers[count:]):
            joins.append(node)
        else:
            of.update(dict.fromkeys(node.outputs, frozenset[int]().union(*numbers)))

    def meaning(value: Value) -> object:
        node = value.producer
        if value in rows:
            return rows[value][0]
        if not of.get(value):
            array = constants(value)
            return value if array is None else (value.dtype, array.shape, array.tobytes())
        attrs = sorted((name, repr(attribute)) for name, attribute in node.attrs.items() if name[0] != "_")
        return node.op_type, value.index, tuple(attrs), tuple(map(meaning, node.inputs))

    def is_same(join: Node) -> bool:
        axis = join.attrs.get("axis", 0) if join.op_type == "Pack" else constants(join.inputs[-1])
        return join.op_type in ("Pack", "ConcatV2") and axis == 0 and len(set(map(meaning, join.inputs[:count]))) == 1

    joins = [join for join in joins if join.inputs[0] not in rows and is_same(join)]
    if not joins or any(is_control_flow_of_tf1(value.producer) for value in of):  # frames do not fit into a function
        return []
    return [_mapped(graph, joins, rows, count, shapes)]


def _mapped(
    graph: Graph, joins: list[Node], rows: Mapping[Value, tuple[Value, int]], count: int, shapes: Mapping[Value, Shape]
) -> tuple[Node, int]:
    int32, name = DTYPES["int32"], joins[0].name
    types = [(join.outputs[0].dtype, (count, *(shapes[join.inputs[0]] or ()))) for join in joins]
    needed = backward_reachable(join.inputs[0].producer for join in joins)
    inside = needed & forward_reachable([n for v, (_, k) in rows.items() if k == 0 for n in v.consumers], control=False)
    inside |= {node for node in needed if is_constant(node) and inside.issuperset(v for o in node.outputs for v in o.consumers)}
    members = order_of(node for node in graph.nodes if node in inside)
    read = sorted(boundary(members).inputs, key=lambda value: value not in rows)
    body = Graph(unique_function_name(graph, f"{name.replace('/', '_')}_of_one"), functions=graph.functions, versions=graph.versions)
    body.take_rules(graph)
    body.inputs = [add_op(body, "_Arg", f"argument_{k}", [], v.dtype, v.last_shape, T=v.dtype, index=k) for k, v in enumerate(read)]
    arguments = dict(zip(read, body.inputs, strict=True))
    body.variables.update((arguments[value], graph.variables[value]) for value in read if value in graph.variables)
    copies = clone(members, into=body, input_map=arguments)
    body.outputs = [copies.value_of[join.inputs[0]] for join in joins]
    body.control_outputs = [copy for node, copy in copies.node_of.items() if has_known_effects(node)]
    graph.functions[body.name] = Function(body.name, body)
    operands, own = list[Value](), sum(value in rows for value in read)
    for value in read:
        batch, one = rows.get(value, (value, 0))[0], len(shapes[value] or ())
        if value in rows and one == len(shapes[batch] or ()):  # a piece of one example keeps the dimension
            axis = add_constant(graph, f"{name}/axis", np.array(1, np.int32))
            shape = (count, *(shapes[value] or ()))
            batch = add_op(graph, "ExpandDims", f"{name}/pieces", [batch, axis], batch.dtype, shape, T=batch.dtype, Tdim=int32)
        operands.append(batch)
    attrs = {
        "Targuments": types_attribute(operands[:own]),
        "Tcaptured": types_attribute(operands[own:]),
        "output_types": tuple(dtype for dtype, _ in types),
        "output_shapes": tuple(ShapeAttribute(shape[1:]) for _, shape in types),
        "f": FunctionReference(body.name),
        "max_intra_op_parallelism": 1,
    }
    mapped = graph.add_node("MapDefun", graph.unique_name(f"{name}/mapped"), inputs=operands, attrs=attrs, output_types=types)
    for join, result in zip(joins, mapped.outputs, strict=True):
        if join.op_type != "Pack":  # concatenate the pieces of all examples
            of_all = shapes[join.outputs[0]] or ()
            dims = add_constant(graph, f"{join.name}/dims", np.array([d if k else -1 for k, d in enumerate(of_all)], np.int32))
            result = add_op(graph, "Reshape", join.name, [result, dims], result.dtype, of_all, T=result.dtype, Tshape=int32)
        graph.replace_uses(join.outputs[0], result)
        remove_unread(graph, [join], lambda _: True)
    return mapped, own
