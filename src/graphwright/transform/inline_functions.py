"""Inline nested function calls, so that forward and backward pass lie in one joint graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphwright.errors import GraphError
from graphwright.ir.edit.inline import joined
from graphwright.ir.graph import Graph, Node, Value
from graphwright.ir.nesting import check_nesting
from graphwright.ir.traits.control_flow import callee, is_back_edge, is_call
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.variables import reads_resource
from graphwright.ir.walk import topological_order


def inline_functions(graph: Graph, purity: Purity | None = None) -> Graph:
    """A new graph in which every function call is replaced by the function's body, nested calls included.

    While, If and Case stay nodes with their functions. Nodes of a body are named
    `<call>/<node>`. What ran after a call runs after all effects of its body; what a call
    waited for, the nodes of the body wait for that have effects or read a resource.

    Args:
        purity: tells which nodes have no effects; without it, every node of a body counts as having some.

    Raises:
        GraphError: a called function is not in the library.
        UnsupportedError: a function calls itself, or the functions nest too deep (`graphwright.ir.nesting`).

    >>> from graphwright.ir.attributes import FunctionReference
    >>> from graphwright.ir.graph import DTYPES, Function
    >>> f32 = (DTYPES["float32"], (2,))
    >>> body = Graph("f")
    >>> arg = body.add_node("_Arg", "a", output_types=[f32]).outputs[0]
    >>> body.inputs, body.outputs = [arg], [body.add_node("Relu", "r", inputs=[arg], output_types=[f32]).outputs[0]]
    >>> g = Graph("main", functions={"f": Function("f", body)})
    >>> x = g.add_node("Placeholder", "x", output_types=[f32]).outputs[0]
    >>> call = g.add_node("PartitionedCall", "call", inputs=[x], attrs={"f": FunctionReference("f")}, output_types=[f32])
    >>> g.inputs, g.outputs = [x], [call.outputs[0]]
    >>> [n.name for n in inline_functions(g)]
    ['x', 'call/r']
    """
    check_nesting(graph)
    result = Graph(name=graph.name, functions=graph.functions, versions=graph.versions)
    purity = purity or Purity(graph, {})
    values, controls = _emit(graph, result, purity, prefix="", arguments=None, waits=())
    result.inputs = [values[v] for v in graph.inputs]
    result.outputs = [values[v] for v in graph.outputs]
    result.control_outputs = list(dict.fromkeys(c for n in graph.control_outputs for c in controls[n]))
    result.variables = {values[v]: variable for v, variable in graph.variables.items()}
    return result


def _emit(
    source: Graph,
    result: Graph,
    purity: Purity,
    *,
    prefix: str,
    arguments: Sequence[Value] | None,
    waits: tuple[Node, ...],
) -> tuple[dict[Value, Value], dict[Node, tuple[Node, ...]]]:
    """Copy the nodes of `source` into `result`; returns where its values and its effects went."""
    values: dict[Value, Value] = {}
    controls: dict[Node, tuple[Node, ...]] = {}
    if arguments is not None:
        for argument, value in zip(source.inputs, arguments, strict=True):
            values[argument] = value
            controls[argument.producer] = (*waits, value.producer)
    rounds: list[tuple[Node, int, Value]] = []  # back edges of loops of TF1, which are set when both ends are there
    for node in topological_order(source):
        if arguments is not None and node in controls:
            continue
        late = {k: v for k, v in enumerate(node.inputs) if v not in values and is_back_edge(v, node)}
        first = next((values[v] for k, v in enumerate(node.inputs) if k not in late), None)
        inputs = [first if k in late and first is not None else values[v] for k, v in enumerate(node.inputs)]
        before = _unique(c for n in node.control_inputs for c in controls[n])
        if not is_call(node, result):
            if waits and (reads_resource(node) or not purity.is_pure(node)):
                before = _unique([*before, *waits])
            copy = _copy(node, result, result.unique_name(prefix + node.name), inputs, before)
            values.update(zip(node.outputs, copy.outputs, strict=True))
            controls[node] = (copy,)
            rounds += [(copy, k, v) for k, v in late.items()]
            if prefix and isinstance(frame := copy.attrs.get("frame_name"), bytes):
                result.set_attr(copy, "frame_name", prefix.encode() + frame)  # a function that is called twice makes two loops
            continue
        name = callee(node)
        function = result.functions.get(name)
        if function is None:
            raise GraphError(f"function {name!r} is not in the library", where=f"node {node.name!r}")
        inside = f"{prefix}{node.name}/"
        inner_waits = tuple(joined(result, [*before, *waits], f"{inside}start"))
        inner_values, inner_controls = _emit(function.body, result, purity, prefix=inside, arguments=inputs, waits=inner_waits)
        for output, body_output in zip(node.outputs, function.body.outputs, strict=True):
            values[output] = inner_values[body_output]
        done = _unique(c for n in function.body.control_outputs for c in inner_controls[n]) or inner_waits
        controls[node] = tuple(joined(result, done, f"{inside}done")) if node.control_consumers else done
    for copy, k, value in rounds:
        result.replace_input(copy, k, values[value])
    return values, controls


def _copy(node: Node, result: Graph, name: str, inputs: Sequence[Value], controls: Iterable[Node]) -> Node:
    attrs = {key: value for key, value in node.attrs.items() if key != "_class"}  # colocation names nodes that are renamed here
    return result.append_node(
        node.op_type,
        name,
        inputs=inputs,
        control_inputs=controls,
        attrs=attrs,
        output_types=[(v.dtype, v.shape) for v in node.outputs],
        device=node.device,
        extra=node.extra,
    )


def _unique(nodes: Iterable[Node]) -> tuple[Node, ...]:
    return tuple(dict.fromkeys(nodes))
