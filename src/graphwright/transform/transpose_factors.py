"""Transpose before a loop what its products take transposed in every round.

The gradient of a recurrent layer multiplies by its weights transposed, once per round. With few rows on the other side a kernel spends
most of its time on packing the transposed matrix anew: 64 rows by 2048 x 512 take three times as long as by a matrix that is
transposed already. The matrix is a value that the loop hands on, or a variable that the forward loop reads and pushes in each round.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from graphwright.analyze.loop_pairs import is_first_value, loop_functions, popped_lists, pushed_value, readers_of, same_in_each_round
from graphwright.ir.call_types import types_attribute
from graphwright.ir.constants import add_constant
from graphwright.ir.dtypes import element_count
from graphwright.ir.edit.insert import add_op, replace_argument
from graphwright.ir.edit.prune import remove_unread
from graphwright.ir.graph import Graph, Node, Use, Value
from graphwright.ir.traits.arithmetic import TRANSPOSES, takes_transposed
from graphwright.ir.traits.control_flow import LOOPS, called_functions, function_at
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.rounds import pops
from graphwright.ir.traits.values import is_identity, origin, returned_arguments
from graphwright.ir.traits.variables import is_read, resource_of
from graphwright.ir.walk import topological_order
from graphwright.transform.loop_shapes import calls


def transpose_factors(graph: Graph, purity: Purity, *, least_elements: int = 2**16) -> tuple[str, ...]:
    """Rewrite, in place, the loops whose products take the same matrix transposed in every round; returns their names.

    In exact arithmetic nothing changes; a kernel for few rows may add in another order. Only loops without effects, whose functions
    nothing else calls, and matrices that nothing else in a round reads.

    Args:
        least_elements: of a matrix; a smaller one stays in the processor's cache, and packing it costs little.

    >>> transpose_factors(Graph(), Purity(Graph(), {}))
    ()
    """
    called = calls(graph)
    changed: dict[str, None] = {}
    for loop in [node for node in graph.nodes if node.op_type in LOOPS and purity.is_pure(node)]:
        if any(called[name] > 1 or name not in graph.functions for name in called_functions(loop)):
            continue
        condition, body = loop_functions(graph, loop)
        lists = popped_lists(graph, loop)
        unchanged = [p for p, argument in enumerate(returned_arguments(body)) if p == argument]
        for p in (*unchanged, *lists):
            inside = origin(body.outputs[p]).producer.outputs[1] if p in lists else body.inputs[p]
            products = _products(body, inside, p)
            is_large = (element_count(inside.shape) or 0) >= least_elements
            others = any(readers_of(loop.outputs[p])) or loop.outputs[p] in graph.outputs or condition.inputs[p].uses
            if not products or not is_large or others:
                continue
            matrix = _pushed_always(graph, lists[p], loop, purity, called) if p in lists else loop.inputs[p]
            if matrix is None or len(matrix.shape or ()) != 2:
                continue
            _hand_on_transposed(graph, loop, p, matrix, products)
            if p in lists:
                _push_nothing(lists[p], purity)
            changed[loop.name] = None
    if changed:
        graph.sort_nodes(topological_order(graph))
    return tuple(changed)


def _products(body: Graph, matrix: Value, p: int) -> list[Use]:
    """Where products read a matrix, if nothing else does and all of them take it transposed; else nothing."""
    uses = [use for use in matrix.uses if use.node is not body.outputs[p].producer]
    returned = any(origin(value) is matrix for k, value in enumerate(body.outputs) if k != p)
    return uses if not returned and all(takes_transposed(use.node, use.index) for use in uses) else []


def _pushed_always(graph: Graph, source: Value, loop: Node, purity: Purity, called: Mapping[str, int]) -> Value | None:
    """What a loop pushes in each round, the same each time: a value that it hands on, or that of a variable, read before it."""
    pushed = pushed_value(source)
    function = function_at(source.producer, "body", graph)
    if pushed is None or function is None or called[function.name] > 1 or list(readers_of(source)) != [loop] or source in graph.outputs:
        return None
    if any(readers_of(origin(function.body.outputs[source.index]).producer.outputs[0])):
        return None
    matrix = origin(pushed)
    place = same_in_each_round(function.body, matrix.producer.inputs[0] if is_read(matrix.producer) else matrix)
    if place is None:
        return None
    before = source.producer.inputs[place]
    if not is_read(matrix.producer):
        return before
    if not is_first_value(before, loop, purity):
        return None
    name = f"{loop.name}/{matrix.producer.name.rsplit('/', 1)[-1]}"
    return add_op(graph, matrix.producer.op_type, name, [resource_of(before)], matrix.dtype, matrix.shape, dtype=matrix.dtype)


def _hand_on_transposed(graph: Graph, loop: Node, p: int, matrix: Value, products: Sequence[Use]) -> None:
    """Let a loop take a matrix transposed, and its products as it comes."""
    rows, columns = matrix.shape or (None, None)
    order = add_constant(graph, f"{loop.name}/other_way", np.asarray([1, 0], np.int32))
    transposed = add_op(
        graph, "Transpose", f"{loop.name}/transposed", [matrix, order], matrix.dtype, (columns, rows), T=matrix.dtype, Tperm=order.dtype
    )
    condition, body = loop_functions(graph, loop)
    result, old, unread = body.outputs[p].producer, body.inputs[p].producer, condition.inputs[p].producer
    argument, _ = (replace_argument(function, p, matrix.dtype, (columns, rows)) for function in (body, condition))
    body.outputs = [*body.outputs[:p], argument, *body.outputs[p + 1 :]]
    for use in products:
        body.replace_input(use.node, use.index, argument)
        body.set_attr(use.node, TRANSPOSES[use.index], False)
    remove_unread(body, [result], lambda node: node is old or pops(node) or is_identity(node))
    condition.remove_node(unread)
    for function in (body, condition):
        function.sort_nodes(topological_order(function))
    graph.set_inputs(loop, [transposed if k == p else v for k, v in enumerate(loop.inputs)])
    graph.set_output_type(loop.outputs[p], matrix.dtype, (columns, rows))
    graph.set_attr(loop, "T", types_attribute(loop.inputs))


def _push_nothing(source: Value, purity: Purity) -> None:
    """Hand on an empty list."""
    function = function_at(source.producer, "body", source.producer.graph)
    assert function is not None
    body, k = function.body, source.index
    push = origin(body.outputs[k]).producer
    body.outputs = [*body.outputs[:k], body.inputs[k], *body.outputs[k + 1 :]]
    remove_unread(body, [push], purity.is_pure)
