"""Remove pushes to lists that no gradient pops, and results of branches that nothing reads.

TensorFlow makes the gradient of an operation before it knows which inputs need one: of a quotient it pushes the dividend in each iteration,
for the unread gradient of a constant divisor; and of a branch it makes the gradients of all arguments.
"""

from itertools import compress

from graphwright.analyze.loop_pairs import popped_lists, pushed_value, readers_of
from graphwright.ir.edit.library import bodies
from graphwright.ir.edit.prune import remove_unread
from graphwright.ir.graph import Graph
from graphwright.ir.traits.control_flow import BRANCHES, LOOPS, called_functions, function_at
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import origin
from graphwright.ir.walk import backward_reachable
from graphwright.transform.loop_shapes import calls


def drop_unread_lists(graph: Graph, purity: Purity) -> int:
    """Pass empty lists instead of unread ones; return how many. Results stay bit for bit the same.

    Only lists that one loop fills and one loop pops, once per iteration, and whose functions nothing else calls.
    """
    dropped = 0
    called = calls(graph)
    for loop in [node for node in graph.nodes if node.op_type in LOOPS]:
        function = function_at(loop, "body", graph)
        if function is None or called[function.name] > 1:
            continue
        back = function.body
        live = backward_reachable([*(value.producer for value in back.outputs), *back.control_outputs])
        live |= backward_reachable(node for node in back.nodes if not purity.is_pure(node))
        for p, source in popped_lists(graph, loop).items():
            pop = origin(back.outputs[p]).producer
            filled = function_at(source.producer, "body", graph) if source.producer.op_type in LOOPS else None
            if filled is None or called[filled.name] > 1 or any(use.node in live for use in pop.outputs[1].uses):
                continue
            body, k = filled.body, source.index
            push = origin(body.outputs[k]).producer
            alone = list(readers_of(source)) == [loop] and source not in graph.outputs
            if pushed_value(source) is None or not alone or any(any(readers_of(v)) for v in (push.outputs[0], loop.outputs[p])):
                continue
            for inside, place, unread in ((body, k, [push]), (back, p, [node for node in back.nodes if node not in live or node is pop])):
                inside.outputs = [*inside.outputs[:place], inside.inputs[place], *inside.outputs[place + 1 :]]
                remove_unread(inside, unread, purity.is_pure)
            dropped += 1
    return dropped


def drop_unread_results(graph: Graph, purity: Purity) -> int:
    """Remove results of branches that nothing reads, with the nodes that compute them; return how many.

    Only of branches whose functions nothing else calls.
    """
    dropped = 0
    called = calls(graph)
    for body in bodies(graph):
        for branch in [node for node in body.nodes if node.op_type in BRANCHES]:
            read = [bool(value.uses) or value in body.outputs for value in branch.outputs]
            names = called_functions(branch)
            if all(read) or any(called[name] > 1 or name not in graph.functions for name in names):
                continue
            dropped += read.count(False)
            for value in [value for value, is_read in zip(branch.outputs, read, strict=True) if not is_read]:
                body.remove_output(value)
            for name in ("Tout", "output_shapes"):
                listed = branch.attrs.get(name)
                if isinstance(listed, tuple) and listed:
                    body.set_attr(branch, name, tuple(compress(listed, read)))
            for inside in (graph.functions[name].body for name in names):
                inside.outputs = list(compress(inside.outputs, read))
                remove_unread(inside, inside.nodes, purity.of(inside).is_pure)
    return dropped
