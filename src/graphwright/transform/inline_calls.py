"""Replace calls of functions by the functions' bodies, in the graph itself."""

from __future__ import annotations

from graphwright.errors import GraphError, UnsupportedError
from graphwright.ir.edit.clone import clone
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.traits import Purity, called_functions, callee, is_call, reads_resource
from graphwright.transform.interface import hand_on_control, put_in_order


def inline_calls(graph: Graph, purity: Purity | None = None) -> int:
    """Inline every call, nested ones too, and keep signatures, collections and names around it; returns how many.

    What TF2 exports is a signature that calls a function that calls the model; a job that looks at
    the model's nodes runs on the inlined graph. Unlike `inline_functions` it changes the graph in
    place. A call that a collection names stays, such as the one that restores variables. While, If
    and Case stay nodes with their functions. Nodes of a body are called `<call>/<node>`. Results
    wait for the effects of the body, as those of a call do.

    Args:
        purity: tells which nodes have no effects; without it, every node of a body counts as having some.

    Raises:
        GraphError: a called function is not in the library.
        UnsupportedError: a function calls itself.

    >>> from graphwright.ir.graph import DTYPES, Function
    >>> f32 = (DTYPES["float32"], (2,))
    >>> body = Graph("f")
    >>> arg = body.add_node("_Arg", "a", output_types=[f32]).outputs[0]
    >>> body.inputs, body.outputs = [arg], [body.add_node("Relu", "r", inputs=[arg], output_types=[f32]).outputs[0]]
    >>> g = Graph("main", functions={"f": Function("f", body)})
    >>> body.functions = g.functions
    >>> x = g.add_node("Placeholder", "x", output_types=[f32]).outputs[0]
    >>> call = g.add_node("PartitionedCall", "call", inputs=[x], attrs={"f": FunctionReference("f")}, output_types=[f32])
    >>> g.inputs, g.outputs = [x], [call.outputs[0]]
    >>> inline_calls(g), [node.name for node in g]
    (1, ['x', 'call/r'])
    """
    _check(graph)
    purity = purity or Purity(graph, {})
    held = {item if isinstance(item, Node) else item.producer for c in graph.collections.values() for item in c.references()}
    waiting = [node for node in graph.nodes if is_call(node, graph) and node not in held]
    count = 0
    while waiting:
        node = waiting.pop()
        waiting += [inner for inner in _inline(graph, node, purity) if is_call(inner, graph)]
        count += 1
    if count:
        put_in_order(graph)
    return count


def _check(graph: Graph) -> None:
    """Refuse a missing function and recursion, before anything changes."""
    state: dict[str, bool] = {}  # False while the function is being looked at
    stack: list[tuple[str, list[str]]] = [("", _callees(graph, graph))]
    while stack:
        name, callees = stack[-1]
        if not callees:
            state[name] = True
            stack.pop()
            continue
        called = callees.pop()
        if called not in graph.functions:
            raise GraphError(f"function {called!r} is not in the library", where=f"graph {graph.name!r}")
        if state.get(called) is False:
            raise UnsupportedError(f"function {called!r} calls itself", where=f"graph {graph.name!r}", remedy="use tf.while_loop")
        if called not in state:
            state[called] = False
            stack.append((called, _callees(graph.functions[called].body, graph)))


def _callees(body: Graph, graph: Graph) -> list[str]:
    return [callee(node) for node in body.nodes if is_call(node, graph)]


def _inline(graph: Graph, call: Node, purity: Purity) -> list[Node]:
    body = graph.functions[callee(call)].body
    arguments = {v.producer for v in body.inputs}
    replaced = dict(zip(body.inputs, call.inputs, strict=True))
    inner = [node for node in body.nodes if node not in arguments]
    copied = clone(inner, into=graph, input_map=replaced, scope=call.name)

    # TensorFlow lists what has effects as control outputs; old functions list nothing, then each node may have some.
    trusted = body.control_outputs or call.op_type == "PartitionedCall"
    stateful = set(body.control_outputs) if trusted else {n for n in inner if not purity.is_pure(n)}
    waits = _joined(graph, list(call.control_inputs), f"{call.name}/start")
    for node, copy in copied.node_of.items():
        for control in node.control_inputs:
            if control in arguments:  # the argument is there when what stands for it is
                source = replaced[control.outputs[0]].producer
                if source is not copy:
                    graph.add_control_input(copy, source)
        if waits and (node in stateful or reads_resource(node)):
            for control in waits:
                graph.add_control_input(copy, control)
    effects = [copied.node_of[node] for node in body.control_outputs if node in copied.node_of]
    done = _joined(graph, effects or waits, f"{call.name}/done") if call.control_consumers or call in graph.control_outputs else []
    new_of: dict[Value, Value] = {}
    must_run = [copied.node_of[n] for n in body.control_outputs if n in copied.node_of and _has_effects(n, graph, purity)]
    held = done if done and effects else _joined(graph, must_run, f"{call.name}/effects") if must_run else []
    for output, result in zip(call.outputs, body.outputs, strict=True):
        value = copied.value_of[result]
        new_of[output] = _after(graph, value, held, f"{call.name}/result") if must_run else value
    graph.replace_many_uses(new_of)
    hand_on_control(graph, call, done)
    graph.remove_node(call)
    return list(copied.nodes)


def _has_effects(node: Node, graph: Graph, purity: Purity) -> bool:
    """Whether a control output changes something: a read or a call that only reads does not."""
    if node.op_type == "NoOp" or purity.is_pure(node):
        return False
    bodies = [graph.functions[name].body for name in called_functions(node) if name in graph.functions]
    if not bodies:
        return True
    return any(_has_effects(inner, graph, purity) for body in bodies for inner in body.control_outputs)


def _after(graph: Graph, value: Value, controls: list[Node], name: str) -> Value:
    """The value, there only when these nodes have run: fetching the result of a call runs all its effects."""
    node = graph.add_node(
        "Identity",
        graph.unique_name(name),
        inputs=[value],
        control_inputs=controls,
        attrs={"T": value.dtype},
        output_types=[(value.dtype, value.shape)],
    )
    return node.outputs[0]


def _joined(graph: Graph, nodes: list[Node], name: str) -> list[Node]:
    """At most one node that runs after all of these."""
    if len(nodes) < 2:
        return nodes
    return [graph.add_node("NoOp", graph.unique_name(name), control_inputs=nodes)]
