"""Control flow: calls, branches and loops of TF2, which name functions, and those of TF1, made of single nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphwright.ir.attributes import FunctionReference
from graphwright.ir.traits.functional import BRANCHES as BRANCHES
from graphwright.ir.traits.functional import CALL_TYPES as CALL_TYPES
from graphwright.ir.traits.functional import CALLS_LIKE as CALLS_LIKE
from graphwright.ir.traits.functional import FUNCTION_ATTRIBUTES as FUNCTION_ATTRIBUTES
from graphwright.ir.traits.functional import LOOPS as LOOPS
from graphwright.ir.traits.of_type import of_type

if TYPE_CHECKING:  # a trait is of a node: nodes and graphs ask for traits, so these are types only
    from graphwright.ir.graph import Graph
    from graphwright.ir.node import Function, Node, Value

COMPILED = "_XlaMustCompile"
"""The attribute of calls that XLA compiles."""
ENTERS, EXITS = frozenset({"Enter", "RefEnter"}), frozenset({"Exit", "RefExit"})
"""How a value enters and leaves the frame of a TF1 loop."""
NEXT_ITERATIONS = frozenset({"NextIteration", "RefNextIteration"})
"""How a value gets into the next round of a TF1 loop."""
MERGES = frozenset({"Merge", "RefMerge"})
"""Forwards the input that is not dead."""
SWITCHES = frozenset({"Switch", "RefSwitch", "_SwitchN"})
"""Forwards its input to one output, and leaves the others dead; the executor makes `_SwitchN` from a `Case`."""
IDENTITY_OF_TF1 = {"Switch": "Identity", "_SwitchN": "Identity", "Merge": "Identity", "RefSwitch": "RefIdentity", "RefMerge": "RefIdentity"}
"""Switches and merges -> the op that forwards the same value."""
RUNS_WHEN_DEAD = MERGES | {"ControlTrigger"}
"""Runs although an input is dead."""
LOOP_CONDITIONS = frozenset({"LoopCond"})
FORWARDS_IN_TF1 = ENTERS | EXITS | NEXT_ITERATIONS | MERGES | SWITCHES | LOOP_CONDITIONS
"""Forwards a value in loops and branches of TF1."""
CONTROL_FLOW_OF_TF1 = FORWARDS_IN_TF1 | {"ControlTrigger"}
"""Loops and branches made of single nodes, with dead tensors and frames, as the executor runs them."""
is_loop_condition = of_type(LOOP_CONDITIONS)
is_control_flow_of_tf1 = of_type(CONTROL_FLOW_OF_TF1)


def is_compiled_call(node: Node) -> bool:
    return node.op_type in CALL_TYPES and node.attrs.get(COMPILED) is True


def is_control_flow(node: Node) -> bool:
    """Return whether it is a While, If or Case node, or a call that XLA compiles: one operation that runs functions."""
    return node.op_type in LOOPS or node.op_type in BRANCHES or is_compiled_call(node)


def is_call(node: Node, graph: Graph) -> bool:
    return node.op_type in CALL_TYPES or node.op_type in graph.functions


def callee(node: Node) -> str:
    """Return the name of the called function: the attribute `f` of a call, or the op type itself."""
    return next(iter(called_functions(node, "f")), node.op_type) if node.op_type in CALL_TYPES else node.op_type


def result_functions(node: Node) -> tuple[str, ...]:
    """Return the names of the functions that compute the outputs: the called function, the branches, or the body of a loop."""
    if not is_control_flow(node):
        return (callee(node),)
    return called_functions(node, "body") or called_functions(node)


def is_back_edge(value: Value, reader: Node) -> bool:
    """Return whether the edge closes a loop of TF1: from `NextIteration` to the `Merge` of the next round."""
    return value.producer.op_type in NEXT_ITERATIONS and reader.op_type in MERGES


def runs_over_data(node: Node) -> bool:
    return "Dataset" in node.op_type and bool(called_functions(node))


def called_functions(node: Node, *attributes: str) -> tuple[str, ...]:
    """Return the names of the functions in these attributes of the node, by default in all."""
    names: tuple[str, ...] = ()
    for attribute in map(node.attrs.get, attributes) if attributes else node.attrs.values():
        kind = type(attribute)  # of all nodes it is asked many times, and most have no functions
        if kind is FunctionReference or kind is tuple:
            named = attribute if isinstance(attribute, tuple) else (attribute,)
            names += tuple(item.name for item in named if isinstance(item, FunctionReference))
    return names


def function_at(node: Node, attribute: str, graph: Graph) -> Function | None:
    return next((graph.functions[name] for name in called_functions(node, attribute) if name in graph.functions), None)
