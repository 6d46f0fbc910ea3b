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
"""The attribute that has XLA compile what a node calls."""
ENTERS, EXITS = frozenset({"Enter", "RefEnter"}), frozenset({"Exit", "RefExit"})
"""How a value gets into the frame of a loop of TF1, and out of it."""
NEXT_ITERATIONS = frozenset({"NextIteration", "RefNextIteration"})
"""How a value gets from one round of a loop of TF1 into the next."""
MERGES = frozenset({"Merge", "RefMerge"})
"""What hands on the one of its inputs that is not dead."""
SWITCHES = frozenset({"Switch", "RefSwitch", "_SwitchN"})
"""What hands its input on at one output, and leaves the others dead; `_SwitchN` is of the executor, for a `Case`."""
IDENTITY_OF_TF1 = {"Switch": "Identity", "_SwitchN": "Identity", "Merge": "Identity", "RefSwitch": "RefIdentity", "RefMerge": "RefIdentity"}
"""Switches and merges -> what hands on the same value."""
RUNS_WHEN_DEAD = MERGES | {"ControlTrigger"}
"""What runs when something that it waits for is dead."""
LOOP_CONDITIONS = frozenset({"LoopCond"})
"""What tells the switches of a loop of TF1 whether it goes on."""
HANDS_ON_IN_TF1 = ENTERS | EXITS | NEXT_ITERATIONS | MERGES | SWITCHES | LOOP_CONDITIONS
"""What hands on a value in loops and branches of TF1."""
CONTROL_FLOW_OF_TF1 = HANDS_ON_IN_TF1 | {"ControlTrigger"}
"""Loops and branches made of single nodes, with dead tensors and frames; the executor knows no other ones."""
is_loop_condition = of_type(LOOP_CONDITIONS)
"""Whether it says if a loop of TF1 goes on."""
is_control_flow_of_tf1 = of_type(CONTROL_FLOW_OF_TF1)
"""Whether the node belongs to the control flow of TF1, with dead tensors and frames."""


def is_compiled_call(node: Node) -> bool:
    return node.op_type in CALL_TYPES and node.attrs.get(COMPILED) is True


def is_control_flow(node: Node) -> bool:
    """Return whether it is a While, If or Case node, or a call that XLA compiles: one operation that runs functions."""
    return node.op_type in LOOPS or node.op_type in BRANCHES or is_compiled_call(node)


def is_call(node: Node, graph: Graph) -> bool:
    """Return whether the node calls a function of the library and can be inlined."""
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
    """Return whether it maps, filters or reduces a data set with functions."""
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
    """Return the function of the library that an attribute names, or None."""
    return next((graph.functions[name] for name in called_functions(node, attribute) if name in graph.functions), None)
