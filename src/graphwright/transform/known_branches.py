"""Take the branch that is sure to be taken.

An If or Case with a constant predicate is a call of one function, and a loop whose condition is a constant `false` hands on what it
starts with.
"""

from __future__ import annotations

from collections.abc import Container

from graphwright.ir.attributes import FunctionReference
from graphwright.ir.constants import constant_array
from graphwright.ir.edit.inline import inline
from graphwright.ir.edit.reroute import replace_node, reroute_control
from graphwright.ir.graph import Graph, Node
from graphwright.ir.traits.control_flow import BRANCHES, CALLS_LIKE_BRANCHES, LOOPS, called_functions, function_at
from graphwright.ir.traits.effects import Purity
from graphwright.ir.traits.values import origin


def take_known_branches(graph: Graph, purity: Purity, *, kept: Container[Node] = ()) -> int:
    """Replace branches and loops of TF2 whose way is a constant; returns how many. What is called is inlined.

    Args:
        purity: tells which nodes have no effects, for `ir.edit.inline`.
        kept: nodes that stay, such as those that are fetched by name.

    >>> from graphwright.ir.text import from_text
    >>> g = from_text('''graph "g"
    ... inputs %x:0
    ... outputs %y:0
    ... %x = Placeholder() : float32[2]
    ... %p = Const() {dtype = bool, value = tensor bool[] [true]} : bool[]
    ... %if = StatelessIf(%p:0, %x:0) {then_branch = @relu, else_branch = @relu, Tin = [float32], Tout = [float32]} : float32[2]
    ... %y = Neg(%if:0) {T = float32} : float32[2]
    ... function "relu"
    ... inputs %a:0
    ... outputs %r:0
    ... %a = _Arg() : float32[2]
    ... %r = Relu(%a:0) {T = float32} : float32[2]
    ... ''')
    >>> take_known_branches(g, Purity(g, {})), g["y"]
    (1, <Node y = Neg(if/r:0)>)
    """
    taken = 0
    for node in graph.nodes:
        if not graph.owns(node) or node in kept or graph.collections_of(node):
            continue
        if node.op_type in BRANCHES:
            name = _branch(node)
            if name is not None and name in graph.functions:
                _call(graph, node, name, purity)
                taken += 1
        elif node.op_type in LOOPS and _never_runs(graph, node):
            graph.replace_many_uses(dict(zip(node.outputs, node.inputs, strict=True)))
            reroute_control([*node.control_inputs, *(v.producer for v in node.inputs)], node)
            graph.remove_node(node)
            taken += 1
    return taken


def _branch(node: Node) -> str | None:
    """The function that a branch is sure to call."""
    chosen = constant_array(origin(node.inputs[0]).producer)
    if chosen is None or chosen.size != 1:
        return None
    names = called_functions(node, "branches")
    if names:
        index = int(chosen.item())
        return names[index if 0 <= index < len(names) else -1]
    return next(iter(called_functions(node, "then_branch" if bool(chosen.item()) else "else_branch")), None)


def _call(graph: Graph, node: Node, name: str, purity: Purity) -> None:
    call = graph.add_node(
        CALLS_LIKE_BRANCHES[node.op_type],
        graph.unique_name(f"{node.name}/taken"),
        inputs=node.inputs[1:],
        attrs={
            "f": FunctionReference(name),
            "Tin": tuple(value.dtype for value in node.inputs[1:]),
            "Tout": tuple(value.dtype for value in node.outputs),
        },
        output_types=[(value.dtype, value.last_shape) for value in node.outputs],
        device=node.device,
    )
    replace_node(node, call)
    inline(call, purity=purity)


def _never_runs(graph: Graph, node: Node) -> bool:
    condition = function_at(node, "cond", graph)
    value = constant_array(origin(condition.body.outputs[0]).producer) if condition is not None else None
    return value is not None and value.size == 1 and not bool(value.item())
