"""Makes copies of nodes without any checks, for verbs that have checked."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from graphwright.ir.function_names import attributes_with_functions
from graphwright.ir.garbage_collection import garbage_collection_paused
from graphwright.ir.graph import Function, Graph, Node, Value


@dataclass(frozen=True)
class CloneResult:
    """Maps originals to copies."""

    graph: Graph
    """The graph that holds them."""
    node_of: dict[Node, Node] = field(default_factory=dict[Node, Node])
    """Original -> copy."""
    value_of: dict[Value, Value] = field(default_factory=dict[Value, Value])
    """Value of an original -> value of its copy; and the entries of the input map."""
    functions: dict[str, str] = field(default_factory=dict[str, str])
    """Function that was copied along under another name -> its name in the other library."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The copies, in order."""
        return tuple(self.node_of.values())


def copy_nodes(nodes: Iterable[Node], result: CloneResult, controls: Mapping[Node, Node], name_of: Callable[[Node], str]) -> None:
    """Append copies to the graph of the result, and note them in the result. Inputs follow `result.value_of`, which may map further
    values; control inputs follow the copies and `controls`, and are kept where the graph of the result owns them.

    Args:
        name_of: returns a free name for a copy.
    """
    target, node_of, value_of, functions = result.graph, result.node_of, result.value_of, result.functions
    chosen = dict.fromkeys(nodes)
    late: list[Node] = []
    with garbage_collection_paused():
        for node in chosen:
            inputs: list[Value] = []
            waits = False
            for value in node.inputs:
                new = value_of.get(value)
                if new is None:
                    new = value
                    waits = waits or value.producer in chosen
                inputs.append(new)
            befores: list[Node] = []
            for control in node.control_inputs:
                after = node_of.get(control)
                if after is not None:
                    befores.append(after)
                else:
                    waits = waits or control in chosen
            if waits:
                late.append(node)
            elif len(befores) != len(node.control_inputs):
                befores = _controls(node, result, controls)
            outputs = node.outputs
            copy = target.append_node(
                functions.get(node.op_type, node.op_type),
                name_of(node),
                inputs=() if waits else inputs,
                control_inputs=() if waits else befores,
                attrs=attributes_with_functions(node.attrs, functions),
                output_types=[(v.dtype, v.last_shape) for v in outputs],
                device=node.device,
                extra=node.extra,
            )
            node_of[node] = copy
            for value, new in zip(outputs, copy.outputs, strict=True):
                value_of.setdefault(value, new)
                if value in node.graph.at_most:
                    target.at_most[new] = node.graph.at_most[value]
        for node in late:  # back edges of loops, and orders that are not the one in which nodes run
            copy = node_of[node]
            target.set_inputs(copy, [value_of.get(v, v) for v in node.inputs])
            for control in _controls(node, result, controls):
                target.add_control_input(copy, control)


def _controls(node: Node, result: CloneResult, controls: Mapping[Node, Node]) -> list[Node]:
    copies: list[Node] = []
    for control in node.control_inputs:
        after = result.node_of.get(control) or controls.get(control)
        if after is None and result.graph.owns(control):
            after = control
        if after is not None:
            copies.append(after)
    return copies


def copy_whole(source: Graph, target: Graph, new_of: Mapping[str, str]) -> CloneResult:
    """Fill an empty graph with the contents and rules of another one; `new_of` maps functions to their names in its library."""
    result = CloneResult(target, {}, {}, dict(new_of))
    copy_nodes(source, result, {}, lambda node: node.name)
    node_of, value_of = result.node_of, result.value_of
    target.inputs = [value_of[v] for v in source.inputs]
    target.outputs = [value_of[v] for v in source.outputs]
    target.control_outputs = [node_of[n] for n in source.control_outputs]
    target.variables.update((value_of[v], variable) for v, variable in source.variables.items())
    target.op_rule = source.op_rule
    if source.shapes is not None:
        target.shapes = source.shapes.copied(target, node_of)
    return result


def copy_body(function: Function, name: str, functions: dict[str, Function], new_of: Mapping[str, str]) -> CloneResult:
    return copy_whole(function.body, Graph(name, functions=functions, versions=function.body.versions), new_of)
