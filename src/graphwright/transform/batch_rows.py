"""Map operations on each example of an unstacked batch over the batch, by one function."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphwright.ir.attributes import FunctionReference, ShapeAttribute
from graphwright.ir.call_types import types_attribute
from graphwright.ir.constants import add_constant
from graphwright.ir.dtypes import DTYPES, Shape
from graphwright.ir.edit.insert import add_op
from graphwright.ir.edit.outline import outline
from graphwright.ir.edit.prune import remove_unread
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits.control_flow import called_functions
from graphwright.ir.traits.values import is_constant
from graphwright.ir.walk import backward_reachable, forward_reachable, order_of
from graphwright.transform.constant_values import Constants


def map_rows(graph: Graph, rows: Mapping[Value, tuple[Value, int]], count: int, shapes: Mapping[Value, Shape]) -> list[tuple[Node, int]]:
    """Replace equal operations on all examples, whose results are joined in order, by a function mapped over the batch.

    Args:
        rows: example -> its batch, and its number in the batch.
        count: the number of examples in a batch.
        shapes: the shapes of all values.

    Returns:
        The nodes that map functions, each with the number of batches that it reads.
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
    return [_mapped(graph, joins, rows, count, shapes)] if joins else []


def _mapped(
    graph: Graph, joins: list[Node], rows: Mapping[Value, tuple[Value, int]], count: int, shapes: Mapping[Value, Shape]
) -> tuple[Node, int]:
    int32, name = DTYPES["int32"], joins[0].name
    types = [(join.outputs[0].dtype, (count, *(shapes[join.inputs[0]] or ()))) for join in joins]
    needed = backward_reachable(join.inputs[0].producer for join in joins)
    inside = needed & forward_reachable([n for v, (_, k) in rows.items() if k == 0 for n in v.consumers], control=False)
    inside |= {node for node in needed if is_constant(node) and inside.issuperset(v for o in node.outputs for v in o.consumers)}
    call = outline(order_of(inside), f"{name.replace('/', '_')}_of_one", call_name=f"{name}/of_one")
    function = called_functions(call)[0]
    body = graph.functions[function].body
    body.outputs = [body.outputs[join.inputs[0].index] for join in joins]
    order = sorted(range(len(call.inputs)), key=lambda k: call.inputs[k] not in rows)
    body.inputs = [body.inputs[k] for k in order]
    operands = [call.inputs[k] for k in order]
    own = sum(value in rows for value in operands)
    for k, (value, argument) in enumerate(zip(operands, body.inputs, strict=True)):
        body.set_attr(argument.producer, "index", k)
        batch, one = rows.get(value, (value, 0))[0], len(shapes[value] or ())
        if k < own and one == len(shapes[batch] or ()):  # a piece of one example keeps the dimension
            axis = add_constant(graph, f"{name}/axis", np.array(1, np.int32))
            shape = (count, *(shapes[value] or ()))
            batch = add_op(graph, "ExpandDims", f"{name}/pieces", [batch, axis], batch.dtype, shape, T=batch.dtype, Tdim=int32)
        operands[k] = batch
    attrs = {
        "Targuments": types_attribute(operands[:own]),
        "Tcaptured": types_attribute(operands[own:]),
        "output_types": tuple(dtype for dtype, _ in types),
        "output_shapes": tuple(ShapeAttribute(shape[1:]) for _, shape in types),
        "f": FunctionReference(function),
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
